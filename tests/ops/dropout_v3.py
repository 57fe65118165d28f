"""Dropout: random elements become 0, the others are scaled. Which ones, tells a generator with published answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy
from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.philox import WHOLE, words
from tests.ops._shared.record import (
    TRUTH,
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
    like,
    limits,
)
from tests.ops._shared.with_torch import tensor

OP = "DropoutV3"


def oracle(
    input: ArrayLike, seed: ArrayLike, p: float = 0.5, offset: int = 0, *, dtype: Reals = np.float64
) -> tuple[Array, Array]:
    """x / (1 - p) where the word of an element is at least p * 2^32, else +0; and where that is so, as 1 and 0."""
    x, chance = real(input, dtype), float(np.float32(p))
    mask = np.reshape(words(int(np.asarray(seed)), offset, x.size) >= round(chance * 2**32), x.shape)
    scale = dtype(np.float32(1 / (1 - chance) if chance < 1 else 0.0))
    with np.errstate(all="ignore"):
        return np.where(mask, x * scale, dtype(0)), mask.astype(dtype)


FORMS: dict[str, Shape] = {"plane": (3, 7), "scalar": (), "row": (41,), "deep": (1, 2, 1, 2, 1, 2, 1, 2)}
SEED = 5


def make(choice: Choice) -> dict[str, Array | None]:
    seed = np.array(SEED, choice.dtype("seed"))
    return {"input": normal(choice.form, choice.dtype("input"), "x"), "seed": seed}


def calls() -> Iterator[Call]:
    def call(label: str, x: Array, seed: int = SEED, kind: Any = np.int64, **attributes: float) -> Call:
        return Call(OP, {"input": x, "seed": np.array(seed, kind)}, attributes, label=label)

    x = normal((5, 9), FLOAT32, "x")
    for shape in ((0,), (0, 3), (3, 0), (1,), (2, 3), (4, 1, 1)):
        yield call(f"shape_{shape}".replace(" ", ""), normal(shape, FLOAT32, "shaped"))
    for seed in (0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), -(2**32) - 7):
        yield call(f"seed_{seed}", x, seed)
    for seed in (-1, -(2**31), 2**31 - 1):
        yield call(f"seed_{seed}_of_int32", x, seed, np.int32)
    for offset in (1, 2**31, 2**32 + 3, 2**63 - 1):
        yield call(f"offset_{offset}", x, offset=offset)
    for p in (2.0**-24, 0.1, 0.3, 0.999, 1 - 2.0**-24):
        yield call(f"p_{p}", x, p=p)
    for p in (0.0, 0.5, 1.0):
        special = np.array([NAN, INF, -INF, -0.0] * 5, np.float32)
        yield call(f"special_{p}", special, p=p)
    for dtype in FLOATS:
        yield call(f"largest_{dtype.name}", np.array([float(np.finfo(np.float16).max)] * 9).astype(dtype))


def worked(dtype: DType) -> Iterator[Worked]:
    """The words 6627e8d5, e169c58d, bc57ac4c and 9b00dbd8 are published for a counter and a key of 0."""
    x = np.array([1.0, 2.0, 3.0, 4.0], dtype)
    inputs: dict[str, Array | None] = {"input": x, "seed": np.array(0)}
    yield Worked(Call(OP, inputs, label="half"), {"output": [0, 4, 6, 8], "mask": [0, 1, 1, 1]})
    expected = {"output": [0, 8, 0, 0], "mask": [0, 1, 0, 0]}
    yield Worked(Call(OP, inputs, {"p": 0.75}, label="three_quarters"), expected)
    yield Worked(Call(OP, inputs, {"p": 0.0}, label="none"), {"output": [1, 2, 3, 4], "mask": [1, 1, 1, 1]})
    yield Worked(Call(OP, inputs, {"p": 1.0}, label="all"), {"output": [0, 0, 0, 0], "mask": [0, 0, 0, 0]})


def refusals(plain: Call) -> Iterator[Refusal]:
    for shape in ((1,), (2,), (1, 1)):
        words = ("'seed'", str(shape), "a scalar")
        yield Refusal(f"seed_of_rank_{len(shape)}_{shape[0]}", words, {"seed": np.zeros(shape, np.int64)}, by_rank=True)


def large(dtype: DType) -> Iterator[Call]:
    yield Call(OP, {"input": normal((53, 61, 7), dtype, "x"), "seed": np.array(3)}, {"p": 0.3}, label="odd_sizes")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    x, p = tensor(torch, call.given["input"]), call.attributes.get("p", 0.5)
    return functools.partial(torch.ops.aten.native_dropout, x, p, True)


def benchmark(elements: int, dtype: DType) -> Call:
    return Call(OP, {"input": normal((elements,), dtype, "x"), "seed": np.array(0)}, {"p": 0.1})


def judged(dtype: DType) -> Iterator[Call]:
    yield Call(OP, {"input": normal((20_000,), dtype, "x"), "seed": np.array(0)}, {"p": 0.1})


# One product, rounded once.
ROUNDED = limits(single=0.51, double=0.51)
RECORD = Record(
    OP,
    inputs={"input": Input(), "seed": Input(WHOLE)},
    outputs={
        "output": like("input", limits=ROUNDED, portable_limits=ROUNDED),
        "mask": Output(lambda call: TRUTH, dtypes=(TRUTH,), optional=True),
    },
    attributes={
        "p": Attribute(0.5, (0.5, 0.0, 0.3, 1.0), (-0.5, 1.5, NAN), ("0 to 1",)),
        "offset": Attribute(0, (0, 7), (-1, -(2**63)), ("at least 0",)),
    },
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    torch_draws=True,
    documented=(f"aclnn{OP}", "Philox4x32-10", "Salmon", "+0", "NaN", "offset", "number of threads"),
    benchmarks=(Benchmark(benchmark),),
    accuracies=(accuracy.Accuracy(judged),),
)
