"""Gradients of biases: sums over many rows, close to float64's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops


class Scaled(nn.Module):
    """A linear layer and a layer normalization of (N, 96, 8), whose biases have gradients that sum up 96 N rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x).tanh() + 2)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) + 1).exp().sum()


def sums(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "ReduceSum" for node in model.graph.node)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_biases_are_summed_in_blocks(dynamic: bool) -> None:
    torch.manual_seed(0)
    model, x = Scaled(), torch.rand(60, 96, 8)
    shapes = {"x": {0: Dim("N")}} if dynamic else None
    captured = gradients(model, loss, (x,), dynamic_shapes=shapes).model
    session = onnx_ops.InferenceSession(captured)
    found = dict(zip([output.name for output in session.get_outputs()], feed(session, model, x), strict=True))
    wide = Scaled().double()
    wide.load_state_dict(model.state_dict())
    loss(wide, x.double()).backward()
    for name in ("linear.bias", "norm.bias"):
        wanted = wide.get_parameter(name).grad
        assert wanted is not None
        error = np.abs(found[f"grad.{name}"] - wanted.numpy()).max() / wanted.abs().max().item()
        assert error < 5e-7


def feed(session: onnx_ops.InferenceSession, model: nn.Module, x: Tensor) -> list[np.ndarray]:
    values = {name: tensor.numpy() for name, tensor in model.state_dict().items()} | {"x": x.numpy()}
    return session.run(None, {given.name: values[given.name] for given in session.get_inputs()})


def test_other_sums_have_one_node() -> None:
    model, x = nn.Linear(4, 3), torch.randn(50, 4)
    few = gradients(model, lambda model, x: model(x).square().sum(), (x,)).model
    wide = gradients(model.double(), lambda model, x: model(x).square().sum(), (torch.randn(500, 4).double(),)).model
    assert sums(few) == sums(wide) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_counts_are_sums_of_floating_numbers(dynamic: bool) -> None:
    """Of float32 where there are less than 2**24 elements, else of float64: sums of int64 are slow."""

    def masked(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return (y * (y > 0)).sum() / (y > 0).sum()

    shapes = {"x": {0: Dim("N")}} if dynamic else None
    graph = gradients(nn.Linear(4, 3), masked, (torch.randn(50, 4),), dynamic_shapes=shapes).model.graph
    casts = {node.output[0]: node.attribute[0].i for node in graph.node if node.op_type == "Cast"}
    added = {casts[node.input[0]] for node in graph.node if node.op_type == "ReduceSum" and node.input[0] in casts}
    kinds = onnx.TensorProto
    assert added == {kinds.DOUBLE if dynamic else kinds.FLOAT}
