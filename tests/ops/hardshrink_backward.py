"""HardshrinkBackward: the gradient of hardshrink."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import BROADCASTS, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.hardshrink import EDGES, LAMBD, around, threshold
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
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

OP = "HardshrinkBackward"


def oracle(grad_output: ArrayLike, self: ArrayLike, lambd: float = 0.5, *, dtype: Reals = np.float64) -> Array:
    """grad_output where self > lambd or self < -lambd, else +0; shape broadcast(grad_output, self).

    lambd is compared as a float32 value. NaN in self gives 0; NaN in grad_output shows only where the mask is on.
    """
    g, x, limit = real(grad_output, dtype), real(self, dtype), threshold(lambd)
    with np.errstate(all="ignore"):
        return np.where((x > limit) | (x < -limit), g, np.zeros((), dtype))


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
        for lambd in EDGES:
            x = around(lambd, dtype)
            inputs = {"grad_output": np.arange(1, x.size + 1).astype(dtype), "self": x}
            yield Call(OP, inputs, {"lambd": lambd}, label=f"edge_{lambd}-{dtype.name}")
        g = np.array([NAN, INF, -INF, -0.0, -1.0, 1.0, NAN, INF], dtype)
        off = np.array([0.0, 0.5, -0.5, 0.1, -0.1, NAN, NAN, -NAN], dtype)
        for label, x in (("off", off), ("on", np.full(8, -1.0, dtype))):
            yield Call(OP, {"grad_output": g, "self": x}, label=f"{label}-{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([-INF, -2.0, -0.5, -0.25, -0.0, 0.0, 0.5, 0.75, INF], dtype)
    g = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], dtype)
    expected = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 9.0]
    yield Worked(Call(OP, {"grad_output": g, "self": x}, label="by_hand"), {"grad_input": expected})


def refusals(plain: Call) -> Iterator[Refusal]:
    for shape in ((2, 4), (0, 3)):
        words = ("'self'", str(shape), "expected", "'grad_output'", "(2, 3)")
        yield Refusal(f"self_of_{shape[0]}x{shape[1]}", words, {"self": np.zeros(shape, np.float32)})


def large(dtype: DType) -> Iterator[Call]:
    g, x = normal((53, 61, 67), dtype, "g"), normal((53, 61, 67), dtype, "x")
    yield Call(OP, {"grad_output": g, "self": x}, label="same")
    yield Call(OP, {"grad_output": g[:, :1].copy(), "self": x}, {"lambd": 0.3}, label="broadcast")


def torch_call(torch: Any, call: Call) -> Callable[[], Any]:
    arguments = with_torch.tensors(torch, call)
    lambd = float(threshold(call.attributes.get("lambd", 0.5)))
    return functools.partial(torch.ops.aten.hardshrink_backward, *arguments, lambd)


def benchmark(elements: int, dtype: DType) -> Call:
    return Call(OP, {"grad_output": normal((elements,), dtype, "g"), "self": normal((elements,), dtype, "x")})


RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    # The op copies.
    outputs={"grad_input": Output(promoted, limits=limits(0, single=0, double=0))},
    attributes={"lambd": LAMBD},
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "self > lambd or self < -lambd", "boundary", "NaN", "below 0 counts as 0", "+0"),
    benchmarks=(Benchmark(benchmark),),
    accuracies=(
        accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.HARDSHRINK_INPUT}, loss=False),
    ),
)
