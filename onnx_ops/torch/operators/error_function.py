"""The error function, which onnxruntime has for float32 only, and its complement, also times exp(x**2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx_ops.torch.base.nodes import Value, double, op
from onnx_ops.torch.base.table import computes_float64, translates
from onnx_ops.torch.operators.polynomials import horner

aten = torch.ops.aten

# W. J. Cody, Rational Chebyshev approximations for the error function, Mathematics of Computation 23 (1969); the
# coefficients of his program CALERF. The coefficient of the highest power of a numerator is its last number.
NEAR = (
    (3.16112374387056560, 113.864154151050156, 377.485237685302021, 3209.37758913846947, 0.185777706184603153),
    (23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062),
)
MIDDLE = (
    (
        0.564188496988670089,
        8.88314979438837594,
        66.1191906371416295,
        298.635138197400131,
        881.952221241769090,
        1712.04761263407058,
        2051.07837782607147,
        1230.33935479799725,
        2.15311535474403846e-8,
    ),
    (
        15.7449261107098347,
        117.693950891312499,
        537.181101862009858,
        1621.38957456669019,
        3290.79923573345963,
        4362.61909014324716,
        3439.36767414372164,
        1230.33935480374942,
    ),
)
FAR = (
    (
        0.305326634961232344,
        0.360344899949804439,
        0.125781726111229246,
        0.0160837851487422766,
        6.58749161529837803e-4,
        0.0163153871373020978,
    ),
    (2.56852019228982242, 1.87295284992346725, 0.527905102951428412, 0.0605183413124413191, 0.00233520497626869185),
)


def _ratio(x: Value, numerator: Sequence[float], denominator: Sequence[float]) -> Value:
    """A ratio of polynomials; the leading coefficient of the numerator is its last number, the denominator's is 1."""
    over = op.Mul(x, double(numerator[-1]))
    under = x
    for a, b in zip(numerator[:-2], denominator[:-1], strict=True):
        over = op.Mul(op.Add(over, double(a)), x)
        under = op.Mul(op.Add(under, double(b)), x)
    return op.Div(op.Add(over, double(numerator[-2])), op.Add(under, double(denominator[-1])))


SMALL = 0.46875
"""Up to here erf is approximated, from here on erfc."""


def _exp_of_square(size: Value, sign: float) -> Value:
    """exp(sign * size**2), without the rounding of the square, which the exponential would magnify."""
    rounded = op.Mul(op.Floor(op.Mul(size, double(16.0))), double(1 / 16))  # its square is exact
    rest = op.Mul(op.Sub(size, rounded), op.Add(size, rounded))
    return op.Mul(op.Exp(op.Mul(op.Mul(rounded, rounded), double(sign))), op.Exp(op.Mul(rest, double(sign))))


def _erf_of_small(size: Value) -> Value:
    near = op.Min(size, double(SMALL))  # clipped, so that it does not overflow elsewhere
    return op.Mul(near, _ratio(op.Mul(near, near), *NEAR))


def _scaled_erfc(size: Value) -> Value:
    """exp(size**2) * erfc(size) for size >= SMALL."""
    middle = _ratio(op.Clip(size, double(SMALL), double(4.0)), *MIDDLE)
    far = op.Max(size, double(4.0))
    inverse = op.Div(op.Div(double(1.0), far), far)
    tail = op.Sub(double(1 / math.sqrt(math.pi)), op.Mul(inverse, _ratio(inverse, *FAR)))
    return op.Where(op.LessOrEqual(size, double(4.0)), middle, op.Div(tail, far))


def _erf_parts(x: Value) -> tuple[Value, Value, Value]:
    """abs(x) <= SMALL, erf(abs(x)) where that is true, and erfc(abs(x)) where it is false."""
    size = op.Abs(x)
    rest = op.Mul(_exp_of_square(op.Min(size, double(30.0)), -1.0), _scaled_erfc(size))
    return op.LessOrEqual(size, double(SMALL)), _erf_of_small(size), rest


def _in_float64(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of float64 numbers as one of numbers of any floating dtype."""

    def converted(x: Value) -> Value:
        if x.dtype == ir.DataType.DOUBLE:
            return function(x)
        return op.Cast(function(op.Cast(x, to=ir.DataType.DOUBLE)), to=x.dtype)

    return converted


@translates(aten.erf.default)
def _erf(x: Value) -> Value:
    return erf_of_doubles(x) if x.dtype == ir.DataType.DOUBLE else op.Erf(x)


@computes_float64("Erf")
def erf_of_doubles(x: Value) -> Value:
    """The error function of float64 numbers, of which onnxruntime has no kernel."""
    small, inner, rest = _erf_parts(x)
    positive = op.Where(small, inner, op.Sub(double(1.0), rest))
    positive = op.Where(op.IsNaN(x), x, positive)
    return op.Mul(op.Sign(x), positive)


SHORT = (
    0.564094064210062,
    1.6989316551090337,
    4.60984542151453,
    15.822613561554036,
    -2.705878344926004,
    306.6562837564394,
    -1009.9390516571094,
    3616.4654184863775,
    -5880.215909888077,
    3362.0116294129134,
)
"""A polynomial in t = 1 / (3 + x) that is equal to exp(x**2) * erfc(x) / t at Chebyshev nodes, and else within 6e-9 of
it, relatively, for x from 0 to 10.3, where erfc is 0 in float32."""


@translates(aten.erfc.default, aten.special_erfc.default)
def _erfc(x: Value) -> Value:
    return _erfc_of_doubles(x) if x.dtype == ir.DataType.DOUBLE else _short_erfc(x)


@_in_float64
def _short_erfc(x: Value) -> Value:
    """Of float32 numbers, whose squares are exact."""
    t = op.Reciprocal(op.Add(op.Abs(x), double(3.0)))
    found = op.Mul(op.Mul(horner(t, SHORT), t), op.Exp(op.Neg(op.Mul(x, x))))
    return op.Where(op.Less(x, double(0.0)), op.Sub(double(2.0), found), found)


def _erfc_of_doubles(x: Value) -> Value:
    """Without the cancellation of 1 - erf(x)."""
    small, inner, rest = _erf_parts(x)
    rest = op.Where(op.Less(x, double(0.0)), op.Sub(double(2.0), rest), rest)
    found = op.Where(small, op.Sub(double(1.0), op.Mul(op.Sign(x), inner)), rest)
    return op.Where(op.IsNaN(x), x, found)


@translates(aten.special_erfcx.default)
@_in_float64
def _erfcx(x: Value) -> Value:
    """exp(x**2) * erfc(x)."""
    size, negative = op.Abs(x), op.Less(x, double(0.0))
    scaled, square = _scaled_erfc(size), _exp_of_square(op.Min(size, double(30.0)), 1.0)
    rest = op.Where(negative, op.Sub(op.Mul(double(2.0), square), scaled), scaled)
    inner = op.Mul(square, op.Sub(double(1.0), op.Mul(op.Sign(x), _erf_of_small(size))))
    found = op.Where(op.LessOrEqual(size, double(SMALL)), inner, rest)
    return op.Where(op.IsNaN(x), x, found)
