"""Values written into a tensor: by copy_, and by assignment to `tensor.data`, which no operator does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.nodes import op
from onnx_ops.torch.base.table import replaces, translates


@translates(torch.ops.aten.copy.default)
def _copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
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
