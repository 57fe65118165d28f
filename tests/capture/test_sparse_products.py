"""Sums and dot products over the edges of a graph are SparseMatMul and SampledMatMul."""

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

NODES, WIDTH = 7, 6


class Network(nn.Module):
    """A graph convolution, attention with two heads by dot products, and sums of rows without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH))

    def forward(self, x: Tensor, edges: Tensor, strengths: Tensor) -> Tensor:
        source, target = edges
        rows = x @ self.weight
        messages = strengths.view(-1, 1) * rows.index_select(0, source)
        rows = torch.zeros_like(rows).index_add(0, target, messages).sin()
        heads = rows.view(-1, 2, 3)
        scores = (heads[target - x.shape[0]] * heads[source]).sum(-1)  # negative indices
        attended = torch.zeros_like(heads).index_add(0, target, heads.index_select(0, source) * scores.unsqueeze(-1))
        plain = torch.zeros_like(rows).index_add(0, source, rows.cos()[target])
        return (attended.flatten(1) * plain).square().sum()


def loss(model: nn.Module, x: Tensor, edges: Tensor, strengths: Tensor) -> Tensor:
    return model(x, edges, strengths)


def batch(nodes: int, edges: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(nodes, (2, edges), generator=generator)
    return torch.randn(nodes, 4, generator=generator), indices, torch.rand(edges, generator=generator)


@pytest.fixture(scope="module", params=["static", "dynamic"])
def captured(request: pytest.FixtureRequest) -> tuple[onnx_ops.torch.Capture, int]:
    """The gradients, and a number of nodes to try them with."""
    edges, nodes = Dim("edges", min=2), Dim("nodes", min=2)
    first = {0: nodes} if request.param == "dynamic" else None
    capture = captures.gradients(Network(), loss, batch(NODES, 9), dynamic_shapes=(first, {1: edges}, {0: edges}))
    return capture, 11 if first else NODES


def test_sums_over_edges_are_products(captured: tuple[onnx_ops.torch.Capture, int]) -> None:
    counts = Counter(node.op_type for node in captured[0].model.graph.node)
    # Sums: one of each layer, and their gradients, of which one is by each factor of the scores. Dot products: the
    # scores, and the gradient of the scores as weights.
    assert counts["SparseMatMul"] == 8
    assert counts["SampledMatMul"] == 2
    assert counts["EmbeddingDenseBackward"] == 0
    assert counts["ScatterElements"] == 0


@pytest.mark.parametrize("edges", [2, 40])
def test_results_are_those_of_pytorch(captured: tuple[onnx_ops.torch.Capture, int], edges: int) -> None:
    (capture, nodes), model = captured, Network()
    x, indices, strengths = batch(nodes, edges, seed=1)
    with torch.no_grad():
        model.weight.add_(0.3)
    expected = model.double()(x.double(), indices, strengths.double())
    expected.backward()
    given = {"weight": model.weight.float(), "x": x, "edges": indices, "strengths": strengths}
    got = Graph(capture.model).run(given)
    np.testing.assert_allclose(got["loss"], expected.item(), rtol=1e-5)
    gradient = model.weight.grad.numpy()
    np.testing.assert_allclose(got["grad.weight"], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max())
