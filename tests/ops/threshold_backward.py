"""ThresholdBackward: the gradient of threshold, and of ReLU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import BROADCASTS, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import (
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Output,
    Record,
    Refusal,
    Worked,
    limits,
    promoted,
)

OP = "ThresholdBackward"
THRESHOLDS = (0.0, -0.0, 0.5, -1.0, -INF, 0.123456789, 1e-45, 3.4e38, INF)


def oracle(grad_output: ArrayLike, self: ArrayLike, threshold: float = 0.0, *, dtype: Reals = np.float64) -> Array:
    """+0 where self <= threshold, else grad_output; shape broadcast(grad_output, self).

    threshold is compared as a float32 value. NaN in self lets the gradient pass.
    """
    g, x, limit = real(grad_output, dtype), real(self, dtype), attribute(threshold, dtype)
    with np.errstate(all="ignore"):
        return np.where(np.isnan(x) | (x > limit), g, np.zeros((), dtype))


def around(threshold: float, dtype: DType) -> Array:
    """The threshold, its neighbours in float32 and in float64, and numbers that are far from it."""
    limit = np.float32(threshold)
    with np.errstate(over="ignore", under="ignore"):
        near = np.array([limit, np.nextafter(limit, np.float32(INF)), np.nextafter(limit, np.float32(-INF))])
        wide = np.array([np.nextafter(np.float64(limit), INF), np.nextafter(np.float64(limit), -INF)])
        return np.concatenate([near, wide, [0.0, 1.0, -1.0, INF, -INF, NAN]]).astype(dtype)


FORMS: dict[str, tuple[Shape, Shape]] = {
    "same": ((2, 3), (2, 3)),
    "rows": ((3, 40), (40,)),
    "columns": ((3, 1), (3, 40)),
    "crossed": ((30, 1), (17,)),
    "scalar": ((), (7,)),
    "scalars": ((), ()),
}


def operands(shapes: tuple[Shape, Shape], grad: DType, own: DType) -> dict[str, Array | None]:
    return {"grad_output": normal(shapes[0], grad, "grad"), "self": normal(shapes[1], own, "self")}


def make(choice: Choice) -> dict[str, Array | None]:
    return operands(choice.form, choice.dtype("grad_output"), choice.dtype("self"))


def calls() -> Iterator[Call]:
    single = np.dtype(np.float32)
    for number, shapes in enumerate(BROADCASTS):
        label = f"{shapes[0]}-{shapes[1]}".replace(" ", "")
        yield Call(OP, operands(shapes, single, single), label=label, static=number % 2 == 1)
    for dtype in FLOATS:
        for threshold in THRESHOLDS:
            x = around(threshold, dtype)
            inputs = {"grad_output": np.arange(1, x.size + 1).astype(dtype), "self": x}
            yield Call(OP, inputs, {"threshold": threshold}, label=f"edge_{threshold}-{dtype.name}")
        g = np.array([NAN, INF, -INF, -0.0, -1.0, 1.0, NAN, INF], dtype)
        off = np.array([0.0, -0.5, -0.0, -INF, -0.1, -1.0, -2.0, -3.0], dtype)
        for label, x in (("off", off), ("on", np.full(8, 1.0, dtype)), ("unknown", np.full(8, NAN, dtype))):
            yield Call(OP, {"grad_output": g, "self": x}, label=f"{label}-{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([-INF, -2.0, -0.5, -0.25, -0.0, 0.0, 0.5, 0.75, INF], dtype)
    g = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], dtype)
    expected = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 8.0, 9.0]
    yield Worked(Call(OP, {"grad_output": g, "self": x}, label="by_hand"), {"grad_input": expected})


def refusals(plain: Call) -> Iterator[Refusal]:
    for shape in ((2, 4), (0, 3)):
        words = ("'self'", str(shape), "expected", "'grad_output'", "(2, 3)")
        yield Refusal(f"self_of_{shape[0]}x{shape[1]}", words, {"self": np.zeros(shape, np.float32)})


def large(dtype: DType) -> Iterator[Call]:
    g, x = normal((53, 61, 67), dtype, "g"), normal((53, 61, 67), dtype, "x")
    yield Call(OP, {"grad_output": g, "self": x}, label="same")
    yield Call(OP, {"grad_output": g[:, :1].copy(), "self": x}, {"threshold": 0.3}, label="broadcast")


def torch_call(torch: Any, call: Call) -> Callable[[], Any]:
    arguments = with_torch.tensors(torch, call)
    threshold = float(np.float32(call.attributes.get("threshold", 0.0)))
    # PyTorch's own does not broadcast.
    return functools.partial(torch.ops.aten.threshold_backward, *torch.broadcast_tensors(*arguments), threshold)


def benchmark(elements: int, dtype: DType) -> Call:
    return Call(OP, {"grad_output": normal((elements,), dtype, "g"), "self": normal((elements,), dtype, "x")})


RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    # The op copies.
    outputs={"grad_input": Output(promoted, limits=limits(0, single=0, double=0))},
    attributes={"threshold": Attribute(0.0, (0.0, 0.5, -1.0, 0.123456789))},
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "self <= threshold", "boundary", "NaN", "ReLU", "+0"),
    benchmarks=(Benchmark(benchmark),),
    accuracies=(accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.FACTOR}, loss=False),),
)
