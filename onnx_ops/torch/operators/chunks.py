"""Chunks of a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.table import decomposes, replaces


@replaces(torch.chunk, torch.Tensor.chunk)
def _chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """One chunk is the whole tensor, whose dynamic size PyTorch compares with that of chunks."""
    return (input.view(input.shape),) if chunks == 1 else torch.chunk(input, chunks, dim)


@decomposes(torch.ops.aten.split.Tensor)
def _split(self: Tensor, split_size: Any, dim: int = 0) -> Any:
    """Chunks of a dynamic size, for which torch.onnx writes a sequence whose length is not known, as slices."""
    if not is_symbolic(split_size):
        return NotImplemented
    size = self.shape[dim]
    ends = [split_size * i for i in range(int((size + split_size - 1) // split_size))]
    return [self.narrow(dim, end, split_size) for end in ends[:-1]] + [self.narrow(dim, ends[-1], size - ends[-1])]
