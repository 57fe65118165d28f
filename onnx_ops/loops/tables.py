"""Functions of vectors by tables: the argument is brought close to one of a few points, the rest is a polynomial."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnx_ops.loops.primitives import LANES, ONE, fma, inlined
from onnx_ops.loops.vectors import TO_INTEGER, Table, as_floats, bits, floats, lesser, spread

f4 = np.float32

# The logarithm of 2**k * m, where 1 <= m < 2 and c is about 1/m, is k*log(2) - log(c) + log(1 + r), r = m*c - 1. Each c
# is a number of sixty-fourths, an even one where |r| may exceed 1/32, so that r is exact. So are k*log(2) - log(c) of
# the upper parts of these logarithms, 16 bits behind the point. As k comes with 127 added to it, tables hold
# -log(c) - 127*log(2).
POINTS = [k / 64 for k in (62, 58, 56, 52, 50, 48, 46, 44, 42, 40, 39, 37, 36, 35, 34, 33)]
MANTISSA, ONE_BITS = np.int32(0x7FFFFF), np.int32(0x3F800000)


def _upper(number: float) -> float:
    return round(number * 65536) / 65536


LN2_HIGH = _upper(math.log(2))
LN2_LOW = math.log(2) - LN2_HIGH
HIGH4, LOW4 = f4(LN2_HIGH), f4(LN2_LOW)
RECIPROCALS = Table(POINTS)
LOG_HIGH = Table(_upper(-math.log(c)) - 127 * LN2_HIGH for c in POINTS)
LOG_LOW = Table(-math.log(c) - _upper(-math.log(c)) - 127 * LN2_LOW for c in POINTS)
# log(1 + r) = r + r*r*p(r) for |r| <= 0.039, with an error of 2e-11.
P3 = tuple(map(f4, (0.20034089, -0.25031885, 0.33333314, -0.49999986)))


@inlined
def log_parts(x: Any) -> tuple[Any, Any]:
    """The logarithms of positive normal numbers, each as a sum of two, with an error of 2e-9.

    Of other numbers they are some finite numbers.
    """
    word = bits(x)
    index, exponent = word >> 19, as_floats(word >> 23)
    r = fma(floats((word & MANTISSA) | ONE_BITS), RECIPROCALS[index], spread(-ONE))
    p = ((P3[0] * r + P3[1]) * r + P3[2]) * r + P3[3]
    low = r + (r * r * p + (exponent * LOW4 + LOG_LOW[index]))
    return fma(exponent, spread(HIGH4), LOG_HIGH[index]), low


def _softplus(apart: float, count: int) -> np.ndarray:
    """log(1 + e**-a) near points so far apart as polynomials of so many coefficients, the highest power first."""
    nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count) * apart / 2  # where the rest of the range errs least
    return np.linalg.solve(np.vander(nodes), np.log1p(np.exp(-(nodes[:, None] + apart * np.arange(2 * LANES)))))


@inlined
def nearest(size: Any, apart: Any, last: Any) -> tuple[Any, Any]:
    """Which of the points so far apart is nearest to a size, in the low bits, and how far the size lies from it.

    last: the bits of the last point, which stands for larger sizes.
    """
    near = floats(lesser(bits(size), last))
    shifted = near * (ONE / apart) + TO_INTEGER
    return bits(shifted), near - (shifted - TO_INTEGER) * apart


COARSE, FINE = f4(0.5), f4(0.75)
COARSE_LAST, FINE_LAST = ((f4(2 * LANES - 1) * apart).view(np.int32) for apart in (COARSE, FINE))
SOFTPLUS = tuple(map(Table, _softplus(float(COARSE), 4)))
COEFFICIENTS = _softplus(float(FINE), 8)
FINE_SOFTPLUS = tuple(map(Table, COEFFICIENTS))
FINE_LOW = tuple(map(Table, COEFFICIENTS[-2:] - COEFFICIENTS[-2:].astype(f4)))
"""What the last two of them lose in float32."""


@inlined
def near_softplus(size: Any) -> Any:
    """log(1 + e**-size) of numbers from 0 up, with an error of 3e-5; above 15.5 it is 2e-7."""
    index, u = nearest(size, COARSE, COARSE_LAST)
    return ((SOFTPLUS[0][index] * u + SOFTPLUS[1][index]) * u + SOFTPLUS[2][index]) * u + SOFTPLUS[3][index]


@inlined
def softplus_parts(size: Any) -> tuple[Any, Any]:
    """log(1 + e**-size) of numbers from 0 up as sums of two, with an error of 2e-8; above 23 they are 1e-10."""
    index, u = nearest(size, FINE, FINE_LAST)
    q = (FINE_SOFTPLUS[0][index] * u + FINE_SOFTPLUS[1][index]) * u + FINE_SOFTPLUS[2][index]
    q = ((q * u + FINE_SOFTPLUS[3][index]) * u + FINE_SOFTPLUS[4][index]) * u + FINE_SOFTPLUS[5][index]
    slope, value = FINE_SOFTPLUS[6][index], FINE_SOFTPLUS[7][index]
    high = slope * u + value
    lost = fma(slope, u, value - high)
    return high, (q * u + FINE_LOW[0][index]) * u + (FINE_LOW[1][index] + lost)
