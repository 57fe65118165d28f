"""SiLU in captured graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops


class Silus(nn.Module):
    """SiLU of a scaled input, of its own result, and in place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.silu(functional.silu(x * self.scale))
        return functional.silu(y + x, inplace=True).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_is_one_node(dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 101, dtype=dtype).requires_grad_()
    network = Silus().to(dtype)
    model = gradients(network, lambda m, x: m(x), (x,)).model
    assert sum(node.op_type == "SiluBackward" for node in model.graph.node) == 3
    with torch.no_grad():
        network.scale.fill_(1.25)
    wanted = torch.autograd.grad(network(x), [x, network.scale])
    feeds = {"x": x.detach().numpy(), "scale": network.scale.detach().numpy()}
    session = onnx_ops.InferenceSession(model)
    got = session.run(["grad.x", "grad.scale"], {i.name: feeds[i.name] for i in session.get_inputs()})
    for array, tensor in zip(got, wanted, strict=True):
        tolerance = {torch.float32: 2e-6, torch.float64: 1e-14}[dtype] * float(tensor.abs().max())
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=tolerance)


def test_gradients_of_gradients() -> None:
    """A gradient penalty; the capture is compared with PyTorch."""

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        y = functional.silu(network(x)).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.square().sum()

    gradients(nn.Linear(4, 4), loss, (torch.randn(3, 4, requires_grad=True),))
