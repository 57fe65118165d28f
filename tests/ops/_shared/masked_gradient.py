"""What gradients share that let grad_output pass where `self` lies beyond a limit, and are 0 elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.ops._shared.arrays import BROADCASTS, FLOAT32, FLOATS, INF, NAN, Shape, normal, text_of
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Call, Choice, DType, Output, Refusal, Worked, limits, promoted

FORMS: dict[str, tuple[Shape, Shape]] = {
    "same": ((2, 3), (2, 3)),
    "rows": ((3, 40), (40,)),
    "columns": ((3, 1), (3, 40)),
    "crossed": ((30, 1), (17,)),
    "scalar": ((), (7,)),
    "scalars": ((), ()),
}
# The ops copy.
OUTPUTS = {"grad_input": Output(promoted, limits=limits(0, single=0, double=0))}


def neighbours(limit: np.float32) -> Array:
    """A limit, and the numbers next to it in float32 and in float64; as float64."""
    with np.errstate(over="ignore", under="ignore"):
        near = np.array([limit, np.nextafter(limit, np.float32(INF)), np.nextafter(limit, np.float32(-INF))])
        wide = np.array([np.nextafter(np.float64(limit), INF), np.nextafter(np.float64(limit), -INF)])
        return np.concatenate([near, wide])


def operands(shapes: tuple[Shape, Shape], grad: DType, own: DType) -> dict[str, Array | None]:
    return {"grad_output": normal(shapes[0], grad, "grad"), "self": normal(shapes[1], own, "self")}


def make(choice: Choice) -> dict[str, Array | None]:
    return operands(choice.form, choice.dtype("grad_output"), choice.dtype("self"))


def calls(
    op: str,
    attribute: str,
    edges: Sequence[float],
    around: Callable[[float, DType], Array],
    masks: Mapping[str, Sequence[float]],
) -> Iterator[Call]:
    """Shapes that broadcast, numbers around limits, and special values of the gradient.

    Args:
        op: the op.
        attribute: the one that sets the limit.
        edges: limits.
        around: the numbers to try with a limit.
        masks: eight numbers of `self` by what they do, with the attribute's default.
    """
    yield from broadcast_calls(op, lambda number: {}, known_every=2)
    for dtype in FLOATS:
        for edge in edges:
            yield edge_call(op, around(edge, dtype), {attribute: edge}, f"edge_{edge}")
        yield from mask_calls(op, masks, dtype)


def edge_call(op: str, x: Array, attributes: Mapping[str, Any], label: str) -> Call:
    """Numbers around a limit, each with a gradient of its own."""
    inputs = {"grad_output": np.arange(1, x.size + 1).astype(x.dtype), "self": x}
    return Call(op, inputs, attributes, label=f"{label}-{x.dtype.name}")


def mask_calls(op: str, masks: Mapping[str, Sequence[float]], dtype: DType) -> Iterator[Call]:
    """Special values of the gradient, with eight numbers of `self` by what they do."""
    g = np.array([NAN, INF, -INF, -0.0, -1.0, 1.0, NAN, INF], dtype)
    for label, values in masks.items():
        yield Call(op, {"grad_output": g, "self": np.array(values, dtype)}, label=f"{label}-{dtype.name}")


def broadcast_calls(op: str, attributes: Callable[[int], Mapping[str, Any]], *, known_every: int = 4) -> Iterator[Call]:
    """A call for each pair of shapes, whose attributes depend on its number; one in some with known shapes."""
    for number, shapes in enumerate(BROADCASTS):
        static, inputs = number % known_every == 1, operands(shapes, FLOAT32, FLOAT32)
        yield Call(op, inputs, attributes(number), label=text_of(*shapes), static=static)


def special(dtype: DType) -> dict[str, Array | None]:
    """Inputs of a gradient by a smooth derivative: NaN, infinities, zeros, and some numbers."""
    x = np.array([NAN, 0.0, -0.0, INF, -INF, 1.0, -1.0, 0.5, -0.5, 3e4, -3e4, 1.0, -1.0], dtype)
    g = np.array([1.0, NAN, -3.0, -2.0, 2.0, INF, INF, -INF, NAN, 2.0, 2.0, 0.0, -0.0], dtype)
    return {"grad_output": g, "self": x}


def large_gradients(op: str, dtype: DType) -> Iterator[Call]:
    """Gradients close to the largest number, times an exponential of `self` that falls below the smallest one."""
    if dtype.itemsize < 4:
        return
    falling, far = np.linspace(-100, -1, 397).astype(dtype), np.array([-173.5, -120.0, -90.0, -87.5], dtype)
    for label, x in (("most", falling), ("far", far)):
        inputs = {"grad_output": np.full_like(x, np.finfo(dtype).max / 4), "self": x}
        yield Call(op, inputs, label=f"{label}-{dtype.name}", careful=True)


def worked(op: str, dtype: DType, expected: Sequence[float]) -> Iterator[Worked]:
    """A call of nine numbers with the attribute's default."""
    x = np.array([-INF, -2.0, -0.5, -0.25, -0.0, 0.0, 0.5, 0.75, INF], dtype)
    g = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], dtype)
    yield Worked(Call(op, {"grad_output": g, "self": x}, label="by_hand"), {"grad_input": expected})


def refusals(plain: Call) -> Iterator[Refusal]:
    for shape in ((2, 4), (0, 3)):
        words = ("'self'", str(shape), "expected", "'grad_output'", "(2, 3)")
        yield Refusal(f"self_of_{shape[0]}x{shape[1]}", words, {"self": np.zeros(shape, np.float32)})


def large(op: str, attributes: Mapping[str, Any], dtype: DType) -> Iterator[Call]:
    """Calls with more elements than a block has; that with shapes that differ has the attributes."""
    g, x = normal((53, 61, 67), dtype, "g"), normal((53, 61, 67), dtype, "x")
    yield Call(op, {"grad_output": g, "self": x}, label="same")
    yield Call(op, {"grad_output": g[:, :1].copy(), "self": x}, attributes, label="broadcast")


def benchmark(op: str, **attributes: Any) -> Callable[[int, DType], Call]:
    def made(elements: int, dtype: DType) -> Call:
        inputs = {"grad_output": normal((elements,), dtype, "g"), "self": normal((elements,), dtype, "x")}
        return Call(op, inputs, attributes)

    return made
