"""Chunks of a tensor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import decomposes, replaces


@replaces(torch.chunk, torch.Tensor.chunk)
def _chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """One chunk is the whole tensor, whose dynamic size PyTorch compares with that of chunks."""
    return (input.view(input.shape),) if chunks == 1 else torch.chunk(input, chunks, dim)


@replaces(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(
    input: Tensor, sections: Size | Sequence[Size] | Tensor | None = None, dim: int = 0, **named: Any
) -> tuple[Tensor, ...]:
    """The first parts have one element more; PyTorch makes a condition of their number."""
    if sections is None:
        return torch.tensor_split(input, dim=dim, **named)
    if not isinstance(sections, int) or sections < 1 or not input.dim() or not is_symbolic(input.shape[dim]):
        return torch.tensor_split(input, sections, dim)
    size, longer = input.shape[dim] // sections, input.shape[dim] % sections
    starts = [size * i + torch.sym_min(i, longer) for i in range(sections + 1)]
    return tuple(input.narrow(dim, start, end - start) for start, end in itertools.pairwise(starts))


@decomposes(torch.ops.aten.split.Tensor)
def _split(self: Tensor, split_size: Size, dim: int = 0) -> Any:
    """Chunks of a dynamic size, for which torch.onnx writes a sequence whose length is not known, as slices."""
    if not is_symbolic(split_size):
        return NotImplemented
    size = self.shape[dim]
    ends = [split_size * i for i in range(int((size + split_size - 1) // split_size))]
    return [self.narrow(dim, end, split_size) for end in ends[:-1]] + [self.narrow(dim, ends[-1], size - ends[-1])]
