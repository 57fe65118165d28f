"""The error function and its complement, which onnxruntime has for float32 only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx_ops.torch.base.nodes import double, number, op
from onnx_ops.torch.base.table import computes_float64, translates

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


def _ratio(x: Any, numerator: Sequence[float], denominator: Sequence[float]) -> Any:
    """A ratio of polynomials; the leading coefficient of the numerator is its last number, the denominator's is 1."""
    over = op.Mul(x, double(numerator[-1]))
    under = x
    for a, b in zip(numerator[:-2], denominator[:-1], strict=True):
        over = op.Mul(op.Add(over, double(a)), x)
        under = op.Mul(op.Add(under, double(b)), x)
    return op.Div(op.Add(over, double(numerator[-2])), op.Add(under, double(denominator[-1])))


def _erf_parts(x: Any) -> tuple[Any, Any, Any]:
    """abs(x) <= 0.46875, erf(abs(x)) where that is true, and erfc(abs(x)) where it is false."""
    size = op.Abs(x)
    # Arguments are clipped to each range, so that the others do not overflow.
    near = op.Min(size, double(0.46875))
    inner = op.Mul(near, _ratio(op.Mul(near, near), *NEAR))
    middle = op.Clip(size, double(0.46875), double(4.0))
    outer = op.Mul(op.Exp(op.Neg(op.Mul(middle, middle))), _ratio(middle, *MIDDLE))
    far = op.Clip(size, double(4.0), double(30.0))
    inverse = op.Div(double(1.0), op.Mul(far, far))
    tail = op.Sub(double(1 / math.sqrt(math.pi)), op.Mul(inverse, _ratio(inverse, *FAR)))
    outermost = op.Div(op.Mul(op.Exp(op.Neg(op.Mul(far, far))), tail), far)
    rest = op.Where(op.LessOrEqual(size, double(4.0)), outer, outermost)
    return op.LessOrEqual(size, double(0.46875)), inner, rest


@translates(aten.erf.default)
@computes_float64("Erf")
def _erf(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Erf(x)
    small, inner, rest = _erf_parts(x)
    positive = op.Where(small, inner, op.Sub(double(1.0), rest))
    positive = op.Where(op.IsNaN(x), x, positive)
    return op.Mul(op.Sign(x), positive)


@translates(aten.erfc.default, aten.special_erfc.default)
def _erfc(x: Any) -> Any:
    """In float64 without the cancellation of 1 - erf(x)."""
    if x.dtype != ir.DataType.DOUBLE:
        return op.Sub(number(1.0, x), op.Erf(x))
    small, inner, rest = _erf_parts(x)
    rest = op.Where(op.Less(x, double(0.0)), op.Sub(double(2.0), rest), rest)
    found = op.Where(small, op.Sub(double(1.0), op.Mul(op.Sign(x), inner)), rest)
    return op.Where(op.IsNaN(x), x, found)
