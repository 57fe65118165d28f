"""Sums and lookups of whole rows by an index are EmbeddingDenseBackward and Gather."""

from __future__ import annotations

from collections import Counter

import captures
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch.verification.graph import Graph

NODES = 6


class Network(nn.Module):
    """Sums over the edges of a graph, along axis 0 of a matrix, the middle axis and the last one of three."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        rows = x @ self.weight
        sums = rows.new_zeros(NODES, 4).scatter_add_(0, index[:, None].expand_as(rows), rows)
        upon = rows.new_full((NODES, 4), 0.5).scatter_add(0, index.view(-1, 1).expand(-1, 4), rows)
        planes = torch.stack([rows, rows.sin()])
        middle = rows.new_ones(2, NODES, 4).scatter_add(-2, index[None, :, None].expand(2, -1, 4), planes)
        last = rows.new_zeros(2, 4, NODES).scatter_add(2, index.expand(2, 4, -1), planes.mT)
        added = rows.new_zeros(NODES, 4).index_add(0, index, rows)
        put = rows.new_ones(4, NODES).index_put((torch.arange(4)[:, None], index), rows.mT, accumulate=True)
        looked_up = sums.gather(0, index[:, None].expand(-1, 4)) * middle[0].gather(0, index[:, None].expand(-1, 4))
        nodes = upon.cos() + middle[1] + last.sum(0).mT + added.square() + put.mT
        return nodes.square().sum() + looked_up.sum()


def loss(model: nn.Module, x: Tensor, index: Tensor) -> Tensor:
    return model(x, index)


def batch(edges: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(edges, 3, generator=generator), torch.randint(NODES - 1, (edges,), generator=generator)


@pytest.fixture(scope="module")
def captured() -> onnx_ops.torch.Capture:
    edges = Dim("edges", min=2)
    return captures.gradients(Network(), loss, batch(9), dynamic_shapes=({0: edges}, {0: edges}))


def test_rows_are_summed_and_looked_up_as_rows(captured: onnx_ops.torch.Capture) -> None:
    counts = Counter(node.op_type for node in captured.model.graph.node)
    # Six sums of the forward pass and the gradients of two lookups.
    assert counts["EmbeddingDenseBackward"] == 8
    assert counts["GatherElements"] == 0
    assert counts["ScatterElements"] == 0


@pytest.mark.parametrize("edges", [2, 30])
def test_results_are_those_of_pytorch(captured: onnx_ops.torch.Capture, edges: int) -> None:
    model = Network()
    x, index = batch(edges, seed=1)
    with torch.no_grad():
        model.weight.add_(0.3)
    expected = model.double()(x.double(), index)
    expected.backward()
    got = Graph(captured.model).run({"weight": model.weight.float(), "x": x, "index": index})
    np.testing.assert_allclose(got["loss"], expected.item(), rtol=1e-5)
    gradient = model.weight.grad.numpy()
    np.testing.assert_allclose(got["grad.weight"], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max())


@pytest.mark.parametrize("wrong", [-1, NODES])
def test_an_index_out_of_range_is_an_error(captured: onnx_ops.torch.Capture, wrong: int) -> None:
    x, index = batch(5)
    index[3] = wrong
    with pytest.raises(onnx_ops.torch.CaptureError, match="onnxruntime does not run"):
        Graph(captured.model).run({"weight": Network().weight, "x": x, "index": index})


class Extremes(nn.Module):
    """The largest and smallest rows of the edges, as max aggregations of graph networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        rows = x @ self.weight
        places = index[:, None].expand_as(rows)
        largest = rows.new_zeros(NODES, 4).scatter_reduce_(0, places, rows, "amax", include_self=False)
        least = rows.new_full((NODES, 4), 0.2).scatter_reduce(0, places, rows, "amin")
        planes = torch.stack([rows, rows.sin()])
        middle = planes.new_full((2, NODES, 4), 0.1).scatter_reduce(
            -2, index[None, :, None].expand(2, -1, 4), planes, "amin", include_self=False
        )
        last = planes.new_zeros(2, 4, NODES).scatter_reduce(2, index.expand(2, 4, -1), planes.mT, "amax")
        softmax = (rows - largest.detach()[index]).exp()
        nodes = largest.sin() + least.cos() + middle[1] * middle[0] + last.sum(0).mT
        return nodes.square().sum() + softmax.sum()


@pytest.mark.parametrize("nodes", ["static", "dynamic"])
def test_extremes_of_rows_are_scatter_max(nodes: str) -> None:
    def loss_of_nodes(model: nn.Module, x: Tensor, index: Tensor, size: Tensor) -> Tensor:
        rows = x @ model.weight
        places = index[:, None].expand_as(rows)
        largest = rows.new_zeros(len(size), 4).scatter_reduce(0, places, rows, "amax", include_self=False)
        return (largest * size[:, None]).exp().sum()

    edges, count = Dim("edges", min=2), Dim("nodes", min=2)
    if nodes == "static":
        captured = captures.gradients(Extremes(), loss, batch(9), dynamic_shapes=({0: edges}, {0: edges}))
        expected = 4
    else:
        given = (*batch(9), torch.linspace(-1, 1, NODES))
        shapes = ({0: edges}, {0: edges}, {0: count})
        captured = captures.gradients(Extremes(), loss_of_nodes, given, dynamic_shapes=shapes)
        expected = 1
    counts = Counter(node.op_type for node in captured.model.graph.node)
    assert counts["ScatterMax"] == expected
    for edges_there in (2, 30):
        model = Extremes()
        x, index = batch(edges_there, seed=1)
        given = (x, index) if nodes == "static" else (x, index, torch.linspace(-1, 1, NODES + 3))
        loss_there = loss if nodes == "static" else loss_of_nodes
        value = loss_there(model.double(), x.double(), index, *(more.double() for more in given[2:]))
        value.backward()
        feeds = dict(zip(("x", "index", "size"), given, strict=False))
        got = Graph(captured.model).run({"weight": model.weight.float(), **feeds})
        np.testing.assert_allclose(got["loss"], value.item(), rtol=1e-5)
        gradient = model.weight.grad.numpy()
        np.testing.assert_allclose(got["grad.weight"], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max())


class Norms(nn.Linear):
    """Two layers that each compute degrees from a constant of their own, as those of PyTorch Geometric do."""

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        for _ in range(2):
            loops = torch.arange(800).repeat(2)
            degree = torch.zeros(800).scatter_add(0, torch.cat([index, loops]), torch.ones(len(loops) + len(index)))
            x = super().forward(x * degree[index])
        return x


def test_what_equal_constants_make_is_computed_once() -> None:
    x = torch.randn(9)
    captured = captures.gradients(Norms(9, 9), lambda model, *batch: model(*batch).sum(), (x, torch.arange(9)))
    assert [node.op_type for node in captured.model.graph.node].count("ScatterElements") == 1


class Dynamic(nn.Module):
    """Lookups and sums of rows of which there is a dynamic number, along the first and the middle axis."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        rows = x @ self.weight
        chosen = rows[index] * rows[index - 1].sin() + rows.gather(0, index[:, None].expand(-1, 4)).cos()
        sums = torch.zeros_like(rows).index_add(0, index, chosen.exp())
        upon = rows.unsqueeze(0).repeat(2, 1, 1).index_add(1, index, torch.stack([chosen, chosen.tanh()]))
        more = rows.new_zeros(len(x) + 2, 4).scatter_add(0, (index + 2)[:, None].expand(-1, 4), chosen)
        return sums.square().sum() + upon.sin().sum() + more.cos().sum()


@pytest.fixture(scope="module")
def dynamic() -> onnx_ops.torch.Capture:
    shapes = {0: Dim("nodes", min=2)}, {0: Dim("edges")}
    return captures.gradients(Dynamic(), loss, batch(9), dynamic_shapes=shapes)


def test_a_dynamic_number_of_rows_is_summed_as_rows(dynamic: onnx_ops.torch.Capture) -> None:
    counts = Counter(node.op_type for node in dynamic.model.graph.node)
    assert counts["SparseMatMul"] == 6
    assert counts["ScatterElements"] == 0


@pytest.mark.parametrize(("nodes", "edges"), [(9, 2), (8, 30), (7, 0)])
def test_sums_of_a_dynamic_number_of_rows(dynamic: onnx_ops.torch.Capture, nodes: int, edges: int) -> None:
    model = Dynamic()
    (x, _), (_, index) = batch(nodes), batch(edges, seed=1)
    expected = model.double()(x.double(), index)
    expected.backward()
    got = Graph(dynamic.model).run({"weight": model.weight.float(), "x": x, "index": index})
    np.testing.assert_allclose(got["loss"], expected.item(), rtol=1e-5)
    gradient = model.weight.grad.numpy()
    np.testing.assert_allclose(got["grad.weight"], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max())


@pytest.mark.parametrize("wrong", [-1, 9, 10])
def test_an_index_of_rows_that_do_not_exist_is_an_error(dynamic: onnx_ops.torch.Capture, wrong: int) -> None:
    x, index = batch(9)
    index[3] = wrong
    with pytest.raises(onnx_ops.torch.CaptureError, match="onnxruntime does not run"):
        Graph(dynamic.model).run({"weight": Dynamic().weight, "x": x, "index": index})


@pytest.mark.parametrize("dims", [None, ({0: Dim("n")},)], ids=["static", "dynamic"])
def test_sums_of_no_rows(dims: tuple[dict[int, Dim], ...] | None) -> None:
    """As of an estimate without sources, in mixture invariant training; the capture is compared with PyTorch."""

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        y = network(x)
        return torch.stack([y[:, places].sum(1) for places in ([], [0, 2])], 1).square().mean()

    captures.gradients(nn.Linear(5, 5), loss, (torch.randn(4, 3, 5),), dynamic_shapes=dims)
