"""Trigonometric and hyperbolic functions, most of which onnxruntime has for float32 only."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from onnx_ops.torch.base.nodes import Value, double, number, op
from onnx_ops.torch.base.table import computes_float64, translates
from onnx_ops.torch.operators.elementary import log1p

aten = torch.ops.aten

WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

HALVINGS = 3
"""How often an angle is halved before the series of the arc tangent, whose argument is then at most tan(pi / 16)."""
TERMS = 20
"""Terms of that series: tan(pi / 16) ** 41 < 0.2 ** 41 is far below the rounding of a float64."""


@translates(aten.atan.default)
@computes_float64("Atan")
def _atan(x: Value) -> Value:
    return _arc(x) if x.dtype == ir.DataType.DOUBLE else op.Atan(x)


def _arc(x: Value) -> Value:
    """The arc tangent in float64."""
    # For large x, arctan(x) = pi / 2 - arctan(1 / x).
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


@translates(aten.atan2.default)
def _atan2(y: Value, x: Value) -> Value:
    """The translation of torch.onnx gives -pi for y = 0 and x < 0, and NaN for x = y = 0."""
    zero, one, right = number(0.0, y), number(1.0, y), number(math.pi / 2, y)
    height, width = op.Abs(y), op.Abs(x)
    steep = op.Greater(height, width)
    slope = op.Div(op.Where(steep, width, height), op.Where(steep, height, width))
    diagonal = op.Where(op.Equal(height, zero), zero, one)  # 0 / 0 and infinity / infinity are NaN
    slope = op.Where(op.Equal(height, width), diagonal, slope)
    angle = _arc(slope) if y.dtype == ir.DataType.DOUBLE else op.Atan(slope)
    angle = op.Where(steep, op.Sub(right, angle), angle)
    angle = op.Where(_is_negative(x), op.Sub(number(math.pi, y), angle), angle)
    return op.Where(_is_negative(y), op.Neg(angle), angle)


def _is_negative(x: Value) -> Value:
    """Whether a number is below 0, or -0.0, whose reciprocal is."""
    return op.Less(op.Where(op.Equal(x, number(0.0, x)), op.Reciprocal(x), x), number(0.0, x))


@translates(aten.asin.default)
@computes_float64("Asin")
def _asin(x: Value) -> Value:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Asin(x)
    one = double(1.0)
    return _arc(op.Div(x, op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x)))))


@translates(aten.acos.default)
@computes_float64("Acos")
def _acos(x: Value) -> Value:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Acos(x)
    return op.Sub(double(math.pi / 2), _asin(x))


@translates(aten.tan.default)
@computes_float64("Tan")
def _tan(x: Value) -> Value:
    """onnxruntime's Tan calls the C library's for each element."""
    return op.Div(op.Sin(x), op.Cos(x)) if x.dtype in WIDE else op.Tan(x)


def _halves(x: Value) -> tuple[Value, Value]:
    """exp(abs(x)) / 2, which has no infinity before cosh has one, and exp(-abs(x)) / 2."""
    root = op.Exp(op.Mul(op.Abs(x), number(0.5, x)))
    larger = op.Mul(op.Mul(root, number(0.5, x)), root)
    return larger, op.Div(number(0.25, x), larger)


@translates(aten.cosh.default)
@computes_float64("Cosh")
def _cosh(x: Value) -> Value:
    """onnxruntime's Cosh and Sinh call the C library's for each element."""
    return op.Add(*_halves(x)) if x.dtype in WIDE else op.Cosh(x)


@translates(aten.sinh.default)
@computes_float64("Sinh")
def _sinh(x: Value) -> Value:
    """Near 0, where the difference has few digits, 2 t / (1 - t**2) for t = tanh(x / 2)."""
    if x.dtype not in WIDE:
        return op.Sinh(x)
    one, half = number(1.0, x), op.Tanh(op.Mul(x, number(0.5, x)))
    near = op.Div(op.Add(half, half), op.Sub(one, op.Mul(half, half)))
    return op.Where(op.LessOrEqual(op.Abs(x), one), near, _with_sign(op.Sub(*_halves(x)), x))


def _with_sign(size: Value, of: Value) -> Value:
    return op.Where(op.Less(of, number(0.0, of)), op.Neg(size), size)


@translates(aten.atanh.default)
@computes_float64("Atanh")
def _atanh(x: Value) -> Value:
    """log1p(2 abs(x) / (1 - abs(x))) / 2; onnxruntime's Atanh calls the C library's for each element."""
    if x.dtype not in WIDE:
        return op.Atanh(x)
    size, one = op.Abs(x), number(1.0, x)
    twice = log1p(op.Div(op.Add(size, size), op.Sub(one, size)), one)
    return _with_sign(op.Mul(twice, number(0.5, x)), x)


@translates(aten.asinh.default)
@computes_float64("Asinh")
def _asinh(x: Value) -> Value:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Asinh(x)
    size = op.Abs(x)
    root = op.Sqrt(op.Add(op.Mul(x, x), double(1.0)))
    return op.Mul(op.Sign(x), op.Log(op.Add(size, root)))


@translates(aten.acosh.default)
@computes_float64("Acosh")
def _acosh(x: Value) -> Value:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Acosh(x)
    one = double(1.0)
    root = op.Sqrt(op.Mul(op.Sub(x, one), op.Add(x, one)))
    return op.Log(op.Add(x, root))
