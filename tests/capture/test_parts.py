"""Parts of stacks are read from what was stacked."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from captures import gradients
from torch import Tensor, nn


@pytest.mark.parametrize(
    ("axis", "selected", "place", "lookups"), [(-1, 2, 0, 1), (0, 0, 1, 1), (1, -2, -2, 1), (0, 1, 1, 3), (-1, 1, 0, 3)]
)
def test_parts(axis: int, selected: int, place: int, lookups: int) -> None:
    """Other lookups than that of zeros are those along another axis; the capture compares the results."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return torch.stack([y.sin(), y.exp()], axis).select(selected, place).square().sum()

    torch.manual_seed(0)
    captured = gradients(nn.Linear(3, 4), loss, (torch.randn(5, 3),))
    kinds = Counter(node.op_type for node in captured.model.graph.node)
    assert kinds["Gather"] == lookups


def test_a_part_is_a_result() -> None:
    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        y = model(x)
        return {"loss": y.sum(), "part": torch.stack([y.detach(), y.detach().exp()], -1)[..., 0]}

    graph = gradients(nn.Linear(3, 4), loss, (torch.randn(5, 3),)).model.graph
    kinds = Counter(node.op_type for node in graph.node)
    assert (kinds["Gather"], kinds["Exp"]) == (0, 0)
