"""SiLU in captured graphs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops
import onnx_ops.torch
from onnx_ops.torch.rewriting.silus import silus_by_op


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


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x * self.scale)


def test_small_results_keep_their_digits() -> None:
    """Where onnxruntime's Sigmoid has none, as in eager PyTorch; the graph for inference has standard operators."""
    example = torch.randn(145), torch.randn(145, requires_grad=True)
    capture = onnx_ops.torch.gradients(Scaled(), lambda network, x, factors: (network(x) * factors).sum(), example)
    assert capture.inference is not None
    assert {node.domain for node in capture.inference.graph.node} == {""}
    x = torch.cat([torch.linspace(-80, -10, 141), torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])])
    feeds = {"x": x.numpy(), "factors": np.ones(145, np.float32), "scale": np.ones((), np.float32)}
    (got,) = onnx_ops.InferenceSession(capture.model).run(["grad.factors"], feeds)
    np.testing.assert_allclose(got, functional.silu(x).numpy(), rtol=5e-7, atol=0)


@pytest.mark.parametrize(
    ("dtype", "nodes", "expected"),
    [
        ("float", "s = Sigmoid (x) y = Mul (x, s)", ["Silu"]),
        ("float", "s = Sigmoid (x) y = Mul (s, x)", ["Silu"]),
        ("float", "s = Sigmoid (x) t = Mul (x, s) y = Mul (t, s)", ["Sigmoid", "Mul", "Mul"]),
        ("float", "z = Neg (x) s = Sigmoid (z) y = Mul (x, s)", ["Neg", "Sigmoid", "Mul"]),
        ("float", "s = Sigmoid (x) y = Mul (s, s)", ["Sigmoid", "Mul"]),
        ("double", "s = Sigmoid (x) y = Mul (x, s)", ["Sigmoid", "Mul"]),
    ],
)
def test_products_with_a_sigmoid(dtype: str, nodes: str, expected: list[str]) -> None:
    """Those that are the Sigmoid's only reader become Silu: else its exponential would be computed twice."""
    text = f'<ir_version: 8, opset_import: ["" : 18]> g ({dtype}[N] x) => ({dtype}[N] y) {{ {nodes} }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    silus_by_op(model)
    assert [node.op_type for node in model.graph] == expected


def test_gradients_of_gradients() -> None:
    """A gradient penalty; the capture is compared with PyTorch."""

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        y = functional.silu(network(x)).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.square().sum()

    gradients(nn.Linear(4, 4), loss, (torch.randn(3, 4, requires_grad=True),))
