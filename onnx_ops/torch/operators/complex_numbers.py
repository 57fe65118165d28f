"""Operators of complex numbers, in operators of their real and imaginary parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverloadPacket

from onnx_ops.torch.base.pairs import Pair, is_complex, parts
from onnx_ops.torch.base.table import decomposes, on_pairs, replaces

aten = torch.ops.aten
Operand: TypeAlias = Pair | Tensor | complex

decomposes(aten._neg_view.default)(torch.neg)  # of the imaginary part of a lazy conjugate


@replaces(torch.mean, torch.Tensor.mean)
def _mean(input: Tensor, *args: Any, **options: Any) -> Tensor:
    """Of complex numbers by parts; PyTorch's own makes a number of a dynamic count."""
    if not input.is_complex() or options.get("dtype") is not None:
        return torch.mean(input, *args, **options)
    return torch.complex(torch.mean(input.real, *args, **options), torch.mean(input.imag, *args, **options))


# --- conversions ------------------------------------------------------------------------------------------------------


@on_pairs(aten.complex)
def _complex(real: Tensor, imag: Tensor) -> Pair:
    return Pair(*torch.broadcast_tensors(real, imag))


@on_pairs(aten.polar)
def _polar(abs: Tensor, angle: Tensor) -> Pair:
    return Pair(abs * angle.cos(), abs * angle.sin())


@on_pairs(aten.view_as_complex)
def _view_as_complex(self: Tensor) -> Pair:
    return Pair(*self.unbind(-1))


@on_pairs(aten.view_as_real)
def _view_as_real(self: Pair) -> Tensor:
    return torch.stack([self.real, self.imaginary], -1)


@on_pairs(aten.resolve_conj, aten.resolve_neg)
def _same(self: Operand) -> Operand:
    return self


@on_pairs(aten._conj, aten._conj_physical, aten.conj_physical)
def _conjugate(self: Operand) -> Operand:
    return Pair(self.real, -self.imaginary) if isinstance(self, Pair) else self.conjugate()


# --- products ---------------------------------------------------------------------------------------------------------


def _bilinear(operator: OpOverloadPacket) -> Callable[..., Pair]:
    def product(self: Operand, other: Operand, *settings: Any) -> Pair:
        a, b = parts(self)
        c, d = parts(other)
        if not is_complex(other):
            return Pair(operator(a, c, *settings), operator(b, c, *settings))
        if not is_complex(self):
            return Pair(operator(a, c, *settings), operator(a, d, *settings))
        real = operator(a, c, *settings) - operator(b, d, *settings)
        return Pair(real, operator(a, d, *settings) + operator(b, c, *settings))

    return product


for _operator in (aten.mul, aten.mm, aten.bmm, aten.mv, aten.dot):
    on_pairs(_operator)(_bilinear(_operator))
_mul = _bilinear(aten.mul)


@on_pairs(aten.vdot)
def _vdot(self: Pair, other: Pair) -> Pair:
    return _bilinear(aten.dot)(_conjugate(self), other)


def _added(product: OpOverloadPacket) -> Callable[..., Pair]:
    def added(self: Operand, one: Operand, other: Operand, *, beta: complex = 1, alpha: complex = 1) -> Pair:
        return _sum(_mul(_bilinear(product)(one, other), alpha), _mul(self, beta))

    return added


def _sum(one: Operand, other: Operand) -> Pair:
    (a, b), (c, d) = parts(one), parts(other)
    return Pair(a + c, b + d)


on_pairs(aten.addmm)(_added(aten.mm))
on_pairs(aten.baddbmm)(_added(aten.bmm))


@on_pairs(aten.reciprocal)
def _reciprocal(self: Pair) -> Pair:
    """Of numbers scaled by a power of their size, so that squares neither overflow nor vanish."""
    scale = _scale(self)
    a, b = self.real / scale, self.imaginary / scale
    size = (a * a + b * b) * scale
    return Pair(a / size, -b / size)


@on_pairs(aten.div)
def _div(self: Operand, other: Operand) -> Pair:
    if not is_complex(other):
        a, b = parts(self)
        return Pair(a / other, b / other)
    if isinstance(other, complex):
        return _mul(self, 1 / other)
    assert isinstance(other, Pair)
    scale = _scale(other)
    c, d = other.real / scale, other.imaginary / scale
    size = c * c + d * d
    over = _mul(self, Pair(c / size, -d / size))
    return Pair(over.real / scale, over.imaginary / scale)


# --- size and angle ---------------------------------------------------------------------------------------------------


def _scale(z: Pair) -> Tensor:
    """The larger part; 1 where it is 0 or not finite."""
    larger = torch.maximum(z.real.abs(), z.imaginary.abs())
    return torch.where((larger > 0) & (larger < math.inf), larger, 1.0)


@on_pairs(aten.abs)
def _abs(self: Pair) -> Tensor:
    scale = _scale(self)
    size = ((self.real / scale).square() + (self.imaginary / scale).square()).sqrt() * scale
    return torch.where(self.real.isinf() | self.imaginary.isinf(), math.inf, size)


@on_pairs(aten.linalg_vector_norm)
def _vector_norm(self: Pair, *settings: Any, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(_abs(self), *settings)


@on_pairs(aten.angle)
def _angle(self: Pair) -> Tensor:
    return torch.atan2(self.imaginary, self.real)


@on_pairs(aten.sgn)
def _sgn(self: Pair) -> Pair:
    size = _abs(self)
    size = torch.where(size == 0, 1.0, size)
    return Pair(self.real / size, self.imaginary / size)


# --- functions --------------------------------------------------------------------------------------------------------


@on_pairs(aten.exp)
def _exp(self: Pair) -> Pair:
    return _polar(self.real.exp(), self.imaginary)


@on_pairs(aten.log)
def _log(self: Pair) -> Pair:
    return Pair(_abs(self).log(), _angle(self))


@on_pairs(aten.sqrt)
def _sqrt(self: Pair) -> Pair:
    """Without cancellation: the part of larger size first, of which the other one follows."""
    larger = ((_abs(self) + self.real.abs()) / 2).sqrt()
    safe = torch.where(larger == 0, 1.0, larger)
    smaller = self.imaginary.abs() / (2 * safe)
    real = torch.where(self.real >= 0, larger, smaller)
    imaginary = torch.where(self.real >= 0, smaller, larger)
    return Pair(real, torch.where(self.imaginary < 0, -imaginary, imaginary))


@on_pairs(aten.sinh)
def _sinh(self: Pair) -> Pair:
    return Pair(self.real.sinh() * self.imaginary.cos(), self.real.cosh() * self.imaginary.sin())


@on_pairs(aten.cosh)
def _cosh(self: Pair) -> Pair:
    return Pair(self.real.cosh() * self.imaginary.cos(), self.real.sinh() * self.imaginary.sin())


@on_pairs(aten.sin)
def _sin(self: Pair) -> Pair:
    return Pair(self.real.sin() * self.imaginary.cosh(), self.real.cos() * self.imaginary.sinh())


@on_pairs(aten.cos)
def _cos(self: Pair) -> Pair:
    return Pair(self.real.cos() * self.imaginary.cosh(), -self.real.sin() * self.imaginary.sinh())


@on_pairs(aten.tanh)
def _tanh(self: Pair) -> Pair:
    """(t + i s) / (1 + i t s) with t = tanh(a) and s = tan(b), times cos(b)**2."""
    t, sine, cosine = self.real.tanh(), self.imaginary.sin(), self.imaginary.cos()
    size = cosine.square() + (t * sine).square()
    return Pair(t / size, (1 - t * t) * sine * cosine / size)


@on_pairs(aten.tanh_backward)
def _tanh_backward(grad_output: Operand, output: Pair) -> Pair:
    square = _mul(output, output)
    return _mul(grad_output, Pair(1 - square.real, square.imaginary))


@on_pairs(aten.pow)
def _pow(self: Operand, exponent: Operand) -> Pair:
    if isinstance(self, Pair) and isinstance(exponent, int) and 0 < abs(exponent) <= 16:
        result, power, count = None, self, abs(exponent)
        while count:
            if count % 2:
                result = power if result is None else _mul(result, power)
            power, count = _mul(power, power), count // 2
        assert result is not None
        return result if exponent > 0 else _reciprocal(result)
    if isinstance(self, Pair) and isinstance(exponent, float) and exponent == 0.5:
        return _sqrt(self)
    base = self if isinstance(self, Pair) else Pair(*map(torch.as_tensor, parts(self)))
    power = _exp(_mul(_log(base), exponent))
    zero, at_zero = _eq(base, 0), 0.0
    if isinstance(exponent, Pair | Tensor):
        zero = zero & ~_eq(exponent, 0)  # else NaN, also in PyTorch
    elif exponent == 0:
        at_zero = 1.0
    return Pair(torch.where(zero, at_zero, power.real), torch.where(zero, 0.0, power.imaginary))


# --- comparisons ------------------------------------------------------------------------------------------------------


@on_pairs(aten.eq)
def _eq(self: Operand, other: Operand) -> Tensor:
    (a, b), (c, d) = parts(self), parts(other)
    equal: Tensor = (a == c) & (b == d)
    return equal


@on_pairs(aten.ne)
def _ne(self: Operand, other: Operand) -> Tensor:
    return ~_eq(self, other)


def _either(operator: OpOverloadPacket) -> Callable[[Pair], Tensor]:
    return lambda self: operator(self.real) | operator(self.imaginary)


for _operator in (aten.isnan, aten.isinf):
    on_pairs(_operator)(_either(_operator))


@on_pairs(aten.isfinite)
def _isfinite(self: Pair) -> Tensor:
    return self.real.isfinite() & self.imaginary.isfinite()
