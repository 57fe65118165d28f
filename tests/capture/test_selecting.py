"""Selections by a condition in captured steps."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
import onnx_ops.torch
from onnx_ops.torch.capture import Capture

SPECIAL = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, -1e-45)


TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-13}
"""Of the largest entry: sums of some thousand terms of either sign."""


class Selecting(nn.Module):
    """PReLU of one slope and of one per channel, leaky ReLU, and a mask that broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.many = nn.PReLU(init=0.3), nn.PReLU(4, init=-0.7)
        self.many.weight.data.mul_(torch.arange(1.0, 5.0))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.many(self.one(x) * 2)
        x = functional.leaky_relu(x, 0.2)
        return torch.where(mask, x, x * x)


def loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    y = model(x, mask)
    return torch.where(y.isfinite(), y, 0.5 * x).nansum()


def batch(rows: int, seed: int, dtype: torch.dtype, special: tuple[float, ...] = ()) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, 9, 11, generator=generator, dtype=torch.float64).to(dtype)
    x.view(-1)[: len(special)] = torch.tensor(special).to(dtype)
    return x.requires_grad_(), torch.rand(rows, 1, 9, 1, generator=generator) < 0.5


def kinds(captured: Capture) -> Counter[str]:
    return Counter(node.op_type for node in captured.model.graph.node)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_selections_are_those_of_pytorch(dtype: torch.dtype) -> None:
    """With special values, at another batch size and other slopes; the op has replaced all selections."""
    model, rows = Selecting().to(dtype), Dim("rows")
    shapes = {"x": {0: rows}, "mask": {0: rows}}
    captured = gradients(model, loss, batch(7, 0, dtype), dynamic_shapes=shapes, check=False)
    found = kinds(captured)
    assert found["SWhere"] >= 7
    assert found["Where"] == found["PRelu"] == 0
    session = onnx_ops.InferenceSession(captured.model)
    with torch.no_grad():
        for number, slope in enumerate(model.parameters()):
            slope.add_(0.1 * number + 0.05)
    state = {name: value.detach().numpy() for name, value in model.named_parameters()}
    names = ["grad.x", *(f"grad.{name}" for name in state)]
    for special in ((), SPECIAL):  # not finite, which makes gradients of slopes NaN
        x, mask = batch(13, 1, dtype, special)
        wanted = torch.autograd.grad(loss(model, x, mask), [x, *model.parameters()])
        got = session.run(names, state | {"x": x.detach().numpy(), "mask": mask.numpy()})
        for name, array, tensor in zip(names, got, wanted, strict=True):
            assert special or tensor.isfinite().all()
            largest = float(tensor.nan_to_num(0, 0, 0).abs().max())
            np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=TOLERANCE[dtype] * largest, err_msg=name)


def test_small_tensors_integers_and_exported_models_keep_operators_of_onnx() -> None:
    """onnxruntime's Where is as fast for few elements; exported models need no op of the domain."""

    def chosen(model: nn.Module, x: Tensor, indices: Tensor) -> Tensor:
        few = torch.where(x[0, :5] > 0, x[0, :5], x[1, :5] * 2)
        rows = torch.where(indices > 3, indices, indices * 0)
        return (model(x)[rows] * few.sum()).sum()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40), nn.PReLU())
    examples = torch.randn(64, 40), torch.arange(2000) % 64
    captured = onnx_ops.torch.gradients(model, chosen, examples)
    found = kinds(captured)
    assert found["Where"] >= 2
    assert found["SWhere"] == 3
    assert captured.inference is not None
    assert {node.domain for node in captured.inference.graph.node} == {""}


@pytest.mark.parametrize("name", ["log1p", "atan2", "erfc"])
def test_selections_within_the_translation_of_an_operator(name: str) -> None:
    """Of its values the graph has no types, but those that they are computed from, through casts and many nodes."""
    function = {"log1p": torch.log1p, "atan2": lambda x: torch.atan2(x, x + 1), "erfc": torch.special.erfc}[name]
    captured = gradients(nn.Linear(4, 4), lambda m, x: function(m(x).square()).mean(), (torch.randn(300, 4),))
    assert kinds(captured)["SWhere"] >= 1
    assert kinds(captured)["Where"] == 0
