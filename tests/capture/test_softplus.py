"""Softplus and the logarithm of the logistic function in captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops
import onnx_ops.torch

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": functional.softplus,
    "steep": lambda x: functional.softplus(x, 100.0),
    "flat": lambda x: functional.softplus(x, 0.1, 0.5),  # no attribute holds 0.1 of a double
    "logsigmoid": functional.logsigmoid,
    "mish": functional.mish,
}


class Scaled(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale)


def _loss(network: nn.Module, x: Tensor, factors: Tensor) -> Tensor:
    return (network(x) * factors).sum()


def _count(model: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph.node)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_nodes(name: str, dtype: torch.dtype) -> None:
    """The function and its gradient, from small to large numbers; in inference it has standard operators."""
    network = Scaled(FUNCTIONS[name]).to(dtype)
    x = torch.cat([torch.linspace(-60, 60, 481, dtype=dtype), torch.tensor([torch.inf, torch.nan], dtype=dtype)])
    factors = torch.linspace(1, 3, x.numel(), dtype=dtype, requires_grad=True)
    zeros = torch.zeros_like(x, requires_grad=True)
    capture = onnx_ops.torch.gradients(network, _loss, (zeros, torch.ones_like(factors, requires_grad=True)))
    one = not (name == "flat" and dtype is torch.float64)
    assert _count(capture.model, "SoftplusV2") == _count(capture.model, "SoftplusBackward") == one
    x = x.requires_grad_()
    with torch.no_grad():
        network.scale.fill_(1.25)
    wanted = torch.autograd.grad(_loss(network, x, factors), [x, factors])
    feeds = {"x": x, "factors": factors, "scale": network.scale}
    arrays = {key: value.detach().numpy() for key, value in feeds.items()}
    session = onnx_ops.InferenceSession(capture.model)
    got = session.run(["grad.x", "grad.factors"], {i.name: arrays[i.name] for i in session.get_inputs()})
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-13}[dtype]
    for array, tensor in zip(got, wanted, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=tolerance, atol=1e-30)
    assert capture.inference is not None
    assert {node.domain for node in capture.inference.graph.node} == {""}
    (found,) = onnx_ops.InferenceSession(capture.inference).run(None, {"x": arrays["x"]})  # with the scale of then
    np.testing.assert_allclose(found, FUNCTIONS[name](x).detach().numpy(), rtol=8 * tolerance, atol=1e-30)


def test_gradients_of_gradients() -> None:
    def loss(network: nn.Module, x: Tensor) -> Tensor:
        h = network(x)
        y = sum((function(4 * h) * h).sum() for function in FUNCTIONS.values())
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.square().sum()

    gradients(nn.Linear(4, 4), loss, (torch.randn(3, 4, requires_grad=True),))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bits(name: str, dtype: torch.dtype) -> None:
    """In training and inference; the capture is compared with PyTorch."""
    x = torch.linspace(-9, 9, 101, dtype=dtype)
    network = Scaled(FUNCTIONS[name]).to(dtype)
    capture = onnx_ops.torch.gradients(network, lambda m, x: m(x).float().square().mean(), (x.requires_grad_(),))
    assert capture.inference is not None
    assert {node.domain for node in capture.inference.graph.node} == {""}
    outside = capture.inference.graph.output[0].type.tensor_type.elem_type
    assert outside == {torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16}[dtype]
