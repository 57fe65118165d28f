"""Gradients of slices: pads and concatenations, no nodes with an index for each element."""

from __future__ import annotations

import collections
from collections.abc import Callable

import onnx
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

SCATTERING = {"ScatterElements", "ScatterND"}


def counted(model: onnx.ModelProto) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph.node)


def captured(loss: Callable[[Tensor], Tensor], *, dynamic: bool = False) -> collections.Counter[str]:
    """The nodes of the gradients of a loss of a tensor (N, 7), which the capture compares with PyTorch."""
    torch.manual_seed(0)
    shapes = {"x": {0: Dim("N", min=4)}} if dynamic else None
    model = nn.Linear(3, 7)
    return counted(gradients(model, lambda model, x: loss(model(x)), (torch.randn(6, 3),), dynamic_shapes=shapes).model)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_slices_are_pads(dynamic: bool) -> None:
    def loss(y: Tensor) -> Tensor:
        columns = y[:, 1:3].sum() + (y[:, -2] * y[:, 5:100].sum(1)).sum() + y[:, -3:-1].square().sum()
        spaced = (y[:, 1::3] * y[:, ::3][:, :2]).sum() + y[::2].square().sum() + y[:, 4:4].sum()
        return columns + spaced + (y[1:] * y[:-1]).sum() + y[-1].square().sum() + y[0].square().sum()

    nodes = captured(loss, dynamic=dynamic)
    assert not SCATTERING & nodes.keys()


@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_to_slices_are_concatenated(dynamic: bool) -> None:
    """At the ends and between them, with numbers from the start and from the end of a dynamic axis too."""

    def loss(y: Tensor) -> Tensor:
        z = y * 2
        z[:, 0], z[:, 3], z[:, -1] = y[:, 1].exp(), y[:, 3].square(), 1.0
        z[0], z[2], z[-2], z[-1] = y[1].sin(), y[2].cos(), y[-2] * y[-1], y[0].square()
        z[:, 1:3], z[:, -2:-1], z[:, 4:100], z[:, 2:2] = y[:, :2].cos(), y[:, :1].exp(), y[:, 4:] * 3, y[:, :0]
        z[1:2], z[2:, 3:] = y[:1].tanh(), y[2:, 3:].sin()
        z[1:][:1][:, 2:5] = y[:1, 1:4].exp()
        return z.square().sum() + torch.select_scatter(y, y[:, 0].exp(), -1, -7).cos().sum()

    nodes = captured(loss, dynamic=dynamic)
    assert not SCATTERING & nodes.keys()


@pytest.mark.parametrize("dynamic", [False, True])
def test_other_writes_to_slices(dynamic: bool) -> None:
    """With steps, and from the end of a dynamic axis."""

    def loss(y: Tensor) -> Tensor:
        z = y * 2
        z[:, 1::3], z[::2] = y[:, :2].exp(), y[::2].cos()
        z[-2:], z[-4:-3] = y[:2].square(), y[3:4].sin()
        return z.square().sum()

    captured(loss, dynamic=dynamic)


def test_gradients_of_every_second_element_are_selections() -> None:
    """Pads of single elements take ten times as long."""
    nodes = captured(lambda y: y[:, 1::2].square().sum() + y[:, :-1].unflatten(1, (3, 2))[..., ::2].exp().sum())
    assert nodes["Where"] + nodes["SWhere"] == 2


def test_circular_pads_are_concatenated() -> None:
    def loss(y: Tensor) -> Tensor:
        return functional.pad(y, (2, 1), "circular").exp().sum() + functional.pad(y, (-1, 3), "circular").sin().sum()

    nodes = captured(loss)
    assert nodes["Concat"] >= 2
    assert not SCATTERING & nodes.keys()


def test_adjacent_slices_are_concatenated() -> None:
    def loss(y: Tensor) -> Tensor:
        last, first, middle = y[:, 5:], y[:, :2], y[:, 2:5]
        rows = torch.stack([y[2] * y[3], y[4].square()])
        return (first * last).sum() + middle.square().sum() + y.square().sum() + rows.sum()

    nodes = captured(loss)
    assert nodes["Concat"] >= 2  # the columns, and rows 2 to 4
    assert nodes["Pad"] == 1  # the rows together
    assert not SCATTERING & nodes.keys()


def test_overlapping_slices_are_added() -> None:
    nodes = captured(lambda y: (y[:, :4] * y[:, 3:]).sum() + y[:, 2:4].square().sum())
    assert nodes["Pad"] >= 2


def test_attention_in_pytorch_has_one_concatenation_of_its_projections() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    nodes = counted(gradients(model, lambda m, x: m(x, x, x)[0].square().sum(), (torch.randn(2, 5, 8),)).model)
    assert not (SCATTERING | {"Pad"}) & nodes.keys()


def test_powers_are_products() -> None:
    assert "Pow" not in captured(lambda y: (y**2 + y**3.0 + (y**2).mean(-1, keepdim=True)).sum())


def test_a_sum_has_no_factor_of_1() -> None:
    model = captured(lambda y: (y + y.exp() - y.tanh()).sum())
    assert model["Mul"] <= 4
