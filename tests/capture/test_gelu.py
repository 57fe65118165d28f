"""GELU in captured graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import gradients
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops


class Gelus(nn.Module):
    """Both variants in one graph, whose nodes share a function body."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(functional.gelu(x * self.scale), approximate="tanh").sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_is_one_node(dtype: torch.dtype) -> None:
    x = torch.linspace(-5, 5, 101, dtype=dtype).requires_grad_()
    network = Gelus().to(dtype)
    model = gradients(network, lambda m, x: m(x), (x,)).model
    nodes = [node for node in model.graph.node if node.op_type == "GeluBackwardV2"]
    assert [helper.get_node_attr_value(node, "approximate") for node in nodes] == [1, 0]
    (wanted,) = torch.autograd.grad(network(x), x)
    feeds = {"x": x.detach().numpy(), "scale": network.scale.detach().numpy()}
    session = onnx_ops.InferenceSession(model)
    (got,) = session.run(["grad.x"], {i.name: feeds[i.name] for i in session.get_inputs()})
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-14}[dtype]
    np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradients_of_gradients(approximate: str) -> None:
    """A gradient penalty; the capture is compared with PyTorch."""

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        y = functional.gelu(network(x), approximate=approximate).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.square().sum()

    gradients(nn.Linear(4, 4), loss, (torch.randn(3, 4, requires_grad=True),))
