"""What the cell of an LSTM and its gradient share: rows of a batch, each with the four gates one after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.types import Dim
from onnx_ops.graph.builder import Value
from onnx_ops.loops.primitives import ONE, ZERO, choose, falling_exp_parts, helper, inlined, near_exp_parts

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
    return choose(x < 0, power, ONE + power * ZERO) / (ONE + power)


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


def check_cell(call: Call, gates: str, *states: str) -> tuple[Dim, Dim]:
    """N and H; refuses gates that are not (N, 4*H), and states that are not (N, H)."""
    call.check()
    rows: Dim = None
    width: Dim = None
    for name in states:
        shape = call.shape(name)
        if shape is None:
            continue
        if len(shape) != 2:
            raise call.shape_error(name, "(N, H)")
        call.same_shape(name, (rows, width), "that of the other states, (N, H)")
        rows, width = (own if known is None else known for own, known in zip(shape, (rows, width), strict=True))
    whole = call.shape(gates)
    if whole is not None:
        if len(whole) != 2:
            raise call.shape_error(gates, "(N, 4*H)")
        four = GATES * width if isinstance(width, int) else None
        call.same_shape(gates, (rows, four), "(N, 4*H) for states of (N, H)")
        if four is None and isinstance(whole[1], int) and whole[1] % GATES:
            raise call.shape_error(gates, "(N, 4*H)")
        rows = whole[0] if rows is None else rows
        if width is None and isinstance(whole[1], int):
            width = whole[1] // GATES
    return rows, width


def quarters(b: Body, gates: Value, names: tuple[str, str, str, str]) -> tuple[Value, ...]:
    """The four gates, in a portable body."""
    width = b.op("Shape", b.inputs["cx"], name="width", start=1)
    return b.several("Split", gates, b.op("Concat", *[width] * GATES, name="widths", axis=0), names=names, axis=1)
