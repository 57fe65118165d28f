"""Products, extremes and sums of exponentials of the elements up to each place of an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.return_types import cummax, cummin

from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.recurrences import dtype_of_products, running_products


@replaces(torch.cumprod, torch.Tensor.cumprod)
def _cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Each round doubles the number of factors."""
    rows = input.to(dtype or dtype_of_products(input)).clone()
    if rows.dim() and is_symbolic(rows.shape[dim]):
        return running_products(rows.movedim(dim, 0)).narrow(0, 1, rows.shape[dim]).movedim(0, dim)
    size = int(rows.shape[dim]) if rows.dim() else 1
    step = 1
    while step < size:
        ones = torch.ones_like(rows.narrow(dim, 0, step))
        rows = rows * torch.cat([ones, rows.narrow(dim, 0, size - step)], dim)
        step *= 2
    return rows


def _running(name: str, kind: type[tuple[Tensor, ...]]) -> Callable[..., Any]:
    """cummax or cummin; of equal elements the index is that of the last, as in PyTorch."""

    def running(input: Tensor, dim: int) -> Any:
        if input.dim() == 0:
            return kind((input.clone(), torch.zeros_like(input, dtype=torch.int64)))
        rows = input.movedim(dim, -1)
        order = torch.arange(rows.shape[-1], device=input.device)
        seen = order.unsqueeze(1) >= order
        compared = rows.detach().to(torch.uint8) if input.dtype == torch.bool else rows.detach()
        values = torch.where(seen, compared.unsqueeze(-2), _extreme(compared.dtype, least=name == "amax"))
        best = getattr(values, name)(-1, keepdim=True)
        chosen = values == best
        if input.dtype.is_floating_point:
            chosen |= best.isnan() & values.isnan()
        indices = torch.where(chosen & seen, order, -1).amax(-1)
        return kind((rows.gather(-1, indices).movedim(-1, dim), indices.movedim(-1, dim)))

    return running


def _extreme(dtype: torch.dtype, *, least: bool) -> float:
    """The least or the largest number of a dtype; an infinity among integers would make floats of them."""
    if dtype.is_floating_point:
        return -math.inf if least else math.inf
    return torch.iinfo(dtype).min if least else torch.iinfo(dtype).max


replaces(torch.cummax, torch.Tensor.cummax)(_running("amax", cummax))
replaces(torch.cummin, torch.Tensor.cummin)(_running("amin", cummin))


@replaces(torch.logcumsumexp, torch.Tensor.logcumsumexp)
def _logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Each place relative to the largest of its own terms: relative to that of the whole axis, sums become 0."""
    if input.dim() == 0:
        return input.clone()
    rows = input.movedim(dim, -1)
    places = torch.arange(rows.shape[-1], device=input.device)
    seen = places.unsqueeze(1) >= places
    return torch.where(seen, rows.unsqueeze(-2), -math.inf).logsumexp(-1).movedim(-1, dim)
