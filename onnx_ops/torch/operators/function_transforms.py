"""Tangents of forward mode, as torch.func.jvp and jacfwd compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.table import decomposes

aten = torch.ops.aten


@decomposes(aten._efficientzerotensor.default)
def _efficientzerotensor(size: Sequence[int], *, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    """The tangent of a tensor that has none."""
    return torch.zeros(size, dtype=dtype)


@decomposes(aten._new_zeros_with_same_feature_meta.default)
def _new_zeros_with_same_feature_meta(self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """The memory of a tangent, which may have batch dimensions that its tensor `other` lacks."""
    return other.new_zeros([*self.shape[:self_num_batch_dims], *other.shape])
