"""SoftplusV2: softplus, a smooth ReLU."""

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
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Input, Record, Worked, like, limits

OP = "SoftplusV2"
WIDE = np.longdouble


def _is_linear(self: ArrayLike, beta: float, threshold: float) -> Array:
    """Whether the product, in float32 or for doubles in float64, is above the threshold."""
    x = np.asarray(self)
    computing = np.float64 if x.dtype == FLOAT64 else np.float32
    with np.errstate(all="ignore"):
        return np.asarray(real(x, computing) * attribute(beta, computing) > attribute(threshold, computing))


def oracle(self: ArrayLike, beta: float = 1.0, threshold: float = 20.0, *, dtype: Reals = np.float64) -> Array:
    """log(1 + exp(t)) / beta, by logaddexp, where t = beta * self is at most the threshold, else self."""
    x, scale = real(self, WIDE), attribute(beta, WIDE)
    with np.errstate(all="ignore"):
        t = np.asarray(x * scale)
        return np.where(_is_linear(self, beta, threshold), x, np.logaddexp(WIDE(0), t) / scale).astype(dtype)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """A subnormal exponential in float64, which is divided by beta.

    Of a function body: one in the computing dtype, and the rounding of t, which the exponential multiplies by t.
    """
    beta = float(np.float32(call.attributes.get("beta", 1.0)))
    if not portable:
        return np.asarray(float(np.finfo(np.float64).smallest_subnormal) / abs(beta))
    computing = np.finfo(np.float64 if call.dtype("self") == FLOAT64 else np.float32)
    with np.errstate(all="ignore"):
        t = np.nan_to_num(np.asarray(real(call.given["self"])) * beta)
        lost = np.abs(t) * float(computing.eps) / (1 + np.exp(-t)) + float(computing.smallest_normal)
        return np.asarray(lost / abs(beta))


BETAS = (1.0, -1.0, 0.5, 1.5, -0.3, 100.0, 0.1)


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        far = 760.0 if dtype == FLOAT64 else 110.0
        for beta in BETAS:
            given = {"beta": beta}
            special = functions_of_one_number.special(dtype)
            yield Call(OP, {"self": special}, given, label=f"special_{beta}-{dtype.name}")
            range_ = np.linspace(-far, far, 4001) / abs(beta)
            yield Call(OP, {"self": range_.astype(dtype)}, given, label=f"range_{beta}-{dtype.name}")
        for threshold in (0.0, -2.0, 3.0, INF, -INF, NAN):
            near = np.array([threshold, -threshold, threshold + 1, threshold - 1, INF, -INF, NAN, 0.0], dtype)
            yield Call(OP, {"self": near}, {"threshold": threshold}, label=f"threshold_{threshold}-{dtype.name}")
        for size in (1, 255, 4097, 70_001):
            yield Call(OP, {"self": normal((size,), dtype, "x")}, label=f"{size}-{dtype.name}", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.array([INF, -INF, 2000, 20.5, -2000, NAN], dtype)
    yield Worked(Call(OP, {"self": x}, label="by_hand"), {"out": [INF, 0, 2000, 20.5, 0, NAN]})
    # log(1 + 3) and log(1 + 1/3); with beta -1 minus the same of the negative.
    near = np.log(np.array([3, 1 / 3])).astype(dtype)
    rtol = 8 * float(ml_dtypes.finfo(dtype).eps)
    expected = [math.log(4), math.log(4 / 3)]
    yield Worked(Call(OP, {"self": near}, label="log_3"), {"out": expected}, rtol=rtol)
    negative = [-each for each in reversed(expected)]
    yield Worked(Call(OP, {"self": near}, {"beta": -1.0}, label="log_sigmoid"), {"out": negative}, rtol=rtol)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    (this,) = with_torch.tensors(torch, call)
    beta, threshold = (float(np.float32(call.attributes.get(*pair))) for pair in (("beta", 1.0), ("threshold", 20.0)))
    if beta == -1 and threshold == 20:
        return lambda: torch.nn.functional.logsigmoid(this)
    return lambda: torch.nn.functional.softplus(this, beta, threshold)


def exponent(call: Call, dtype: Reals) -> Array:
    """Of the exponential, for negative self."""
    return np.minimum(real(call.given["self"], dtype), 0)


# An exponential and a logarithm, each off by 1 unit, in float64 a sum and a quotient more.
ROUNDED = limits(single=1, double=5)
PORTABLE = limits(single=10, double=10)
RECORD = Record(
    OP,
    inputs={"self": Input()},
    outputs={"out": like("self", limits=ROUNDED, portable_limits=PORTABLE)},
    attributes={"beta": Attribute(1.0, BETAS), "threshold": Attribute(20.0, (20.0, 0.7, INF))},
    oracle=oracle,
    make=functions_of_one_number.make,
    forms=functions_of_one_number.FORMS,
    calls=calls,
    worked=worked,
    slack=slack,
    large=lambda dtype: (Call(OP, {"self": normal((53, 61, 67), dtype, "x")}, {"beta": 1.5}, label="map"),),
    torch=torch_call,
    documented=("aclnnSoftplus", "log(1 + exp(t)) / beta", "relative precision", "threshold", "NaN", "logistic"),
    benchmarks=(Benchmark(lambda elements, dtype: Call(OP, {"self": normal((elements,), dtype, "x")})),),
    accuracies=(accuracy.pointwise(OP, {"self": accuracy.EXPONENT}, loss=False, exponent=exponent),),
)
