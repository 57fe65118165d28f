"""Cross entropy in captured graphs, compared with PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops
from tests.ops._shared.covering import covering

OPTIONS: list[list[dict[str, Any]]] = [
    [{"reduction": "mean"}, {"reduction": "sum"}, {"reduction": "none"}],
    [{}, {"weight": torch.tensor([0.5, 2.0, 1.0, 0.25])}],
    [{}, {"ignore_index": 2}],
    [{}, {"label_smoothing": 0.125}],
]


class Network(nn.Module):
    """Several cross entropies enter one loss, each by a layer of its own."""

    def __init__(self, losses: list[tuple[dict[str, Any], ...]]) -> None:
        super().__init__()
        self.losses = losses
        self.heads = nn.ModuleList(nn.Linear(3, 4) for _ in losses)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros((), dtype=x.dtype)
        for head, chosen in zip(self.heads, self.losses, strict=True):
            options = {key: value for option in chosen for key, value in option.items()}
            if "weight" in options:
                options["weight"] = options["weight"].to(x.dtype)
            losses = functional.cross_entropy(head(x), labels, **options)
            total = total + (losses * losses).sum()
        return total


@pytest.mark.parametrize("strength", [2, pytest.param(len(OPTIONS), marks=pytest.mark.full)])
def test_options(strength: int) -> None:
    """Every two of them; and another batch than the graph was captured with, of samples all left out but one."""
    torch.manual_seed(0)
    network = Network(covering(OPTIONS, strength)).double()
    batch = {0: torch.export.Dim("N")}
    args = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 2, 0])
    capture = gradients(network, lambda m, x, labels: m(x, labels), args, dynamic_shapes=(batch, batch))
    session = onnx_ops.InferenceSession(capture.model)
    for x, labels in (args, (torch.randn(3, 3, dtype=torch.float64), torch.tensor([2, 2, 1]))):
        network.zero_grad()
        network(x, labels).backward()
        wanted = {f"grad.{name}": parameter.grad for name, parameter in network.named_parameters()}
        got = session.run(list(wanted), capture.state | {"x": x.numpy(), "labels": labels.numpy()})
        for array, (name, gradient) in zip(got, wanted.items(), strict=True):
            assert gradient is not None
            np.testing.assert_allclose(array, gradient.numpy(), rtol=0, atol=1e-10, err_msg=name)


def test_a_gradient_of_the_gradient() -> None:
    def penalized(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        value = functional.cross_entropy(model(x), labels)
        slopes = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
        return value + sum((slope.square().sum() for slope in slopes), torch.zeros((), dtype=x.dtype))

    torch.manual_seed(0)
    args = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 2, 0])
    gradients(nn.Linear(3, 4).double(), penalized, args)  # which compares it with PyTorch


@pytest.mark.parametrize("classes", [3, 20])
def test_labels_of_pixels(classes: int) -> None:
    """Few classes are compared with the labels, without ScatterElements."""
    torch.manual_seed(0)
    network, weight = nn.Conv2d(2, classes, 1).double(), torch.linspace(0.5, 2, classes, dtype=torch.float64)
    args = torch.randn(2, 2, 3, 4, dtype=torch.float64), torch.randint(classes, (2, 3, 4))

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), labels, weight, ignore_index=1)

    capture = gradients(network, loss, args)
    assert any(node.op_type == "ScatterElements" for node in capture.model.graph.node) == (classes > 16)
    x, labels = torch.randn(2, 2, 3, 4, dtype=torch.float64), torch.randint(classes, (2, 3, 4))
    loss(network, x, labels).backward()
    session = onnx_ops.InferenceSession(capture.model)
    (got,) = session.run(["grad.weight"], capture.state | {"x": x.numpy(), "labels": labels.numpy()})
    assert network.weight.grad is not None
    np.testing.assert_allclose(got, network.weight.grad.numpy(), rtol=0, atol=1e-10)
