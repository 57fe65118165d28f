"""Products, extremes and sums of exponentials of the elements up to each place of an axis."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.nn import functional
from torch.return_types import cummax, cummin

from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.activations import ALWAYS_CURVED
from onnx_ops.torch.operators.recurrences import dtype_of_products, running_products

aten = torch.ops.aten


@replaces(torch.cumprod, torch.Tensor.cumprod)
def _cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    rows = input.to(dtype or dtype_of_products(input)).clone()
    if rows.dim() == 0:
        return rows
    if is_symbolic(rows.shape[dim]):
        return running_products(rows.movedim(dim, 0)).narrow(0, 1, rows.shape[dim]).movedim(0, dim)
    return _combined(rows.movedim(dim, 0), torch.mul, 1).movedim(0, dim)


def _running(name: str, kind: type[tuple[Tensor, ...]]) -> Callable[..., Any]:
    """cummax or cummin; of equal elements the index is that of the last, as in PyTorch."""

    larger = torch.maximum if name == "amax" else torch.minimum

    def places_of_few(values: Tensor) -> Tensor:
        """For each place of the last axis that of the extreme up to it, by comparisons of all pairs."""
        order = torch.arange(values.shape[-1], device=values.device)
        seen = order.unsqueeze(1) >= order
        known = torch.where(seen, values.unsqueeze(-2), _extreme(values.dtype, least=name == "amax"))
        best = getattr(known, name)(-1, keepdim=True)
        chosen = known == best
        if values.dtype.is_floating_point:
            chosen |= best.isnan() & known.isnan()
        return torch.where(chosen & seen, order, -1).amax(-1)

    def places_in_order(values: Tensor) -> Tensor:
        """As `places_of_few`, of an axis of known size: the last place up to which the extreme is that of its own."""
        rows = values.movedim(-1, 0)
        chosen = rows == _combined(rows, larger, _extreme(values.dtype, least=name == "amax"))
        if values.dtype.is_floating_point:
            chosen |= rows.isnan()
        # onnxruntime compares float32 several times as fast as int64.
        dtype = torch.float32 if len(rows) <= EXACT else torch.int64
        order = torch.arange(len(rows), dtype=dtype, device=values.device).view(-1, *[1] * (rows.dim() - 1))
        return _combined(torch.where(chosen, order, 0), torch.maximum, 0).movedim(0, -1).long()

    def is_beyond(one: Tensor, other: Tensor) -> Tensor:
        beyond = one > other if name == "amax" else one < other
        return beyond | (one.isnan() & ~other.isnan()) if one.dtype.is_floating_point else beyond

    def places(values: Tensor) -> Tensor:
        if not is_symbolic(values.shape[-1]):
            return places_in_order(values)
        length, blocks = values.shape[-1], _in_blocks(values, _extreme(values.dtype, least=name == "amax"))
        own = places_in_order(blocks)
        last = own[..., -1]
        ends = blocks.gather(-1, last.unsqueeze(-1)).squeeze(-1)
        number = torch.arange(ends.shape[-1], device=values.device)
        before = _shifted(places_of_few(ends), 0)
        takes = is_beyond(ends.gather(-1, before).unsqueeze(-1), blocks.gather(-1, own))
        takes &= (number > 0).unsqueeze(-1)
        earlier = before * BLOCK + last.gather(-1, before)
        found = torch.where(takes, earlier.unsqueeze(-1), own + BLOCK * number.unsqueeze(-1))
        return found.flatten(-2).narrow(-1, 0, length)

    def running(input: Tensor, dim: int) -> Any:
        if input.dim() == 0:
            return kind((input.clone(), torch.zeros_like(input, dtype=torch.int64)))
        rows = input.movedim(dim, -1)
        indices = places(rows.detach().to(torch.uint8) if input.dtype == torch.bool else rows.detach())
        return kind((rows.gather(-1, indices).movedim(-1, dim), indices.movedim(-1, dim)))

    return running


def _combined(rows: Tensor, combine: Callable[[Tensor, Tensor], Tensor], neutral: float) -> Tensor:
    """What combines the rows up to each one, (n, ...) with constant n.

    The rows of a long axis are combined within blocks, and each then with what combines the blocks before it.
    """
    count = len(rows)
    if count <= FEW:
        return torch.stack([*itertools.accumulate(rows.unbind(), combine)]) if count else rows
    blocks = -(-count // FEW)
    filled = torch.cat([rows, rows.new_full((blocks * FEW - count, *rows.shape[1:]), neutral)])
    inside = [*itertools.accumulate(filled.unflatten(0, (blocks, FEW)).unbind(1), combine)]
    before = _combined(inside[-1][:-1], combine, neutral)
    before = torch.cat([torch.full_like(before[:1], neutral), before])
    return combine(before.unsqueeze(1), torch.stack(inside, 1)).flatten(0, 1)[:count]


def _extreme(dtype: torch.dtype, *, least: bool) -> float:
    """The least or the largest number of a dtype; an infinity among integers would make floats of them."""
    if dtype.is_floating_point:
        return -math.inf if least else math.inf
    return torch.iinfo(dtype).min if least else torch.iinfo(dtype).max


replaces(torch.cummax, torch.Tensor.cummax)(_running("amax", cummax))
replaces(torch.cummin, torch.Tensor.cummin)(_running("amin", cummin))


@replaces(torch.logcumsumexp, torch.Tensor.logcumsumexp)
def _logcumsumexp(input: Tensor, dim: int) -> Tensor:
    return _log_sums(input.movedim(dim, -1)).movedim(-1, dim) if input.dim() else input.clone()


def _log_sums(rows: Tensor) -> Tensor:
    if not is_symbolic(rows.shape[-1]):
        return _combined(rows.movedim(-1, 0), _log_of_both, -math.inf).movedim(0, -1)
    own = _log_sums(_in_blocks(rows, -math.inf))
    before = _shifted(_log_sums_of_all_pairs(own[..., -1]), -math.inf)
    return _log_of_both(own, before.unsqueeze(-1)).flatten(-2).narrow(-1, 0, rows.shape[-1])


def _log_of_both(one: Tensor, other: Tensor) -> Tensor:
    """log(exp(one) + exp(other))."""
    one, other = torch.broadcast_tensors(one, other)
    if one.is_complex():
        return torch.stack([one, other]).logsumexp(0)
    if within_transforms():
        return _log_of_sum(one, other)
    found: Tensor = _LogOfSum.apply(one, other)
    return found


def _log_of_sum(one: Tensor, other: Tensor) -> Tensor:
    larger, smaller = torch.maximum(one, other), torch.minimum(one, other)
    below = smaller - torch.where(larger.isinf(), 0, larger)  # inf - inf is NaN
    return larger + functional.softplus(below)


class _LogOfSum(torch.autograd.Function):
    """Whose gradient is 0 where both terms are -inf, and takes fewer operators than that of maximum and minimum."""

    @staticmethod
    def forward(ctx: FunctionCtx, one: Tensor, other: Tensor) -> Tensor:
        found = _log_of_sum(one, other)
        ctx.save_for_backward(one, other, found)
        return found

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        one, other, found = ctx.saved_tensors
        own = torch.where(found == -math.inf, 0, grad)
        apart = torch.where(one == other, 0, one - other)
        slope = functools.partial(aten.softplus_backward, own, beta=1, threshold=ALWAYS_CURVED)
        return slope(apart), slope(-apart)


def _log_sums_of_all_pairs(rows: Tensor) -> Tensor:
    """Each place relative to the largest of its own terms: relative to that of the whole axis, sums become 0."""
    places = torch.arange(rows.shape[-1], device=rows.device)
    seen = places.unsqueeze(1) >= places
    return torch.where(seen, rows.unsqueeze(-2), -math.inf).logsumexp(-1)


EXACT = 2**24
"""Up to which all whole numbers are numbers of float32."""
FEW = 8
"""Rows that are combined one after the other."""

# --- long axes in blocks ----------------------------------------------------------------------------------------------

BLOCK = 32
"""Elements of which all pairs are compared; what is known at the end of each such block is passed on to the others."""


def _in_blocks(rows: Tensor, filler: float) -> Tensor:
    """(..., n) as (..., blocks, BLOCK), with at least one block."""
    length = rows.shape[-1]
    blocks = length // BLOCK + 1
    filled = torch.cat([rows, rows.new_full((*rows.shape[:-1], blocks * BLOCK - length), filler)], -1)
    return filled.reshape(*rows.shape[:-1], blocks, BLOCK)


def _shifted(ends: Tensor, first: float) -> Tensor:
    """What is known before each block, of what is known at its end."""
    return torch.cat([ends.new_full((*ends.shape[:-1], 1), first), ends.narrow(-1, 0, ends.shape[-1] - 1)], -1)
