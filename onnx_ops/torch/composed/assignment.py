"""Assignments to `tensor.data`, which no operator does, as copies of the elements."""

from __future__ import annotations

from torch import Tensor

from onnx_ops.torch.errors import CaptureError


def _set_data(tensor: Tensor, value: Tensor) -> None:
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise CaptureError(
            f"a tensor of shape {tuple(value.shape)}, {value.dtype}, is assigned to the data of one of shape"
            f" {tuple(tensor.shape)}, {tensor.dtype}; a capture needs the same shape and dtype"
        )
    tensor.data.copy_(value)


FUNCTIONS = {Tensor.data.__set__: _set_data}
