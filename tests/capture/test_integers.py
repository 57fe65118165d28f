"""Operators on integers of dtypes for which onnxruntime has no kernel."""

from __future__ import annotations

import torch
from captures import compared
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional


def shorts(numbers: Tensor) -> Tensor:
    extremes = torch.maximum(numbers, numbers.roll(1, 1)).amax(1) + numbers.amin(1)
    places = numbers.argmax(1) + numbers.argmin(1)
    padded = functional.pad(numbers.clamp(-2, 2), (1, 0), value=3).sum(1)
    return extremes + places + padded + numbers.tril().sum(1) + len(numbers.nonzero())


def labels(numbers: Tensor) -> Tensor:
    found, places, counts = numbers.unique(return_inverse=True, return_counts=True)
    return found.sum() + places.sum(1) + counts.max()


def test_integers_without_a_kernel() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        numbers = (3 * x).round()
        weights = shorts(numbers.short()) + len(numbers.to(torch.int8).nonzero())
        for dtype in (torch.int16, torch.int32, torch.uint8, torch.bool):
            weights = weights + labels(numbers.abs().to(dtype))
        negative = -numbers.abs().to(torch.uint8)
        return ((weights + negative.float().mean(1) + negative.tril().sum(1))[:, None] * model(x) / 100).square().mean()

    torch.manual_seed(0)
    compared(nn.Linear(4, 3), loss, [torch.randn(n, 4) for n in (5, 1, 3)], {0: Dim("N")})
