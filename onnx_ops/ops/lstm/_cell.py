"""Rows of an LSTM cell and its gradient; a row of gates has the four gates one after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.types import Shape
from onnx_ops.graph.builder import Value
from onnx_ops.loops.primitives import ONE, Number, choose, exp_excess_parts, exp_parts, helper, inlined, like
from onnx_ops.loops.records import MAX_OUTPUTS, Job
from onnx_ops.loops.shapes import give_shape, same_sizes, volume

GATES = 4
"""In the order of PyTorch and aclnn: input gate i, forget gate f, cell candidate g, output gate o."""
WORK = 4096
"""Approximate number of elements of the cell state per task."""
SATURATED = np.float32(40)
"""exp(SATURATED) + 1 is exp(SATURATED) in float32."""
TWO = np.float32(2)


@inlined
def sigmoid(x: Number) -> Any:
    """1 / (1 + exp(-x)) of a float32 or float64, accurate where it is subnormal."""
    value, first, second = exp_parts(-abs(x))
    power = (value * first) * second
    return choose(x < 0, power, like(1, power)) / (ONE + power)


@inlined
def tanh_of_float(x: Number) -> Any:
    """tanh of a float32, by expm1(2x), which is accurate for small x."""
    power = x + x
    power = choose(power > SATURATED, SATURATED, choose(power < -SATURATED, -SATURATED, power))
    excess, scale = exp_excess_parts(power)
    less_one = (scale - ONE) + scale * excess
    return less_one / (less_one + TWO)


@helper
def rows_per_task(width: int) -> int:
    return max(WORK // max(width, 1), 1)


@helper
def rows_of(job: Job, i: int) -> int:
    """Number of rows of a state: the product of all axes but the last."""
    return volume(job, i, 0, job.rank[i] - 1)


@helper
def tasks_of(job: Job, i: int) -> int:
    """One task per block of rows of a state."""
    width = job.dims[i, job.rank[i] - 1]
    step = rows_per_task(width)
    return (rows_of(job, i) + step - 1) // step if width > 0 else 0


@helper
def are_gates(job: Job, i: int, state: int) -> bool:
    """Whether an input has the shape of a state with the last axis times 4."""
    last = job.rank[state] - 1
    if job.rank[i] != job.rank[state] or not same_sizes(job, i, state, last):
        return False
    return bool(job.dims[i, last] == GATES * job.dims[state, last])


@helper
def set_shapes(job: Job, state: int, gates: int) -> None:
    """Set the shapes of all outputs to that of a state, except the output `gates`."""
    for k in range(MAX_OUTPUTS):
        give_shape(job, k, state)
    last = job.rank[state] - 1
    job.output_dims[gates, last] = GATES * job.dims[state, last]


def of_gates(state: Shape | None) -> Shape | None:
    """The shape (..., 4*H) of the gates of a state (..., H)."""
    return None if state is None else (*state[:-1], GATES * state[-1] if isinstance(state[-1], int) else None)


def check_cell(call: Call, state: str, like: tuple[str, ...], gates: tuple[str, ...]) -> Shape | None:
    """The shape of the states; raises OpError for a scalar state, different states, or gates that do not fit."""
    shape = call.shape(state)
    if shape == ():
        raise call.shape_error(state, "(..., H)")
    for name in like:
        if call.present(name):
            call.same_shape(name, shape, f"the shape of '{state}'")
    for name in gates:
        call.same_shape(name, of_gates(shape), f"(..., 4*H) for '{state}' of (..., H)")
    return shape


def widths_of(b: Body, state: Value) -> Value:
    """The widths of the four gates for a state, in a function body."""
    width = b.op("Shape", state, name="width", start=-1)
    return b.op("Concat", *[width] * GATES, name="widths", axis=0)


def quarters(b: Body, gates: Value, widths: Value, names: tuple[str, str, str, str]) -> tuple[Value, ...]:
    """The four gates, in a function body."""
    return b.several("Split", gates, widths, names=names, axis=-1)
