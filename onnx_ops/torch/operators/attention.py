"""Scaled dot-product attention: ops of this domain where it is differentiated, else products of matrices.

The memory of the ops is linear in the lengths of the sequences. The products, which graphs without gradients and
gradients with respect to a mask have, hold one matrix of weights and one of their gradients. PyTorch's operators for
these test each row of scores for one that is masked as a whole, which takes five more matrices, and four for the
gradient of the softmax. Here rows are tested in the mask, which is smaller, and the sum of each row of the softmax's
gradient is taken from the result (Dao et al. 2022): the sum over keys of dP * P is that over features of dO * O.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.utils._python_dispatch import _disable_current_modes

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.base.second_derivatives import gradients_of
from onnx_ops.torch.base.sizes import Size, may_be_zero
from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.base.transforms import within_transforms

ALL_KEYS, CAUSAL = 0, 2
"""Values of sparse_mode: a query sees all keys, or those up to its own place."""
SCALED_BEFORE_SHIFT = 0
"""Value of pse_type: the scores are scaled before the mask is added."""


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, batch: Sequence[int]) -> Tensor:
    """Of each query for all keys, (N, L, S)."""
    scores = query @ key.transpose(1, 2)
    if bias is not None:
        scores = (scores.unflatten(0, batch) + bias).flatten(0, len(batch) - 1)
    return scores.softmax(-1)


class _Attention(torch.autograd.Function):
    """From scaled queries (N, L, E), keys (N, S, E) and values (N, S, V) to (N, L, V).

    `bias` of the scores is broadcast to (*batch, L, S), where N is the product of `batch`; `noise`, (N, L, S), are
    factors of the weights. The matrices have one batch axis, as FusedMatMul of onnxruntime transposes them in place of
    Transpose only if no Reshape comes between.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        noise: Tensor | None,
        batch: Sequence[int],
    ) -> Tensor:
        weights = _weights(query, key, bias, batch)
        result = _times(weights, noise) @ value
        ctx.batch = batch
        ctx.save_for_backward(query, key, value, bias, noise, weights, result)
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, noise, weights, result = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            weights = _weights(query, key, bias, ctx.batch)
            result = _times(weights, noise) @ value
        sums = (gradient * result).sum(-1, keepdim=True)
        scores = (_times(gradient @ value.transpose(1, 2), noise) - sums) * weights
        of_bias = scores.unflatten(0, ctx.batch).sum_to_size(bias.shape) if ctx.needs_input_grad[3] else None
        of_value = _times(weights, noise).transpose(1, 2) @ gradient
        return scores @ key, scores.transpose(1, 2) @ query, of_value, of_bias, None, None


def _times(weights: Tensor, noise: Tensor | None) -> Tensor:
    return weights if noise is None else weights * noise


class _Fused(torch.autograd.Function):
    """From queries (B, N, L, E), keys (B, M, S, E) and values (B, M, S, V) to (B, N, L, V), by ops of this domain.

    `bias` of the scores, which has no gradient, and `kept`, the weights that dropout keeps, are broadcast to
    (B, N, L, S).
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        kept: Tensor | None,
        dropped: float,
        is_causal: bool,
        scale: float,
    ) -> Tensor:
        ctx.call = {"dropped": dropped, "is_causal": is_causal, "scale": scale, "enable_gqa": True}
        ctx.settings = {
            "scale_value": scale,
            "keep_prob": 1 - dropped,
            "sparse_mode": CAUSAL if is_causal else ALL_KEYS,
            "pse_type": SCALED_BEFORE_SHIFT,
        }
        statistics = domain_ops.FlashAttentionScore(query, key, value, bias, kept, None, **ctx.settings)
        ctx.save_for_backward(query, key, value, bias, kept, *statistics)
        return statistics[-1]

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, kept, *statistics = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            products = functools.partial(_by_products, **ctx.call)
            return *gradients_of(products, (query, key, value, bias, kept), [gradient])[:3], *[None] * 5
        inputs = query, key, value, gradient, bias, kept, None, *statistics
        return *domain_ops.FlashAttentionScoreGrad(*inputs, **ctx.settings), *[None] * 5


@contextlib.contextmanager
def causal_biases() -> Iterator[None]:
    """A context in which a CausalBias can be made, of dynamic sizes too: a trace makes no subclass of Tensor."""
    with mock.patch.multiple(CausalBias, __new__=_new_bias, __init__=_init_bias):
        yield


def _new_bias(cls: type[CausalBias], *args: object) -> CausalBias:
    with _disable_current_modes():
        return Tensor.__new__(cls)


def _init_bias(bias: CausalBias, variant: CausalVariant, seq_len_q: Size, seq_len_kv: Size) -> None:
    """Without the warning of more queries than keys, for which dynamic sizes are compared."""
    bias.variant, bias.seq_len_q, bias.seq_len_kv = variant, seq_len_q, seq_len_kv


def _materialized(bias: CausalBias) -> tuple[Tensor | None, bool]:
    """The mask of a bias, if it needs one, and otherwise that the attention is causal."""
    more = bias.seq_len_kv - bias.seq_len_q
    if bias.variant == CausalVariant.UPPER_LEFT or statically_known_true(more == 0):
        return None, True
    return torch.arange(bias.seq_len_q)[:, None] + more >= torch.arange(bias.seq_len_kv), False


@replaces(functional.scaled_dot_product_attention)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As torch.nn.functional.scaled_dot_product_attention."""
    if isinstance(attn_mask, CausalBias) and not is_causal:
        attn_mask, is_causal = _materialized(attn_mask)
    if dropout_p == 1 or within_transforms() or (is_causal and attn_mask is not None):
        options = attn_mask, dropout_p, is_causal
        return functional.scaled_dot_product_attention(query, key, value, *options, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = _autocast(query), _autocast(key), _autocast(value)
        attn_mask = None if attn_mask is None else _autocast(attn_mask)
    kept = None
    if dropout_p:  # a mask of the same shape as PyTorch's, so that it has the same numbers
        axes = 3 if enable_gqa else 2
        batch = torch.broadcast_shapes(*(tensor.shape[:-axes] for tensor in (query, key, value)))
        shape = *batch, *query.shape[-axes:-1], key.shape[-2]
        kept = torch.native_dropout(query.new_ones(shape, dtype=torch.float16), dropout_p, True)[1]
    attend = _by_op if _fits_op(query, key, value, attn_mask) else _by_products
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    with torch.autocast("cpu", enabled=False):
        return attend(query, key, value, attn_mask, kept, dropout_p, is_causal, factor, enable_gqa)


def _autocast(tensor: Tensor) -> Tensor:
    """A tensor as torch.autocast passes it to attention."""
    narrowed = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(torch.get_autocast_dtype("cpu")) if narrowed else tensor


def _fits_op(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether there is a gradient, but none with respect to the mask, and at least one key of at least one number."""
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    has_keys = all(not may_be_zero(size) if free_unbacked_symbols(size) else size != 0 for size in key.shape[-2:])
    return differentiated and not (mask is not None and mask.requires_grad) and has_keys


def _by_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kept: Tensor | None,
    dropped: float,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> Tensor:
    dtype = query.dtype
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        key, value, enable_gqa = _repeated(key, query), _repeated(value, query), False
    samples = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in (query, key, value)))
    heads = [tensor.shape[-3:-2] for tensor in (query, key, value)]
    if not enable_gqa:
        heads = [torch.broadcast_shapes(*heads)] * 3
    bias = None
    if mask is not None:  # added, also if it is bool, as in PyTorch, where a masked score of NaN is NaN
        bias = torch.where(mask, 0.0, -math.inf).to(dtype) if mask.dtype is torch.bool else mask
        if len(samples) > 1:
            bias = bias.expand(*samples, *heads[0], query.shape[-2], key.shape[-2]).flatten(0, -4)
        query, key, value = (tensor.to(bias.dtype) for tensor in (query, key, value))
    if kept is not None:
        kept = kept.reshape(math.prod(samples), math.prod(heads[0]), *kept.shape[-2:])
    if query.dtype is torch.float64:  # attributes of nodes are float32
        query, scale = query * scale, 1.0
        if kept is not None:
            value, dropped = value / (1 - dropped), 0.0
    four_axes = (
        tensor.expand(*samples, *own, *tensor.shape[-2:]).reshape(
            math.prod(samples), math.prod(own), *tensor.shape[-2:]
        )
        for tensor, own in zip((query, key, value), heads, strict=True)
    )
    result = _Fused.apply(*four_axes, bias, kept, dropped, is_causal, scale)
    if (len(samples), len(heads[0])) != (1, 1):
        result = result.reshape(*samples, *heads[0], *result.shape[-2:])
    return result.to(dtype)


def _by_products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kept: Tensor | None,
    dropped: float,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> Tensor:
    dtype = query.dtype
    if enable_gqa:
        key, value = (_repeated(tensor, query) for tensor in (key, value))
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    if dtype in (torch.float16, torch.bfloat16):  # as PyTorch, which rounds the result alone
        query, key, value = query.float(), key.float(), value.float()
    bias, attends = None, None
    if is_causal:
        length, keys = (torch.arange(tensor.shape[-2], device=query.device) for tensor in (query, key))
        bias = torch.where(keys <= length[:, None], 0.0, -math.inf).to(query.dtype)
    elif mask is not None:  # a query without keys, whose result is 0
        if mask.dtype is torch.bool:
            attends = mask.any(-1, keepdim=True)
            bias = torch.where(mask | ~attends, 0.0, -math.inf).to(query.dtype)
        else:
            attends = mask.detach().amax(-1, keepdim=True) != -math.inf
            bias = torch.where(attends, mask, 0.0).to(query.dtype)
    flat = (
        tensor.expand(*batch, *tensor.shape[-2:]).reshape(math.prod(batch), *tensor.shape[-2:])
        for tensor in (query * scale, key, value)
    )
    noise = None
    if kept is not None:
        factors = kept * torch.tensor(1 / (1 - dropped), dtype=query.dtype)
        noise = factors.reshape(math.prod(batch), *kept.shape[-2:])
    result = _Attention.apply(*flat, bias, noise, batch or (1,)).reshape(*batch, query.shape[-2], value.shape[-1])
    return (result if attends is None else torch.where(attends, result, 0.0)).to(dtype)


def _repeated(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values with as many heads as the queries."""
    return tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3)
