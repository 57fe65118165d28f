"""Windows along an axis as slices of blocks, and their gradients as sums of these, compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captures import compared_at, gradients
from torch import Tensor, nn
from torch.export import Dim

LOOKUPS = {"EmbeddingDenseBackward", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"}
IN_BLOCKS: dict[str, Callable[[Tensor], Tensor]] = {
    "frames": lambda x: x.unfold(-1, 16, 4),
    "half": lambda x: x.unfold(-1, 8, 4)[..., 1:, :],
    "all_elements": lambda x: x.unfold(2, 12, 12),
    "rest_and_gaps": lambda x: x.unfold(2, 8, 20),
    "one_window": lambda x: x.unfold(-1, 48, 24),
    "first_axes": lambda x: x.repeat(1, 3, 1).unfold(1, 12, 4),
    "two_steps": lambda x: x.unfold(-1, 12, 8),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "each_element": lambda x: x.unfold(-1, 3, 1),
    "many_blocks": lambda x: x.unfold(-1, 20, 4),
    "no_window": lambda x: x.unfold(-1, 0, 5).sum(-1),
}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 12).reshape(12, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize("name", [*IN_BLOCKS, *OTHERS])
def test_gradients(name: str) -> None:
    function = (IN_BLOCKS | OTHERS)[name]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = function(model(x))
        return (y * torch.linspace(-1, 1, y.shape[-1])).sin().square().sum()

    compared_at(Scaled(), loss, [(3, 12, 50), (1, 12, 50), (5, 12, 50)], Dim("N"))
    if name in IN_BLOCKS:
        capture = gradients(Scaled(), loss, (torch.randn(3, 12, 50),), check=False)
        assert not LOOKUPS & {node.op_type for node in capture.model.graph.node}
