"""SiluBackward: the gradient of SiLU."""

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
from tests.ops._shared.arrays import FLOATS, INF, NAN
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Benchmark, Call, DType, Input, Output, Record, Worked, limits, promoted

OP = "SiluBackward"
WIDE = np.longdouble
FAR = 11000
"""exp(-FAR) is 0, and FAR times it as well."""


def _terms(grad_output: ArrayLike, self: ArrayLike) -> tuple[Array, Array, Array]:
    """The gradient, and the terms s(x) and x * s(x) * s(-x) of the derivative."""
    x = np.asarray(real(self, WIDE))
    with np.errstate(all="ignore"):
        size = np.minimum(np.abs(x), FAR)
        power = np.exp(-size)
        side = 1 / (1 + power)
        first = np.where(x < 0, power * side, side)
        return real(grad_output, WIDE), first, np.sign(x) * size * power * side * side


def oracle(grad_output: ArrayLike, self: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    """grad_output times the derivative; an infinite self gives its limit."""
    g, first, second = _terms(grad_output, self)
    with np.errstate(all="ignore"):
        return np.asarray(g * np.where(np.isneginf(real(self, WIDE)), 0, first + second)).astype(dtype)


def largest_term(grad_output: ArrayLike, self: ArrayLike, *, dtype: Reals = np.float64) -> Array:
    g, first, second = _terms(grad_output, self)
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(g) * np.maximum(np.abs(first), np.abs(second))).astype(dtype)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """Of a function body: an exponential that is subnormal."""
    if not portable:
        return np.zeros(())
    computing = np.finfo(np.float64 if np.float64 in {a.dtype for a in call.given.values()} else np.float32)
    g, x = real(call.given["grad_output"]), real(call.given["self"])
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(g) * (1 + np.minimum(np.abs(x), 1500)) * computing.smallest_normal)


def calls() -> Iterator[Call]:
    yield from masked_gradient.broadcast_calls(OP, lambda number: {})
    for dtype in FLOATS:
        yield Call(OP, masked_gradient.special(dtype), label=f"special-{dtype.name}")
        falling = np.linspace(-100, -1, 397).astype(dtype)
        yield Call(OP, {"grad_output": np.ones_like(falling), "self": falling}, label=f"falling-{dtype.name}")
        yield from masked_gradient.large_gradients(OP, dtype)


def worked(dtype: DType) -> Iterator[Worked]:
    g = np.array([1, -8, 2, 4, 4, 1, NAN, INF], dtype)
    x = np.array([0, -0.0, INF, -INF, 2000, NAN, 1, -INF], dtype)
    call = Call(OP, {"grad_output": g, "self": x}, label="by_hand")
    yield Worked(call, {"grad_input": [0.5, -4, 2, 0, 4, NAN, NAN, NAN]})
    # At log(3): s = 3/4, and 3/4 * (1 + log(3)/4); at -log(3): 1/4 * (1 - log(3) * 3/4).
    near = np.log(np.array([3, 1 / 3])).astype(dtype)
    expected = [0.75 * (1 + math.log(3) / 4), 0.25 * (1 - math.log(3) * 0.75)]
    ones = {"grad_output": np.ones(2, dtype), "self": near}
    yield Worked(Call(OP, ones, label="log_3"), {"grad_input": expected}, rtol=8 * float(ml_dtypes.finfo(dtype).eps))


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = torch.broadcast_tensors(*with_torch.tensors(torch, call))
    return functools.partial(torch.ops.aten.silu_backward, *arguments)


# An exponential, a quotient and four products: each half a unit of its own, which is up to a unit of the result.
ROUNDED = limits(single=5, double=5)
PORTABLE = limits(single=8, double=8)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    outputs={"grad_input": Output(promoted, limits=ROUNDED, portable_limits=PORTABLE)},
    attributes={},
    oracle=oracle,
    make=masked_gradient.make,
    forms=masked_gradient.FORMS,
    calls=calls,
    worked=worked,
    refusals=masked_gradient.refusals,
    terms=largest_term,
    slack=slack,
    large=lambda dtype: masked_gradient.large(OP, {}, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "s * (1 + x * (1 - s))", "infinite", "NaN", "do not cancel"),
    benchmarks=(Benchmark(masked_gradient.benchmark(OP)),),
    accuracies=(accuracy.pointwise(OP, {"grad_output": accuracy.FACTOR, "self": accuracy.EXPONENT}, loss=False),),
)
