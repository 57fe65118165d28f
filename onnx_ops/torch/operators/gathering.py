"""Elements that are gathered along an axis, or at indices of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.table import decomposes, replaces
from onnx_ops.torch.operators.tensor_indices import INTEGERS

aten = torch.ops.aten


@decomposes(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(self: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """At indices of one dtype, as the translation of torch.onnx joins them."""
    dtypes = {index.dtype for index in indices if index is not None}
    if len(dtypes) < 2 or not all(dtype in INTEGERS for dtype in dtypes):
        return NotImplemented
    return aten.index.Tensor(self, [None if index is None else index.long() for index in indices])


@replaces(torch.take_along_dim, torch.Tensor.take_along_dim)
def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As PyTorch, whose code makes numbers of dynamic sizes."""
    if dim is None or input.dim() != indices.dim() or not -input.dim() <= dim < input.dim():
        return torch.take_along_dim(input, indices, dim)
    axis = dim % input.dim()
    shape = torch.broadcast_shapes(*((*x.shape[:axis], 1, *x.shape[axis + 1 :]) for x in (input, indices)))
    values, places = (x.expand(*shape[:axis], x.shape[axis], *shape[axis + 1 :]) for x in (input, indices))
    return values.gather(axis, places)
