"""Logarithms, sines and cosines in captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
import onnx_ops.torch
from onnx_ops.torch.rewriting.elementary_functions import functions_by_op


class Function(nn.Module):
    """A function of a scaled input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("function", "ops"),
    [
        (torch.log, {"InplaceLog"}),
        (torch.sin, {"InplaceSin", "InplaceCos"}),
        (torch.cos, {"InplaceCos", "InplaceSin"}),
    ],
)
def test_values_and_gradients(function: Callable[[Tensor], Tensor], ops: set[str], dtype: torch.dtype) -> None:
    """With another number of elements than the example, other parameters, large arguments and such without a result."""
    network = Function(function).to(dtype)
    example = torch.rand(50, dtype=dtype).requires_grad_(), torch.rand(50, dtype=dtype).requires_grad_()
    capture = onnx_ops.torch.gradients(
        network,
        lambda network, x, factors: (network(x) * factors).sum(),
        example,
        dynamic_shapes=({0: Dim("n")}, {0: Dim("n")}),
    )
    assert {node.op_type for node in capture.model.graph.node if node.domain == "aclnn"} >= ops
    assert capture.inference is not None
    assert {node.domain for node in capture.inference.graph.node} == {""}

    special = torch.tensor([0.0, -0.0, -1.0, torch.inf, -torch.inf, torch.nan, 3e7, 1e12], dtype=dtype)
    x = torch.cat([torch.linspace(-20, 20, 1999, dtype=dtype), special]).requires_grad_()
    factors = torch.rand(len(x), dtype=dtype).requires_grad_()
    with torch.no_grad():
        network.scale.fill_(1.25)
    wanted = torch.autograd.grad((network(x) * factors).sum(), [x, factors])
    feeds = {"x": x.detach().numpy(), "factors": factors.detach().numpy(), "scale": network.scale.detach().numpy()}
    got = onnx_ops.InferenceSession(capture.model).run(["grad.x", "grad.factors"], feeds)
    for array, tensor in zip(got, wanted, strict=True):
        tolerance = {torch.float32: 3e-7, torch.float64: 5e-16}[dtype]
        np.testing.assert_allclose(array, tensor.numpy(), rtol=tolerance, atol=0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("float[1000]", "InplaceSin"),
        ("double[10, 100]", "InplaceSin"),
        ("float[N]", "InplaceSin"),
        ("float[999]", "Sin"),
        ("float", "Sin"),
        ("float16[1000]", "Sin"),
    ],
)
def test_few_elements_keep_the_standard_operator(value: str, expected: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g ({value} x) => ({value} y) {{ y = Sin (x) }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    functions_by_op(model)
    assert [node.op_type for node in model.graph] == [expected]


def test_gradients_of_gradients() -> None:
    """As of implicit neural representations, whose loss has derivatives of sines; the capture is compared with
    PyTorch."""

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        y = torch.sin(30 * network(x))
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.square().mean() + slope.square().mean()

    capture = gradients(nn.Linear(2, 40), loss, (torch.randn(30, 2, requires_grad=True),))
    assert {"InplaceSin", "InplaceCos"} <= {node.op_type for node in capture.model.graph.node}
