"""Exponentials and logarithms by range reduction and a polynomial, which LLVM vectorizes, unlike calls of libm.

Compiled forms of `primitives`. Coefficients are listed from the highest power down.

exp(x) = 2**n * exp(r), n = rint(x / log(2)), r = x - n*log(2). Where r needs full precision, log(2) is split into two
parts (Cody-Waite range reduction). log(x) = n*log(2) + log(m), x = 2**n * m.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload

from onnx_ops.loops import primitives
from onnx_ops.runtime.native import (
    OPTIONS,
    bitcast,
    f4,
    f8,
    fused,
    i4,
    i8,
    implement,
    implement_by_dtype,
)

# --- exponentials ------------------------------------------------------------------------------------------------

# exp(r) = 1 + r + r*r*q(r) for abs(r) <= log(2)/2, relative error of exp(r) <= 4e-9 and 1.3e-17.
Q4 = tuple(
    map(f4, (0.0013788724318146706, 0.00836868491023779, 0.04166889935731888, 0.1666652113199234, 0.49999991059303284))
)
Q8 = (
    2.51004725046949961e-08, 2.7620201591031549e-07, 2.7557268276905697e-06, 2.4801521057868205e-05,
    0.00019841269863171556, 0.001388888891736708, 0.008333333333330038, 0.04166666666662382,
    0.16666666666666667, 0.5000000000000001,
)  # fmt: skip
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LN2_HIGH4, LN2_LOW4 = f4(0.693145751953125), f4(1.4286068203094172e-06)
LN2_HIGH8, LN2_LOW8 = 0.693147180369123816, 1.9082149292705877e-10
# 1.5 * 2**23 and 1.5 * 2**52: adding it rounds to an integer, held in the low bits of the sum.
ROUND4, ROUND8 = f4(12582912), 6755399441055744.0


@njit(**OPTIONS)
def _exp_parts4(x):
    low = x < f4(-174)
    y = f4(-174) if low else x
    shifted = y * f4(LOG2E) + ROUND4
    n = shifted - ROUND4
    rest, low_part = y - n * LN2_HIGH4, n * LN2_LOW4
    r = rest - low_part
    lost = (rest - r) - low_part  # rounding error of r (fast two-sum, Dekker): half of the error otherwise
    q = (((Q4[0] * r + Q4[1]) * r + Q4[2]) * r + Q4[3]) * r + Q4[4]
    power = bitcast(shifted, i4(0)) - bitcast(ROUND4, i4(0))
    half = power >> i4(1)
    first = bitcast(i4((half + i4(127)) << i4(23)), f4(0))
    second = bitcast(i4((power - half + i4(127)) << i4(23)), f4(0))
    second = f4(0) if low else second
    return ((q * (r * r) + lost) + r) + f4(1), first, second


@njit(**OPTIONS)
def _reduced8(y):
    """(value, shifted): exp(y) = value * 2**power, value in [0.7, 1.5], shifted = power + ROUND8 (Cody-Waite)."""
    shifted = y * LOG2E + ROUND8
    n = shifted - ROUND8
    r = (y - n * LN2_HIGH8) - n * LN2_LOW8
    # Estrin's scheme, even and odd powers: two shorter dependency chains.
    s = r * r
    even = ((((Q8[1] * s + Q8[3]) * s + Q8[5]) * s + Q8[7]) * s) + Q8[9]
    odd = (((Q8[0] * s + Q8[2]) * s + Q8[4]) * s + Q8[6]) * s + Q8[8]
    return ((odd * r + even) * s + r) + 1.0, shifted


@njit(**OPTIONS)
def _power8(n):
    return bitcast((n + i8(1023)) << i8(52), f8(0))


@njit(**OPTIONS)
def _exp_parts8(x):
    low, high = x < -1416.0, x > 1417.0
    y = -1416.0 if low else x
    y = 1417.0 if high else y
    value, shifted = _reduced8(y)
    power = bitcast(shifted, i8(0)) - bitcast(ROUND8, i8(0))
    half = power >> i8(1)
    second = _power8(power - half)
    second = 0.0 if low else second
    second = np.inf if high else second
    return value, _power8(half), second


implement_by_dtype(primitives.exp_parts, {types.float32: _exp_parts4, types.float64: _exp_parts8})


@njit(**OPTIONS)
def _exp_excess_parts(x):
    shifted = x * f4(LOG2E) + ROUND4
    n = shifted - ROUND4
    r = fused(-n, LN2_LOW4, fused(-n, LN2_HIGH4, x))
    q = (((Q4[0] * r + Q4[1]) * r + Q4[2]) * r + Q4[3]) * r + Q4[4]
    power = bitcast(shifted, i4(0)) + (i4(127) - bitcast(ROUND4, i4(0)))
    return q * (r * r) + r, bitcast(i4(power << i4(23)), f4(0))


@njit(**OPTIONS)
def _exp_of_difference4(x):
    excess, power = _exp_excess_parts(x)
    value = fused(power, excess, power)
    value = f4(0) if x < f4(-87) else value
    return f4(np.inf) if x > f4(87) else value


@njit(**OPTIONS)
def _exp_of_difference8(x):
    value, shifted = _reduced8(x)
    value *= _power8(bitcast(shifted, i8(0)) - bitcast(ROUND8, i8(0)))
    value = 0.0 if x < -708.0 else value
    return np.inf if x > 708.0 else value


implement_by_dtype(
    primitives.exp_of_difference, {types.float32: _exp_of_difference4, types.float64: _exp_of_difference8}
)


implement_by_dtype(primitives.exp_excess_parts, {types.float32: _exp_excess_parts})


# exp(r) for abs(r) <= log(2)/2, relative error <= 2.6e-6.
E4 = tuple(
    map(f4, (0.0414583996409062, 0.16791030605544086, 0.5000436737149395, 0.9999633325849404, 0.9999992592392134))
)


@njit(**OPTIONS)
def _exp_approx(x):
    shifted = x * f4(LOG2E) + ROUND4
    r = x - (shifted - ROUND4) * f4(LN2)  # error: 87 roundings of log(2), 2e-7
    p = (((E4[0] * r + E4[1]) * r + E4[2]) * r + E4[3]) * r + E4[4]
    # Add the exponent in the low bits of `shifted` to that of p.
    return bitcast(i4(bitcast(p, i4(0)) + i4(bitcast(shifted, i4(0)) << i4(23))), f4(0))


implement_by_dtype(primitives.exp_approx, {types.float32: _exp_approx})


# exp(r) = 1 + r + r*r*q(r) for abs(r) <= log(2)/2, relative error <= 2e-10.
Q6 = (
    0.00019891030654370327, 0.0013933685862617174, 0.008333310889582076, 0.04166646460202654,
    0.16666666681659179, 0.5000000013498178,
)  # fmt: skip


@njit(**OPTIONS)
def _exp_in_range(y):
    """exp(y) of a float64 in [-708, 709], or NaN."""
    shifted = y * LOG2E + ROUND8
    r = y - (shifted - ROUND8) * LN2
    s = r * r
    q = ((Q6[0] * r + Q6[1]) * s + (Q6[2] * r + Q6[3])) * s + (Q6[4] * r + Q6[5])
    # Add the exponent in the low bits of `shifted` to that of the result.
    return bitcast(bitcast((q * s + r) + 1.0, i8(0)) + (bitcast(shifted, i8(0)) << i8(52)), f8(0))


implement_by_dtype(primitives.exp_in_range, {types.float64: _exp_in_range})


@njit(**OPTIONS)
def _exp_of_nonpositive(x):
    y = f8(x)
    return _exp_in_range(-708.0 if y < -708.0 else y)


# exp(r) = 1 + r + r*r*q(r), relative error <= 3e-9.
Q5 = (
    0.0013814617085908165, 0.008368709730213197, 0.041668387304343794, 0.16666520690476597, 0.4999999345188762,
)  # fmt: skip
# Its sum with a float64 holds, in the low bits, the biased exponent of 2**power.
BIASED8 = ROUND8 + 1023.0


@njit(**OPTIONS)
def _one_plus_exp(x):
    shifted = x * LOG2E + BIASED8
    r = x - (shifted - BIASED8) * LN2
    s = r * r
    q = (Q5[0] * s + (Q5[1] * r + Q5[2])) * s + (Q5[3] * r + Q5[4])
    return fused(q * s + (r + 1.0), bitcast(bitcast(shifted, i8(0)) << i8(52), f8(0)), 1.0)


implement_by_dtype(primitives.one_plus_exp, {types.float64: _one_plus_exp})


@njit(**OPTIONS)
def _exp_of_float32(x):
    value = _exp_in_range(max(min(f8(x), 709.0), -708.0))
    value = 0.0 if x < f4(-745) else value
    return np.inf if x > f4(709) else value


implement_by_dtype(primitives.exp_of_float32, {types.float32: _exp_of_float32})


# --- logarithms --------------------------------------------------------------------------------------------------

# log1p(f) = 2*s + s*z*q(z), s = f/(2 + f), z = s*s. Relative errors of log1p(f): 7e-16 and 5e-18 for 1 + f in
# [sqrt(1/2), sqrt(2)], 2e-18 for f in [0, 1] (Chebyshev fits).
L6 = (
    0.1662311658428347, 0.18140107756610346, 0.22222864249374918, 0.2857142412022083,
    0.4000000001126354, 0.6666666666666206,
)  # fmt: skip
L7 = (
    0.14617807153417325, 0.15331611722055008, 0.1818289243253687, 0.22222211089379496,
    0.28571428626253836, 0.3999999999989889, 0.666666666666667,
)  # fmt: skip
L11 = (
    0.1563057780092285, 0.07492143795550767, 0.10845178394880015, 0.11734279061303197, 0.13335178631449257,
    0.1538454396486055, 0.18181819897962714, 0.2222222219823677, 0.285714285716001, 0.39999999999999525,
    0.6666666666666666,
)  # fmt: skip
# log1p(x) = x*p(x) for x in [0, 1], relative error <= 2e-10.
P12 = (
    -0.0012525852620659762, 0.008925603861739712, -0.029800145490202278, 0.06350289738777211, -0.1008180479257159,
    0.13403457249133155, -0.1644481781513311, 0.19963546159118528, -0.24996389178843487, 0.33333145512337686,
    -0.4999999612139627, 0.9999999998657495,
)  # fmt: skip
ROOT_HALF = i8(0x3FE6A09E667F3BCD)
"""Bits of sqrt(1/2)."""
FROM_ROOT_HALF = i8(0x3FF0000000000000) - ROOT_HALF
FRACTION = i8(0xFFFFFFFFFFFFF)
INTEGERS = 4503599627370496.0
"""2**52: a float64 in [2**52, 2**53) holds an integer in its low bits."""


@njit(**OPTIONS)
def _mantissa_and_exponent(x):
    """(mantissa in [sqrt(1/2), sqrt(2)], exponent) of x in [2**-1022, inf)."""
    bits = bitcast(x, i8(0)) + FROM_ROOT_HALF
    mantissa = bitcast((bits & FRACTION) + ROOT_HALF, f8(0))
    exponent = bitcast((bits >> i8(52)) | bitcast(INTEGERS, i8(0)), f8(0)) - (INTEGERS + 1023.0)
    return mantissa, exponent


@njit(**OPTIONS)
def _with_limits(logarithm, x):
    """`logarithm`, or the value of log(x) for x = 0, x < 0, infinity or NaN."""
    inside = logarithm if x < np.inf else x
    return inside if x > 0 else (-np.inf if x == 0 else np.nan)


@njit(**OPTIONS)
def _log8_in_range(x):
    """log(x) for x in [2**-1022, inf), error <= 6 ulp."""
    mantissa, exponent = _mantissa_and_exponent(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    w = z * z
    q = ((L6[0] * z + L6[1]) * w + (L6[2] * z + L6[3])) * w + (L6[4] * z + L6[5])
    return (s * z) * q + (exponent * LN2 + 2.0 * s)


@njit(**OPTIONS)
def _log4(x):
    """log(x) of a float64 that is not subnormal."""
    return _with_limits(_log8_in_range(x), x)


@njit(**OPTIONS)
def _log8(x):
    subnormal = x < 2.2250738585072014e-308
    mantissa, exponent = _mantissa_and_exponent(x * 18014398509481984.0 if subnormal else x)
    exponent = exponent - 54.0 if subnormal else exponent
    f = mantissa - 1.0
    s = f / (mantissa + 1.0)
    z = s * s
    w = z * z
    even = ((L7[0] * w + L7[2]) * w + L7[4]) * w + L7[6]
    odd = (L7[1] * w + L7[3]) * w + L7[5]
    half = 0.5 * f * f
    # f - half is the leading part of log1p(f): f is exact, and the remainder is small.
    rest = half - (s * (half + z * (odd * z + even)) + exponent * LN2_LOW8)
    return _with_limits(exponent * LN2_HIGH8 - (rest - f), x)


# log1p(f) = f - f*f/2 + f*f*f*p(f), relative error <= 3.5e-9.
P9 = tuple(
    map(
        f4,
        (
            0.06971611471451178, -0.11479733846637635, 0.1168541992348674, -0.12425687331451106, 0.1424905764569748,
            -0.16667802319501254, 0.200007157488921, -0.24999996957950882, 0.33333331180030046,
        ),
    )
)  # fmt: skip
ROOT_HALF4 = i4(0x3F3504F3)
FROM_ROOT_HALF4 = i4(0x3F800000 - 0x3F3504F3)


@njit(**OPTIONS)
def _log_float32_normal(x):
    bits = i4(bitcast(x, i4(0)) + FROM_ROOT_HALF4)
    f = bitcast(i4((bits & i4(0x7FFFFF)) + ROOT_HALF4), f4(0)) - f4(1)
    exponent = f4(i4(bits >> i4(23)) - i4(127))
    p = (
        ((((((P9[0] * f + P9[1]) * f + P9[2]) * f + P9[3]) * f + P9[4]) * f + P9[5]) * f + P9[6]) * f + P9[7]
    ) * f + P9[8]
    s = f * f
    larger = exponent * LN2_HIGH4  # exact
    sum = larger + f
    lost = (larger - sum) + f  # rounding error of the sum (fast two-sum, Dekker)
    return sum + (lost + fused(exponent, LN2_LOW4, fused(p, s * f, f4(-0.5) * s)))


# log(m) - log(2)*(m - 1) for m in [1, 2) as a polynomial in m - 1.5, abs error <= 2.6e-6.
G6 = tuple(
    map(
        f4,
        (
            -0.01780770532786846, 0.030431821942329407, -0.04875682294368744, 0.098238006234169,
            -0.2222684621810913, -0.026461489498615265, 0.058892663568258286,
        ),
    )
)  # fmt: skip
ONE4 = i4(0x3F800000)


@njit(**OPTIONS)
def _log_approx(x):
    bits = bitcast(x, i4(0))
    u = bitcast(i4((bits & i4(0x7FFFFF)) | ONE4), f4(0)) - f4(1.5)
    p = (((((G6[0] * u + G6[1]) * u + G6[2]) * u + G6[3]) * u + G6[4]) * u + G6[5]) * u + G6[6]
    # The bits of x = 2**k * m, as an integer, are those of 1 plus 2**23 * (k + m - 1).
    return f4(i4(bits - ONE4)) * f4(LN2 / 8388608) + p


implement_by_dtype(primitives.log_approx, {types.float32: _log_approx})


@njit(**OPTIONS)
def _log_float32(x):
    subnormal = x < f4(1.17549435e-38)
    logarithm = _log_float32_normal(x * f4(16777216) if subnormal else x)
    logarithm = logarithm - f4(24 * LN2) if subnormal else logarithm
    inside = logarithm if x < f4(np.inf) else x
    return inside if x > 0 else (f4(-np.inf) if x == 0 else f4(np.nan))


implement_by_dtype(primitives.log_float32, {types.float32: _log_float32})


implement_by_dtype(primitives.log_float32_normal, {types.float32: _log_float32_normal})


@overload(primitives.log, jit_options=OPTIONS)
def _log(x):
    if x == types.float32:
        return lambda x: _log4(f8(x))
    return lambda x: _log8(x)


@njit(**OPTIONS)
def _log1p4(x):
    s = x * x
    q = s * s
    high = (P12[0] * x + P12[1]) * s + (P12[2] * x + P12[3])
    middle = (P12[4] * x + P12[5]) * s + (P12[6] * x + P12[7])
    return ((high * q + middle) * q + ((P12[8] * x + P12[9]) * s + (P12[10] * x + P12[11]))) * x


# log1p(x) = x*p(x) for x in [0, 1], relative error <= 3.3e-7 in float32.
P7 = tuple(
    map(
        f4,
        (
            -0.008539204485714436, 0.04408961534500122, -0.10768169164657593, 0.17745240032672882,
            -0.24495461583137512, 0.33275479078292847, -0.4999740421772003, 0.9999998211860657,
        ),
    )
)  # fmt: skip


@njit(**OPTIONS)
def _log1p_approx(x):
    p = ((((((P7[0] * x + P7[1]) * x + P7[2]) * x + P7[3]) * x + P7[4]) * x + P7[5]) * x + P7[6]) * x + P7[7]
    return p * x


implement_by_dtype(primitives.log1p_approx, {types.float32: _log1p_approx})


@njit(**OPTIONS)
def _log1p8(x):
    divisor = 2.0 + x
    reciprocal = 1.0 / divisor
    s = x * reciprocal
    lost = fused(-s, divisor, x) - s * (x - (divisor - 2.0))  # rounding error of s*divisor
    z = s * s
    w = z * z
    even = ((((L11[0] * w + L11[2]) * w + L11[4]) * w + L11[6]) * w + L11[8]) * w + L11[10]
    odd = (((L11[1] * w + L11[3]) * w + L11[5]) * w + L11[7]) * w + L11[9]
    return ((odd * z + even) * z * s + 2.0 * lost * reciprocal) + 2.0 * s


@njit(**OPTIONS)
def _softplus_for_float32(x):
    return _log1p4(_exp_of_nonpositive(x))


implement_by_dtype(primitives.softplus_for_float32, {types.float64: _softplus_for_float32})


@overload(primitives.softplus_of_nonpositive, jit_options=OPTIONS)
def _softplus_of_nonpositive(x):
    if x == types.float32:
        return lambda x: _softplus_for_float32(x)

    def double(x):
        value, first, second = _exp_parts8(x)
        return _log1p8((value * first) * second)

    return double


# --- values with separate exponents ----------------------------------------------------------------------------------


@njit(**OPTIONS)
def _exp_and_power(x):
    y = max(x, -2e12)
    value, shifted = _reduced8(y)
    return (value, shifted - ROUND8) if x >= -1e12 else (0.0, primitives.NO_POWER)


@njit(**OPTIONS)
def _value_and_power(x):
    value, power = _mantissa_and_exponent(x)
    return (value, power) if x > 0 else (0.0, primitives.NO_POWER)


implement(primitives.exp_and_power, _exp_and_power)


implement(primitives.value_and_power, _value_and_power)


@overload(primitives.power_of_two, jit_options=OPTIONS)
def _power_of_two(power):
    # The low bits of the sum are power + 1023, which the shift moves into the exponent.
    return lambda power: bitcast(bitcast(power + (ROUND8 + 1023.0), i8(0)) << i8(52), f8(0))
