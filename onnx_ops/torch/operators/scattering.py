"""Elements at the indices or under the mask of a tensor: taken, written, and added up where indices repeat.

Sums are written as scatter_add, which becomes ScatterElements. torch.onnx writes ScatterND, in which onnxruntime's
threads overwrite each other's sums where indices repeat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.torch.base.table import corrects, decomposes, replaces

aten = torch.ops.aten


@decomposes(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    masks = [index for index in indices if index is not None and index.dtype is torch.bool]
    if masks and len(axes) == 1 and axes[0] > 0:
        return _put_under_mask(self, masks[0], axes[0], values, accumulate)
    if not accumulate or masks:
        return NotImplemented
    rest = [axis for axis in range(self.dim()) if axis not in axes]
    given = torch.broadcast_tensors(*(index for index in indices if index is not None))
    place = torch.zeros_like(given[0])
    for axis, index in zip(axes, given, strict=True):
        size = self.shape[axis]
        place = place * size + index + torch.where(index < 0, size, 0)
    # In `values` the axes of the indices replace the indexed axes if these are adjacent, else they come first.
    first = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    shape = [self.shape[axis] for axis in rest]
    shape[first:first] = list(place.shape)
    values = values.expand(shape)
    order = list(range(first, first + place.dim()))
    order += [axis for axis in range(values.dim()) if axis not in order]
    width = [self.shape[axis] for axis in rest]
    rows = values.permute(order).reshape(-1, math.prod(width))
    target = self.permute([*axes, *rest])
    added = target.reshape(-1, math.prod(width)).scatter_add(0, place.reshape(-1, 1).expand_as(rows), rows)
    back = [0] * self.dim()
    for position, axis in enumerate((*axes, *rest)):
        back[axis] = position
    return added.reshape(target.shape).permute(back)


def _put_under_mask(self: Tensor, mask: Tensor, first: int, values: Tensor, accumulate: bool) -> Tensor:
    """`self[..., mask] = values`, or +=, for a mask of the axes from `first` on.

    Torch.onnx has no translation for masks of other axes than the first ones.
    """
    after = self.dim() - first - mask.dim()
    if values.dim() > after:
        axis = values.dim() - after - 1
        count = values.shape[axis]
        if not statically_known_true(count == 1):  # one value for each True of the mask
            if not statically_known_true(count >= 1):
                ends = [1 if i == axis else size for i, size in enumerate(values.shape)]
                values = torch.cat([values, values.new_zeros(ends)], axis)
            order = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
            values = values.index_select(axis, order.clamp(min=0))
        shape = [1] * mask.dim() if statically_known_true(count == 1) else mask.shape
        values = values.reshape([*values.shape[:axis], *shape, *values.shape[axis + 1 :]])
    chosen = mask.reshape([*mask.shape, *[1] * after])
    return torch.where(chosen, self + values if accumulate else values, self)


@decomposes(aten.index_add.default)
def _index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    if self.dim() == 0:
        return aten.index_add(self.reshape(1), 0, index.reshape(1), source.reshape(1), alpha=alpha).reshape(())
    shape = [1] * self.dim()
    shape[dim] = -1
    added = source if alpha == 1 else source * alpha
    return self.scatter_add(dim, index.to(torch.int64).reshape(shape).expand_as(added), added)


def _of_index(index: Tensor, src: Tensor) -> Tensor:
    """The part of src that is scattered, from the first of its elements on; src itself if that is all of it."""
    for axis, size in enumerate(index.shape):
        if not statically_known_true(size == src.shape[axis]):
            src = src.narrow(axis, 0, size)
    return src


def _scatters(operator: OpOverload) -> None:
    """Pass an operator no src that is larger than its index, which ONNX does not permit."""

    @decomposes(operator)
    def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor, *rest: Any, **options: Any) -> Any:
        used = _of_index(index, src) if index.dim() == src.dim() else src
        return NotImplemented if used is src else operator(self, dim, index, used, *rest, **options)


for _operator in (aten.scatter_add.default, aten.scatter.src, aten.scatter.reduce, aten.scatter_reduce.two):
    _scatters(_operator)


def summed_windows(grad: Tensor, input_sizes: Sequence[int], axis: int, size: int, step: int) -> Tensor:
    """The gradient of `unfold`: what all windows along an axis have of each element."""
    count = grad.shape[axis]
    starts = torch.arange(count, device=grad.device).unsqueeze(1) * step
    places = (starts + torch.arange(size, device=grad.device)).flatten()
    windows = grad.movedim(-1, axis + 1).flatten(axis, axis + 1)
    return _index_add(grad.new_zeros(input_sizes), axis, places, windows)


@replaces(torch.take, torch.Tensor.take)
def _take(input: Tensor, index: Tensor) -> Tensor:
    return input.reshape(-1).index_select(0, index.reshape(-1)).reshape(index.shape)


@replaces(torch.put, torch.Tensor.put)
def _put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat, place = input.reshape(-1), index.reshape(-1)
    place = torch.where(place < 0, place + flat.shape[0], place)
    put = flat.scatter_add if accumulate else flat.scatter
    return put(0, place, source.reshape(-1)).reshape(input.shape)


@replaces(torch.Tensor.put_)
def _put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return input.copy_(_put(input, index, source, accumulate))


@replaces(torch.masked_scatter, torch.Tensor.masked_scatter)
def _masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    input, mask = torch.broadcast_tensors(input, mask)
    order = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    picked = source.reshape(-1).index_select(0, order.clamp(min=0)).reshape(input.shape)
    return torch.where(mask, picked, input)


@replaces(torch.scatter_reduce, torch.Tensor.scatter_reduce)
def _scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """The mean as a sum and a count; ONNX has only sum, product, amax and amin."""
    if reduce != "mean":
        return torch.scatter_reduce(input, dim, index, src, reduce, include_self=include_self)
    used = src if src.dim() == 0 else src[tuple(slice(size) for size in index.shape)]
    count = torch.zeros_like(input).scatter_add(dim, index, torch.ones_like(used))
    start = input if include_self else torch.where(count > 0, 0.0, input)
    total = start.scatter_add(dim, index, used)
    return total / (count + 1 if include_self else count.clamp(min=1))


@replaces(torch.index_reduce, torch.Tensor.index_reduce)
def _index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if input.dim() == 0:
        return _index_reduce(input[None], 0, index.reshape(1), source[None], reduce, include_self=include_self)[0]
    shape = [1] * source.dim()
    shape[dim] = -1
    places = index.to(torch.int64).reshape(shape).expand(source.shape)
    return _scatter_reduce(input, dim, places, source, reduce, include_self=include_self)


@replaces(torch.masked_select, torch.Tensor.masked_select)
def _masked_select(input: Tensor, mask: Tensor) -> Tensor:
    input, mask = torch.broadcast_tensors(input, mask)
    return input[mask]


REDUCTIONS = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "prod": ("prod", 1.0), "max": ("amax", -math.inf)}
REDUCTIONS["min"] = "amin", math.inf
"""Those of segment_reduce: those of scatter_reduce, and what they begin with."""


@replaces(torch.segment_reduce)
def _segment_reduce(
    data: Tensor, reduce: str, *, axis: int = 0, initial: float | None = None, **segments: Any
) -> Tensor:
    lengths, offsets = segments.get("lengths"), segments.get("offsets")
    given = offsets if lengths is None else lengths
    is_extreme = reduce in ("max", "min")
    if axis or given is None or given.dim() != 1 or (is_extreme and initial is not None):
        return torch.segment_reduce(data, reduce, axis=axis, initial=initial, **segments)
    counts = given.diff() if lengths is None else given
    function, first = REDUCTIONS[reduce]
    shape = [-1] + [1] * (data.dim() - 1)
    of_rows = torch.repeat_interleave(torch.arange(counts.shape[0]), counts, output_size=data.shape[0])
    start = torch.full((counts.shape[0], *data.shape[1:]), first if initial is None else initial, dtype=data.dtype)
    found = _scatter_reduce(start, 0, of_rows.view(shape).expand(data.shape), data, function)
    if reduce != "mean":
        return found
    number = counts.view(shape)
    return torch.where(number > 0, found / number.clamp(min=1), math.nan if initial is None else initial)


@corrects(torch.segment_reduce)
def _checked_segments(data: Tensor, reduce: str, *, unsafe: bool = False, **options: Any) -> Tensor:
    """PyTorch reads outside of the data for lengths that are too large, as those of a batch of other sizes may be."""
    return torch.segment_reduce(data, reduce, **options)
