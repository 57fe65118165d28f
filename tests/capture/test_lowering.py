"""Traced graphs that are lowered to operators with a translation compute what the function computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.nn.functional as functional
from captures import gradients
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import Dim

from onnx_ops.torch.lowering import writes
from onnx_ops.torch.lowering.lower import lowered
from onnx_ops.torch.lowering.translation import registry, translated
from onnx_ops.torch.tracing.explanations import Locations
from onnx_ops.torch.tracing.trace import trace

aten = torch.ops.aten
INTEGERS = torch.arange(1, 5)


def shifted(x: Tensor) -> Tensor:
    """Writes to a part of a tensor that is read through another view."""
    out = torch.zeros_like(x)
    flat = out.view(-1)
    out[:, 1:] = x[:, :-1]
    out[0].mul_(2)
    return flat.cumsum(0)


def in_place(x: Tensor) -> Tensor:
    return functional.relu(x.clone(), inplace=True).add_(x)


def aliased(x: Tensor) -> Tensor:
    """Writes to a tensor that is read before, by another name, and as operand of a write."""
    out = x.clone()
    same, before = out.detach(), out * 2
    out.add_(out).mul_(x).copy_(out + 1)
    return same + before


def seen(x: Tensor) -> Tensor:
    """A write that a view shows, after one of another dtype."""
    out = x.clone().mul_(x.double())
    row, before = out[0], out[0] + 1
    out.exp_()
    return row + before


def powers(x: Tensor) -> Tensor:
    """A write by an operator whose overload without a write of that name takes a tensor for the exponent."""
    return x.abs().add_(1).pow_(-0.5)


def mixed(x: Tensor) -> Tensor:
    """Numbers, a constant from a closure, and tensors of several dtypes."""
    return (x > 0) * INTEGERS + x.double() / 3 + INTEGERS**2 + (1.5 - INTEGERS) * (3.5 // INTEGERS)


def normalized(x: Tensor) -> Tensor:
    """Twice the same running statistics, in place, and what is read of them between and afterwards."""
    mean, variance = torch.zeros(4), torch.ones(4)
    y = functional.hardtanh_(functional.batch_norm(x, mean, variance, training=True, momentum=0.3), -0.5, 0.7)
    between = mean + 2 * variance
    z = functional.batch_norm(y + between, mean, variance, training=True, momentum=0.2)
    return z + between + mean * 3 + variance


def parts(x: Tensor) -> Tensor:
    """Writes to views, and to views of these, and what is read of the memory and of other views in between."""
    z = torch.zeros(len(x), 6)
    view = z[:, 2:5]
    z[:, 1:5] = x
    between = view * 2
    z[:, 0] = x[:, 1]
    z.t()[3].mul_(2)
    view[:, 0].add_(between[:, 1])
    z.scatter_add_(1, x.argsort(1), x)
    return torch.cat([z, view, between], 1)


def decomposed(x: Tensor) -> Tensor:
    """Operators without a translation, twice with the same shapes and once with others."""
    return sum(aten._softmax_backward_data(y, y.exp(), -1, x.dtype).sum() for y in (x, x + 1, x[:, :2]))


def counted(x: Tensor) -> Tensor:
    return x.sum() / x.numel() + x.numel() // 2 * x.shape[0]


def unwanted(x: Tensor) -> Tensor:
    """An operator that does not compute one of its results: LayerNorm on an input without a gradient."""
    weight, bias = torch.ones(4), torch.zeros(4)
    _, mean, rstd = aten.native_layer_norm(x, [4], weight, bias, 1e-5)
    mask = [False, True, True]
    _, by_weight, by_bias = aten.native_layer_norm_backward(x, x, [4], mean, rstd, weight, bias, mask)
    return by_weight + by_bias


FUNCTIONS = [shifted, in_place, aliased, seen, powers, mixed, normalized, parts, decomposed, counted, unwanted]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_lowered_graph_computes_the_same(function: Callable[[Tensor], Tensor]) -> None:
    def named(given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": function(given["x"])}

    where = Locations(torch.nn.Identity())
    traced = trace(named, {"x": torch.randn(3, 4)}, {"x": {0: Dim("N")}}, where)
    graph = lowered(traced.graph, registry(21), traced.mode)
    operators = [node.target for node in graph.graph.nodes if isinstance(node.target, OpOverload)]
    assert not [operator for operator in operators if operator._schema.is_mutable]
    assert operators.count(aten.sym_size.int) <= 1
    translated(graph, registry(21), 21)
    for x in (torch.randn(3, 4), torch.randn(5, 4)):
        (got,), wanted = graph(x), function(x)
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)  # sums in another order


def test_no_source_is_parsed_for_the_translations() -> None:
    with mock.patch.object(inspect, "getsource") as read:
        found = registry.__wrapped__(21)
    assert not read.called
    assert found.functions.keys() == registry(21).functions.keys()


@pytest.mark.parametrize(
    ("function", "tracing"),
    [(in_place, "make_fx"), (aliased, "make_fx"), (normalized, "make_fx"), (parts, "_functionalized")],
)
def test_writes_do_not_trace_the_graph_again(
    function: Callable[[Tensor], Tensor], tracing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do those to whole tensors trace anything."""
    traced = trace(lambda given: {"y": function(given["x"])}, {"x": torch.ones(3, 4)}, {}, Locations(torch.nn.ReLU()))
    monkeypatch.setattr(writes, tracing, None)
    with traced.mode:
        graph = writes.without_writes(traced.graph)
    x = torch.linspace(-1, 2, 12).reshape(3, 4) ** 3
    torch.testing.assert_close(graph(x)[0], function(x))


def test_outputs_that_others_are_computed_from_have_types() -> None:
    """The quotient is computed from the remainder, whose node has no type there."""

    def loss(model: nn.Module, x: Tensor, index: Tensor, count: Tensor) -> dict[str, Tensor]:
        return {"loss": model(x).sum(), "row": index // count, "column": index % count}

    example = torch.zeros(1, 2), torch.tensor([-7, 8]), torch.tensor([3, 5])
    capture = gradients(nn.Linear(2, 1), loss, example)
    assert all(value.type.tensor_type.elem_type for value in capture.model.graph.output)
