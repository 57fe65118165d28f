"""Chunks of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.torch.base.table import replaces


@replaces(torch.chunk, torch.Tensor.chunk)
def _chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """One chunk is the whole tensor, whose dynamic size PyTorch compares with that of chunks."""
    return (input.view(input.shape),) if chunks == 1 else torch.chunk(input, chunks, dim)
