"""A language model with the architecture of GPT-2 (Radford et al. 2019). Requires torch."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class GPT(nn.Module):
    """Tokens (N, T) to logits of the next token (N, T, tokens).

    The head is tied to the token embedding. There is no dropout. The defaults are those of GPT-2 small: 124 million
    parameters.

    Args:
        tokens: size of the vocabulary.
        context: maximum of T.
        width: size of a token's representation.
        heads: of the attention; they divide `width`.
        layers: number of blocks.
    """

    def __init__(
        self, tokens: int = 50257, context: int = 1024, width: int = 768, heads: int = 12, layers: int = 12
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(tokens, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.token_embedding.weight
        self.apply(initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.position_embedding(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(self.token_embedding(tokens) + positions)))


class Block(nn.Module):
    """Causal self-attention and a perceptron, each with layer normalization before it and a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        heads = self.query_key_value(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(n, t, width))
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x)), approximate="tanh"))


def initialize(module: nn.Module) -> None:
    """GPT-2's random weights: a normal distribution with a standard deviation of 0.02."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
