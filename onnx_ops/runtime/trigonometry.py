"""Sine and cosine by range reduction and a polynomial, as the functions of `elementary`."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from onnx_ops.loops import primitives
from onnx_ops.runtime.elementary import ROUND8
from onnx_ops.runtime.native import OPTIONS, bitcast, f8, fused, i8, implement, implement_by_dtype

# sin(r) = r * (1 + z*p(z)), z = r*r, for abs(r) <= pi/2, relative error <= 1.1e-10.
S5 = (
    -2.408009508712208e-08, 2.753645944364609e-06, -0.0001984108650700057, 0.008333332768529359, -0.1666666666387985,
)  # fmt: skip
# The same, and cos(r) = 1 - z/2 + z*z*q(z), for abs(r) <= pi/4, relative error <= 2e-17 and 2e-18.
S8 = (
    1.5918115263265974e-10, -2.505113165023518e-08, 2.7557316101617874e-06, -0.00019841269836756774,
    0.008333333333330948, -0.16666666666666666,
)  # fmt: skip
C8 = (
    -1.1382623647474604e-11, 2.087614614655861e-09, -2.7557317271145144e-07, 2.480158729876456e-05,
    -0.0013888888888887398, 0.041666666666666664,
)  # fmt: skip
# pi as the sum of three numbers (Cody-Waite); pi / 2 is the sum of their halves.
PI_HIGH, PI_MIDDLE, PI_LOW = 3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33


@njit(**OPTIONS)
def _with_sign_of(value, number):
    """`value`, negated if the lowest bit of an integer is set."""
    return bitcast(bitcast(value, i8(0)) ^ (number << i8(63)), f8(0))


@njit(**OPTIONS)
def _sine_near_multiple(x, multiple):
    """sin(x - multiple * pi) of a float32 x, which no multiple of pi is so near to that a third part of pi counts."""
    r = fused(-multiple, PI_MIDDLE, fused(-multiple, PI_HIGH, x))
    z = r * r
    p = (((S5[0] * z + S5[1]) * z + S5[2]) * z + S5[3]) * z + S5[4]
    return r * fused(z, p, 1.0)


@njit(**OPTIONS)
def _sin4(x):
    y = f8(x)
    shifted = y * (1 / PI_HIGH) + ROUND8
    return _with_sign_of(_sine_near_multiple(y, shifted - ROUND8), bitcast(shifted, i8(0)))


@njit(**OPTIONS)
def _cos4(x):
    y = f8(x)
    shifted = (y * (1 / PI_HIGH) - 0.5) + ROUND8
    return _with_sign_of(_sine_near_multiple(y, (shifted - ROUND8) + 0.5), bitcast(shifted, i8(0)) + i8(1))


@njit(**OPTIONS)
def _polynomial6(c, z):
    w = z * z
    return ((c[0] * z + c[1]) * w + (c[2] * z + c[3])) * w + (c[4] * z + c[5])


@njit(**OPTIONS)
def _sine_and_cosine(x):
    """(sin(r), cos(r), n) for x = r + n * pi / 2, abs(r) <= pi/4."""
    shifted = x * (2 / PI_HIGH) + ROUND8
    n = shifted - ROUND8
    rest = fused(-n, PI_HIGH / 2, x)  # exact
    product = n * (PI_MIDDLE / 2)
    r = rest - product
    change = r - rest
    lost = (rest - (r - change)) - (product + change)  # rounding error of the difference (two-sum, Knuth)
    lost -= fused(n, PI_LOW / 2, fused(n, PI_MIDDLE / 2, -product))
    z = r * r
    half = 0.5 * z
    sine = r + fused(r * z, _polynomial6(S8, z), lost * (1.0 - half))
    near_one = 1.0 - half
    cosine = near_one + (((1.0 - near_one) - half) + fused(z * z, _polynomial6(C8, z), -(r * lost)))
    return sine, cosine, bitcast(shifted, i8(0))


@njit(**OPTIONS)
def _sin8(x):
    sine, cosine, n = _sine_and_cosine(x)
    value = _with_sign_of(cosine if n & i8(1) else sine, n >> i8(1))
    return x if x == 0 else value


@njit(**OPTIONS)
def _cos8(x):
    sine, cosine, n = _sine_and_cosine(x)
    return _with_sign_of(sine if n & i8(1) else cosine, (n + i8(1)) >> i8(1))


implement_by_dtype(primitives.sin, {types.float32: _sin4, types.float64: _sin8})


implement_by_dtype(primitives.cos, {types.float32: _cos4, types.float64: _cos8})


@njit(**OPTIONS)
def _sin_of_any_angle(x):
    return np.sin(f8(x))


@njit(**OPTIONS)
def _cos_of_any_angle(x):
    return np.cos(f8(x))


implement(primitives.sin_of_any_angle, _sin_of_any_angle)


implement(primitives.cos_of_any_angle, _cos_of_any_angle)
