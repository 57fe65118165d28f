"""Axes of size 1 that are taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnx_ops.torch.translations.nodes import integers, op
from onnx_ops.torch.whole.operators import Table


def _squeeze(self: Any, dim: int | Sequence[int] | None = None) -> Any:
    """ONNX refuses an axis of another size; PyTorch leaves it as it is. A dynamic size counts as another one."""
    rank = len(self.shape)
    axes = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    single = sorted({axis % rank for axis in axes if self.shape[axis] == 1}) if rank else []
    return op.Squeeze(self, integers(single)) if single else op.Identity(self)


TABLE: Table = {getattr(torch.ops.aten.squeeze, overload): _squeeze for overload in ("default", "dim", "dims")}
