"""SWhere: elements of one of two tensors, by a condition."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import BROADCASTS, FLOAT16, FLOAT32, FLOATS, INF, NAN, Shape, normal, rng, text_of
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    TRUTH,
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

OP = "SWhere"


def oracle(condition: ArrayLike, self: ArrayLike, other: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    """self where condition is true, else other; shape broadcast(condition, self, other)."""
    chosen, own, rest = np.broadcast_arrays(np.asarray(condition), real(self, dtype), real(other, dtype))
    out = rest.copy()
    out[chosen] = own[chosen]
    return out


Shapes = tuple[Shape, Shape, Shape]

FORMS: dict[str, Shapes] = {
    "same": ((2, 3), (2, 3), (2, 3)),
    "scalar_self": ((4, 40), (), (4, 40)),
    "scalar_other": ((4, 40), (4, 40), ()),
    "scalar_condition": ((), (7,), (7,)),
    "crossed": ((30, 1, 1), (17, 1), (5,)),
    "mask_of_rows": ((3, 1, 4, 5), (3, 2, 4, 5), (1,)),
    "scalars": ((), (), ()),
    "long": ((41, 31), (41, 31), (41, 31)),
}


def operands(shapes: Shapes, own: DType, other: DType) -> dict[str, Array | None]:
    condition = np.asarray(rng("condition", shapes).random(shapes[0]) < 0.6)
    return {"condition": condition, "self": normal(shapes[1], own, "self"), "other": normal(shapes[2], other, "other")}


def make(choice: Choice) -> dict[str, Array | None]:
    return operands(choice.form, choice.dtype("self"), choice.dtype("other"))


def calls() -> Iterator[Call]:
    for number, (first, second) in enumerate(BROADCASTS):
        orders = {"self": (first, second, ()), "other": (second, (), first), "all": (first, second, first)}
        for label, shapes in orders.items():
            text = text_of(label, first, second)
            yield Call(OP, operands(shapes, FLOAT32, FLOAT32), label=text, static=number % 2 == 1)
    for dtype in FLOATS:
        special = np.array([NAN, INF, -INF, -0.0, 0.0, 1.0, NAN, INF], dtype)
        for label, condition in (("off", False), ("on", True)):
            inputs = {"condition": np.full(8, condition), "self": special, "other": special[::-1].copy()}
            yield Call(OP, inputs, label=f"special_{label}-{dtype.name}")
    extreme = {"condition": np.array([True, False]), "self": np.array([1e300, 1.0]), "other": np.array([1.0, 65504.0])}
    yield Call(OP, {**extreme, "other": extreme["other"].astype(FLOAT16)}, label="float64_and_float16")


def worked(dtype: DType) -> Iterator[Worked]:
    own, other = np.array([1.0, -2.0, NAN, INF], dtype), np.array([5.0, NAN, 7.0, -8.0], dtype)
    call = Call(OP, {"condition": np.array([True, False, False, True]), "self": own, "other": other}, label="by_hand")
    yield Worked(call, {"out": [1.0, NAN, 7.0, INF]})


def refusals(plain: Call) -> Iterator[Refusal]:
    for name in ("condition", "self", "other"):
        for shape in ((2, 4), (0, 3)):
            change = np.zeros(shape, bool if name == "condition" else np.float32)
            words = (f"'{name}'" if name != "condition" else "'self'", str(shape), "expected")
            yield Refusal(f"{name}_of_{shape[0]}x{shape[1]}", words, {name: change})


def large(dtype: DType) -> Iterator[Call]:
    whole = (53, 61, 67)
    for label, shapes in {
        "same": (whole, whole, whole),
        "mask": ((61, 67), whole, ()),
        "rows": (whole, (53, 1, 67), whole),
    }.items():
        yield Call(OP, operands(shapes, dtype, dtype), label=label)


def benchmark(elements: int, dtype: DType) -> Call:
    return Call(OP, operands(((elements,), (elements,), (elements,)), dtype, dtype))


# The op copies.
EXACT = limits(0, single=0, double=0)
RECORD = Record(
    OP,
    inputs={"condition": Input((TRUTH,)), "self": Input(), "other": Input()},
    outputs={"out": Output(promoted, limits=EXACT, portable_limits=EXACT)},
    attributes={},
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=lambda torch, call: functools.partial(torch.where, *with_torch.tensors(torch, call)),
    documented=(f"aclnn{OP}", "condition", "NaN", "-0"),
    benchmarks=(Benchmark(benchmark),),
    accuracies=(accuracy.of_calls(benchmark, 100_000),),
)
