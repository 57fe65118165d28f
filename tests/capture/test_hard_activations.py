"""Hardtanh, ReLU6, hardsigmoid, hardswish and exponential linear units in captured graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops

FUNCTIONS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "relu6": ("HardtanhBackward", functional.relu6),
    "hardtanh": ("HardtanhBackward", lambda x: functional.hardtanh(x, -0.1, 0.7)),
    "hardsigmoid": ("HardsigmoidBackward", functional.hardsigmoid),
    "hardswish": ("HardswishBackwardV2", functional.hardswish),
}
BOUNDS = (0.0, 6.0, -0.1, 0.7, 3.0, -3.0, -1.5)


class Scaled(nn.Module):
    """An activation of a scaled input, with a gradient for each element."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x: Tensor, factors: Tensor) -> Tensor:
        return (self.function(x * self.scale) * factors).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_is_one_node(name: str, dtype: torch.dtype) -> None:
    """Bounds and their neighbours in the dtype of the tensor, NaN, and gradients that are not finite.

    PyTorch's vectors and its loop over the rest differ in what they make of NaN: the size is a multiple of both.
    """
    op, function = FUNCTIONS[name]
    bounds = torch.tensor(BOUNDS, dtype=dtype)
    near = [torch.nextafter(bounds, torch.full_like(bounds, side)) for side in (-9.0, 9.0)]
    x = torch.cat([bounds, *near, torch.tensor([math.nan, math.inf, -math.inf] + [0.25] * 8, dtype=dtype)])
    x = torch.cat([x, x]).requires_grad_()
    factors = torch.linspace(1, 3, x.numel(), dtype=dtype)
    factors[32:] = torch.tensor([math.nan, math.inf, -math.inf, 0.0] * 8)
    network = Scaled(function).to(dtype)
    example = torch.zeros_like(x, requires_grad=True), torch.ones_like(factors)
    model = gradients(network, lambda m, x, factors: m(x, factors), example).model
    # No attribute holds bounds such as 0.1 of a double, and PyTorch's sixth of a double is that of a float.
    one = dtype is torch.float32 or name in ("relu6", "hardswish")
    assert sum(node.op_type == op for node in model.graph.node) == one
    (wanted,) = torch.autograd.grad(network(x, factors), x)
    feeds = {"x": x.detach().numpy(), "factors": factors.numpy(), "scale": network.scale.detach().numpy()}
    session = onnx_ops.InferenceSession(model)
    (got,) = session.run(["grad.x"], {i.name: feeds[i.name] for i in session.get_inputs()})
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(got, wanted.numpy(), rtol=2 * eps, atol=2 * eps)


def test_gradients_of_gradients() -> None:
    """A gradient penalty; the capture is compared with PyTorch, which has none of hardsigmoid."""

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        h = network(x)
        y = sum((function(4 * h) * h).sum() for name, (_, function) in FUNCTIONS.items() if name != "hardsigmoid")
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.square().sum()

    gradients(nn.Linear(4, 4), loss, (torch.randn(3, 4, requires_grad=True),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponential_linear_units(dtype: torch.dtype) -> None:
    functions = functional.elu, partial(functional.elu, alpha=0.3), functional.selu, partial(functional.celu, alpha=1.3)

    def loss(network: nn.Linear, x: Tensor) -> dict[str, Tensor]:
        values = [function(network.weight * x) for function in functions]
        total = sum((torch.where(value.isfinite(), value, 0.0).sin().sum() for value in values), torch.zeros(()))
        return {"loss": total} | {f"value{i}": value for i, value in enumerate(values)}

    x = torch.tensor(
        [[-math.inf, -90.0, -3.0, -0.4, -1e-3, -1e-7, -0.0, 0.0, 1e-3, 2.0, 90.0, math.inf, math.nan]], dtype=dtype
    )
    network = nn.Linear(x.shape[1], 1, bias=False).to(dtype)
    nn.init.ones_(network.weight)
    model = gradients(network, loss, (x,), check=False).model
    outputs = loss(network, x)
    outputs["loss"].backward()
    assert network.weight.grad is not None
    wanted = [tensor.detach() for tensor in outputs.values()] + [network.weight.grad]
    session = onnx_ops.InferenceSession(model)
    got = session.run([*outputs, "grad.weight"], {"x": x.numpy(), "weight": network.weight.detach().numpy()})
    eps = torch.finfo(dtype).eps
    for array, tensor in zip(got, wanted, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=8 * eps, atol=0)
