"""Reshapes and contiguous copies of tensors with dynamic sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import infer_size, is_contiguous_or_false
from torch._subclasses.fake_impls import _compute_stride
from torch._subclasses.fake_tensor import FakeTensor

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import decomposed_by_pytorch, decomposes, replaces

aten = torch.ops.aten

# onnxruntime's DepthToSpace takes longer than transposes.
decomposed_by_pytorch(aten.pixel_shuffle.default, aten.pixel_unshuffle.default)


@replaces(torch.reshape, torch.Tensor.reshape)
def _reshape(input: Tensor, *shape: Any, **named: Any) -> Tensor:
    """A view only where it is one for all sizes; PyTorch's own makes a condition of it, such as that a size is even."""
    given = named.get("shape", shape)
    sizes: Sequence[Any] = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
    dynamic = any(isinstance(size, torch.SymInt) for size in (*input.shape, *input.stride()))
    if not dynamic or is_contiguous_or_false(input) or not all(isinstance(size, int | torch.SymInt) for size in sizes):
        return input.reshape(*shape, **named)
    sizes = infer_size(sizes, input.numel())
    if _compute_stride(input.shape, input.stride(), sizes, size_oblivious=True) is None:
        input = input.clone(memory_format=torch.contiguous_format)
    return input.view(sizes)


@replaces(torch.Tensor.__deepcopy__)
def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Any:
    """Of a leaf, as PyTorch requires; its own reads the memory, which a tensor of a trace does not have."""
    if not isinstance(self, FakeTensor) or not self.is_leaf:
        return NotImplemented
    if id(self) not in memo:
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
    return memo[id(self)]


MOST_COPIES = 8
"""Repetitions of each element up to which it is copied by Concat."""


def repeated(input: Tensor, times: int, axis: int) -> Tensor:
    """Each element repeated along an axis.

    By Concat, unless it is many times: onnxruntime's Expand takes up to ten times as long to repeat single elements.
    """
    axis %= input.dim()
    apart = input.unsqueeze(axis + 1)
    sizes = [times if place == axis + 1 else -1 for place in range(apart.dim())]
    copied = torch.cat([apart] * times, axis + 1) if times <= MOST_COPIES else apart.expand(sizes)
    return copied.flatten(axis, axis + 1)


@replaces(torch.repeat_interleave, torch.Tensor.repeat_interleave)
def _repeat_interleave(
    input: Tensor, repeats: Tensor | Size, dim: int | None = None, *, output_size: Size | None = None
) -> Any:
    if isinstance(repeats, int) and 1 <= repeats <= MOST_COPIES and dim in (-1, input.dim() - 1) and input.dim():
        return repeated(input, repeats, -1)
    return NotImplemented


@replaces(torch.Tensor.contiguous)
def _contiguous(input: Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    """A copy of a tensor that is not contiguous for all sizes."""
    dynamic = any(isinstance(size, torch.SymInt) for size in (*input.shape, *input.stride()))
    if not dynamic or memory_format != torch.contiguous_format or is_contiguous_or_false(input):
        return input.contiguous(memory_format=memory_format)
    return input.clone(memory_format=memory_format)


@replaces(torch.flatten, torch.Tensor.flatten)
def _flatten(input: Tensor, *args: Any, **named: Any) -> Tensor:
    axes = _axes(input.dim(), *args, **named)
    if axes is None or not any(isinstance(size, torch.SymInt) for size in input.shape):
        return input.flatten(*args, **named)
    first, last = axes
    return _reshape(input, (*input.shape[:first], math.prod(input.shape[first : last + 1]), *input.shape[last + 1 :]))


def _axes(
    rank: int, start_dim: int | str | Sequence[str] = 0, end_dim: int | str = -1, **named: Any
) -> tuple[int, int] | None:
    """The first and the last axis that are made one; None if there is none, or if they have names."""
    if named or not rank or not (isinstance(start_dim, int) and isinstance(end_dim, int)):
        return None
    first, last = start_dim % rank, end_dim % rank
    return (first, last) if first < last else None


@decomposes(aten.cat.default)
def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Of tensors without elements, which torch.onnx refuses; those of shape (0,) are left out, as in PyTorch."""
    if not all(any(isinstance(size, int) and size == 0 for size in tensor.shape) for tensor in tensors):
        return NotImplemented
    kept = [tensor for tensor in tensors if tensor.dim() > 1] or list(tensors)
    shape = list(kept[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in kept)
    return torch.zeros(shape, dtype=functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors)))


@replaces(torch.argwhere, torch.nonzero, torch.Tensor.argwhere, torch.Tensor.nonzero)
def _nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The places (N, 0) in a tensor without dimensions."""
    if input.dim() or as_tuple:
        return input.nonzero(as_tuple=as_tuple)
    return input.view(1).nonzero()[:, :0]
