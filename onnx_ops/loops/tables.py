"""Vectorized logarithm and softplus: table lookup by the leading bits, polynomial in the remainder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnx_ops.loops.memory import LANES
from onnx_ops.loops.primitives import ONE, Number, fma, inlined
from onnx_ops.loops.vectors import TO_INTEGER, Table, as_floats, bits, floats, lesser, spread

f4 = np.float32

# Table-driven logarithm (Tang 1990): for x = 2**k * m with m in [1, 2) and c close to 1/m,
#     log(x) = k*log(2) - log(c) + log1p(r),  r = m*c - 1.
# c is a multiple of 1/64, and of 1/32 where abs(r) may exceed 1/32, so that r is exact. log(2) and log(c) are split
# (Cody-Waite) into a multiple of 2**-16 and a remainder, so that k*LN2_HIGH - upper(log(c)) is exact as well. The
# exponent field is k + 127, so the tables hold -log(c) - 127*log(2).
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
# abs(r + r*r*p(r) - log1p(r)) <= 2e-11 for abs(r) <= 0.039, coefficients of p from the highest power down.
P3 = tuple(map(f4, (0.20034089, -0.25031885, 0.33333314, -0.49999986)))


@inlined
def log_parts(x: Number) -> tuple[Any, Any]:
    """(high, low) with abs(high + low - log(x)) <= 2e-9, for float32 x in [2**-126, inf).

    Unspecified but finite for other x.
    """
    word = bits(x)
    index, exponent = word >> 19, as_floats(word >> 23)
    r = fma(floats((word & MANTISSA) | ONE_BITS), RECIPROCALS[index], spread(-ONE))
    p = ((P3[0] * r + P3[1]) * r + P3[2]) * r + P3[3]
    low = r + (r * r * p + (exponent * LOW4 + LOG_LOW[index]))
    return fma(exponent, spread(HIGH4), LOG_HIGH[index]), low


def _softplus(apart: float, count: int) -> np.ndarray:
    """Interpolants of log1p(exp(-a)) at 2*LANES points `apart` apart: (count, 2*LANES) coefficients.

    Row k holds the coefficients of power count - 1 - k of the distance to the point; the nodes are Chebyshev nodes.
    """
    nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count) * apart / 2
    return np.linalg.solve(np.vander(nodes), np.log1p(np.exp(-(nodes[:, None] + apart * np.arange(2 * LANES)))))


@inlined
def nearest(size: Number, apart: Number, last: Number) -> tuple[Any, Any]:
    """(index, distance): the nearest multiple of `apart`, its index in the low bits, and size minus that multiple.

    Args:
        size: vector of float32 >= 0.
        last: bits of the last point of the table, to which larger sizes are clamped.
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
"""Rounding errors of the last two rows of FINE_SOFTPLUS."""


@inlined
def softplus_approx(size: Number) -> Any:
    """log1p(exp(-size)) for float32 size >= 0, abs error <= 3e-5; constant 2e-7 for size > 15.5."""
    index, u = nearest(size, COARSE, COARSE_LAST)
    return ((SOFTPLUS[0][index] * u + SOFTPLUS[1][index]) * u + SOFTPLUS[2][index]) * u + SOFTPLUS[3][index]


@inlined
def softplus_parts(size: Number) -> tuple[Any, Any]:
    """(high, low) with abs(high + low - log1p(exp(-size))) <= 2e-8, for float32 size >= 0; 1e-10 for size > 23."""
    index, u = nearest(size, FINE, FINE_LAST)
    q = (FINE_SOFTPLUS[0][index] * u + FINE_SOFTPLUS[1][index]) * u + FINE_SOFTPLUS[2][index]
    q = ((q * u + FINE_SOFTPLUS[3][index]) * u + FINE_SOFTPLUS[4][index]) * u + FINE_SOFTPLUS[5][index]
    slope, value = FINE_SOFTPLUS[6][index], FINE_SOFTPLUS[7][index]
    high = slope * u + value
    lost = fma(slope, u, value - high)  # fast two-sum (Dekker)
    return high, (q * u + FINE_LOW[0][index]) * u + (FINE_LOW[1][index] + lost)
