"""Scaled dot-product attention: captures, which compare their numbers with PyTorch's, and the nodes that they have."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 3


class Heads(nn.Module):
    """Projects (N, L, 6) to queries and (N, S, 6) to keys and values, and attends."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], key_heads: int = HEADS) -> None:
        super().__init__()
        self.attend, self.key_heads = attend, key_heads
        self.query, self.key = nn.Linear(6, HEADS * WIDTH), nn.Linear(6, key_heads * WIDTH)
        self.value = nn.Linear(6, key_heads * WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, QUERIES, KEYS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        query, key, value = (
            project(given).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
            for project, given in ((self.query, x), (self.key, y), (self.value, y))
        )
        return self.attend(query, key, value)


def masked(generator: torch.Generator, *shape: int) -> Tensor:
    """A random mask; the first query attends to no key."""
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[..., 1:, 0] = True
    mask[..., 0, :] = False
    return mask


MASK = masked(torch.Generator().manual_seed(0), BATCH, 1, QUERIES, KEYS)
FLOATS = torch.where(MASK, torch.linspace(-1, 1, KEYS), -math.inf)
CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": scaled_dot_product_attention,
    "causal": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
    "bool": lambda q, k, v: scaled_dot_product_attention(q, k, v, MASK),
    "float": lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=FLOATS[0, 0]),
    "one_head": lambda q, k, v: scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0], FLOATS[:, 0]),
    "broadcast": lambda q, k, v: scaled_dot_product_attention(q, k[:1, :1], v[:, :1]),
}


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH, QUERIES, 6, dtype=dtype), torch.randn(BATCH, KEYS, 6, dtype=dtype)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x, y).float().square().sum()


@pytest.mark.parametrize("call", CALLS)
def test_gradients_are_those_of_pytorch(call: str) -> None:
    args = inputs()
    model = gradients(Heads(CALLS[call]), loss, args).model
    assert not {"ReduceMin", "Equal"} & {node.op_type for node in model.graph.node}


def test_learnt_bias_and_grouped_heads_with_dynamic_sizes() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = model.bias[:, : query.shape[-2], : key.shape[-2]]
        return scaled_dot_product_attention(query, key, value, bias, enable_gqa=True)

    args = inputs()
    model = Heads(attend, key_heads=2)
    n = Dim("n")
    gradients(model, loss, args, dynamic_shapes={"x": {0: n}, "y": {0: n}})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    args = inputs(dtype)
    gradients(Heads(CALLS["bool"]).to(dtype), loss, args)


def test_gradients_of_gradients() -> None:
    def penalized(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(loss(model, x, y), x, create_graph=True)
        return slope.square().sum()

    x, y = inputs()
    gradients(Heads(CALLS["causal"]), penalized, (x.requires_grad_(), y))
