"""What the cell of an LSTM and its gradient share: rows of a batch, each with the four gates one after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.types import Shape
from onnx_ops.graph.builder import Value
from onnx_ops.loops.primitives import ONE, choose, falling_exp_parts, helper, inlined, like, near_exp_parts
from onnx_ops.loops.records import MAX_OUTPUTS
from onnx_ops.loops.shapes import give_shape, same_sizes, volume

GATES = 4
"""In the order of PyTorch and aclnn: input gate, forget gate, cell candidate, output gate."""
WORK = 4096
"""Numbers of the cell state that a task has about."""
SATURATED = np.float32(40)
"""e**SATURATED is alone in a float32 sum with 1."""
TWO = np.float32(2)


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x) of a float32 or float64, also where it is subnormal."""
    value, first, second = falling_exp_parts(-abs(x))
    power = (value * first) * second
    return choose(x < 0, power, like(1, power)) / (ONE + power)


@inlined
def tanh_of_float(x: Any) -> Any:
    """Of a float32, by e**2x - 1, which keeps the digits of a small x."""
    power = x + x
    power = choose(power > SATURATED, SATURATED, choose(power < -SATURATED, -SATURATED, power))
    excess, scale = near_exp_parts(power)
    less_one = (scale - ONE) + scale * excess
    return less_one / (less_one + TWO)


@helper
def rows_per_task(width: int) -> int:
    return max(WORK // max(width, 1), 1)


@helper
def rows_of(job: Any, i: int) -> int:
    """How many rows a state has: the product of all its axes but the last."""
    return volume(job, i, 0, job.rank[i] - 1)


@helper
def tasks_of(job: Any, i: int) -> int:
    """One for each block of rows of a state."""
    width = job.dims[i, job.rank[i] - 1]
    step = rows_per_task(width)
    return (rows_of(job, i) + step - 1) // step if width > 0 else 0


@helper
def are_gates(job: Any, i: int, state: int) -> bool:
    """Whether an input has the shape of a state, but for four times the width."""
    last = job.rank[state] - 1
    if job.rank[i] != job.rank[state] or not same_sizes(job, i, state, last):
        return False
    return bool(job.dims[i, last] == GATES * job.dims[state, last])


@helper
def set_shapes(job: Any, state: int, gates: int) -> None:
    """Give all outputs the shape of a state, but for the one that is gates."""
    for k in range(MAX_OUTPUTS):
        give_shape(job, k, state)
    last = job.rank[state] - 1
    job.output_dims[gates, last] = GATES * job.dims[state, last]


def of_gates(state: Shape | None) -> Shape | None:
    """The shape of the gates of a state (..., H)."""
    return None if state is None else (*state[:-1], GATES * state[-1] if isinstance(state[-1], int) else None)


def check_cell(call: Call, state: str, like: tuple[str, ...], gates: tuple[str, ...]) -> Shape | None:
    """The shape of the states; refuses a state of rank 0, others that differ from it, and gates that do not fit it."""
    call.check()
    shape = call.shape(state)
    if shape == ():
        raise call.shape_error(state, "(..., H)")
    for name in like:
        if call.present(name):
            call.same_shape(name, shape, f"the shape of '{state}'")
    for name in gates:
        call.same_shape(name, of_gates(shape), f"(..., 4*H) for '{state}' of (..., H)")
    return shape


def quarters(b: Body, gates: Value, names: tuple[str, str, str, str]) -> tuple[Value, ...]:
    """The four gates, in a portable body."""
    width = b.op("Shape", b.inputs["cx"], name="width", start=-1)
    return b.several("Split", gates, b.op("Concat", *[width] * GATES, name="widths", axis=0), names=names, axis=-1)
