"""Removal of axes of size 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from onnx_ops.torch.base.nodes import Value, integers, op
from onnx_ops.torch.base.table import translates

aten = torch.ops.aten


@translates(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(self: Value, dim: int | Sequence[int] | None = None) -> Value:
    """PyTorch ignores axes of other sizes than 1, which ONNX refuses. A dynamic size is not 1."""
    rank = len(self.shape)
    axes = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    single = sorted({axis % rank for axis in axes if self.shape[axis] == 1}) if rank else []
    return op.Squeeze(self, integers(single)) if single else op.Identity(self)
