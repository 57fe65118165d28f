"""Stacks of tensors of several dtypes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.table import decomposes

aten = torch.ops.aten


@decomposes(aten.stack.default)
def _promoted(tensors: list[Tensor], dim: int = 0) -> Any:
    """PyTorch's rules of type promotion for an operator leave a list of tensors as it is, except for cat."""
    dtypes = [tensor.dtype for tensor in tensors]
    if len(set(dtypes)) == 1:
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, dtypes)
    return aten.stack.default([tensor.to(dtype) for tensor in tensors], dim)
