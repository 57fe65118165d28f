"""Products of transposed matrices read the matrices as they are, without a transpose in each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from captures import training_step
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch import Capture
from onnx_ops.torch.base.arrays import to_array

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 4 * 2.0**-8}
"""Of the weights after the steps, relative to the largest: sums in two orders, and rounding to 8 bits."""


class Network(nn.Module):
    """Layers with and without bias, a shared weight, and a product that transposes its own first operand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 5, bias=False)
        self.mixing = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        tied = hidden @ self.second.weight
        return tied.sum(-1, keepdim=True) + (self.mixing.t() @ hidden.reshape(-1, 5).t()).t().reshape(*x.shape[:-1], 3)


class Attention(nn.Module):
    """Batches of products of transposed matrices, square and other ones, some transposed or read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(5, 32), nn.Linear(5, 16)
        self.queries = nn.Parameter(torch.randn(2, 4, 16))

    def forward(self, x: Tensor) -> Tensor:
        keys = self.keys(x).unflatten(-1, (2, 16)).transpose(1, 2)
        values = self.values(x).unflatten(-1, (2, 8)).transpose(1, 2)
        scores = (self.queries @ keys.transpose(-2, -1)).softmax(-1)
        square = keys.mT @ keys
        mixed = (values.mT @ scores.mT).mT
        return mixed.sum((1, 3)).unsqueeze(1) + square.mT.sum((1, 2, 3)).reshape(-1, 1, 1)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


@pytest.mark.parametrize("dtype", names_with(full=[torch.float64], names=TOLERANCES), ids=str)
@pytest.mark.parametrize("shape", [pytest.param((4,), id="matrix", marks=pytest.mark.full), (2, 3)])
def test_steps_without_transposed_weights(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = Network().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = [
        (torch.randn(rows, *shape[1:], 5).to(dtype), torch.randn(rows, *shape[1:], 3).to(dtype))
        for rows in (*shape[:1], 6, 1, 5)
    ]
    batch = {0: Dim("N")}
    capture = training_step(model, loss, data[0], optimizer, dynamic_shapes=(batch, batch))
    if dtype is not torch.bfloat16:
        transposed = {node.input[0] for node in capture.model.graph.node if node.op_type == "Transpose"}
        assert transposed.isdisjoint({"first.weight", "second.weight"})
    _compare(capture, model, optimizer, data, TOLERANCES[dtype])


@pytest.mark.parametrize("rows", [pytest.param(3, marks=pytest.mark.full), 4, Dim("M")], ids=str)
def test_transposes_in_batches(rows: int | Dim) -> None:
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    sizes = [(2, 5), (6, 7), (1, 3)] if isinstance(rows, Dim) else [(count, rows) for count in (2, 6, 1)]
    data = [(torch.randn(*size, 5), torch.randn(size[0], 1, 4)) for size in sizes]
    batch = {0: Dim("N")}
    shapes = ({**batch, 1: rows} if isinstance(rows, Dim) else batch, batch)
    capture = training_step(model, loss, data[0], optimizer, dynamic_shapes=shapes)
    nodes = capture.model.graph.node
    readers = {name: node.op_type for node in nodes for name in node.input}
    swaps = [n for n in nodes if n.op_type == "Transpose" and list(n.attribute[0].ints) in ([0, 2, 1], [0, 1, 3, 2])]
    assert {readers[node.output[0]] for node in swaps} == {"MatMul"}
    _compare(capture, model, optimizer, data, TOLERANCES[torch.float32])


def _compare(
    capture: Capture,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Sequence[tuple[Tensor, Tensor]],
    tolerance: float,
) -> None:
    trainer = onnx_ops.Trainer(capture)
    for x, y in data:
        trainer.step(x=to_array(x), y=to_array(y))
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
    for name, array in trainer.weights().items():
        wanted = to_array(model.state_dict()[name]).astype(np.float64)
        off = np.abs(array.astype(np.float64) - wanted).max()
        assert off <= tolerance * np.abs(wanted).max(), name
