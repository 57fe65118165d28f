"""Scaled dot-product attention, with a gradient that holds one matrix of weights and one of their gradients.

PyTorch's operators for it test each row of scores for one that is masked as a whole, which takes five more matrices,
and four for the gradient of the softmax. Here rows are tested in the mask, which is smaller, and the sum of each row of
the softmax's gradient is taken from the result (Dao et al. 2022): the sum over keys of dP * P is that over features of
dO * O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnx_ops.torch.base.table import replaces


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, batch: Sequence[int]) -> Tensor:
    """Of each query for all keys, (N, L, S)."""
    scores = query @ key.transpose(1, 2)
    if bias is not None:
        scores = (scores.unflatten(0, batch) + bias).flatten(0, len(batch) - 1)
    return scores.softmax(-1)


class _Attention(torch.autograd.Function):
    """From scaled queries (N, L, E), keys (N, S, E) and values (N, S, V) to (N, L, V).

    `bias` of the scores is broadcast to (*batch, L, S), where N is the product of `batch`. The matrices have one batch
    axis, as onnxruntime's FusedMatMul transposes them in place of Transpose only if no Reshape comes between.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, batch: Sequence[int]
    ) -> Tensor:
        weights = _weights(query, key, bias, batch)
        result = weights @ value
        ctx.batch = batch
        ctx.save_for_backward(query, key, value, bias, weights, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, weights, result = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            weights = _weights(query, key, bias, ctx.batch)
            result = weights @ value
        sums = (gradient * result).sum(-1, keepdim=True)
        scores = (gradient @ value.transpose(1, 2) - sums) * weights
        of_bias = scores.unflatten(0, ctx.batch).sum_to_size(bias.shape) if ctx.needs_input_grad[3] else None
        return scores @ key, scores.transpose(1, 2) @ query, weights.transpose(1, 2) @ gradient, of_bias, None


@replaces(functional.scaled_dot_product_attention)
def _scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    if dropout_p or transformed or (is_causal and attn_mask is not None):
        options = attn_mask, dropout_p, is_causal
        return functional.scaled_dot_product_attention(query, key, value, *options, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):  # as PyTorch, which rounds the result alone
        query, key, value = query.float(), key.float(), value.float()
    bias, attends = None, None
    if is_causal:
        length, keys = (torch.arange(tensor.shape[-2], device=query.device) for tensor in (query, key))
        bias = torch.where(keys <= length[:, None], 0.0, -math.inf).to(query.dtype)
    elif attn_mask is not None:  # a query without keys, whose result is 0
        if attn_mask.dtype is torch.bool:
            attends = attn_mask.any(-1, keepdim=True)
            bias = torch.where(attn_mask | ~attends, 0.0, -math.inf).to(query.dtype)
        else:
            attends = attn_mask.detach().amax(-1, keepdim=True) != -math.inf
            bias = torch.where(attends, attn_mask, 0.0).to(query.dtype)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    flat = (
        tensor.expand(*batch, *tensor.shape[-2:]).reshape(math.prod(batch), *tensor.shape[-2:])
        for tensor in (query * factor, key, value)
    )
    result = _Attention.apply(*flat, bias, batch or (1,)).reshape(*batch, query.shape[-2], value.shape[-1])
    return (result if attends is None else torch.where(attends, result, 0.0)).to(dtype)
