"""Mantissas and exponents of floating numbers, and their neighbours, by products with powers of 2, which are exact."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.table import decomposes, replaces


def _computing(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _chosen(condition: Tensor, number: float, other: float, like: Tensor) -> Tensor:
    return torch.where(condition, *(torch.full((), each, dtype=like.dtype) for each in (number, other)))


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissas, whose absolute values are in [0.5, 1), and exponents; 0, infinities and NaN with an exponent of 0."""
    largest = 9 if x.dtype is torch.float64 else 6
    mantissa, exponent = x, torch.zeros_like(x, dtype=torch.int32)
    powers = [2**i for i in reversed(range(largest + 1))]
    for power, bound in [(-p, 2.0**p) for p in powers] + [(-1, 1.0)]:
        above = mantissa.detach().abs() >= bound
        mantissa = mantissa * _chosen(above, 2.0**power, 1.0, x)
        exponent = exponent - torch.where(above, power, 0)
    for power in [powers[0], *powers]:  # twice for the numbers below the smallest normal one
        below = mantissa.detach().abs() < 2.0**-power
        mantissa = mantissa * _chosen(below, 2.0**power, 1.0, x)
        exponent = exponent - torch.where(below, power, 0)
    return mantissa, torch.where((x == 0) | ~x.detach().isfinite(), 0, exponent).to(torch.int32)


@replaces(torch.frexp, Tensor.frexp)
def _frexp(input: Tensor) -> Any:
    mantissa, exponent = _parts(input.to(_computing(input.dtype)))
    return torch.return_types.frexp((mantissa.to(input.dtype), exponent))


@replaces(torch.nextafter, Tensor.nextafter)
def _nextafter(input: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(input, other)
    if dtype not in (torch.float32, torch.float64):
        return torch.nextafter(input, other)
    x, y = torch.broadcast_tensors(input.to(dtype), other.to(dtype))
    limits = torch.finfo(dtype)
    mantissa, exponent = _parts(x)
    outwards = torch.where(x > 0, y > x, y < x)
    # Below a power of 2 numbers are twice as dense as above.
    dense = (mantissa.abs() == 0.5) & ~outwards
    places = exponent - dense.to(torch.int32) - 1
    digits, least = -int(math.log2(limits.eps)), int(math.log2(limits.smallest_normal))
    distance = torch.exp2((places.clamp(min=least) - digits).to(dtype))
    step = torch.where(y > x, distance, -distance)
    smallest = limits.smallest_normal * limits.eps
    found = torch.where(x == 0, _chosen(y > 0, smallest, -smallest, x), x + step)
    found = torch.where(x.isinf(), _chosen(x > 0, limits.max, limits.min, x), found)
    found = torch.where(x == y, y, found)
    return torch.where(x.isnan() | y.isnan(), torch.nan, found)


@replaces(Tensor.nextafter_)
def _nextafter_(self: Tensor, other: Tensor) -> Tensor:
    return self.copy_(_nextafter(self, other))


@decomposes(torch.ops.aten.view.dtype)
def _bits(self: Tensor, dtype: torch.dtype) -> Any:
    if self.dtype == dtype:
        return torch.ops.aten.alias.default(self)
    if self.is_complex() or dtype.is_complex:
        return NotImplemented
    raise CaptureError(
        f"view reads the bits of a tensor of {self.dtype} as {dtype}, for which ONNX has no operator before opset 26."
        " Use torch.frexp, torch.ldexp and torch.signbit for the parts of a number, or compute it before the step and"
        " pass it in as an argument"
    )
