"""Products of a matrix and a vector, and extremes of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ops.torch.translations.nodes import integers, op


def _mv(matrix: Any, vector: Any) -> Any:
    """With a column, for onnxruntime fuses a Transpose into a MatMul with a vector and then gives wrong numbers."""
    column = op.MatMul(matrix, op.Unsqueeze(vector, integers([1])))
    return op.Squeeze(column, integers([1]))


def _extreme(name: str) -> Callable[..., Any]:
    """amax or amin; without axes, which torch.onnx does not take, over all."""

    def translated(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        return getattr(op, name)(x, integers(dim) if dim else None, keepdims=int(keepdim))

    return translated


TABLE = {
    torch.ops.aten.mv.default: _mv,
    torch.ops.aten.amax.default: _extreme("ReduceMax"),
    torch.ops.aten.amin.default: _extreme("ReduceMin"),
}
