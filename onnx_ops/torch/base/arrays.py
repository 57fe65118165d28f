"""Tensors of PyTorch as arrays of NumPy and back, bfloat16 included."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's elements."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor with a copy of an array's elements."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
