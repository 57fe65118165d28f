"""Normal random numbers: those of Box and Muller, of uniform ones that tells a generator with published answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, draws
from tests.ops._shared.arrays import FLOATS
from tests.ops._shared.numbers import Array, Reals
from tests.ops._shared.philox import DIGITS, numbers
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Record, Worked, like, limits
from tests.ops._shared.with_torch import tensor

OP = "InplaceNormal"
TURN = 8 * np.arctan(np.longdouble(1))


def around_the_circle(number: int) -> tuple[np.longdouble, np.longdouble]:
    """cos and sin of number / 2^53 turns; the distance from the nearest eighth is exact."""
    eighth, rest = divmod(number + 2**49, 2**50)
    angle = TURN * np.longdouble(rest - 2**49) / np.longdouble(2) ** 53
    # The sum of two angles: one of them a multiple of an eighth of a turn.
    half = np.sqrt(np.longdouble(0.5))
    x, y = [(1, 0), (half, half), (0, 1), (-half, half), (-1, 0), (-half, -half), (0, -1), (half, -half)][eighth % 8]
    cosine, sine = np.cos(angle), np.sin(angle)
    return x * cosine - y * sine, y * cosine + x * sine


def parts(self: ArrayLike, seed: ArrayLike, mean: float, std: float, offset: int, dtype: Reals) -> tuple[Array, Array]:
    """The two summands: mean, and the deviation from it."""
    given = np.asarray(self)
    drawn = numbers(int(np.asarray(seed)), offset, given.size + given.size % 2)
    values: list[np.longdouble] = []
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        radius = np.sqrt(-2 * np.log(np.longdouble(first + 1) / np.longdouble(2) ** 53))
        values += [radius * direction for direction in around_the_circle(second)]
    deviations = np.array(values[: given.size], np.longdouble) * np.longdouble(np.float32(std))
    return np.full(given.shape, np.float32(mean), dtype), deviations.reshape(given.shape).astype(dtype)


def oracle(
    self: ArrayLike,
    seed: ArrayLike,
    mean: float = 0.0,
    std: float = 1.0,
    offset: int = 0,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """mean + std * sqrt(-2 log u) * cos or sin of a uniform angle."""
    middle, deviation = parts(self, seed, mean, std, offset, dtype)
    return middle + deviation


def terms(
    self: ArrayLike,
    seed: ArrayLike,
    mean: float = 0.0,
    std: float = 1.0,
    offset: int = 0,
    *,
    dtype: Reals = np.float64,
) -> Array:
    middle, deviation = parts(self, seed, mean, std, offset, dtype)
    return np.maximum(np.abs(middle), np.abs(deviation))


def calls() -> Iterator[Call]:
    yield from draws.calls(OP)
    for dtype in FLOATS:
        for mean, std in ((0.3, 2.2), (5.0, 0.0), (-1e30, 3e37), (0.0, 1e-40), (1000.0, 0.01)):
            yield Call(OP, draws.inputs((11,), dtype), {"mean": mean, "std": std}, label=f"{mean}_{std}-{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    """The words 6627e8d5, e169c58d, bc57ac4c and 9b00dbd8 are published for a counter and a key of 0.

    With 200 bits the formula gives the two numbers.
    """
    rtol = 2.0 ** -DIGITS[dtype.name]
    pair = [-0.12151797595308181291, -1.350032659857655003676]
    given = {"self": np.zeros(2, dtype), "seed": np.array(0)}
    yield Worked(Call(OP, given, label="standard"), {"out": pair}, rtol)
    yield Worked(Call(OP, given, {"mean": 1.0, "std": 2.0}, label="other"), {"out": [1 + 2 * z for z in pair]}, rtol)
    yield Worked(Call(OP, given, {"mean": 3.0, "std": 0.0}, label="certain"), {"out": [3, 3]})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    x = tensor(torch, call.given["self"])
    mean, std = call.attributes.get("mean", 0.0), call.attributes.get("std", 1.0)
    return lambda: x.normal_(mean, std)


# Logarithm, root, cosine and two products in float64, rounded once.
LIMITS = limits(single=0.51, double=5)
RECORD = Record(
    OP,
    inputs=draws.INPUTS,
    outputs={"out": like("self", limits=LIMITS, portable_limits=LIMITS)},
    attributes={
        "mean": Attribute(0.0, (0.0, -2.0), draws.NOT_FINITE, ("a finite number",)),
        "std": Attribute(1.0, (1.0, 0.25), (*draws.NOT_FINITE, -1.0), ("'std'", "expected")),
        "offset": draws.OFFSET,
    },
    oracle=oracle,
    terms=terms,
    make=draws.make,
    forms=draws.FORMS,
    calls=calls,
    worked=worked,
    refusals=draws.refusals,
    large=draws.large(OP),
    torch=torch_call,
    torch_draws=True,
    documented=(f"aclnn{OP}", "Box", "Muller", "Philox4x32-10", "Salmon", "NaN", "offset", "number of threads"),
    benchmarks=(Benchmark(draws.benchmark(OP)),),
    accuracies=(accuracy.Accuracy(draws.judged(OP)),),
)
