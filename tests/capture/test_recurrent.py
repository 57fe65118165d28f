"""LSTM, GRU and RNN in captured graphs, compared with PyTorch in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cases import names_with
from torch import Tensor, nn

import onnx_ops
import onnx_ops.torch

# PyTorch's warning about its own LSTM in float32.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

STEPS, BATCH, FEATURES, WIDTH = 3, 2, 4, 6
# Of the largest entry of a tensor; in float32, if PyTorch's own error is not larger.
OFF = {torch.float64: 1e-10, torch.float32: 2e-6}

LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "rnn": (nn.RNN, {}),
    "rnn_relu_without_bias": (nn.RNN, {"nonlinearity": "relu", "bias": False}),
    "rnn_deep_both_ways": (nn.RNN, {"num_layers": 2, "bidirectional": True}),
    "gru": (nn.GRU, {"batch_first": True}),
    "gru_without_bias": (nn.GRU, {"bias": False}),
    "gru_deep_both_ways": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "lstm": (nn.LSTM, {}),
    "lstm_batch_first_without_bias": (nn.LSTM, {"batch_first": True, "bias": False}),
    "lstm_deep_both_ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm_projected": (nn.LSTM, {"proj_size": 2}),
    "lstm_projected_deep_both_ways": (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
}
LIKE_OTHERS = {
    "rnn",
    "rnn_deep_both_ways",
    "gru_without_bias",
    "gru_deep_both_ways",
    "lstm",
    "lstm_batch_first_without_bias",
    "lstm_deep_both_ways",
    "lstm_projected",
}
"""Covered by the other cases; run by `make test-full`."""


class Network(nn.Module):
    """A recurrent layer; all of its outputs enter the loss, each element with its own weight."""

    def __init__(self, kind: type[nn.RNNBase], options: dict[str, Any], width: int = WIDTH) -> None:
        super().__init__()
        self.layer = kind(FEATURES, width, **options)

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        given = states if len(states) > 1 else states[0] if states else None
        outputs, ends = self.layer(x, given)
        ends = ends if isinstance(ends, tuple) else (ends,)
        return sum(((part * part.cos()).mean() for part in (outputs, *ends)), torch.zeros((), dtype=x.dtype))


def loss(network: nn.Module, x: Tensor, *states: Tensor) -> Tensor:
    return network(x, *states)


def made(
    name: str, dtype: torch.dtype, batch: int = BATCH, *, with_states: bool = False
) -> tuple[Network, list[Tensor]]:
    kind, options = LAYERS[name]
    torch.manual_seed(1)
    network = Network(kind, options).to(dtype)
    shape = (batch, STEPS, FEATURES) if options.get("batch_first") else (STEPS, batch, FEATURES)
    args = [torch.randn(shape, dtype=dtype, requires_grad=True)]
    if with_states:
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        widths = [options.get("proj_size", 0) or WIDTH, *([WIDTH] if kind is nn.LSTM else [])]
        args += [torch.randn(count, batch, width, dtype=dtype, requires_grad=True) for width in widths]
    return network, args


def by_torch(network: Network, args: list[Tensor], dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Loss and gradients by PyTorch itself, by the names of a capture."""
    network = copy.deepcopy(network).to(dtype)
    given = [arg.detach().to(dtype).requires_grad_() for arg in args]
    value = network(*given)
    value.backward()
    leaves = {**dict(network.named_parameters()), **{name: arg for name, arg in zip(names(args), given, strict=True)}}
    gradients = {f"grad.{name}": leaf.grad.numpy() for name, leaf in leaves.items()}
    return {"loss": value.detach().numpy(), **gradients}


def names(args: list[Tensor]) -> list[str]:
    return ["x", *(f"states.{i}" for i in range(len(args) - 1))]


def run(capture: onnx_ops.torch.Capture, args: list[Tensor]) -> dict[str, np.ndarray]:
    session = onnx_ops.InferenceSession(capture.model)
    feeds = capture.state | {name: arg.detach().numpy() for name, arg in zip(names(args), args, strict=True)}
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def compare(got: dict[str, np.ndarray], network: Network, args: list[Tensor], dtype: torch.dtype) -> None:
    exact, theirs = by_torch(network, args, torch.float64), by_torch(network, args, dtype)
    assert set(got) == set(exact)
    for name, wanted in exact.items():
        largest = np.abs(wanted).max()
        allowed = max(OFF[dtype] * largest, 2 * np.abs(theirs[name] - wanted).max())
        assert np.abs(got[name] - wanted).max() <= allowed, name


@pytest.mark.parametrize("name", names_with(full=LIKE_OTHERS, names=LAYERS))
def test_gradients(name: str) -> None:
    """In float64, of parameters, input and initial states."""
    network, args = made(name, torch.float64, with_states=True)
    capture = onnx_ops.torch.gradients(network, loss, tuple(args))
    compare(run(capture, args), network, args, torch.float64)


@pytest.mark.parametrize("name", names_with(full=["rnn", "gru"], names=["rnn", "gru", "lstm", "lstm_projected"]))
def test_other_batches(name: str) -> None:
    """In float32, with a batch of another size than the graph was captured with, and states that are zeros."""
    network, args = made(name, torch.float32)
    axis = 0 if LAYERS[name][1].get("batch_first") else 1
    capture = onnx_ops.torch.gradients(
        network, loss, tuple(args), dynamic_shapes=({axis: torch.export.Dim("N")},), inference=False
    )
    for batch in (1, 9):
        _, others = made(name, torch.float32, batch)
        compare(run(capture, others), network, others, torch.float32)


@pytest.mark.parametrize(("kind", "options", "width"), [(nn.GRU, {}, 5), (nn.LSTM, {"proj_size": 2}, 128)])
def test_products_of_transposed_rows(kind: type[nn.RNNBase], options: dict[str, Any], width: int) -> None:
    """Those of 16 rows; in the gradient of the LSTM the rows are of 4096 bytes, and padded."""
    torch.manual_seed(2)
    network, args = Network(kind, options, width).double(), [torch.randn(2, 16, FEATURES, dtype=torch.float64)]
    args[0].requires_grad_()
    capture = onnx_ops.torch.gradients(network, loss, tuple(args), inference=False)
    pads = 1 if kind is nn.LSTM else 0  # of the weights before the loop, and of the rows in it
    assert nodes(capture.model.graph, "Pad") == nodes_in_loops(capture.model, "Pad") == pads
    compare(run(capture, args), network, args, torch.float64)


def nodes(graph: onnx.GraphProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in graph.node)


def nodes_in_loops(model: onnx.ModelProto, op_type: str) -> int:
    bodies = (attribute.g for node in model.graph.node if node.op_type == "Scan" for attribute in node.attribute)
    return sum(nodes(body, op_type) for body in bodies)


OVER_ALL_STEPS = 4
"""Products from the input and back to it, and the gradients by the two weights."""
PRODUCTS = {"gru": (OVER_ALL_STEPS, 2), "lstm": (OVER_ALL_STEPS, 0), "lstm_projected": (OVER_ALL_STEPS + 1, 4)}
"""Numbers of products over all steps, and of those in a step forward and back; projections have one each."""


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    """Only those with the hidden state are in the steps; an LSTM without projection has them in one node."""
    network, args = made(name, torch.float32)
    model = onnx_ops.torch.gradients(network, loss, tuple(args), inference=False).model
    for cell in ("ThnnFusedLstmCell", "ThnnFusedLstmCellBackward"):
        assert nodes_in_loops(model, cell) == (1 if name == "lstm_projected" else 0)
    assert nodes(model.graph, "DynamicRNN") == nodes(model.graph, "DynamicRNNGrad") == (1 if name == "lstm" else 0)
    assert nodes(model.graph, "Scan") == (0 if name == "lstm" else 2)
    over_all = sum(nodes(model.graph, product) for product in ("MatMul", "Gemm"))
    assert (over_all, sum(nodes_in_loops(model, product) for product in ("MatMul", "Gemm"))) == PRODUCTS[name]


class Last(Network):
    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        return self.layer(x)[0][-1].square().sum()


class Cell(Network):
    """Of an LSTM the cell state alone."""

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        return self.layer(x)[1][1].square().sum()


@pytest.mark.parametrize("options", [{}, {"proj_size": 2}], ids=str)
@pytest.mark.parametrize("kind", names_with(full=[Last], names=[Last, Cell]))
def test_outputs_that_the_loss_leaves_out(kind: type[Network], options: dict[str, Any]) -> None:
    torch.manual_seed(2)
    network = kind(nn.LSTM, options).double()
    args = [torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64, requires_grad=True)]
    capture = onnx_ops.torch.gradients(network, loss, tuple(args), inference=False)
    compare(run(capture, args), network, args, torch.float64)


def test_frozen_weights() -> None:
    network, args = made("gru", torch.float64)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    capture = onnx_ops.torch.gradients(network, loss, tuple(args), inference=False)
    wanted = by_torch(*made("gru", torch.float64), torch.float64)
    got = run(capture, args)
    assert set(got) == {"loss", "grad.x"}
    np.testing.assert_allclose(got["grad.x"], wanted["grad.x"], rtol=0, atol=1e-10)


def test_no_steps_are_refused() -> None:
    """As PyTorch does; the state stays as it was."""
    model, axes = nn.LSTM(3, 2, batch_first=True), {0: torch.export.Dim("batch"), 1: torch.export.Dim("time")}
    step = onnx_ops.torch.gradients(
        model, lambda m, x: m(x)[0].sum(), (torch.ones(4, 5, 3),), dynamic_shapes=(axes,), inference=False
    )
    assert onnx_ops.Step.of(step.model).bounds["time"].min == 1
