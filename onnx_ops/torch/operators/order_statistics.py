"""Medians and quantiles: elements of sorted tensors, whose places may depend on dynamic sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.return_types import kthvalue, median, nanmedian

from onnx_ops.torch.base.requirements import require_elements
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import replaces


@replaces(torch.kthvalue, torch.Tensor.kthvalue)
def _kthvalue(input: Tensor, k: Size, dim: int = -1, keepdim: bool = False) -> Any:
    if not input.dim():
        return kthvalue(tuple(part.view(()) for part in _kthvalue(input.view(1), k, dim, keepdim)))
    if input.is_floating_point():
        place = _selected(input, k, dim)
        found = input.gather(dim, place), place
    else:
        values, indices = input.sort(dim)
        found = _at(values, k, dim), _at(indices, k, dim)
    return kthvalue(found if keepdim else tuple(part.squeeze(dim) for part in found))


def _at(ordered: Tensor, k: Size, dim: int) -> Tensor:
    """The k-th element along an axis."""
    if is_symbolic(k):
        return ordered.index_select(dim, torch.full((1,), k - 1, dtype=torch.int64, device=ordered.device))
    return ordered.narrow(dim, k - 1, 1)


SORTED, LONG = 16, 1 << 12
"""A sort is faster than the selection of more than one in SORTED elements, if there are no more than LONG."""


def _selected(input: Tensor, k: Size, dim: int) -> Tensor:
    """The index of the k-th smallest element.

    It is the last of the elements that are not larger, or the first of those that are not smaller, if these are fewer.
    """
    size = input.shape[dim]
    if is_symbolic(k) or (not is_symbolic(size) and LONG >= size < SORTED * min(k, size - k + 1)):
        return _at(input.detach().sort(dim).indices, k, dim)
    upper = not is_symbolic(size) and 2 * k > size + 1
    some = input.detach().topk(size - k + 1 if upper else k, dim, largest=upper, sorted=False)
    last = some.values.argmin(dim, keepdim=True) if upper else some.values.argmax(dim, keepdim=True)
    return some.indices.gather(dim, last)


class _MedianOfAll(torch.autograd.Function):
    """The lower median of the elements of a vector, whose gradient elements that are equal to it share."""

    @staticmethod
    def forward(ctx: FunctionCtx, input: Tensor, without_nan: bool) -> Tensor:
        given = torch.cat([input, input.new_full((1,), math.nan)]) if without_nan else input  # NaN of no elements
        found = _median_along(given, 0, without_nan)[0].squeeze(0)
        ctx.save_for_backward(input, found)
        return found

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        input, found = ctx.saved_tensors
        chosen = (input == found) | (found.isnan() & input.isnan())
        return torch.where(chosen, grads[0] / chosen.sum(), 0.0), None


def _median_along(input: Tensor, dim: int, without_nan: bool) -> tuple[Tensor, Tensor]:
    """Of an even number of elements the lower median and its index, with an axis of size 1."""
    if not input.is_floating_point() or not input.dim():
        size = input.shape[dim] if input.dim() else 1
        values, indices = _kthvalue(input, (size + 1) // 2, dim, keepdim=True)
        return values, indices
    isnan = input.isnan()
    numbers = torch.where(isnan, math.inf, input)
    if without_nan:
        ordered = numbers.sort(dim).indices
        count = (~isnan).sum(dim, keepdim=True)
        # NaNs behind infinities, which are equal to them in this order.
        ordered = ordered.gather(dim, isnan.gather(dim, ordered).to(torch.uint8).sort(stable=True, dim=dim).indices)
        indices = ordered.gather(dim, ((count + 1) // 2 - 1).clamp(min=0))
    else:
        indices = _selected(numbers, (input.shape[dim] + 1) // 2, dim)
        first = isnan.to(torch.uint8).argmax(dim, keepdim=True)
        indices = torch.where(isnan.any(dim, keepdim=True), first, indices)
    return input.gather(dim, indices), indices


@replaces(torch.median, torch.Tensor.median)
def _median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Of an even number of elements the lower median, as PyTorch; NaN if one of them is."""
    return _medians(input, dim, keepdim, without_nan=False)


@replaces(torch.nanmedian, torch.Tensor.nanmedian)
def _nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _medians(input, dim, keepdim, without_nan=True)


def _medians(input: Tensor, dim: int | None, keepdim: bool, without_nan: bool) -> Any:
    if dim is None:
        return _MedianOfAll.apply(input.reshape(-1), without_nan)
    require_elements(input, [dim])
    found = _median_along(input, dim, without_nan)
    kind = nanmedian if without_nan else median
    return kind(found if keepdim or not input.dim() else tuple(part.squeeze(dim) for part in found))


@replaces(torch.quantile, torch.Tensor.quantile)
def _quantile(
    input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    return _quantiles(input, q, dim, keepdim, interpolation, without_nan=False)


@replaces(torch.nanquantile, torch.Tensor.nanquantile)
def _nanquantile(
    input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    return _quantiles(input, q, dim, keepdim, interpolation, without_nan=True)


def _quantiles(
    input: Tensor, q: float | Tensor, dim: int | None, keepdim: bool, interpolation: str, without_nan: bool
) -> Tensor:
    """PyTorch's own quantile is limited to tensors of 2**24 elements, which restricts a dynamic size."""
    if not any(map(is_symbolic, input.shape)) or not input.dim():
        function = torch.nanquantile if without_nan else torch.quantile
        return function(input, q, dim, keepdim, interpolation=interpolation)
    require_elements(input, None if dim is None else [dim])
    places = torch.as_tensor(q, dtype=input.dtype, device=input.device)
    rows = input.reshape(-1) if dim is None else input.movedim(dim, -1)
    isnan = rows.isnan()
    count = (~isnan).sum(-1, keepdim=True)
    size = count if without_nan else torch.full_like(count, rows.shape[-1])
    values = torch.where(isnan, math.inf, rows).sort(-1).values
    ranks = places.reshape(-1) * (size.to(input.dtype) - 1).clamp(min=0)
    if interpolation == "lower":
        ranks = ranks.floor()
    elif interpolation == "higher":
        ranks = ranks.ceil()
    elif interpolation == "nearest":
        ranks = ranks.round()
    below = ranks.floor()
    weight = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - below
    lower = values.gather(-1, below.to(torch.int64))
    upper = values.gather(-1, ranks.ceil().to(torch.int64))
    found = torch.lerp(lower, upper, weight)
    found = torch.where((count == 0) if without_nan else isnan.any(-1, keepdim=True), math.nan, found)
    quantiles = found.movedim(-1, 0)  # (number of quantiles, *other axes)
    if keepdim:
        shape = [1] * input.dim() if dim is None else [*quantiles.shape[1:], 1]
        quantiles = quantiles.reshape(-1, *shape)
        quantiles = quantiles if dim is None else quantiles.movedim(-1, dim if dim < 0 else dim + 1)
    return quantiles if places.dim() else quantiles.squeeze(0)
