"""Layers whose gradient is one operator in PyTorch: bags of embeddings, weight norm, bilinear forms; a checked loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.errors import CaptureError


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
        raise CaptureError(
            "an embedding with max_norm rewrites its weights in the forward pass; normalize the rows in the loss"
            " instead"
        )
    index = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return torch.embedding(weight, input, index, scale_grad_by_freq, sparse)


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


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.dim()) if axis != dim % v.dim()] if dim != -1 else list(range(v.dim()))
    return v * (g / v.square().sum(axes, keepdim=True).sqrt())


def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outer = input1.unsqueeze(-1) * input2.unsqueeze(-2)
    return functional.linear(outer.flatten(-2), weight.flatten(1), bias)


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """PyTorch's first looks whether a variance is negative, which a graph cannot refuse."""
    variance = var if isinstance(var, Tensor) else torch.full_like(input, var)
    if variance.shape != input.shape and input.shape[:-1] == variance.shape:
        variance = variance.unsqueeze(-1)
    # Its gradient goes through the floor as if there was none.
    variance = torch.where(variance < eps, variance - variance.detach() + eps, variance)
    loss = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return {"mean": loss.mean, "sum": loss.sum, "none": loss.clone}[reduction]()


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """A group norm whose groups are the channels; running statistics get the mean over the batch."""
    if not use_input_stats:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    axes = tuple(range(2, input.dim()))
    if math.prod(input.shape[2:]) == 1:
        raise ValueError(f"an instance norm needs more than one place of space in training, got {tuple(input.shape)}")
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            variance, mean = torch.var_mean(input.detach(), axes)
            running_mean.mul_(1 - momentum).add_(mean.mean(0), alpha=momentum)
            running_var.mul_(1 - momentum).add_(variance.mean(0), alpha=momentum)
    return functional.group_norm(input, input.shape[1], weight, bias, eps)


FUNCTIONS = {
    functional.instance_norm: _instance_norm,
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    functional.gaussian_nll_loss: _gaussian_nll_loss,
    torch.bilinear: _bilinear,
    torch._weight_norm: _weight_norm,
}
