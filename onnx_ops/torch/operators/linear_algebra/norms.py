"""Norms of matrices and condition numbers for dynamic sizes, of which PyTorch's functions make numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.linear_algebra.spectral import singular_values

BY_SINGULAR_VALUES = (2, -2)
BY_SUMS = {1: -2, -1: -2, math.inf: -1, -math.inf: -1}
"""Of absolute values, along an axis."""


def _is_dynamic(tensor: Tensor) -> bool:
    return any(is_symbolic(size) for size in tensor.shape)


@replaces(torch.linalg.matrix_norm)
def _matrix_norm(
    input: Tensor,
    ord: float | str = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    known = (*BY_SINGULAR_VALUES, *BY_SUMS, "nuc")
    if ord not in known or not _is_dynamic(input) or len(set(dim)) != 2:
        return torch.linalg.matrix_norm(input, ord, dim, keepdim, dtype=dtype)
    moved = input.to(dtype or input.dtype).movedim(dim, (-2, -1))
    values = moved.abs().sum(BY_SUMS[ord]) if ord in BY_SUMS else singular_values(moved)
    found = values.sum(-1) if isinstance(ord, str) else values.amax(-1) if ord > 0 else values.amin(-1)
    if not keepdim:
        return found
    for axis in sorted(axis % input.dim() for axis in dim):
        found = found.unsqueeze(axis)
    return found


@replaces(torch.linalg.norm)
def _norm(
    input: Tensor,
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    axes = (dim,) if isinstance(dim, int) else (0, 1) if dim is None and input.dim() == 2 else tuple(dim or ())
    if ord is None or len(axes) != 2:
        return torch.linalg.norm(input, ord, dim, keepdim, dtype=dtype)
    return _matrix_norm(input, ord, axes, keepdim, dtype=dtype)


@replaces(torch.norm, torch.Tensor.norm)
def _old_norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    if p != "nuc" or out is not None or isinstance(dim, int) or not _is_dynamic(input):
        return NotImplemented
    first, second = (-2, -1) if dim is None else dim
    return _matrix_norm(input, p, (first, second), keepdim, dtype=dtype)


@replaces(torch.linalg.cond)
def _cond(input: Tensor, p: float | str | None = None) -> Tensor:
    if not _is_dynamic(input) or input.is_complex():
        return torch.linalg.cond(input, p)
    if p in (None, *BY_SINGULAR_VALUES):
        values = singular_values(input)
        largest, least = values.amax(-1), values.amin(-1)
        return least / largest if p == -2 else largest / least
    inverse, info = torch.linalg.inv_ex(input)
    inverse = torch.where(info[..., None, None] > 0, math.inf, inverse)
    return (_matrix_norm(input, p) * _matrix_norm(inverse, p)).nan_to_num(math.inf, math.inf, -math.inf)
