"""Lines of code that published models have, in models as small as possible, beside PyTorch.

Each capture compares its numbers with PyTorch's before it returns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onnx_ops.torch import gradients


class Excited(nn.Module):
    """The squeeze-and-excitation block of EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce, self.expand = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.activation = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.expand(self.activation(self.reduce(self.pool(x)))).sigmoid()


def test_activations_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Mish(inplace=True), Excited())
    gradients(model, lambda model, x: model(x).square().sum(), (torch.randn(2, 3, 5, 5),))
