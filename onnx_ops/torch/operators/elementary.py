"""Functions of single numbers: powers, logarithms, angles in degrees, signs, extremes of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.nodes import Value, number, op
from onnx_ops.torch.base.table import decomposes, replaces, translates
from onnx_ops.torch.operators.polynomials import horner

aten = torch.ops.aten


@decomposes(aten.logit.default)
def _logit(self: Tensor, eps: float | None = None) -> Any:
    """torch.onnx takes the upper bound for NaN."""
    bounded = self if eps is None else self.clamp(eps, 1 - eps)
    return torch.log(bounded / (1 - bounded))


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    4: lambda x: (x * x) * (x * x),
    0.5: torch.sqrt,
    -0.5: torch.rsqrt,
    -1: torch.reciprocal,
    -2: lambda x: (x * x).reciprocal(),
}


@decomposes(aten.pow.Tensor_Scalar)
def _pow(self: Tensor, exponent: float) -> Any:
    """The powers that PyTorch computes otherwise, and the fourth: onnxruntime calls the C library's pow per element."""
    if isinstance(exponent, float) and (dtype := torch.result_type(self, exponent)) is not self.dtype:
        return aten.pow.Tensor_Scalar(self.to(dtype), exponent)
    if exponent == 1 and self.is_floating_point():
        return self.clone()
    if exponent == 2 and (self.is_floating_point() or isinstance(exponent, int)):
        return self * self
    if exponent == 3 and (self.is_floating_point() or isinstance(exponent, int)):
        return self * self * self
    if self.is_floating_point() and exponent in _POWERS:
        return _POWERS[exponent](self)
    return NotImplemented


@decomposes(aten.pow.Scalar)
def _power_of_number(self: float, exponent: Tensor) -> Any:
    """Integer exponents of a floating number in the default dtype; torch.onnx takes float32."""
    if isinstance(self, float) and (dtype := torch.result_type(exponent, self)) is not exponent.dtype:
        return aten.pow.Scalar(self, exponent.to(dtype))
    return NotImplemented


@translates(aten.sign.default, aten.sgn.default)
def _sign(x: Value) -> Value:
    """0 of NaN, so that gradients of absolute errors that are masked are 0; onnxruntime's Sign is NaN, and slower."""
    if not x.dtype.is_floating_point():
        return op.Sign(x)
    zero = number(0.0, x)
    not_positive = op.Where(op.Less(x, zero), number(-1.0, x), zero)
    return op.Where(op.Greater(x, zero), number(1.0, x), not_positive)


def _infinite(**signs: int) -> Callable[[Any], Any]:
    """torch.onnx casts float64 to float32, in which numbers above 3.4e38 are infinite."""

    def translated(x: Value) -> Value:
        computed = x if x.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else op.Cast(x, to=ir.DataType.FLOAT)
        return op.IsInf(computed, **signs)

    return translated


translates(aten.isinf.default)(_infinite())
translates(aten.isposinf.default)(_infinite(detect_negative=0))
translates(aten.isneginf.default)(_infinite(detect_positive=0))


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda x: op.Mul(x, number(factor, x))


translates(aten.deg2rad.default)(_times(math.pi / 180))
translates(aten.rad2deg.default)(_times(180 / math.pi))


def _logarithm(base: float) -> Callable[[Any], Any]:
    return lambda x: op.Div(op.Log(x), number(math.log(base), x))


translates(aten.log2.default)(_logarithm(2))
translates(aten.log10.default)(_logarithm(10))


@translates(aten.log1p.default)
def _log1p(x: Value) -> Value:
    return log1p(x, number(1.0, x))


def log1p(x: Value, one: Value) -> Value:
    """log(u) + (x - (u - 1)) / u for u = 1 + x, which may have lost digits of x; of infinities and -1 it has not."""
    whole = op.Add(x, one)
    found, kept = op.Log(whole), op.Sub(whole, one)
    corrected = op.Add(found, op.Div(op.Sub(x, kept), whole))
    return op.Where(op.Equal(kept, x), found, corrected)


ATANH = (2.000000007681759, 0.6666632164137777, 0.40024595230703747, 0.27965157745197267, 0.2815777836308910)
"""A polynomial in s * s that is equal to log((1 + s) / (1 - s)) / s at Chebyshev nodes, and else within 4e-9 of it,
relatively, for s up to 1/3."""


def log1p_of_fraction_nodes(power: Value, like: Value) -> Value:
    """log(1 + power) of numbers from 0 to 1, in float32 in half the time of a logarithm."""
    if like.dtype == ir.DataType.DOUBLE:
        return log1p(power, number(1.0, like))
    ratio = op.Div(power, op.Add(power, number(2.0, like)))
    return op.Mul(horner(op.Mul(ratio, ratio), ATANH, like), ratio)


@custom_operator(lambda power: log1p_of_fraction_nodes(power, power), torch.empty_like)
def log1p_of_fraction(power: Tensor) -> Tensor:
    """log(1 + power) of numbers from 0 to 1."""
    return power.log1p()


@translates(aten.expm1.default)
def _expm1(x: Value) -> Value:
    """exp(x) - 1, or near 0, where the difference has few digits, in float32 2 t / (1 - t) for t = tanh(x / 2)."""
    one = number(1.0, x)
    less = op.Sub(op.Exp(x), one)
    near = op.LessOrEqual(op.Abs(x), one)
    if x.dtype == ir.DataType.FLOAT:
        half = op.Tanh(op.Mul(x, number(0.5, x)))
        exact = op.Div(op.Add(half, half), op.Sub(one, half))
    else:  # (u - 1) * x / log(u) for u = exp(x)
        nothing = op.Equal(less, number(0.0, x))
        exact = op.Where(nothing, x, op.Mul(less, op.Div(x, op.Where(nothing, one, op.Log(op.Exp(x))))))
    return op.Where(near, exact, less)


@decomposes(aten.logaddexp.default)
def _logaddexp(self: Tensor, other: Tensor) -> Tensor:
    """log1p keeps the digits of the smaller one, that the sum of exponentials would lose."""
    larger = torch.maximum(self, other)
    return torch.where(self == other, larger + math.log(2), larger + log1p_of_fraction((-(self - other).abs()).exp()))


@decomposes(aten.logaddexp2.default)
def _logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    larger = torch.maximum(self, other)
    more = log1p_of_fraction((-(self - other).abs()).exp2()) / math.log(2)
    return torch.where(self == other, larger + 1, larger + more)


def _shares_gradients() -> bool:
    """Whether PyTorch's fmax and fmin share the gradient among equal elements, as of version 2.15."""
    with torch.enable_grad():
        one = torch.ones((), requires_grad=True)
        (gradient,) = torch.autograd.grad(torch.fmax(one, one.detach()), one)
    return bool(gradient < 1)


SHARES_GRADIENTS = _shares_gradients()


@replaces(torch.fmax, torch.Tensor.fmax)
def _fmax(input: Tensor, other: Tensor) -> Tensor:
    return _extreme(input, other, torch.ge, torch.maximum)


@replaces(torch.fmin, torch.Tensor.fmin)
def _fmin(input: Tensor, other: Tensor) -> Tensor:
    return _extreme(input, other, torch.le, torch.minimum)


def _extreme(input: Tensor, other: Tensor, is_chosen: Callable[..., Tensor], with_nan: Callable[..., Tensor]) -> Tensor:
    """The gradient with respect to equal elements is shared by both, or that of `input` alone."""
    input, other = torch.broadcast_tensors(input, other)
    found = torch.where(is_chosen(input, other) | other.isnan(), input, other)
    return torch.where(input == other, with_nan(input, other), found) if SHARES_GRADIENTS else found


@replaces(torch.hypot, torch.Tensor.hypot)
def _hypot(input: Tensor, other: Tensor) -> Tensor:
    larger = torch.maximum(input.abs(), other.abs()).detach()
    scale = torch.where((larger > 0) & (larger < float("inf")), larger, 1.0)
    return ((input / scale).square() + (other / scale).square()).sqrt() * scale


@replaces(torch.copysign, torch.Tensor.copysign)
def _copysign(input: Tensor, other: Tensor | float) -> Tensor:
    input = input if input.is_floating_point() else input.to(torch.get_default_dtype())
    if not isinstance(other, Tensor):
        other = torch.full((), float(other), dtype=input.dtype, device=input.device)
    negative = (other < 0) | ((other == 0) & (other.detach().reciprocal() < 0))  # a zero has a sign too
    return torch.where(negative, -input.abs(), input.abs())


@replaces(torch.sinc, torch.Tensor.sinc)
def _sinc(input: Tensor) -> Tensor:
    """By its series near 0, where the terms of the gradient cancel each other out, and their squares are 0."""
    angle = input * math.pi
    square = angle * angle
    near = square < 1e-4
    far = torch.where(near, 1.0, angle)
    return torch.where(near, 1 - square / 6 * (1 - square / 20), far.sin() / far)
