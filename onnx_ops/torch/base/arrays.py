"""Tensors of PyTorch as arrays of NumPy and back, bfloat16 included."""

from __future__ import annotations

import mmap
import sys

import ml_dtypes
import numpy as np
import torch

from onnx_ops.torch.base.pairs import as_real

LARGE = 2**16
"""Bytes from which on a tensor of zeros has pages of its own."""


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's elements, in its memory if it is contiguous; those of a complex tensor as (..., 2)."""
    tensor = as_real(tensor.detach()).cpu().contiguous()
    if tensor._is_zerotensor():  # such as the gradient of torch.sgn, which has no memory
        tensor = tensor.clone()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's elements."""
    return as_array(tensor).copy()


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor. A large one of zeros takes no memory until it is written to."""
    if tensor.nbytes < LARGE or tensor.is_complex() or tensor.any():
        return tensor.detach().clone()
    # New pages of the system: numpy.zeros may take freed memory, and write to it.
    flags = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE}
    pages = mmap.mmap(-1, tensor.nbytes, **flags)
    return as_tensor(np.frombuffer(pages, as_array(tensor.new_empty(0)).dtype).reshape(tensor.shape))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor in the memory of an array."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor with a copy of an array's elements."""
    return as_tensor(array.copy())
