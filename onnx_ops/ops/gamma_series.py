"""What Lgamma, Digamma and their definitions share: series, and products of shifted arguments.

Those of `Any` take the values of a function body too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from onnx_ops.loops.primitives import Number, choose, inlined

FAR = 8.0
"""From here on the asymptotic series are within 1e-17 of lgamma and digamma."""
SHIFT = 7.0
TERMS = 10
LESS_ONE, LESS_ONE_LOW = 0.46163214496836236, -1.5522348162858677e-17
"""The positive zero of digamma less 1, as the sum of two numbers."""


def _bernoulli(count: int) -> list[Fraction]:
    """The Bernoulli numbers of even index, from the second on."""
    numbers = [Fraction(1)]
    for m in range(1, 2 * count + 1):
        numbers.append(-sum((math.comb(m + 1, k) * numbers[k] for k in range(m)), Fraction()) / (m + 1))
    return numbers[2::2]


BERNOULLI = _bernoulli(TERMS)
LOG_GAMMA_TERMS = tuple(float(b / (2 * k * (2 * k - 1))) for k, b in enumerate(BERNOULLI, 1))
DIGAMMA_TERMS = tuple(float(b / (2 * k)) for k, b in enumerate(BERNOULLI, 1))
CONSTANT = (math.log(2 * math.pi) - 1) / 2


@inlined
def horner(x: Any, coefficients: Sequence[float]) -> Any:
    """A polynomial, whose coefficients begin with the constant term."""
    found = x * coefficients[len(coefficients) - 1] + coefficients[len(coefficients) - 2]
    for k in range(len(coefficients) - 3, -1, -1):
        found = found * x + coefficients[k]
    return found


@inlined
def stirling(z: Any, logarithm: Any, inverse: Any) -> Any:
    """lgamma(z) for z >= 7, with its logarithm and reciprocal (Stirling's series)."""
    return (z - 0.5) * (logarithm - 1.0) + CONSTANT + inverse * horner(inverse * inverse, LOG_GAMMA_TERMS)


@inlined
def asymptotic_digamma(logarithm: Any, inverse: Any, terms: tuple[float, ...]) -> Any:
    """digamma(z) for z >= 7, by its logarithm and reciprocal, and some of DIGAMMA_TERMS."""
    square = inverse * inverse
    return logarithm - inverse * 0.5 - square * horner(square, terms)


def product_of_seven(z: Any) -> Any:
    """z * (z + 1) * ... * (z + 6)."""
    u = z * (z + 6.0)
    return u * (u + 5.0) * (u + 8.0) * (z + 3.0)


def inverses_of_seven(z: Any) -> Any:
    """1 / z + 1 / (z + 1) + ... + 1 / (z + 6)."""
    u, middle = z * (z + 6.0), z + 3.0
    return middle * (u * (u * 6.0 + 52.0) + 80.0) / (u * (u + 5.0) * (u + 8.0)) + 1.0 / middle


@inlined
def from_integer(x: Number) -> Any:
    """The distance of a float64 from the nearest integer, of which sines of pi times x have no error."""
    return x - np.rint(x)


@inlined
def down_to_three(z: Number) -> tuple[Any, Any, Any]:
    """(y, p, q) for z below FAR: y = z - n below 3, p = y * (y + 1) * ... * (z - 1), and q / p the sum of inverses."""
    y, product, numerator = z, 1.0, 0.0
    for _ in range(5):
        high = y >= 3.0
        y = choose(high, y - 1.0, y)
        numerator = choose(high, numerator * y + product, numerator)
        product = choose(high, product * y, product)
    return y, product, numerator
