"""Sorted elements, and what is computed of them, in captured graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
import onnx_ops.torch


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(-1).values,
        lambda x: x.sort(0, descending=True).values,
        lambda x: x.gather(1, x.argsort(dim=1, stable=True)).cumsum(1),
        lambda x: torch.sort(x.flatten(), descending=True)[0].cumsum(0),
        lambda x: x.quantile(0.3, dim=1),
        lambda x: x.msort()[-3:],
        lambda x: x.median(1).values,
        lambda x: x.median(0).values,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sorted_elements_and_their_gradients(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """Of another number of rows than the example, of more than 64 elements, with infinities."""

    def loss(model: nn.Linear, x: Tensor) -> Tensor:
        found = function(model(x))
        return (found * torch.linspace(-1, 1, found.numel(), dtype=dtype).view_as(found)).sum()

    torch.manual_seed(0)
    model = nn.Linear(5, 90).to(dtype)
    capture = gradients(model, loss, (torch.randn(4, 5, dtype=dtype),), dynamic_shapes=({0: Dim("rows")},))
    assert [node.op_type for node in capture.model.graph.node].count("Sort") == 1
    session = onnx_ops.InferenceSession(capture.model)
    for rows in (4, 7, 130):
        x = torch.randn(rows, 5, dtype=dtype)
        value = loss(model, x)
        wanted = torch.autograd.grad(value, list(model.parameters()))
        got = session.run(["loss", "grad.weight", "grad.bias"], capture.state | {"x": x.numpy()})
        for array, tensor in zip(got, (value.detach(), *wanted), strict=True):
            tolerance = 2e-4 if dtype is torch.float32 else 1e-12
            scale = float(tensor.abs().max())
            np.testing.assert_allclose(array, tensor.numpy(), rtol=tolerance, atol=tolerance * scale)


def test_inference_graphs_have_standard_operators_only() -> None:
    """Those of Sort, and the function bodies of ops that have no standard operator."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.layer(x)
            return hidden.sort(-1, descending=True).values + torch.lgamma(hidden.exp()) + torch.digamma(hidden.exp())

    torch.manual_seed(0)
    model = Network()
    rows = {0: Dim("rows")}
    capture = onnx_ops.torch.gradients(model, loss, (torch.randn(3, 4),), dynamic_shapes=(rows,))
    assert {node.op_type for node in capture.model.graph.node if node.domain} >= {"Sort", "Lgamma", "Digamma"}
    assert capture.inference is not None
    nodes = capture.inference.graph.node
    assert {node.domain for node in nodes} == {""}
    assert [node.op_type for node in nodes].count("TopK") == 1
    assert not capture.inference.functions
    x = torch.randn(5, 4)
    (found,) = ort.InferenceSession(capture.inference.SerializeToString()).run(None, {"x": x.numpy()})
    # Float32 results of the bodies are rounded once.
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=2e-6, atol=2e-6)


def test_order_of_nan_and_of_equal_elements() -> None:
    def loss(model: nn.Linear, x: Tensor) -> dict[str, Tensor]:
        both = [x.sort(dim=0, descending=descending, stable=True) for descending in (False, True)]
        return {"loss": model.weight.sum()} | {
            f"{i}_{j}": part for i, pair in enumerate(both) for j, part in enumerate(pair)
        }

    x = torch.tensor([2.0, torch.nan, 1.0, -0.0, torch.inf, 0.0, -torch.nan, 1.0, -torch.inf, torch.inf])
    capture = gradients(nn.Linear(1, 1), loss, (x,))
    names = ["0_0", "0_1", "1_0", "1_1"]
    session = onnx_ops.InferenceSession(capture.model)
    for given in (x, x.flip(0)):
        wanted = loss(nn.Linear(1, 1), given)
        for name, array in zip(names, session.run(names, capture.state | {"x": given.numpy()}), strict=True):
            np.testing.assert_array_equal(array, wanted[name].detach().numpy(), err_msg=name)
