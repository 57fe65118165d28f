"""Attention of models that repeat keys and values for groups of queries: captures read each of them once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captures import compared
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention

COPIES, HEADS, WIDTH = 3, 2, 4
DIMS = {0: Dim("n"), 1: Dim("length")}
Repeat = Callable[[Tensor], Tensor]


def expanded(heads: Tensor) -> Tensor:
    """As repeat_kv of transformers."""
    samples, count, length, width = heads.shape
    copies = heads[:, :, None, :, :].expand(samples, count, COPIES, length, width)
    return copies.reshape(samples, count * COPIES, length, width)


def interleaved(heads: Tensor) -> Tensor:
    return heads.repeat_interleave(COPIES, dim=1)


def tiled(heads: Tensor) -> Tensor:
    """In the order 0, 1, 0, 1, 0, 1, which the ops do not have."""
    return heads.repeat(1, COPIES, 1, 1)


def turned(heads: Tensor) -> Tensor:
    """Copies of positions, of which there are as many as are missing of heads."""
    samples, count, length, width = heads.shape
    copies = heads[:, :, :, None, :].expand(samples, count, length, COPIES, width)
    return copies.reshape(samples, count * COPIES, length, width)


class Grouped(nn.Module):
    """Projects x (N, L, 5) to queries of six heads, and to keys and values of two."""

    def __init__(self, keys: Repeat, values: Repeat, read_elsewhere: bool = False) -> None:
        super().__init__()
        self.keys, self.values, self.read_elsewhere = keys, values, read_elsewhere
        self.query = nn.Linear(5, COPIES * HEADS * WIDTH)
        self.key, self.value = nn.Linear(5, HEADS * WIDTH), nn.Linear(5, HEADS * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        key, value = self.keys(key), self.values(value)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed + key.sin() if self.read_elsewhere else mixed


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * torch.linspace(0, 1, WIDTH, dtype=x.dtype)).square().mean()


@pytest.mark.parametrize(
    ("model", "forward", "gradient", "dims"),
    [
        pytest.param(lambda: Grouped(expanded, expanded), HEADS, HEADS, {}, id="static sizes"),
        pytest.param(lambda: Grouped(expanded, expanded), HEADS, HEADS, DIMS, id="expanded"),
        pytest.param(lambda: Grouped(interleaved, expanded), HEADS, HEADS, DIMS, id="interleaved"),
        # The gradient is with respect to the copies, which are read by the sine too.
        pytest.param(lambda: Grouped(expanded, expanded, True), HEADS, COPIES * HEADS, DIMS, id="read elsewhere"),
        pytest.param(lambda: Grouped(expanded, tiled), COPIES * HEADS, COPIES * HEADS, DIMS, id="tiled"),
        pytest.param(lambda: Grouped(turned, turned), COPIES * HEADS, COPIES * HEADS, {}, id="turned"),
    ],
)
def test_repeated_heads_are_read_once(
    model: Callable[[], Grouped], forward: int, gradient: int, dims: dict[int, Dim]
) -> None:
    torch.manual_seed(0)
    sizes = [(3, COPIES), (1, 6), (4, 2)] if dims else [(3, COPIES)] * 2
    capture = compared(model(), loss, [torch.randn(*size, 5) for size in sizes], dims)
    shapes = {value.name: value.type.tensor_type.shape.dim for value in capture.model.graph.value_info}
    keys = {node.op_type: node.input[1] for node in capture.model.graph.node if "Attention" in node.op_type}
    found = [shapes[keys[name]][1].dim_value for name in ("FlashAttentionScore", "FlashAttentionScoreGrad")]
    assert found == [forward, gradient]
