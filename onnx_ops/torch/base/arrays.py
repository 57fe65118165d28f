"""Tensors of PyTorch as arrays of NumPy and back, bfloat16 included."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's elements, in its memory if it is contiguous."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's elements."""
    return as_array(tensor).copy()


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor. One of zeros takes no memory until it is written to."""
    if tensor.any():
        return tensor.detach().clone()
    return as_tensor(np.zeros(tensor.shape, as_array(tensor.new_empty(0)).dtype))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor in the memory of an array."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor with a copy of an array's elements."""
    return as_tensor(array.copy())
