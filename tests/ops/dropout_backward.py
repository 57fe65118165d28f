"""DropoutBackward: the gradient passes where dropout has kept the element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, INF, INTO, NAN, Shape, normal, rng, text_of
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import (
    TRUTH,
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    like,
    limits,
)

OP = "DropoutBackward"


def oracle(grad_output: ArrayLike, mask: ArrayLike, scale: float = 2.0, *, dtype: Reals = np.float64) -> Array:
    """grad_output * scale where the mask is on, else +0."""
    g = real(grad_output, dtype)
    with np.errstate(all="ignore"):
        return np.where(np.asarray(mask), g * attribute(scale, dtype), np.zeros(g.shape, dtype))


FORMS: dict[str, tuple[Shape, Shape]] = {
    "same": ((2, 3), (2, 3)),
    "channels": ((2, 3, 4, 5), (2, 3, 1, 1)),
    "row": ((4, 40), (40,)),
    "scalars": ((), ()),
    "long": ((41, 31), (41, 31)),
}


def operands(shapes: tuple[Shape, Shape], dtype: DType) -> dict[str, Array | None]:
    mask = np.asarray(rng("mask", shapes).random(shapes[1]) < 0.6)
    return {"grad_output": normal(shapes[0], dtype, "g"), "mask": mask}


def make(choice: Choice) -> dict[str, Array | None]:
    return operands(choice.form, choice.dtype("grad_output"))


def calls() -> Iterator[Call]:
    for number, (own, into) in enumerate(INTO):
        yield Call(OP, operands((into, own), FLOAT32), label=text_of(own, into), static=number % 2 == 1)
    special = np.array([NAN, INF, -INF, -0.0, 3e38], np.float32)
    for label, value in (("off", False), ("on", True)):
        yield Call(OP, {"grad_output": special, "mask": np.full(5, value)}, label=f"special_{label}")
    for scale in (0.0, 1 / 0.9, -1.5):
        yield Call(OP, operands(((3, 5), (3, 5)), FLOAT32), {"scale": scale}, label=f"scale_{scale}")


def worked(dtype: DType) -> Iterator[Worked]:
    g = np.array([1.0, -2.0, 3.0, NAN], dtype)
    call = Call(OP, {"grad_output": g, "mask": np.array([True, True, False, False])}, {"scale": 1.5}, label="by_hand")
    yield Worked(call, {"grad_input": [1.5, -3.0, 0.0, 0.0]})


def refusals(plain: Call) -> Iterator[Refusal]:
    for shape in ((2, 4), (3, 3), (4, 2, 3)):
        words = ("'mask'", str(shape), "'grad_output'", "(2, 3)")
        label = "mask_of_" + "x".join(map(str, shape))
        yield Refusal(label, words, {"mask": np.ones(shape, bool)}, by_rank=len(shape) > 2)


def large(dtype: DType) -> Iterator[Call]:
    yield Call(OP, operands(((53, 61, 67), (53, 61, 67)), dtype), label="same")
    yield Call(OP, operands(((53, 61, 67), (53, 61, 1)), dtype), label="channels")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    grad, mask = with_torch.tensors(torch, call)
    scale = float(np.float32(call.attributes.get("scale", 2.0)))
    return functools.partial(torch.ops.aten.native_dropout_backward, grad, mask, scale)


def benchmark(elements: int, dtype: DType) -> Call:
    return Call(OP, operands(((elements,), (elements,)), dtype), {"scale": 1 / 0.9})


# One product, rounded once.
ROUNDED = limits(single=0.51, double=0.51)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "mask": Input((TRUTH,))},
    outputs={"grad_input": like("grad_output", limits=ROUNDED, portable_limits=ROUNDED)},
    attributes={"scale": Attribute(2.0, (2.0, 1.25, 0.0))},
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "scale", "+0", "NaN"),
    benchmarks=(Benchmark(benchmark),),
    accuracies=(accuracy.of_calls(benchmark, 100_000),),
)
