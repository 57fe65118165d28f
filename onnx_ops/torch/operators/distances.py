"""Distances between rows, and between all pairs of them."""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.torch.base.table import corrects, replaces
from onnx_ops.torch.operators.sizes_as_data import triu_indices

MANY_ROWS = 25
"""With more rows than this, PyTorch computes Euclidean distances by a product of matrices. That product is less
accurate, so a dynamic number of rows counts as few."""


@replaces(torch.cdist)
def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    rows = x1.shape[-2], x2.shape[-2]
    many = any(isinstance(count, int) and count > MANY_ROWS for count in rows)
    wanted = compute_mode == "use_mm_for_euclid_dist" or (
        compute_mode == "use_mm_for_euclid_dist_if_necessary" and many
    )
    if p == 2 and wanted:
        squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1).unsqueeze(-2)
        return _root(squares - 2 * (x1 @ x2.transpose(-1, -2)))
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@replaces(torch.pdist)
def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    first, second = triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    return _norm(input.index_select(0, first) - input.index_select(0, second), p)


@corrects(torch.pdist)
def _pdist_of_rows(input: Tensor, p: float = 2.0) -> Tensor:
    """PyTorch's gradient of no rows is a division by 0 on CPUs, which ends the process."""
    return torch.pdist(input, p) if input.shape[0] else _pdist(input, p)


def _norm(difference: Tensor, p: float) -> Tensor:
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return difference.abs().sum(-1)
    if p == 2:
        return _root(difference.square().sum(-1))
    if p == float("inf"):
        return difference.abs().amax(-1)
    size = difference.abs()
    # A difference of 0 has no gradient; the power's would be infinite for p below 1.
    powers = torch.where(size == 0, 0.0, torch.where(size == 0, 1.0, size).pow(p)).sum(-1)
    return torch.where(powers == 0, 0.0, torch.where(powers == 0, 1.0, powers).pow(1 / p))


def _root(squares: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0 and at values that rounding has made negative."""
    return torch.where(squares <= 0, 0.0, torch.where(squares <= 0, 1.0, squares).sqrt())  # NaN is neither


@replaces(torch.pairwise_distance)
def _pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, dim=-1, keepdim=keepdim)
