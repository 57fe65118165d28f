"""The definitions of Lgamma and Digamma in NumPy, in long double."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from onnx_ops.ops.gamma_series import BERNOULLI, LESS_ONE, LESS_ONE_LOW

Wide = NDArray[np.longdouble]
ONE = np.longdouble(1)
PI = 4 * np.arctan(ONE)
STEPS = 24
"""Of arguments from here on the asymptotic series is within 1e-24 of the function."""
POWERS = 40
NEAR = 0.5
"""The distance from a zero up to which the function is computed by that distance."""
ROOT = ONE + LESS_ONE + LESS_ONE_LOW


def _wide(number: Fraction) -> np.longdouble:
    return np.longdouble(number.numerator) / np.longdouble(number.denominator)


def _less_one(k: int) -> np.longdouble:
    """zeta(k) - 1, by the formula of Euler and Maclaurin."""
    direct = sum((np.longdouble(n) ** -k for n in range(STEPS - 1, 1, -1)), np.longdouble(0))
    y = np.longdouble(STEPS)
    found, factor = direct + y ** (1 - k) / (k - 1) + y**-k / 2, np.longdouble(k) * y ** (-k - 1)
    for m, b in enumerate(BERNOULLI, 1):
        found += _wide(b) / math.factorial(2 * m) * factor
        factor *= (k + 2 * m - 1) * (k + 2 * m) / y**2
    return found


EXCESSES = [_less_one(k) for k in range(2, POWERS)]
EULER = np.longdouble("0.57721566490153286060651209008240243")


def _asymptotic(y: Wide, divisors: list[int]) -> Wide:
    """The sum of B(2k) / divisors[k - 1] * y ** -2k."""
    square, found = y**-2, np.zeros_like(y)
    for b, divisor in zip(reversed(BERNOULLI), reversed(divisors), strict=True):
        found = (found + _wide(b) / divisor) * square
    return found


def _log_gamma_of_positive(z: Wide) -> Wide:
    far = np.maximum(z, 0) + np.where(z < STEPS, STEPS, 0)
    product = np.ones_like(z)
    for i in range(STEPS):
        product = np.where(z < STEPS, product * (z + i), 1)
    divisors = [2 * k * (2 * k - 1) for k in range(1, len(BERNOULLI) + 1)]
    series = np.where(np.isinf(far), 0, far) * _asymptotic(far, divisors)
    found: Wide = (far - 0.5) * (np.log(far) - 1) + (np.log(2 * PI) - 1) / 2 + series - np.log(product)
    for zero in (1, 2):  # by the powers of the distance
        b = z - zero
        near = np.abs(b) <= NEAR
        b = np.where(near, b, 0)
        powers = sum((c * (-b) ** k / k for k, c in enumerate(EXCESSES, 2)), np.zeros_like(b))
        first = np.log1p(b) if zero == 1 else 0
        found = np.where(near, b * (1 - EULER) + powers - first, found)
    return found


def log_gamma(x: Wide) -> Wide:
    """lgamma of any long doubles."""
    with np.errstate(all="ignore"):
        x = np.maximum(x, -(ONE * 2**53))
        found = _log_gamma_of_positive(np.abs(x))
        sine = np.abs(np.sin(PI * (x - np.rint(x))))
        return np.where(x < 0, np.log(PI) - np.log(sine) - np.log(np.abs(x)) - found, found)


def _digamma_of_positive(z: Wide) -> Wide:
    far = np.maximum(z, 0) + np.where(z < STEPS, STEPS, 0)
    total = np.zeros_like(z)
    for i in range(STEPS):
        total = np.where(z < STEPS, total + 1 / (z + i), 0)
    divisors = [2 * k for k in range(1, len(BERNOULLI) + 1)]
    found = np.log(far) - 1 / (2 * far) - _asymptotic(far, divisors) - total
    near = np.abs(z - ROOT) <= NEAR  # by the difference to the zero, times the distance
    distance = np.where(near, z - 1 - LESS_ONE - LESS_ONE_LOW, 0)
    other = np.where(near, z, ROOT)
    slope = sum((1 / ((i + other) * (i + ROOT)) for i in range(STEPS)), np.zeros_like(z))
    y, root = other + STEPS, ROOT + STEPS
    ratio = np.log1p(distance / root)
    terms = (_wide(b) / (2 * k) * root ** (-2 * k) * np.expm1(-2 * k * ratio) for k, b in enumerate(BERNOULLI, 1))
    rest = ratio + distance / (2 * y * root) - sum(terms, np.zeros_like(z))
    return np.where(near, distance * slope + rest, found)


def digamma(x: Wide) -> Wide:
    """digamma of any long doubles."""
    with np.errstate(all="ignore"):
        x = np.maximum(x, -(ONE * 2**53))
        found = _digamma_of_positive(np.abs(x))
        distance = x - np.rint(x)
        cotangent = np.where(distance == 0, np.nan, np.cos(PI * distance) / np.sin(PI * distance))
        found = np.where(x < 0, found - 1 / x - PI * cotangent, found)
        return np.where(x == 0, -1 / x, found)
