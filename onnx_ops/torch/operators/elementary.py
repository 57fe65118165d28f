"""Functions of single numbers: powers, logarithms, angles in degrees, signs, extremes of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.nodes import number, op
from onnx_ops.torch.base.table import decomposes, replaces, translates

aten = torch.ops.aten


@decomposes(aten.pow.Tensor_Scalar)
def _pow(self: Tensor, exponent: float) -> Any:
    """The small powers that PyTorch computes as products: onnxruntime calls the C library's pow for each element."""
    if exponent == 1 and self.is_floating_point():
        return self.clone()
    if exponent == 2 and (self.is_floating_point() or isinstance(exponent, int)):
        return self * self
    if exponent == 3 and (self.is_floating_point() or isinstance(exponent, int)):
        return self * self * self
    return NotImplemented


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda x: op.Mul(x, number(factor, x))


translates(aten.deg2rad.default)(_times(math.pi / 180))
translates(aten.rad2deg.default)(_times(180 / math.pi))


def _logarithm(base: float) -> Callable[[Any], Any]:
    return lambda x: op.Div(op.Log(x), number(math.log(base), x))


translates(aten.log2.default)(_logarithm(2))
translates(aten.log10.default)(_logarithm(10))


@replaces(torch.fmax, torch.Tensor.fmax)
def _fmax(input: Tensor, other: Tensor) -> Tensor:
    """The gradient with respect to equal elements is that of `input` alone."""
    input, other = torch.broadcast_tensors(input, other)
    return torch.where((input >= other) | other.isnan(), input, other)


@replaces(torch.fmin, torch.Tensor.fmin)
def _fmin(input: Tensor, other: Tensor) -> Tensor:
    input, other = torch.broadcast_tensors(input, other)
    return torch.where((input <= other) | other.isnan(), input, other)


@replaces(torch.hypot, torch.Tensor.hypot)
def _hypot(input: Tensor, other: Tensor) -> Tensor:
    larger = torch.maximum(input.abs(), other.abs()).detach()
    scale = torch.where((larger > 0) & (larger < float("inf")), larger, 1.0)
    return ((input / scale).square() + (other / scale).square()).sqrt() * scale


@replaces(torch.copysign, torch.Tensor.copysign)
def _copysign(input: Tensor, other: Tensor | float) -> Tensor:
    if not isinstance(other, Tensor):
        other = torch.full((), float(other), dtype=input.dtype, device=input.device)
    negative = (other < 0) | ((other == 0) & (other.detach().reciprocal() < 0))  # a zero has a sign too
    return torch.where(negative, -input.abs(), input.abs())


@replaces(torch.sinc, torch.Tensor.sinc)
def _sinc(input: Tensor) -> Tensor:
    angle = torch.where(input == 0, 1.0, input * math.pi)
    return torch.where(input == 0, 1.0, angle.sin() / angle)
