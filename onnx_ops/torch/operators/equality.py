"""Comparisons and conditions of whole tensors, whose result is a bool."""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.torch.base.table import replaces


@replaces(torch.equal, torch.Tensor.equal)
def _equal(input: Tensor, other: Tensor) -> bool:
    return input.shape == other.shape and bool((input == other).all())


@replaces(torch.allclose, torch.Tensor.allclose)
def _allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    return bool(torch.isclose(input, other, rtol, atol, equal_nan).all())


@replaces(torch._is_all_true, torch.Tensor._is_all_true)
def _is_all_true(input: Tensor) -> Tensor:
    """Which torch._check_tensor_all calls."""
    return input.all()


@replaces(torch._is_any_true, torch.Tensor._is_any_true)
def _is_any_true(input: Tensor) -> Tensor:
    return input.any()
