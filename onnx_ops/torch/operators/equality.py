"""Comparisons of whole tensors, whose result is a bool."""

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
