"""Values written into a tensor: by copy_, and by assignment to `tensor.data`, which no operator does; and resize_."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.nodes import Value, op
from onnx_ops.torch.base.table import replaces, translates


@translates(torch.ops.aten.copy.default)
def _copy(self: Value, src: Value, non_blocking: bool = False) -> Value:
    """The translation of torch.onnx does not broadcast src."""
    values = op.CastLike(src, self)
    return values if src.shape == self.shape else op.Expand(values, op.Shape(self))


@replaces(Tensor.data.__set__)
def _set_data(tensor: Tensor, value: Tensor) -> None:
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise CaptureError(
            f"a tensor of shape {tuple(value.shape)}, {value.dtype}, is assigned to the data of one of shape"
            f" {tuple(tensor.shape)}, {tensor.dtype}; a capture needs the same shape and dtype"
        )
    tensor.data.copy_(value)


@replaces(Tensor.resize_)
def _resize_(tensor: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """To the sizes that a tensor has, as observers call it, it does nothing."""
    wanted = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes
    static = all(isinstance(size, int) for size in (*wanted, *tensor.shape))
    return tensor if static and tensor.shape == tuple(wanted) else tensor.resize_(*sizes, **options)
