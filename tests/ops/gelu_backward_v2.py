"""GeluBackwardV2: the gradient of GELU, exact or in its tanh approximation."""

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
from tests.ops._shared.record import Attribute, Benchmark, Call, DType, Input, Output, Record, Worked, limits, promoted

OP = "GeluBackwardV2"
NONE, TANH = 0, 1
WIDE = np.longdouble
PI = 4 * np.arctan(WIDE(1))
FRACTION = 200


def _decay(x: Array) -> Array:
    """exp(-x*x/2) of a longdouble x >= 0; the square of its leading bits is exact."""
    high = np.rint(x * 2**20) / 2**20
    return np.asarray(np.exp(-high * high / 2) * np.exp(-(x - high) * (x + high) / 2))


def _scaled_tail(x: Array) -> Array:
    """(1 - Phi(x)) / phi(x) of a longdouble x >= 0, Phi and phi of the normal distribution.

    The continued fraction 1/(x + 1/(x + 2/(x + 3/(x + ...)))) of Laplace for x >= 2, else by the series
    Phi(x) - 1/2 = phi(x) * (x + x**3/3 + x**5/(3*5) + ...).
    """
    large = np.maximum(x, 2)
    fraction = large
    for k in range(FRACTION, 0, -1):
        fraction = large + k / fraction
    small = np.minimum(x, 2)
    term, total = small, small
    for k in range(3, 81, 2):
        term = term * small * small / k
        total = total + term
    return np.where(x < 2, np.sqrt(PI / 2) / _decay(small) - total, 1 / fraction)


def _exact(x: Array) -> tuple[Array, Array]:
    """Phi(x) and x * phi(x)."""
    size = np.minimum(np.abs(x), 200)
    density = _decay(size) / np.sqrt(2 * PI)
    tail = density * _scaled_tail(size)
    return np.where(x < 0, tail, 1 - tail), np.sign(x) * size * density


def _by_tanh(x: Array) -> tuple[Array, Array]:
    """(1 + t) / 2 and x * (1 - t**2) / 2 * du(x), by s = 1 / (1 + exp(2*abs(u))) = (1 - abs(t)) / 2."""
    size = np.minimum(np.abs(x), 50)
    root = np.sqrt(2 / PI)
    cubic = WIDE(44715) / 1_000_000 * size * size
    power = np.exp(-2 * root * size * (1 + cubic))
    side = power / (1 + power)
    return np.where(x < 0, side, 1 - side), np.sign(x) * size * root * (1 + 3 * cubic) * 2 * side / (1 + power)


def _terms(grad_output: ArrayLike, self: ArrayLike, approximate: int) -> tuple[Array, Array, Array]:
    """The gradient, and the terms of the derivative."""
    x = np.asarray(real(self, WIDE))
    with np.errstate(all="ignore"):
        return real(grad_output, WIDE), *(_by_tanh if approximate == TANH else _exact)(x)


def oracle(grad_output: ArrayLike, self: ArrayLike, approximate: int = NONE, *, dtype: Reals = np.float64) -> Array:
    """grad_output times the derivative; an infinite self gives its limit."""
    g, first, second = _terms(grad_output, self, approximate)
    with np.errstate(invalid="ignore"):
        return np.asarray(g * np.where(np.isneginf(real(self, WIDE)), 0, first + second)).astype(dtype)


def largest_term(
    grad_output: ArrayLike, self: ArrayLike, approximate: int = NONE, *, dtype: Reals = np.float64
) -> Array:
    g, first, second = _terms(grad_output, self, approximate)
    return np.asarray(np.abs(g) * np.maximum(np.abs(first), np.abs(second))).astype(dtype)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """Of a function body: the rounding of the exponent, at most abs(x)**3, and a decay that is subnormal."""
    if not portable:
        return np.zeros(())
    computing = np.finfo(np.float64 if np.float64 in {a.dtype for a in call.given.values()} else np.float32)
    g, first, second = _terms(call.given["grad_output"], call.given["self"], call.attributes.get("approximate", NONE))
    x = np.minimum(np.abs(real(call.given["self"])), 50)
    power = (x + x**3) * computing.eps * np.minimum(np.maximum(np.abs(first), np.abs(second)), 1 - np.abs(first - 0.5))
    return np.asarray(np.abs(g) * (power + 50 * computing.smallest_normal)).astype(np.float64)


def calls() -> Iterator[Call]:
    yield from masked_gradient.broadcast_calls(OP, lambda number: {"approximate": number % 2})
    for dtype in FLOATS:
        falling = np.linspace(-16, -4, 97).astype(dtype)
        for approximate in (NONE, TANH):
            label, attributes = f"{approximate}-{dtype.name}", {"approximate": approximate}
            yield Call(OP, masked_gradient.special(dtype), attributes, label=f"special-{label}")
            ones = np.ones_like(falling)
            yield Call(OP, {"grad_output": ones, "self": falling}, attributes, label=f"falling-{label}")
            if dtype.itemsize >= 4:
                falling = np.maximum(falling, -12)
                most = np.full_like(falling, np.finfo(dtype).max / 4)
                yield Call(OP, {"grad_output": most, "self": falling}, attributes, label=f"most-{label}", careful=True)


def worked(dtype: DType) -> Iterator[Worked]:
    g = np.array([1, -8, 2, 4, 4, 1, NAN, INF], dtype)
    x = np.array([0, -0.0, INF, -INF, 1000, NAN, 1, -INF], dtype)
    for approximate in (NONE, TANH):
        call = Call(OP, {"grad_output": g, "self": x}, {"approximate": approximate}, label=f"by_hand_{approximate}")
        yield Worked(call, {"grad_input": [0.5, -4, 2, 0, 4, NAN, NAN, NAN]})
    # Phi(1) + phi(1) and Phi(-1) - phi(-1), of the error function and exp of Python.
    up, density = math.erfc(-math.sqrt(0.5)) / 2, math.exp(-0.5) / math.sqrt(2 * math.pi)
    ones = {"grad_output": np.ones(2, dtype), "self": np.array([1, -1], dtype)}
    expected = [up + density, 1 - up - density]
    yield Worked(Call(OP, ones, label="erf"), {"grad_input": expected}, rtol=8 * float(ml_dtypes.finfo(dtype).eps))


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    arguments = torch.broadcast_tensors(*with_torch.tensors(torch, call))
    approximate = {NONE: "none", TANH: "tanh"}[call.attributes.get("approximate", NONE)]
    return functools.partial(torch.ops.aten.gelu_backward, *arguments, approximate=approximate)


# In float32 the normal range of the derivative ends at x = -13, in float64 at -38.
INPUT = accuracy.Operand(
    accuracy.factors,
    {"float16": (-20, 15), "bfloat16": (-20, 3.8), "float32": (-20, 3.8), "float64": (-20, 5.2)},
)
# An exponential, a quotient and four products: each half a unit of its own, which is up to a unit of the result.
ROUNDED = limits(single=5, double=5)
PORTABLE = limits(single=8, double=8)
RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input()},
    outputs={"grad_input": Output(promoted, limits=ROUNDED, portable_limits=PORTABLE)},
    attributes={"approximate": Attribute(NONE, (NONE, TANH), (-1, 2), ("expected one of", "0 (none)", "1 (tanh)"))},
    oracle=oracle,
    make=masked_gradient.make,
    forms=masked_gradient.FORMS,
    calls=calls,
    worked=worked,
    refusals=masked_gradient.refusals,
    terms=largest_term,
    slack=slack,
    large=lambda dtype: masked_gradient.large(OP, {"approximate": TANH}, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "Phi(x) + x * phi(x)", "0.044715", "infinite", "NaN", "do not cancel"),
    benchmarks=tuple(
        Benchmark(masked_gradient.benchmark(OP, approximate=kind), note=note)
        for kind, note in ((NONE, ""), (TANH, "tanh"))
    ),
    accuracies=tuple(
        accuracy.pointwise(
            OP,
            {"grad_output": accuracy.FACTOR, "self": INPUT},
            {"approximate": kind},
            loss=False,
            note=note,
        )
        for kind, note in ((NONE, ""), (TANH, "tanh"))
    ),
)
