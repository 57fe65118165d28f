"""Shifts of the bits of integers by tensors, which may be of more bits than there are, or of less than 0."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from onnx_ops.torch.base.table import decomposes

aten = torch.ops.aten


def _shifted(self: Tensor, other: Tensor, shift: OpOverload) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, what a shift by less than their number of bits gives, and where it is by another number.

    Those of uint8 are computed as int32: torch.onnx takes them for int8.
    """
    dtype = torch.result_type(self, other)
    wide = torch.int32 if dtype is torch.uint8 else dtype
    self, other = self.to(wide), other.to(wide)
    bits = torch.iinfo(dtype).bits
    return self, shift(self, other.clamp(0, bits - 1)), (other < 0) | (other >= bits)


@decomposes(aten.__lshift__.Tensor)
def _left(self: Tensor, other: Tensor) -> Tensor:
    """0 by another number, as in PyTorch."""
    _, found, outside = _shifted(self, other, aten.bitwise_left_shift.Tensor)
    return found.masked_fill(outside, 0).to(torch.result_type(self, other))


@decomposes(aten.__rshift__.Tensor)
def _right(self: Tensor, other: Tensor) -> Tensor:
    """0 or -1 by another number, for the sign, as in PyTorch."""
    given, found, outside = _shifted(self, other, aten.bitwise_right_shift.Tensor)
    return torch.where(outside, torch.where(given < 0, -1, 0).to(given.dtype), found).to(torch.result_type(self, other))
