"""Elementary functions of constants are those of PyTorch, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import onnx
import torch
from captures import gradients
from torch import Tensor, nn


class Embedding(nn.Module):
    """Sines of timesteps, as diffusion models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 2)

    def forward(self, timesteps: Tensor) -> Tensor:
        angles = timesteps[:, None] * frequencies()
        return self.linear(torch.cat([angles.sin(), angles.cos()], 1))


def frequencies() -> Tensor:
    return torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float32) / 128)


def constants(model: onnx.ModelProto) -> list[np.ndarray]:
    return [onnx.numpy_helper.to_array(initializer) for initializer in model.graph.initializer]


def test_frequencies_of_timesteps_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    timesteps = torch.tensor([37.0, 805.0, 999.0])
    model = gradients(Embedding(), lambda model, t: model(t).square().sum(), (timesteps,)).model
    wanted = frequencies().numpy()
    assert any(np.array_equal(array.reshape(-1), wanted) for array in constants(model))
    assert "Exp" not in {node.op_type for node in model.graph.node}


SCALE = torch.linspace(0.1, 3, 300)


def test_constants_that_change_are_not_folded() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        written = torch.linspace(0, 1, 300)
        half = written[:150]
        half.mul_(model(x).mean())
        half += 1
        return (written.exp() * SCALE.log() * x.mean()).sum() + torch.ones(3).cumsum(0).exp().sum() * x.mean()

    torch.manual_seed(0)
    model = gradients(nn.Linear(2, 2), loss, (torch.randn(3, 2),)).model
    assert any(np.array_equal(array, SCALE.log().numpy()) for array in constants(model))
    assert "Exp" in {node.op_type for node in model.graph.node}
