"""Losses and random batches that several models share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batches = Callable[[int], tuple[Tensor, ...]]


def first(result: Any) -> Tensor:
    """The tensor that a model returns, alone, first in a tuple, or under a name of transformers or diffusers."""
    for name in ("logits", "sample", "last_hidden_state"):
        if hasattr(result, name):
            return getattr(result, name)
    return result[0] if isinstance(result, tuple | list) else result


def cross_entropy(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(first(model(inputs)), labels)


def squared_error(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(first(model(inputs)), targets)


def images(size: int, classes: int = 5, channels: int = 3, times: int = 1) -> Batches:
    """Images (samples, channels, size, size) and labels (samples,); `times` as many for deep nets with batch norm.

    With few values in a channel, batch norm divides by what is left of their differences after rounding.
    """
    return lambda samples: (
        torch.randn(times * samples, channels, size, size),
        torch.randint(classes, (times * samples,)),
    )


def pixels(size: int, classes: int = 4, channels: int = 3, times: int = 1) -> Batches:
    """Images (samples, channels, size, size) and labels of their pixels (samples, size, size); `times` as in images."""
    return lambda samples: (
        torch.randn(times * samples, channels, size, size),
        torch.randint(classes, (times * samples, size, size)),
    )


def normal(*shapes: tuple[int, ...]) -> Batches:
    """Tensors (samples, *shape) of random numbers."""
    return lambda samples: tuple(torch.randn(samples, *shape) for shape in shapes)


def tokens(vocabulary: int, time: int) -> Batches:
    """Token ids (samples, time)."""
    return lambda samples: (torch.randint(vocabulary, (samples, time)),)
