"""Embeddings, bags of them, and the gradient of an embedding."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.nodes import Value, aclnn
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import decomposes, replaces, translates

RENORMALIZING_EPS = 1e-7
"""What PyTorch adds to a norm before it divides by it."""


@replaces(functional.embedding)
def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None:
        _renormalize(weight.detach(), input.flatten(), max_norm, norm_type)
    index = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else padding_idx + weight.shape[0]
    return torch.embedding(weight, input, index, scale_grad_by_freq, sparse)


def _renormalize(weight: Tensor, rows: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale in place those of the rows whose norm is above `max_norm`."""
    found = weight.index_select(0, rows)
    norms = torch.linalg.vector_norm(found, norm_type, dim=1, keepdim=True)
    scales = torch.where(norms > max_norm, max_norm / (norms + RENORMALIZING_EPS), 1.0)
    weight.index_copy_(0, rows, found * scales)


@translates(torch.ops.aten.embedding_dense_backward.default)
def _backward(grad: Value, indices: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Value:
    return aclnn.EmbeddingDenseBackward(
        grad,
        indices,
        num_weights=num_weights,
        padding_idx=padding_idx,
        scale_grad_by_freq=int(scale_grad_by_freq),
    )


def counts(rows: Tensor, size: Size, dtype: torch.dtype) -> Tensor:
    """How often each row of a table with `size` rows is chosen, for each of the chosen `rows` (N,)."""
    return torch.zeros(size, dtype=dtype).index_add(0, rows, torch.ones_like(rows, dtype=dtype))[rows]


@decomposes(torch.ops.aten.embedding_dense_backward.default)
def _dynamic_backward(
    grad_output: Tensor, indices: Tensor, num_weights: Size, padding_idx: Size, scale_grad_by_freq: bool
) -> Tensor:
    """With a dynamic number of rows, which is no attribute of the op."""
    if not is_symbolic(num_weights):
        return NotImplemented
    rows = indices.flatten()
    grads = grad_output.reshape(-1, grad_output.shape[-1])
    if is_symbolic(padding_idx) or padding_idx >= 0:
        grads = torch.where((rows == padding_idx).unsqueeze(-1), 0.0, grads)
    if scale_grad_by_freq:
        grads = grads / counts(rows, num_weights, grads.dtype).unsqueeze(-1)
    return grads.new_zeros(num_weights, grads.shape[-1]).index_add(0, rows, grads)


@replaces(functional.embedding_bag)
def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    if per_sample_weights is not None and mode != "sum":
        raise CaptureError(f"embedding_bag has per_sample_weights with mode '{mode}', which PyTorch refuses")
    if scale_grad_by_freq:
        raise CaptureError(
            "an embedding bag with scale_grad_by_freq cannot be captured: its gradient is not that of an embedding"
        )
    rows = _embedding(input, weight, None, max_norm, norm_type, False, sparse)
    counts = torch.ones(input.shape, dtype=torch.bool, device=input.device)
    if padding_idx is not None:
        counts = input != padding_idx % weight.shape[0]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is None:  # each row of the input is a bag
        members = counts
    else:
        # PyTorch raises an error for others; there may be no bags.
        torch._check(offsets[:1].sum().item() == 0)
        torch._check(torch.cat([offsets, offsets.new_zeros(1)]).amax().item() <= input.shape[0])
        starts = offsets[:-1] if include_last_offset else offsets
        order = torch.arange(input.shape[0], device=input.device)
        bags = (order.unsqueeze(1) >= starts).sum(1) - 1
        own = bags == torch.arange(starts.shape[0], device=input.device).unsqueeze(1)
        members = own & counts  # (bags, inputs)
        if include_last_offset:
            members = members & (order < offsets[-1])
    if mode == "max":
        if offsets is not None:
            rows = rows.unsqueeze(0)
        kept = members.unsqueeze(-1)
        largest = torch.where(kept, rows, -math.inf).max(1).values
        return torch.where(kept.any(1), largest, 0.0)
    shares = members.to(rows.dtype)
    total = (rows * shares.unsqueeze(-1)).sum(1) if offsets is None else shares @ rows
    if mode == "sum":
        return total
    return total / members.sum(1, keepdim=True).clamp(min=1).to(rows.dtype)
