"""Results of normalizations that the backward pass computes again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from captures import compared, gradients, training_step
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch.capture import Capture


class Normalized(nn.Module):
    """A normalization without bias, one of two axes without weights, and one after a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.LayerNorm(width, bias=False), nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, 3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.wide(self.first(x)))
        hidden = nn.functional.layer_norm(hidden, hidden.shape[1:])
        x = self.last(x + self.narrow(hidden))
        return self.head(x) + x.sum(-1, keepdim=True)


class NormalizedByRms(nn.Module):
    """Without a bias, of two axes without weights, and after a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, 3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.wide(self.first(x)))
        hidden = nn.functional.rms_norm(hidden, hidden.shape[1:])
        x = self.last(x + self.narrow(hidden))
        return self.head(x) + x.sum(-1, keepdim=True)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def data(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 6, width, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def later_readers(captured: Capture) -> list[str]:
    """Names of the nodes that read a result of a normalization, or a Reshape of it, and that the loss does not."""
    graph = captured.model.graph
    producer = {name: node for node in graph.node for name in node.output}
    before: list[onnx.NodeProto] = []
    pending = ["loss"]
    while pending:
        node = producer.get(pending.pop())
        if node is not None and node not in before:
            before.append(node)
            pending += node.input
    results = {node.output[0] for node in before if node.op_type in ("LayerNormalization", "RmsNorm")}
    results |= {node.output[0] for node in before if node.op_type == "Reshape" and node.input[0] in results}
    return [node.name for node in graph.node if node not in before and results.intersection(node.input)]


@pytest.mark.parametrize("make", [Normalized, NormalizedByRms])
@pytest.mark.parametrize("dims", [{}, {0: Dim("rows")}], ids=["static", "dynamic"])
def test_gradients_after_normalization_are_those_of_pytorch(
    dims: dict[int, Dim], make: Callable[[int], nn.Module]
) -> None:
    torch.manual_seed(0)
    model, rows = make(64), 200
    examples = [data(rows, 64), data(7 if dims else rows, 64, seed=1)]
    assert later_readers(compared(model, loss, examples, dims)) == []


def test_small_results_stay_in_memory() -> None:
    """They are not computed again; nor is what only the forward pass reads."""
    torch.manual_seed(0)
    captured = gradients(Normalized(8), loss, (data(5, 8),), check=False)
    assert len(later_readers(captured)) == 3


@pytest.mark.parametrize("make", [Normalized, NormalizedByRms])
def test_weights_of_a_normalization_are_updated_after_the_backward_pass_has_read_them(
    make: Callable[[int], nn.Module],
) -> None:
    torch.manual_seed(0)
    model, rows = make(8), Dim("rows")
    optimizer = torch.optim.AdamW(model.parameters())
    captured = training_step(model, loss, (data(5, 8),), optimizer, dynamic_shapes=({0: rows},))
    assert later_readers(captured) == []
    trainer = onnx_ops.Trainer(captured)
    for count in (5, 9, 3):
        x = data(count, 8, seed=count)
        optimizer.zero_grad()
        value = loss(model, x)
        value.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], value.item(), rtol=1e-5)
