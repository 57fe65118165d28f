"""Cumulative sums and lookups along the last axis, windows and patches: nodes on rows, compared with PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx
import pytest
import torch
from captures import compared_at, gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

INDEX = torch.tensor([3, 0, 3, 11, 5])
SHAPE = (3, 12, 96)

CUMULATIVE: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.cumsum(-1),
    lambda x: x.cumsum(1),
    lambda x: x.flip(-1).cumsum(-1).flip(-1),
    lambda x: x.flip(1).cumsum(-1).flip(1),
    lambda x: x[0, 0].cumsum(0),
]
LOOKUPS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.index_select(-1, INDEX.repeat(5)),
    lambda x: x[:, :, :24].index_select(-1, INDEX),
    lambda x: x.index_select(1, INDEX),
    lambda x: x[..., INDEX.reshape(1, 5)],
    lambda x: x.unfold(-1, 6, 3),
    lambda x: x.unfold(1, 4, 2).unfold(2, 24, 24),
]
PATCHES: list[Callable[[Tensor], Tensor]] = [
    lambda x: functional.unfold(x.unsqueeze(1), (3, 4), stride=(3, 4)),
    lambda x: functional.unfold(x.unsqueeze(1), (5, 7), stride=(5, 7)),
    lambda x: functional.fold(x, (24, 48), (3, 4), stride=(3, 4)),
    lambda x: functional.fold(x, (17, 75), (2, 6), stride=(2, 6))[..., 1:],
]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 12).reshape(12, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def loss_of(functions: list[Callable[[Tensor], Tensor]]) -> Callable[[nn.Module, Tensor], Tensor]:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        results = [function(model(x)) for function in functions]
        return sum((y * torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)).square().mean() for y in results)

    return loss


@pytest.mark.parametrize("functions", [CUMULATIVE, LOOKUPS, PATCHES], ids=["cumulative", "lookups", "patches"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)], ids=str)
def test_gradients(functions: list[Callable[[Tensor], Tensor]], dtype: torch.dtype) -> None:
    shapes = [(samples, *SHAPE[1:]) for samples in (3, 1, 5)]
    compared_at(Scaled().to(dtype), loss_of(functions), shapes, Dim("N"), dtype=dtype)


def graph_of(*functions: Callable[[Tensor], Tensor]) -> onnx.GraphProto:
    loss, shapes = loss_of(list(functions)), ({0: Dim("N")},)
    return gradients(Scaled(), loss, (torch.randn(SHAPE),), dynamic_shapes=shapes, check=False).model.graph


def test_sums_are_along_rows_and_not_reversed() -> None:
    graph = graph_of(*CUMULATIVE[:3])
    counts = Counter(node.op_type for node in graph.node)
    axes = {constant.name: onnx.numpy_helper.to_array(constant) for constant in graph.initializer}
    assert [int(axes[node.input[1]]) for node in graph.node if node.op_type == "CumSum"].count(0) == 4
    assert (counts["CumSum"], counts["Slice"]) == (6, 0)


def test_lookups_are_of_rows() -> None:
    graph = graph_of(LOOKUPS[0], *LOOKUPS[3:5])
    counts = Counter(node.op_type for node in graph.node)
    assert counts["ScatterElements"] == 0
    assert all(attribute.i == 0 for node in graph.node if node.op_type == "Gather" for attribute in node.attribute)


def test_patches_are_transposed() -> None:
    counts = Counter(node.op_type for node in graph_of(*PATCHES[:3]).node)
    assert counts["Transpose"] >= 6
    assert counts["Gather"] == 0
