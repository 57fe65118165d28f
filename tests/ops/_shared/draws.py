"""What the records of ops that draw random numbers share: their calls, inputs and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, Shape
from tests.ops._shared.numbers import Array
from tests.ops._shared.philox import WHOLE
from tests.ops._shared.record import Attribute, Call, Choice, DType, Input, Refusal

FORMS: dict[str, Shape] = {"plane": (3, 7), "scalar": (), "row": (41,), "deep": (1, 2, 1, 2, 1, 2, 1, 2)}
SEED = 5
INPUTS = {"self": Input(), "seed": Input(WHOLE)}
OFFSET = Attribute(0, (0, 7), (-1, -(2**63)), ("at least 0",))
NOT_FINITE = (NAN, INF, -INF)


def like(shape: Shape, dtype: DType) -> Array:
    """A tensor of whose elements nothing may be seen."""
    return np.full(shape, NAN, dtype)


def inputs(shape: Shape, dtype: DType, seed: int = SEED, kind: Any = np.int64) -> dict[str, Array | None]:
    return {"self": like(shape, dtype), "seed": np.array(seed, kind)}


def make(choice: Choice) -> dict[str, Array | None]:
    return inputs(choice.form, choice.dtype("self"), kind=choice.dtype("seed"))


def calls(op: str) -> Iterator[Call]:
    for shape in ((0,), (0, 3), (3, 0), (1,), (2,), (2, 3), (4, 1, 1)):
        yield Call(op, inputs(shape, FLOAT32), label=f"shape_{shape}".replace(" ", ""))
    for dtype in FLOATS:
        yield Call(op, inputs((1025,), dtype), label=f"more_than_a_chunk-{dtype.name}")
    for seed in (0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), -(2**32) - 7):
        yield Call(op, inputs((9,), FLOAT32, seed), label=f"seed_{seed}")
    for seed in (-1, -(2**31), 2**31 - 1):
        yield Call(op, inputs((9,), FLOAT32, seed, np.int32), label=f"seed_{seed}_of_int32")
    for offset in (1, 2**31, 2**32 + 3, 2**63 - 1):
        yield Call(op, inputs((9,), FLOAT32), {"offset": offset}, label=f"offset_{offset}")


def refusals(plain: Call) -> Iterator[Refusal]:
    for shape in ((1,), (2,), (1, 1)):
        words = ("'seed'", str(shape), "a scalar")
        yield Refusal(f"seed_of_rank_{len(shape)}_{shape[0]}", words, {"seed": np.zeros(shape, np.int64)}, by_rank=True)


def large(op: str) -> Callable[[DType], Iterator[Call]]:
    def made(dtype: DType) -> Iterator[Call]:
        yield Call(op, inputs((53, 61, 7), dtype, 3), label="odd_sizes")

    return made


def benchmark(op: str) -> Callable[[int, DType], Call]:
    return lambda elements, dtype: Call(op, {"self": np.zeros(elements, dtype), "seed": np.array(0)})


def judged(op: str) -> Callable[[DType], Iterator[Call]]:
    def made(dtype: DType) -> Iterator[Call]:
        yield Call(op, inputs((20_000,), dtype, 0))

    return made
