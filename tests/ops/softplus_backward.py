"""SoftplusBackward: the gradient of softplus."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, masked_gradient, with_torch
from tests.ops._shared.arrays import FLOAT64, FLOATS, INF, NAN
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Input, Output, Record, Worked, limits, promoted

OP = "SoftplusBackward"
WIDE = np.longdouble


def _is_linear(grad_output: ArrayLike, self: ArrayLike, beta: float, threshold: float) -> Array:
    """Whether the product, in float32 or with doubles in float64, is above the threshold."""
    dtypes = {np.asarray(grad_output).dtype, np.asarray(self).dtype}
    computing = np.float64 if FLOAT64 in dtypes else np.float32
    with np.errstate(all="ignore"):
        return np.asarray(real(self, computing) * attribute(beta, computing) > attribute(threshold, computing))


BETAS = (1.0, -1.0, 0.5, 1.5, -0.3, 100.0, 0.1)


def oracle(
    grad_output: ArrayLike, self: ArrayLike, beta: float = 1.0, threshold: float = 20.0, *, dtype: Reals = np.float64
) -> Array:
    """grad_output * (1 + tanh(t/2)) / 2, or by the exponential where t = beta * self is negative."""
    g, x = np.broadcast_arrays(real(grad_output, WIDE), real(self, WIDE))
    with np.errstate(all="ignore"):
        t = np.asarray(x * attribute(beta, WIDE))
        power = np.exp(np.maximum(t, -11000))
        slope = np.where(t < 0, power / (1 + power), (1 + np.tanh(t / 2)) / 2)
        return np.where(_is_linear(grad_output, self, beta, threshold), g, g * slope).astype(dtype)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """Of a function body: a subnormal exponential, and the rounding of t, which the exponential multiplies by t."""
    if not portable:
        return np.zeros(())
    computing = np.finfo(np.float64 if FLOAT64 in {a.dtype for a in call.given.values()} else np.float32)
    g, x = real(call.given["grad_output"]), real(call.given["self"])
    with np.errstate(all="ignore"):
        t = np.nan_to_num(np.asarray(x * float(np.float32(call.attributes.get("beta", 1.0)))))
        lost = np.abs(t) * float(computing.eps) / (1 + np.exp(-t)) + float(computing.smallest_normal)
        return np.nan_to_num(np.abs(g) * lost)


def calls() -> Iterator[Call]:
    yield from masked_gradient.broadcast_calls(OP, lambda number: {"beta": BETAS[number % len(BETAS)]})
    for dtype in FLOATS:
        far = 740.0 if dtype == FLOAT64 else 100.0
        for beta in BETAS:
            given = {"beta": beta}
            yield Call(OP, masked_gradient.special(dtype), given, label=f"special_{beta}-{dtype.name}")
            x = (np.linspace(-far, far, 397) / abs(beta)).astype(dtype)
            ones = {"grad_output": np.ones_like(x), "self": x}
            yield Call(OP, ones, given, label=f"range_{beta}-{dtype.name}")
        for threshold in (0.0, -2.0, 3.0, INF, -INF, NAN):
            near = np.array([threshold, -threshold, threshold + 1, threshold - 1, INF, -INF, NAN, 0.0], dtype)
            limit = {"threshold": threshold}
            yield Call(
                OP, {"grad_output": np.ones_like(near), "self": near}, limit, label=f"limit_{threshold}-{dtype.name}"
            )
        yield from masked_gradient.large_gradients(OP, dtype)


def worked(dtype: DType) -> Iterator[Worked]:
    g = np.array([1, -8, 2, 4, 4, 1, NAN], dtype)
    x = np.array([0, -0.0, INF, -INF, 2000, NAN, 1], dtype)
    call = Call(OP, {"grad_output": g, "self": x}, label="by_hand")
    yield Worked(call, {"grad_input": [0.5, -4, 2, 0, 4, NAN, NAN]})
    # 3/4 and 1/4; with beta -1 the other way round.
    near = np.log(np.array([3, 1 / 3])).astype(dtype)
    ones, rtol = {"grad_output": np.ones(2, dtype), "self": near}, 8 * float(ml_dtypes.finfo(dtype).eps)
    yield Worked(Call(OP, ones, label="log_3"), {"grad_input": [0.75, 0.25]}, rtol=rtol)
    yield Worked(Call(OP, ones, {"beta": -1.0}, label="log_sigmoid"), {"grad_input": [0.25, 0.75]}, rtol=rtol)
    # 3/4 from log(3) / 2 with beta 2, as a number of the dtype.
    half = {"grad_output": np.ones(1, dtype), "self": np.array([0.5 * math.log(3)], dtype)}
    yield Worked(Call(OP, half, {"beta": 2.0}, label="beta_2"), {"grad_input": [0.75]}, rtol=rtol)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = torch.broadcast_tensors(*with_torch.tensors(torch, call))
    given = (float(np.float32(call.attributes.get(*pair))) for pair in (("beta", 1.0), ("threshold", 20.0)))
    return functools.partial(torch.ops.aten.softplus_backward, *arguments, *given)


# An exponential, its correction, a quotient and two products: each half a unit of its own.
ROUNDED = limits(single=4, double=5)
PORTABLE = limits(single=8, double=8)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    outputs={"grad_input": Output(promoted, limits=ROUNDED, portable_limits=PORTABLE)},
    attributes={"beta": Attribute(1.0, BETAS), "threshold": Attribute(20.0, (20.0, 0.7, INF))},
    oracle=oracle,
    make=masked_gradient.make,
    forms=masked_gradient.FORMS,
    calls=calls,
    worked=worked,
    refusals=masked_gradient.refusals,
    slack=slack,
    large=lambda dtype: masked_gradient.large(OP, {"beta": 1.5}, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "1 + exp(-t)", "limit", "NaN", "relative precision", "logistic"),
    benchmarks=(Benchmark(masked_gradient.benchmark(OP)),),
    accuracies=(accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.EXPONENT}, loss=False),),
)
