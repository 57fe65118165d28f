"""Oracles of Lgamma and Digamma in long double, by Abramowitz and Stegun (1964), and what their records share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np

from tests.ops._shared.arrays import FLOAT64, INF, NAN
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import DType

WIDE = np.longdouble
STEPS = 25
NODES = 10
# 6.1.41, 6.3.18 and 6.4.12: numerators and denominators of the terms in 1/z, 1/z**3, ...; 1/z**2, ...; 1/z**3, ...
LGAMMA = [(1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360), (1, 156), (-3617, 122400)]
DIGAMMA = [(-1, 12), (1, 120), (-1, 252), (1, 240), (-1, 132), (691, 32760), (-1, 12), (3617, 8160)]
TRIGAMMA = [(1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510)]
ROOT = 1.4616321449683622
"""The positive zero of digamma in float64; and what it lacks."""
LACKING = WIDE(float(Decimal("1.46163214496836234126265954232572132846819620400644") - Decimal(ROOT)))
PORTABLE = 2e-14
"""The absolute error of function bodies in double."""
ARGUMENTS = [NAN, -NAN, INF, -INF, 0.0, -0.0, *range(-5, 10), ROOT, -2.4570247382208006, 7.999, 8.001, 1e-5, -1e-5, 3e4]
ARGUMENTS += [5e-324, -5e-324, 1e-310, -1e-310, 1e-300, -1e-300]


def _nodes() -> tuple[Array, Array]:
    """The nodes and weights of Gauss and Legendre in [0, 1]."""
    x = np.polynomial.legendre.leggauss(NODES)[0].astype(WIDE)
    for _ in range(3):
        before, value = np.ones_like(x), x
        for k in range(2, NODES + 1):
            before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
        slope = NODES * (before - x * value) / (1 - x * x)
        x = x - value / slope
    return (1 + x) / 2, 1 / ((1 - x * x) * slope**2)


AT, WEIGHTS = _nodes()


def _series(terms: Sequence[tuple[int, int]], y: Array, first: int) -> Array:
    square, found = y**-2, np.zeros_like(y)
    for n, d in reversed(terms):
        found = found * square + WIDE(n) / WIDE(d)
    return found * y**-first


def _shifted(z: Array) -> tuple[Array, list[Array]]:
    """Arguments that are at least STEPS, and those between, which are infinite for those that are large already."""
    low = z < STEPS
    return np.where(low, z + STEPS, z), [np.where(low, z + i, INF) for i in range(STEPS)]


def _trigamma(z: Array) -> Array:
    y, between = _shifted(z)
    found = 1 / y + 1 / (2 * y * y) + _series(TRIGAMMA, y, 3)
    for i in between:
        found = found + 1 / (i * i)
    return found


def _digamma_but_for_zeros(z: Array) -> Array:
    y, between = _shifted(z)
    found = np.log(y) - 1 / (2 * y) + _series(DIGAMMA, y, 2)
    for i in between:
        found = found - 1 / i
    return found


def _digamma(z: Array) -> Array:
    found = _digamma_but_for_zeros(z)
    near = np.abs(z - ROOT) < 0.25
    found[near] = _integral(_trigamma, WIDE(ROOT), (z[near] - ROOT) - LACKING)
    return found


def _lgamma(z: Array) -> Array:
    y, between = _shifted(z)
    product = np.ones_like(y)
    for i in between:
        product *= np.where(np.isinf(i), 1, i)
    half_log = np.log(8 * np.arctan(WIDE(1))) / 2
    found = np.asarray((y - 0.5) * np.log(y) - y + half_log + _series(LGAMMA, y, 1) - np.log(product))
    for zero in (1, 2):
        near = np.abs(z - zero) <= 0.25
        found[near] = _integral(_digamma_but_for_zeros, WIDE(zero), z[near] - zero)
    found[z == INF] = INF
    return found


def _integral(derivative: Callable[[Array], Array], zero: np.longdouble, distance: Array) -> Array:
    """A function at `distance` from its zero."""
    slopes = derivative(zero + distance[:, None] * AT)
    return np.asarray(distance * (slopes * WEIGHTS).sum(-1))


def _parts(x: Array) -> tuple[Array, Array, Array]:
    """abs(x), and sine and cosine of pi * x for a negative x; integers have a sine of 0."""
    lowest = np.maximum(x, -(WIDE(2) ** 53))
    angle = 4 * np.arctan(WIDE(1)) * (lowest - np.rint(lowest))
    return np.abs(lowest), np.sin(angle), np.cos(angle)


def lgamma(x: Array) -> Array:
    """6.1.17, the reflection formula, for negative numbers."""
    flat = np.asarray(x, WIDE).ravel()
    z, sine, _ = _parts(flat)
    pi = 4 * np.arctan(WIDE(1))
    found = np.where(flat < 0, np.log(pi / (np.abs(sine) * z)) - _lgamma(z), _lgamma(z))
    return np.asarray(found.reshape(np.shape(x)))


def digamma(x: Array) -> Array:
    """6.3.7, the reflection formula, for negative numbers."""
    flat = np.asarray(x, WIDE).ravel()
    z, sine, cosine = _parts(flat)
    pi = 4 * np.arctan(WIDE(1))
    reflected = np.where(sine == 0, NAN, _digamma(z) + 1 / z - pi * cosine / sine)
    found = np.where(flat < 0, reflected, _digamma(z))
    return np.asarray(np.where(flat == 0, -1 / flat, found).reshape(np.shape(x)))


def slack_of(terms: Callable[[Array], Array]) -> Callable[[Array, DType, bool], Array]:
    """The rounding errors in double of the terms of negative numbers, and those of a function body.

    Args:
        terms: the sum of the sizes of these terms.
    """

    def slack(x: Array, dtype: DType, portable: bool) -> Array:
        with np.errstate(all="ignore"):
            size = np.nan_to_num(np.asarray(terms(x.astype(FLOAT64)), FLOAT64), posinf=0.0)
        return np.where(x.astype(FLOAT64) < 0, 8 * np.finfo(FLOAT64).eps * size, 0.0) + PORTABLE * portable

    return slack


def lgamma_terms(x: Array) -> Array:
    z, sine, _ = _parts(x)
    return np.abs(np.log(np.abs(sine))) + np.abs(np.log(z)) + np.abs(_lgamma(z.astype(WIDE).ravel()).reshape(z.shape))


def digamma_terms(x: Array) -> Array:
    z, sine, cosine = _parts(x)
    return np.abs(np.log(z)) + 2 / z + 4 * np.abs(cosine / sine)
