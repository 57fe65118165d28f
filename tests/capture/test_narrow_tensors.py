"""Operators on one number per row are those that onnxruntime runs on one axis."""

from __future__ import annotations

from collections import Counter

import captures
import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops.torch.verification.graph import Graph

ROWS = 80


class Network(nn.Module):
    """Columns that are looked up, scaled, compared and averaged over an axis of size 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3).reshape(3, 1))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        column = x @ self.weight
        by_index = column.index_select(0, index) * column.flatten()[index - ROWS].unsqueeze(1)
        kept = torch.where(column > 0.25, column, -0.5 * column)
        planes = torch.stack([column, kept], 2)
        rows = torch.stack([x, x.sin()])[[0, 1, 0]][:, index]
        averages = planes.mean(1).square().sum()
        return by_index.square().sum() + kept.sum() + averages + rows.sum() * column.sum()


def batch(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, 3, generator=generator), torch.randint(ROWS, (rows,), generator=generator)


def test_columns_are_looked_up_and_scaled_on_one_axis() -> None:
    captured = captures.gradients(
        Network(), lambda model, x, index: model(x, index), batch(100), dynamic_shapes=(None, {0: Dim("rows", min=2)})
    )
    nodes = captured.model.graph.node
    counts = Counter(node.op_type for node in nodes)
    assert counts["GatherElements"] >= 2
    assert counts["ReduceMean"] == 0
    ranks = {tensor.name: len(tensor.dims) for tensor in captured.model.graph.initializer}
    (comparison,) = (node for node in nodes if node.op_type == "Greater")
    assert ranks[comparison.input[1]] == 2
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(captured.model))

    model, (x, index) = Network(), batch(30, seed=1)
    with torch.no_grad():
        model.weight.add_(0.3)
    expected = model.double()(x.double(), index)
    expected.backward()
    got = Graph(captured.model).run({"weight": model.weight.float(), "x": x, "index": index})
    np.testing.assert_allclose(got["loss"], expected.item(), rtol=1e-5)
    gradient = model.weight.grad.numpy()
    np.testing.assert_allclose(got["grad.weight"], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max())
