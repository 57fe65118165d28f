"""Functions of float64 that onnxruntime has for float32 only, and constants that torch.onnx rounds to float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript.function_libs.torch_lib.ops import core

from onnx_ops.torch.translations.nodes import number, op

HALVINGS = 3
"""So often is an angle halved before the series of its arc tangent, which then has tan(pi / 16) at most."""
TERMS = 20
"""0.2 ** 41 is far below a double's rounding."""

# W. J. Cody, Rational Chebyshev approximations for the error function, Mathematics of Computation 23 (1969); the
# coefficients of his program CALERF. Highest powers come last, but for the first one.
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


def double(value: float) -> Any:
    return op.Constant(value=ir.tensor(np.float64(value)))


def _ratio(x: Any, numerator: Sequence[float], denominator: Sequence[float]) -> Any:
    """A ratio of polynomials; the highest power of the numerator is its last number, that of the denominator is 1."""
    over = op.Mul(x, double(numerator[-1]))
    under = x
    for a, b in zip(numerator[:-2], denominator[:-1], strict=True):
        over = op.Mul(op.Add(over, double(a)), x)
        under = op.Mul(op.Add(under, double(b)), x)
    return op.Div(op.Add(over, double(numerator[-2])), op.Add(under, double(denominator[-1])))


def _erf_parts(x: Any) -> tuple[Any, Any, Any]:
    """Whether |x| is small, erf(|x|) for such ones, and 1 - erf(|x|) for the others."""
    size = op.Abs(x)
    # Each range gets arguments of its own only, so that no other overflows.
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


def _erf(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Erf(x)
    small, inner, rest = _erf_parts(x)
    positive = op.Where(small, inner, op.Sub(double(1.0), rest))
    positive = op.Where(op.IsNaN(x), x, positive)
    return op.Mul(op.Sign(x), positive)


def _erfc(x: Any) -> Any:
    """Of doubles without the cancellation of 1 - erf(x)."""
    if x.dtype != ir.DataType.DOUBLE:
        return op.Sub(number(1.0, x), op.Erf(x))
    small, inner, rest = _erf_parts(x)
    rest = op.Where(op.Less(x, double(0.0)), op.Sub(double(2.0), rest), rest)
    found = op.Where(small, op.Sub(double(1.0), op.Mul(op.Sign(x), inner)), rest)
    return op.Where(op.IsNaN(x), x, found)


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda x: op.Mul(x, number(factor, x))


def _logarithm(base: float) -> Callable[[Any], Any]:
    return lambda x: op.Div(op.Log(x), number(math.log(base), x))


def _atan(x: Any) -> Any:
    return _arc(x) if x.dtype == ir.DataType.DOUBLE else op.Atan(x)


def _arc(x: Any) -> Any:
    """The arc tangent of doubles."""
    # Of a large x the arc tangent is that of 1 / x, from a right angle.
    size = op.Abs(x)
    large = op.Greater(size, double(1.0))
    t = op.Where(large, op.Div(double(1.0), size), size)
    for _ in range(HALVINGS):
        root = op.Sqrt(op.Add(op.Mul(t, t), double(1.0)))
        t = op.Div(t, op.Add(root, double(1.0)))
    square = op.Mul(t, t)
    series = double((-1) ** TERMS / (2 * TERMS + 1))
    for k in reversed(range(TERMS)):
        series = op.Add(op.Mul(series, square), double((-1) ** k / (2 * k + 1)))
    angle = op.Mul(op.Mul(t, series), double(2.0**HALVINGS))
    angle = op.Where(large, op.Sub(double(math.pi / 2), angle), angle)
    return op.Mul(op.Sign(x), angle)


def _atan2(y: Any, x: Any) -> Any:
    """The translation of torch.onnx takes y = 0 for negative where x is, and NaN for 0."""
    zero, one, right = number(0.0, y), number(1.0, y), number(math.pi / 2, y)
    height, width = op.Abs(y), op.Abs(x)
    steep = op.Greater(height, width)
    slope = op.Div(op.Where(steep, width, height), op.Where(steep, height, width))
    diagonal = op.Where(op.Equal(height, zero), zero, one)  # 0 / 0 and infinity / infinity are NaN
    slope = op.Where(op.Equal(height, width), diagonal, slope)
    angle = _arc(slope) if y.dtype == ir.DataType.DOUBLE else op.Atan(slope)
    angle = op.Where(steep, op.Sub(right, angle), angle)
    angle = op.Where(op.Less(x, zero), op.Sub(number(math.pi, y), angle), angle)
    return op.Where(op.Less(y, zero), op.Neg(angle), angle)


def _asin(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Asin(x)
    one = double(1.0)
    return _arc(op.Div(x, op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x)))))


def _acos(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Acos(x)
    return op.Sub(double(math.pi / 2), _asin(x))


def _of_exponentials(name: str, sign: float) -> Callable[[Any], Any]:
    def translated(x: Any) -> Any:
        if x.dtype != ir.DataType.DOUBLE:
            return getattr(op, name)(x)
        other = op.Exp(op.Neg(x))
        return op.Mul(op.Add(op.Exp(x), op.Mul(double(sign), other)), double(0.5))

    return translated


def _tan(x: Any) -> Any:
    return op.Tan(x) if x.dtype != ir.DataType.DOUBLE else op.Div(op.Sin(x), op.Cos(x))


def _atanh(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Atanh(x)
    one = double(1.0)
    return op.Mul(op.Log(op.Div(op.Add(one, x), op.Sub(one, x))), double(0.5))


def _asinh(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Asinh(x)
    size = op.Abs(x)
    root = op.Sqrt(op.Add(op.Mul(x, x), double(1.0)))
    return op.Mul(op.Sign(x), op.Log(op.Add(size, root)))


def _acosh(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Acosh(x)
    one = double(1.0)
    root = op.Sqrt(op.Mul(op.Sub(x, one), op.Add(x, one)))
    return op.Log(op.Add(x, root))


def _exactly(translate: Any) -> Callable[..., Any]:
    """A translation of torch.onnx that casts Python numbers to the dtype it needs; it gets them as doubles."""

    function = getattr(translate, "func", translate)  # some are traced, others are functions of ONNX

    def exact(value: Any) -> Any:
        return double(value) if isinstance(value, float) else value

    def translated(*args: Any, **kwargs: Any) -> Any:
        return function(*map(exact, args), **{name: exact(value) for name, value in kwargs.items()})

    return translated


def _scaled(translate: Any) -> Callable[..., Any]:
    """A sum or difference whose second term has a factor."""

    def translated(self: Any, other: Any, alpha: float = 1.0) -> Any:
        return translate.func(self, other, alpha=double(alpha) if isinstance(alpha, float) else alpha)

    return translated


def _full(size: Any, fill_value: Any, dtype: int = -1, **kwargs: Any) -> Any:
    """Without a dtype a Python number is a float32."""
    return (core.aten_full.func if dtype == -1 else _exactly(core.aten_full))(size, fill_value, dtype=dtype)


aten = torch.ops.aten
TABLE = {
    aten.full.default: _full,
    aten.add.Tensor: _scaled(core.aten_add),
    aten.sub.Tensor: _scaled(core.aten_sub),
    **{
        operator: _exactly(translate)
        for operator, translate in {
            aten.clamp.default: core.aten_clamp,
            aten.clamp_min.default: core.aten_clamp_min,
            aten.clamp_max.default: core.aten_clamp_max,
            aten.fill.Scalar: core.aten_fill,
            aten.full_like.default: core.aten_full_like,
            aten.lerp.Scalar: core.aten_lerp,
            aten.linspace.default: core.aten_linspace,
            aten.masked_fill.Scalar: core.aten_masked_fill,
            aten.new_full.default: core.aten_new_full,
            aten.scalar_tensor.default: core.aten_scalar_tensor,
        }.items()
    },
    aten.erf.default: _erf,
    aten.erfc.default: _erfc,
    aten.special_erfc.default: _erfc,
    aten.deg2rad.default: _times(math.pi / 180),
    aten.rad2deg.default: _times(180 / math.pi),
    aten.log2.default: _logarithm(2),
    aten.log10.default: _logarithm(10),
    aten.atan.default: _atan,
    aten.atan2.default: _atan2,
    aten.asin.default: _asin,
    aten.acos.default: _acos,
    aten.tan.default: _tan,
    aten.sinh.default: _of_exponentials("Sinh", -1.0),
    aten.cosh.default: _of_exponentials("Cosh", 1.0),
    aten.atanh.default: _atanh,
    aten.asinh.default: _asinh,
    aten.acosh.default: _acosh,
}
NODES = {
    "Acos": _acos,
    "Acosh": _acosh,
    "Asin": _asin,
    "Asinh": _asinh,
    "Atan": _atan,
    "Atanh": _atanh,
    "Cosh": _of_exponentials("Cosh", 1.0),
    "Erf": _erf,
    "Sinh": _of_exponentials("Sinh", -1.0),
    "Tan": _tan,
}
"""The nodes that onnxruntime does not have for doubles, and what is written for doubles in their place."""
