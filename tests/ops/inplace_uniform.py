"""Uniform random numbers: which ones, tells a generator with published answers."""

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
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Record, Refusal, Worked, like, limits
from tests.ops._shared.with_torch import tensor

OP = "InplaceUniform"


def parts(self: ArrayLike, seed: ArrayLike, low: float, high: float, offset: int, dtype: Reals) -> tuple[Array, Array]:
    """The two summands: low, and the share of the width, cut to the digits of the dtype of `self`."""
    given = np.asarray(self)
    digits = DIGITS[given.dtype.name]
    drawn = [number // 2 ** (53 - digits) for number in numbers(int(np.asarray(seed)), offset, given.size)]
    least, most = np.float32(low), np.float32(high)
    share = np.array(drawn, dtype) / dtype(2) ** digits * (dtype(most) - dtype(least))
    return np.full(given.shape, least, dtype), np.reshape(share, given.shape)


def oracle(
    self: ArrayLike,
    seed: ArrayLike,
    low: float = 0.0,
    high: float = 1.0,
    offset: int = 0,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """low + (high - low) * u for multiples u of 2^-digits in [0, 1)."""
    least, share = parts(self, seed, low, high, offset, dtype)
    return least + share


def terms(
    self: ArrayLike,
    seed: ArrayLike,
    low: float = 0.0,
    high: float = 1.0,
    offset: int = 0,
    *,
    dtype: Reals = np.float64,
) -> Array:
    least, share = parts(self, seed, low, high, offset, dtype)
    return np.maximum(np.abs(least), np.abs(share))


def calls() -> Iterator[Call]:
    yield from draws.calls(OP)
    for dtype in FLOATS:
        for low, high in ((-2.5, 3.3), (0.0, 0.0), (7.0, 7.0), (-3e38, 3e38), (1e-40, 2e-40), (1000.0, 1000.25)):
            yield Call(OP, draws.inputs((11,), dtype), {"low": low, "high": high}, label=f"{low}_{high}-{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    """The words 6627e8d5, e169c58d, bc57ac4c and 9b00dbd8 are published for a counter and a key of 0."""
    digits = DIGITS[dtype.name]
    cut = [(n >> (64 - digits)) / 2**digits for n in (0x6627E8D5E169C58D, 0xBC57AC4C9B00DBD8)]
    given = {"self": np.zeros(2, dtype), "seed": np.array(0)}
    yield Worked(Call(OP, given, label="unit"), {"out": cut})
    yield Worked(Call(OP, given, {"low": -1.0}, label="both_signs"), {"out": [2 * u - 1 for u in cut]})
    yield Worked(Call(OP, given, {"high": 0.0}, label="none"), {"out": [0, 0]})


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from draws.refusals(plain)
    yield Refusal("high_below_low", ("'high'", "at least 'low'"), attributes={"low": 1.0, "high": 0.5})


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    x = tensor(torch, call.given["self"])
    low, high = call.attributes.get("low", 0.0), call.attributes.get("high", 1.0)
    return lambda: x.uniform_(low, high)


# A product and a sum in float64, rounded once.
LIMITS = limits(single=0.51, double=1.01)
RECORD = Record(
    OP,
    inputs=draws.INPUTS,
    outputs={"out": like("self", limits=LIMITS, portable_limits=LIMITS)},
    attributes={
        "low": Attribute(0.0, (0.0, -2.0), draws.NOT_FINITE, ("a finite number",)),
        "high": Attribute(1.0, (1.0, 0.25), draws.NOT_FINITE, ("a finite number",)),
        "offset": draws.OFFSET,
    },
    oracle=oracle,
    terms=terms,
    make=draws.make,
    forms=draws.FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=draws.large(OP),
    torch=torch_call,
    torch_draws=True,
    documented=(f"aclnn{OP}", "Philox4x32-10", "Salmon", "NaN", "offset", "number of threads", "digits"),
    benchmarks=(Benchmark(draws.benchmark(OP)),),
    accuracies=(accuracy.Accuracy(draws.judged(OP)),),
)
