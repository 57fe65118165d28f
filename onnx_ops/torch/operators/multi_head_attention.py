"""The function of nn.MultiheadAttention, with the batch first, and the causal masks of nn.TransformerEncoder.

PyTorch's has the positions first, to which it transposes its inputs, the projected queries, keys and values in one
piece, and each of them. Here the projection has the batch first, as most models have it, and is split.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.nn.modules import transformer

from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.attention import attention

_detect_is_causal_mask = transformer._detect_is_causal_mask


@contextlib.contextmanager
def undetected_causal_masks() -> Iterator[None]:
    """A context in which nn.TransformerEncoder and nn.TransformerDecoder do not read masks of unknown elements.

    They compare it with a causal mask, to pass on that it is one. Otherwise the mask is applied, with the same result.
    """
    with mock.patch.object(transformer, "_detect_is_causal_mask", _is_known_to_be_causal):
        yield


def _is_known_to_be_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    if is_causal is None and isinstance(mask, FakeTensor) and mask.constant is None:
        return False
    return _detect_is_causal_mask(mask, is_causal, size)


@replaces(functional.multi_head_attention_forward)
def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    added = any(tensor is not None for tensor in (bias_k, bias_v, static_k, static_v))
    if need_weights or added or add_zero_attn or query.dim() != 3 or (is_causal and attn_mask is None):
        return NotImplemented
    if query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads or key.shape[:2] != value.shape[:2]:
        return NotImplemented
    sizes = query.shape[1], num_heads, query.shape[0], key.shape[0]
    if is_causal and key_padding_mask is None:
        shift = None
    else:
        is_causal = False
        shift = _shift(attn_mask, key_padding_mask, sizes, query.dtype)
        if shift is NotImplemented:
            return NotImplemented
    if not use_separate_proj_weight:
        assert in_proj_weight is not None
        projected = _projected(query, key, value, in_proj_weight, in_proj_bias)
    else:
        biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        weights = q_proj_weight, k_proj_weight, v_proj_weight
        projected = (
            functional.linear(given.transpose(0, 1), weight, bias)
            for given, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
    queries, keys, values = (tensor.unflatten(-1, (num_heads, -1)).transpose(1, 2) for tensor in projected)
    mixed = attention(queries, keys, values, shift, dropout_p if training else 0.0, is_causal)
    return functional.linear(mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1), None


def _shift(mask: Tensor | None, padding: Tensor | None, sizes: tuple[int, int, int, int], dtype: torch.dtype) -> Any:
    """What is added to the scores, (N or 1, H or 1, L, S); NotImplemented for masks that PyTorch refuses."""
    samples, heads, queries, keys = sizes
    shift = None
    if mask is not None:
        if mask.dim() == 2 and mask.shape == (queries, keys):
            shift = _additive(mask, dtype)
        elif mask.dim() == 3 and mask.shape == (samples * heads, queries, keys):
            shift = _additive(mask, dtype).unflatten(0, (samples, heads))
        else:
            return NotImplemented
    if padding is not None:
        if padding.dim() != 2 or padding.shape != (samples, keys):
            return NotImplemented
        hidden = _additive(padding, dtype)[:, None, None]
        shift = hidden if shift is None else shift + hidden
    return shift


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of numbers: -infinity where one of bool is True."""
    return torch.where(mask, -math.inf, 0.0).to(dtype) if mask.dtype is torch.bool else mask


def _projected(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[Tensor]:
    """Queries, keys and values, (N, L, E), of what has the positions first; what is the same is projected once."""
    if key is not value:
        groups = [(query, 1), (key, 1), (value, 1)]
    elif query is not key:
        groups = [(query, 1), (key, 2)]
    else:
        groups = [(query, 3)]
    rows = [count * query.shape[-1] for _, count in groups]
    biases = [None] * len(groups) if bias is None else bias.split(rows)
    for (given, count), own, shift in zip(groups, weight.split(rows), biases, strict=True):
        yield from functional.linear(given.transpose(0, 1), own, shift).chunk(count, -1)
