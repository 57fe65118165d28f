"""Silu: SiLU, also called Swish."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, functions_of_one_number, with_torch
from tests.ops._shared.arrays import FLOAT64, FLOATS, INF, NAN, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "Silu"
WIDE = np.longdouble


def oracle(self: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    """self times s, where s = 1 / (1 + exp(-self)) is written as exp(self) / (1 + exp(self)) for self < 0."""
    x = np.asarray(real(self, WIDE))
    with np.errstate(all="ignore"):
        power = np.exp(-np.abs(x))
        return np.asarray(x * np.where(x < 0, power, 1) / (1 + power)).astype(dtype)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """Where the exponential counts as infinite, or overflows in a function body, the result is 0."""
    x = np.asarray(real(call.given["self"], WIDE))
    least = 708 if call.dtype("self") == FLOAT64 else 87
    with np.errstate(all="ignore"):
        return np.where(x < -least, 1.001 * np.abs(x) * np.exp(x), 0)


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        yield Call(OP, {"self": functions_of_one_number.special(dtype)}, label=f"special-{dtype.name}")
        far = 760.0 if dtype == FLOAT64 else 110.0
        yield Call(OP, {"self": np.linspace(-far, far, 4001).astype(dtype)}, label=f"range-{dtype.name}")
        for size in (1, 255, 4097, 70_001):
            yield Call(OP, {"self": normal((size,), dtype, "x")}, label=f"{size}-{dtype.name}", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([0, -0.0, INF, 2000, -2000, NAN], dtype)
    yield Worked(Call(OP, {"self": x}, label="by_hand"), {"out": [0, 0, INF, 2000, 0, NAN]})
    # s(log(3)) = 3/4.
    near = np.log(np.array([3, 1 / 3])).astype(dtype)
    expected = [0.75 * math.log(3), -0.25 * math.log(3)]
    yield Worked(Call(OP, {"self": near}, label="log_3"), {"out": expected}, rtol=8 * float(ml_dtypes.finfo(dtype).eps))


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    (this,) = with_torch.tensors(torch, call)
    return lambda: torch.nn.functional.silu(this)


def exponent(call: Call, dtype: Reals) -> Array:
    """Of the smaller one of the exponential and its reciprocal, for negative self."""
    return np.minimum(real(call.given["self"], dtype), 0)


# An exponential that is off by 2 units, or 4 in float64, a sum and a quotient.
ROUNDED = limits(single=4, double=6)
PORTABLE = limits(single=8, double=8)
RECORD = Record(
    OP,
    inputs={"self": Input()},
    outputs={"out": like("self", limits=ROUNDED, portable_limits=PORTABLE)},
    oracle=oracle,
    make=functions_of_one_number.make,
    forms=functions_of_one_number.FORMS,
    calls=calls,
    worked=worked,
    slack=slack,
    large=lambda dtype: (Call(OP, {"self": normal((53, 61, 67), dtype, "x")}, label="map"),),
    torch=torch_call,
    documented=(f"aclnn{OP}", "self / (1 + exp(-self))", "relative precision", "minus infinity", "NaN"),
    benchmarks=(Benchmark(lambda elements, dtype: Call(OP, {"self": normal((elements,), dtype, "x")})),),
    accuracies=(accuracy.pointwise(OP, {"self": accuracy.EXPONENT}, loss=False, exponent=exponent),),
)
