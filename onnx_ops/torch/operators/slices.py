"""Gradients of slices as pads, and writes as concatenations; torch.onnx writes scatters with an index for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import decomposes

aten = torch.ops.aten


def _padded(values: Tensor, axis: int, before: Size, after: Size) -> Tensor:
    """Zeros before and after the values along an axis; negative numbers crop."""
    return aten.constant_pad_nd(values, [*([0, 0] * (values.dim() - 1 - axis)), before, after], 0)


def _spaced(values: Tensor, axis: int, step: Size) -> Tensor:
    """step - 1 zeros after each element along an axis, for which onnxruntime's Pad takes up to ten times as long."""
    first = (torch.arange(step) == 0).reshape([-1, *[1] * (values.dim() - 1 - axis)])
    return torch.where(first, values.unsqueeze(axis + 1), 0.0).flatten(axis, axis + 1)


@decomposes(aten.select_backward.default)
def _select_backward(grad_output: Tensor, input_sizes: Sequence[int], dim: int, index: int) -> Tensor:
    axis = dim % len(input_sizes)
    size = input_sizes[axis]
    if free_unbacked_symbols(index):  # its sign is not known
        chosen = torch.arange(-size, size) == index
        chosen = (chosen[:size] | chosen[size:]).reshape([-1, *[1] * (len(input_sizes) - 1 - axis)])
        return torch.where(chosen, grad_output.unsqueeze(axis), 0.0)
    place = index + size if index < 0 else index
    return _padded(grad_output.unsqueeze(axis), axis, place, size - 1 - place)


@decomposes(aten.slice_backward.default)
def _slice_backward(grad_output: Tensor, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Any:
    axis = dim % len(input_sizes)
    size, count = input_sizes[axis], grad_output.shape[axis]
    place = _place(start, size)
    if place is None:
        return NotImplemented
    if step > 1:
        grad_output, count = _spaced(grad_output, axis, step), count * step
    return _padded(grad_output, axis, place, size - place - count)


def _place(start: Size, size: Size) -> Size | None:
    """The index of a slice's first element; None where it depends on the dynamic size whether the slice has one."""
    if isinstance(size, int) and isinstance(start, int):
        return min(max(start + size if start < 0 else start, 0), size)
    return start if isinstance(start, int) and start >= 0 else None


def _written(input: Tensor, src: Tensor, axis: int, place: Size) -> Tensor:
    """A tensor with others in place of its elements from a place on, along an axis."""
    size, following = input.shape[axis], place + src.shape[axis]
    parts = [src.to(input.dtype)]
    if not isinstance(place, int) or place > 0:
        parts.insert(0, aten.slice(input, axis, 0, place))
    if not statically_known_true(following >= size):
        parts.append(aten.slice(input, axis, following, size))
    return torch.cat(parts, axis)


@decomposes(aten.select_scatter.default)
def _select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Any:
    if free_unbacked_symbols(index):  # its sign is not known
        return NotImplemented
    axis = dim % input.dim()
    return _written(input, src.unsqueeze(axis), axis, index + input.shape[axis] if index < 0 else index)


@decomposes(aten.slice_scatter.default)
def _slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    axis = dim % input.dim()
    place = _place(0 if start is None else start, input.shape[axis])
    if place is None or step > 1 or free_unbacked_symbols(src.shape[axis]):
        return NotImplemented
    return _written(input, src, axis, place)
