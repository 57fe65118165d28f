"""Elements that are gathered along an axis."""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.torch.base.table import replaces


@replaces(torch.take_along_dim, torch.Tensor.take_along_dim)
def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As PyTorch, whose code makes numbers of dynamic sizes."""
    if dim is None or input.dim() != indices.dim() or not -input.dim() <= dim < input.dim():
        return torch.take_along_dim(input, indices, dim)
    axis = dim % input.dim()
    shape = torch.broadcast_shapes(*((*x.shape[:axis], 1, *x.shape[axis + 1 :]) for x in (input, indices)))
    values, places = (x.expand(*shape[:axis], x.shape[axis], *shape[axis + 1 :]) for x in (input, indices))
    return values.gather(axis, places)
