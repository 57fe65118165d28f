"""How often each number occurs: in all, in intervals, in a row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.return_types import mode

from onnx_ops.torch.base.nodes import Value, integers, op
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import decomposes, replaces, translates
from onnx_ops.torch.operators.sizes_as_data import triu_indices


@translates(torch.ops.aten.bincount.default)
def _bincount(self: Value, weights: Value | None = None, minlength: int | Value = 0) -> Value:
    """How often, or with which sum of weights, each of the numbers (N,) occurs; of `minlength` numbers at least."""
    numbers = op.Cast(self, to=ir.DataType.INT64)
    largest = op.ReduceMax(op.Concat(numbers, integers([-1]), axis=0), integers([0]), keepdims=1)
    least = integers([minlength]) if isinstance(minlength, int) else op.Reshape(minlength, integers([1]))
    count = op.Max(op.Add(largest, integers([1])), least)
    if weights is None:
        added = op.Expand(op.Constant(value_int=1), op.Shape(numbers))
    elif weights.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        added = weights
    else:
        added = op.Cast(weights, to=ir.DataType.DOUBLE)
    zeros = op.Expand(op.CastLike(op.Constant(value_int=0), added), count)
    numbers = op.Where(op.Less(numbers, op.Constant(value_int=0)), count, numbers)  # out of range, hence refused
    return op.ScatterElements(zeros, numbers, added, axis=0, reduction="add")


@replaces(torch.histc, torch.Tensor.histc)
def _histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Between the extremes of the elements where `min` and `max` are equal, as in PyTorch."""
    elements = input.detach().reshape(-1)
    if not elements.is_floating_point() or min != max:
        return torch.histc(input, bins, min, max)
    least, most = elements.min(), elements.max()
    flat = least == most
    least, most = torch.where(flat, least - 1, least), torch.where(flat, most + 1, most)
    places = ((elements - least) / (most - least) * bins).to(torch.int64).clamp(max=bins - 1)
    return torch.zeros(bins, dtype=input.dtype).index_add(0, places, torch.ones_like(elements))


@replaces(torch.histogram, torch.Tensor.histogram)
def _histogram(
    input: Tensor,
    bins: int | Tensor,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Any:
    elements = input.detach().reshape(-1)
    edges = bins if isinstance(bins, Tensor) else _equal_bins(elements, bins, range)
    last = edges.shape[0] - 2
    bin_of_each = torch.searchsorted(edges, elements, right=True) - 1
    bin_of_each = torch.where(elements == edges[-1], last, bin_of_each)
    added = torch.ones_like(elements) if weight is None else weight.detach().reshape(-1)
    added = torch.where((bin_of_each >= 0) & (bin_of_each <= last), added, 0)
    counts = torch.zeros_like(edges[1:]).index_add(0, bin_of_each.clamp(0, last), added)
    if density:
        counts = counts / (counts.sum() * edges.diff())
    return torch.return_types.histogram((counts, edges))


def _equal_bins(elements: Tensor, bins: int, range: Sequence[float] | None) -> Tensor:
    """The edges of bins between two numbers, by default between the extremes of the elements."""
    least, most = elements.aminmax() if range is None else torch.tensor(range, dtype=elements.dtype)
    flat = least == most
    least, most = torch.where(flat, least - 0.5, least), torch.where(flat, most + 0.5, most)
    return torch.linspace(least, most, bins + 1, dtype=elements.dtype)


@replaces(torch.unique_consecutive, torch.Tensor.unique_consecutive)
def _unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    rows = input.reshape(-1) if dim is None else input.movedim(dim, 0)
    differs = (rows[1:] != rows[:-1]).flatten(1).any(1) if rows.dim() > 1 else rows[1:] != rows[:-1]
    starts = torch.cat([torch.ones(rows.shape[0], dtype=torch.bool)[:1], differs])
    found = rows[starts] if dim is None else rows[starts].movedim(0, dim)
    if not return_inverse and not return_counts:
        return found
    inverse = starts.cumsum(0) - 1
    outputs = [found]
    if return_inverse:
        outputs.append(inverse.reshape(input.shape) if dim is None else inverse)
    if return_counts:
        outputs.append(torch.zeros_like(inverse[starts]).index_add(0, inverse, torch.ones_like(inverse)))
    return tuple(outputs)


@replaces(torch.mode, torch.Tensor.mode)
def _mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent elements, and the last place of it, as PyTorch has for few elements."""
    if not input.dim():
        return mode(tuple(part.view(()) for part in _mode(input.view(1), 0)))
    values, order = input.detach().movedim(dim, -1).sort(stable=True, dim=-1)
    first = torch.ones_like(values[..., :1], dtype=torch.bool)
    runs = torch.cat([first, values[..., 1:] != values[..., :-1]], -1).cumsum(-1) - 1
    lengths = torch.zeros_like(runs).scatter_add(-1, runs, torch.ones_like(runs))
    last = lengths.cumsum(-1).gather(-1, lengths.argmax(-1, keepdim=True)) - 1
    indices = order.gather(-1, last).movedim(-1, dim)
    found = input.gather(dim, indices), indices
    return mode(found if keepdim else tuple(part.squeeze(dim) for part in found))


@decomposes(torch.ops.aten.repeat_interleave.Tensor)
def _repeated_places(repeats: Tensor, *, output_size: Size | None = None) -> Any:
    """Of a given number of results, each is the first place up to which there are more repeats."""
    if output_size is None:
        return NotImplemented
    return torch.searchsorted(repeats.cumsum(0), torch.arange(output_size), right=True)


@replaces(torch.combinations)
def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """The rows (N, r) of elements of a vector, in the order of itertools.combinations."""
    size = input.shape[0]
    if r < 1:
        return torch.combinations(input, r, with_replacement)
    if is_symbolic(size) and r == 2:
        return input[triu_indices(size, size, 0 if with_replacement else 1).T]
    if is_symbolic(size):
        places = torch.meshgrid([torch.arange(size)] * r, indexing="ij")
        follows = torch.le if with_replacement else torch.lt
        rising = [follows(place, other) for place, other in itertools.pairwise(places)]
        chosen = functools.reduce(torch.logical_and, rising, torch.ones_like(places[0], dtype=torch.bool))
        return input[torch.stack([place[chosen] for place in places], 1)]
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(size), r))
    return input[torch.tensor(rows, dtype=torch.int64).reshape(-1, r)]
