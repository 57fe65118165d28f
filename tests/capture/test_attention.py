"""Scaled dot-product attention: captures, which compare their numbers with PyTorch's, and the nodes that they have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from captures import gradients
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention

import onnx_ops

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 3


class Heads(nn.Module):
    """Projects (N, L, 6) to queries and (N, S, 6) to keys and values, and attends."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], key_heads: int = HEADS) -> None:
        super().__init__()
        self.attend, self.key_heads = attend, key_heads
        self.query, self.key = nn.Linear(6, HEADS * WIDTH), nn.Linear(6, key_heads * WIDTH)
        self.value = nn.Linear(6, key_heads * WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, QUERIES, KEYS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        query, key, value = (
            project(given).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
            for project, given in ((self.query, x), (self.key, y), (self.value, y))
        )
        return self.attend(query, key, value)


def masked(generator: torch.Generator, *shape: int) -> Tensor:
    """A random mask; the first query attends to no key."""
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[..., 1:, 0] = True
    mask[..., 0, :] = False
    return mask


MASK = masked(torch.Generator().manual_seed(0), BATCH, 1, QUERIES, KEYS)
FLOATS = torch.where(MASK, torch.linspace(-1, 1, KEYS), -math.inf)
CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": scaled_dot_product_attention,
    "causal": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
    "bool": lambda q, k, v: scaled_dot_product_attention(q, k, v, MASK),
    "float": lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=FLOATS[0, 0]),
    "one_head": lambda q, k, v: scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0], FLOATS[:, 0]),
    "broadcast": lambda q, k, v: scaled_dot_product_attention(q, k[:1, :1], v[:, :1]),
    "matrices": lambda q, k, v: scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]),
    "five_axes": lambda q, k, v: scaled_dot_product_attention(
        *(tensor.unflatten(1, (2, 2)) for tensor in (q, k, v)), MASK[:, None]
    ),
    "grouped": lambda q, k, v: scaled_dot_product_attention(q, k[:, :2], v[:, :2], FLOATS, enable_gqa=True),
    "dropped": lambda q, k, v: scaled_dot_product_attention(q, k[:, :2], v[:, :2], MASK, 0.3, enable_gqa=True),
    "dropped_once": lambda q, k, v: scaled_dot_product_attention(
        q, k, scaled_dot_product_attention(k, k, v), dropout_p=0.3
    ),
    "grouped_apart": lambda q, k, v: scaled_dot_product_attention(q, k[:, :2], v[:, :1], enable_gqa=True),
}
OPS = {"FlashAttentionScore", "FlashAttentionScoreGrad"}


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH, QUERIES, 6, dtype=dtype), torch.randn(BATCH, KEYS, 6, dtype=dtype)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x, y).float().square().sum()


def op_types(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("call", CALLS)
def test_gradients_are_those_of_pytorch(call: str) -> None:
    args = inputs()
    model = gradients(Heads(CALLS[call]), loss, args).model
    assert op_types(model) >= OPS
    assert not {"Softmax", "ReduceMin", "Equal"} & op_types(model)


def test_inference_without_ops_of_this_domain() -> None:
    capture = gradients(Heads(CALLS["bool"]), loss, inputs(), inference=True)
    assert capture.inference is not None
    assert {node.domain for node in capture.inference.graph.node} == {""}
    assert op_types(capture.inference) >= {"Softmax"}


def test_dynamic_sizes() -> None:
    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = torch.arange(key.shape[-2]) <= torch.arange(query.shape[-2])[:, None] + 1
        return scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)

    x, y = inputs()
    n, queries, keys = Dim("n"), Dim("queries"), Dim("keys")
    model = Heads(causal, key_heads=2)
    shapes = {"x": {0: n, 1: queries}, "y": {0: n, 1: keys}}
    assert op_types(gradients(model, loss, (x, y), dynamic_shapes=shapes).model) >= OPS


@pytest.mark.parametrize("bias", [causal_lower_right, causal_upper_left])
@pytest.mark.parametrize("keys", [KEYS, QUERIES])
def test_causal_biases(bias: Callable[..., CausalBias], keys: int) -> None:
    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, bias(query.shape[-2], key.shape[-2]))

    x, y = inputs()
    n, time = Dim("n"), Dim("time")
    shapes = {"x": {0: n, 1: time}, "y": {0: n, 1: time if keys == QUERIES else Dim("keys")}}
    gradients(Heads(causal), loss, (x, y[:, :keys]), dynamic_shapes=shapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_not_finite(dtype: torch.dtype) -> None:
    """The captured graph has NaN and infinity where PyTorch has them."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones((), dtype=dtype))

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
            return self.factor * scaled_dot_product_attention(query, key, value, mask)

    def weighted(model: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return (model(query, key, value, mask) * torch.arange(1, 1 + WIDTH)).sum()

    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(BATCH, HEADS, length, WIDTH, generator=generator, dtype=dtype).requires_grad_()
        for length in (QUERIES, KEYS, KEYS)
    )
    model = Product()
    session = onnx_ops.InferenceSession(gradients(model, weighted, (query, key, value, MASK)).model)
    for place, number in [(0, math.nan), (1, math.nan), (1, math.inf), (2, math.nan), (2, -math.inf)]:
        tensors = [tensor.detach().clone() for tensor in (query, key, value)]
        tensors[place][0, 0, -1, 0] = number
        for tensor in tensors:
            tensor.requires_grad_()
        result = weighted(model, *tensors, MASK)
        wanted = [result, *torch.autograd.grad(result, tensors)]
        names = ["loss", *(f"grad.{name}" for name in ("query", "key", "value"))]
        given = dict(zip(("query", "key", "value", "mask"), (*tensors, MASK), strict=True))
        feeds = {name: tensor.detach().numpy() for name, tensor in given.items()} | {
            "factor": np.ones((), value.detach().numpy().dtype)
        }
        for name, got, expected in zip(names, session.run(names, feeds), wanted, strict=True):
            np.testing.assert_allclose(
                got, expected.detach().numpy(), rtol=0, atol=1e-5, err_msg=f"{place} {number} {name}"
            )


def test_learnt_bias_and_grouped_heads_with_dynamic_sizes() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = model.bias[:, : query.shape[-2], : key.shape[-2]]
        return scaled_dot_product_attention(query, key, value, bias, 0.2, enable_gqa=True)

    args = inputs()
    model = Heads(attend, key_heads=2)
    n = Dim("n")
    captured = gradients(model, loss, args, dynamic_shapes={"x": {0: n}, "y": {0: n}}).model
    assert not OPS & op_types(captured)


@pytest.mark.parametrize(
    ("dtype", "call"), [(torch.float64, "causal"), (torch.float64, "dropped"), (torch.bfloat16, "bool")]
)
def test_other_dtypes(dtype: torch.dtype, call: str) -> None:
    args = inputs(dtype)
    assert op_types(gradients(Heads(CALLS[call]).to(dtype), loss, args).model) >= OPS


def test_a_mask_in_float32_of_16_bit_queries() -> None:
    def attend(*tensors: Tensor) -> Tensor:
        return scaled_dot_product_attention(*tensors, FLOATS / 3)

    args = inputs(torch.bfloat16)
    assert op_types(gradients(Heads(attend).bfloat16(), loss, args).model) >= OPS


def test_under_autocast() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result = scaled_dot_product_attention(query.float(), key.float(), value.float(), FLOATS)
        assert result.dtype is torch.bfloat16
        return result

    def narrow(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, x, y)

    args = inputs()
    assert op_types(gradients(Heads(attend), narrow, args).model) >= OPS


@pytest.mark.parametrize("call", ["causal", "dropped"])
def test_gradients_of_gradients(call: str) -> None:
    def penalized(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(loss(model, x, y), x, create_graph=True)
        return slope.square().sum()

    x, y = inputs()
    gradients(Heads(CALLS[call]), penalized, (x.requires_grad_(), y))


# --- layouts ---------------------------------------------------------------------------------------------------------


class Projections(nn.Module):
    """Projects x (N, L, 6) to two heads of queries, keys and values, and attends."""

    def __init__(self, size: int, case: str) -> None:
        super().__init__()
        self.size, self.case = size, case
        self.projections = nn.ModuleList(nn.Linear(6, 2 * size) for _ in range(3))
        self.result = nn.Linear(2 * size, 6)

    def forward(self, x: Tensor, value: Tensor) -> Tensor:
        def heads(number: int) -> Tensor:
            return self.projections[number](x).unflatten(-1, (2, self.size)).transpose(1, 2)

        query, key, value = heads(0), heads(1), value if self.case == "before" else heads(2)
        if self.case == "turned":
            query, key, value = query.flip(-1), key.flip(-1), value.flip(-1)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        if self.case == "twice":  # keys and values of two
            mixed = mixed + scaled_dot_product_attention(query, mixed, key)
        found = self.result(mixed.transpose(1, 2).flatten(2))
        if self.case == "elsewhere":
            found = found + (mixed * query).sum((1, 3)).unsqueeze(-1)
        return found


def squares(model: nn.Module, x: Tensor, value: Tensor) -> Tensor:
    return model(x, value).square().mean()


@pytest.mark.parametrize(
    ("case", "size", "transposes", "first"),
    [
        pytest.param("projected", 16, 0, False, id="projected"),
        pytest.param("projected", 8, 8, True, id="parts of cache lines"),
        pytest.param("elsewhere", 16, 6, False, id="read elsewhere"),
        pytest.param("before", 16, 2, False, id="values in the first layout, whose gradient is an output"),
        pytest.param("turned", 16, 8, True, id="nothing is saved"),
        pytest.param("twice", 16, 8, True, id="the same tensors of two"),
    ],
)
def test_heads_are_read_where_projections_have_them(case: str, size: int, transposes: int, first: bool) -> None:
    torch.manual_seed(0)
    model, n, length = Projections(size, case), Dim("n"), Dim("length")
    x, value = torch.randn(3, 5, 6), torch.randn(3, 2, 5, size, requires_grad=True)
    shapes = {"x": {0: n, 1: length}, "value": {0: n, 2: length}}
    capture = gradients(model, squares, (x, value), dynamic_shapes=shapes)
    axes = [list(a.ints) for node in capture.model.graph.node for a in node.attribute if a.name == "perm"]
    found = sum(len(perm) == 4 for perm in axes)
    assert found == transposes
    layouts = {a.i for node in capture.model.graph.node for a in node.attribute if a.name == "input_layout"}
    assert layouts == {0 if first else 1}

    session = onnx_ops.InferenceSession(capture.model)
    x, value = torch.randn(2, 7, 6), torch.randn(2, 2, 7, size, requires_grad=True)
    wanted = squares(model, x, value)
    given = {**dict(model.named_parameters()), "value": value}
    unused = "projections.2" if case == "before" else "value"
    given = {name: tensor for name, tensor in given.items() if not name.startswith(unused)}
    names, slopes = list(given), torch.autograd.grad(wanted, list(given.values()))
    feeds = capture.state | {"x": x.numpy(), "value": value.detach().numpy()}
    got = session.run(["loss", *(f"grad.{name}" for name in names)], feeds)
    for name, array, tensor in zip(["loss", *names], got, (wanted.detach(), *slopes), strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=1e-6, err_msg=name)


# --- nn.MultiheadAttention -------------------------------------------------------------------------------------------


def upper(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def of_heads(x: Tensor) -> Tensor:
    """Numbers for each sample and head, of positions."""
    return x.square().sum(-1).repeat_interleave(2, 0)[:, None].expand(-1, x.shape[1], -1)


Layer = nn.MultiheadAttention
MULTI_HEAD: dict[str, tuple[dict[str, Any], Callable[[Layer, Tensor, Tensor], Tensor]]] = {
    "self": ({}, lambda m, x, y: m(x, x, x, need_weights=False)[0]),
    "cross": ({"bias": False}, lambda m, x, y: m(x, y, y, need_weights=False)[0]),
    "all apart": ({}, lambda m, x, y: m(x, y, y.flip(2), need_weights=False)[0]),
    "own projections": ({"kdim": 4, "vdim": 3}, lambda m, x, y: m(x, y[..., :4], y[..., 1:4], need_weights=False)[0]),
    "padding": ({}, lambda m, x, y: m(x, y, y, y[..., 0] > y[:, :1, 0], need_weights=False)[0]),
    "causal": ({}, lambda m, x, y: m(x, x, x, attn_mask=upper(x), is_causal=True, need_weights=False)[0]),
    "causal and padding": (
        {},
        lambda m, x, y: m(x, x, x, x[..., 0] > x[:, :1, 0], False, upper(x), is_causal=True)[0],
    ),
    "masks of heads": ({}, lambda m, x, y: m(x, x, x, attn_mask=of_heads(x), need_weights=False)[0]),
    "positions first": ({"batch_first": False}, lambda m, x, y: m(x, y, y, need_weights=False)[0]),
    "weights": ({}, lambda m, x, y: (lambda z, w: z[..., :1] + w)(*m(x, y, y, y[..., 0] > y[:, :1, 0]))),
    "more keys": ({"add_bias_kv": True, "add_zero_attn": True}, lambda m, x, y: m(x, x, x, need_weights=False)[0]),
    "one sample": ({}, lambda m, x, y: m(x[0], y[0], y[0], need_weights=False)[0]),
    "dropped": ({"dropout": 0.3}, lambda m, x, y: m(x, y, y, need_weights=False)[0]),
}
"""Options and calls, of x (N, L, 6) and y (N, S, 6)."""


@pytest.mark.parametrize("case", names_with(full=["self", "causal and padding"], names=MULTI_HEAD))
def test_multi_head_attention(case: str) -> None:
    torch.manual_seed(0)
    options, call = MULTI_HEAD[case]
    model = Layer(6, 2, **{"batch_first": True, **options})

    def weighted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        result = call(cast(Layer, model), x, y)
        return (result * torch.linspace(-1, 2, result.shape[-1])).square().mean()

    n, queries, keys = Dim("n"), Dim("queries"), Dim("keys")
    axes = [0, 1] if options.get("batch_first", True) else [1, 0]
    shapes = [dict(zip(axes, dims, strict=True)) for dims in ((n, queries), (n, keys))]
    x, y = torch.randn(3, 5, 6), torch.randn(3, 4, 6)
    if case == "positions first":
        x, y = x.mT.reshape(5, 3, 6), y.mT.reshape(4, 3, 6)
    capture = gradients(model, weighted, (x, y), dynamic_shapes=tuple(shapes))
    assert (op_types(capture.model) >= OPS) == (case != "weights")
    if case == "dropped":  # with the random numbers of the capture's check alone
        return
    session = onnx_ops.InferenceSession(capture.model)
    x, y = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
    if case == "positions first":
        x, y = x.mT.reshape(3, 2, 6), y.mT.reshape(5, 2, 6)
    wanted = weighted(model, x, y)
    slopes = torch.autograd.grad(wanted, list(model.parameters()))
    names = ["loss", *(f"grad.{name}" for name, _ in model.named_parameters())]
    got = session.run(names, capture.state | {"x": x.numpy(), "y": y.numpy()})
    for name, array, tensor in zip(names, got, (wanted.detach(), *slopes), strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=1e-6, err_msg=name)
