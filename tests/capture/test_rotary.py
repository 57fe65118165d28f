"""Rotary position embeddings in captured steps, compared with PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import compared, gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch.capture import Capture

HEADS, FEATURES = 2, 16
WIDTH = HEADS * FEATURES
DIMS = {0: Dim("N"), 1: Dim("T", min=2)}
OPS = ("RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad")
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


def counts(captured: Capture) -> Counter[str]:
    return Counter(node.op_type for node in captured.model.graph.node)


def rotary(captured: Capture) -> tuple[int, ...]:
    """The numbers of nodes of the ops."""
    return tuple(counts(captured)[op_type] for op_type in OPS)


def turned(x: Tensor) -> Tensor:
    """transformers' rotate_half."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def llama(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (x * cos) + (turned(x) * sin)


def chunked(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return sin * torch.cat([-second, first], dim=3) + cos * x


def partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As in GPT-NeoX."""
    size = FEATURES // 2
    return torch.cat((llama(x[..., :size], cos[..., :size], sin[..., :size]), x[..., size:]), -1)


def twice(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return llama(llama(x, cos, sin) + x, cos, sin)


def doubled(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A sum that has one term twice."""
    return x * cos + x * cos + turned(x) * sin


def angles(time: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (time, FEATURES)."""
    frequencies = 100.0 ** -torch.linspace(0, 1, FEATURES // 2, dtype=like.dtype)
    emb = torch.outer(torch.arange(time, dtype=like.dtype), frequencies).repeat(1, 2)
    return emb.cos(), emb.sin()


class Rotated(nn.Module):
    """Between linear layers.

    Args:
        form: a rotary embedding.
        by_position: whether the heads come after the positions, as a projection has them.
        by_sample: whether each sample has angles of its own.
    """

    def __init__(self, form: Form, by_position: bool = False, by_sample: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.by_position, self.by_sample = form, by_position, by_sample
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.first(x).unflatten(-1, (HEADS, FEATURES))
        cos, sin = angles(x.shape[1], x)
        if self.by_sample:
            factors = 1 + torch.arange(x.shape[0], dtype=x.dtype)[:, None, None]
            cos, sin = cos * factors, sin * factors
        else:
            cos, sin = cos[None], sin[None]
        axis = 2 if self.by_position else 1
        heads = heads if self.by_position else heads.transpose(1, 2)
        result = self.form(heads, cos.unsqueeze(axis), sin.unsqueeze(axis))
        return self.last((result if self.by_position else result.transpose(1, 2)).flatten(2))


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * torch.linspace(-1, 2, 3, dtype=x.dtype)).square().mean()


def rows(batch: int, time: int = 5) -> Tensor:
    return torch.randn(batch, time, WIDTH, generator=torch.Generator().manual_seed(batch))


BATCHES = [rows(3), rows(1, 7), rows(6, 2)]


@pytest.mark.parametrize("form", [llama, chunked, partial, twice, doubled])
def test_by_op(form: Form) -> None:
    expected = 2 if form is twice else 1
    captured = compared(Rotated(form), loss, BATCHES, DIMS)
    assert rotary(captured) == (expected, expected)
    assert not counts(captured)["Neg"]


@pytest.mark.parametrize(
    ("by_position", "by_sample"),
    [(False, True), (True, False), pytest.param(True, True, marks=pytest.mark.full)],
)
def test_layouts_of_heads_and_angles(by_position: bool, by_sample: bool) -> None:
    assert rotary(compared(Rotated(llama, by_position, by_sample), loss, BATCHES, DIMS)) == (1, 1)


def test_numbers_that_are_not_finite() -> None:
    """As in eager PyTorch."""
    model = Rotated(llama)
    captured = gradients(model, loss, (rows(3),))
    assert rotary(captured) == (1, 1)
    session = onnx_ops.InferenceSession(captured.model)
    for value in (np.nan, np.inf, -np.inf):
        x = rows(3)
        x[1, 2, 3] = value
        (got,) = session.run(["grad.first.weight"], captured.state | {"x": x.numpy()})
        (wanted,) = torch.autograd.grad(loss(model, x), [model.first.weight])
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted.numpy()))


# --- what no op computes ---------------------------------------------------------------------------------------------


def clockwise(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = FEATURES // 2
    return x * cos + torch.cat((x[..., half:], -x[..., :half]), -1) * sin


def both_negative(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = FEATURES // 2
    return x * cos + torch.cat((-x[..., half:], -x[..., :half]), -1) * sin


def unequal(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 6:], x[..., :6]), -1) * sin


def unequal_chunks(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.split([6, FEATURES - 6], -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def overlapping(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = FEATURES // 2
    return x * cos + torch.cat((-x[..., half:], x[..., 1 : half + 1]), -1) * sin


def strided(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 1::2], x[..., ::2]), -1) * sin


def of_another_axis(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Of the size of the last one."""
    half = FEATURES // 2
    return x * cos + torch.cat((-x[:, :, half:], x[:, :, :half]), 2) * sin


def of_another(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + turned(x.sin()) * sin


def of_two_gradients(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each term is read by a function of its own."""
    return (x * cos).sin() + (turned(x) * sin).tanh()


def subtracted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos - turned(x) * sin


def one_cosine(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos[..., :1] + turned(x) * sin[..., :1]


def of_other_shape(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The sines of one position."""
    return x * cos + turned(x) * sin[:, :, 1:2]


def beyond_x(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The cosines have samples, and the features have one."""
    factors = torch.arange(2, dtype=x.dtype).reshape(2, 1, 1, 1)
    return llama(x.mean(0, keepdim=True), cos * factors, sin * factors).sum(0, keepdim=True) + x


OTHERS = [
    clockwise, both_negative, unequal, unequal_chunks, overlapping, strided, of_another_axis, of_another,
    of_two_gradients, subtracted, one_cosine, of_other_shape, beyond_x,
]  # fmt: skip


@pytest.mark.parametrize("form", OTHERS)
def test_others_stay(form: Form) -> None:
    """Beside one that an op computes."""
    model = Rotated(lambda x, cos, sin: llama(form(x, cos, sin).sin(), cos, sin))
    x = rows(3, FEATURES)
    captured = gradients(model, loss, (x,))
    assert rotary(captured) == (1, 1)
    (got,) = onnx_ops.InferenceSession(captured.model).run(["grad.first.weight"], captured.state | {"x": x.numpy()})
    (wanted,) = torch.autograd.grad(loss(model.double(), x.double()), [model.first.weight])
    np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=1e-5 * max(float(wanted.abs().max()), 1.0))


class Learned(nn.Module):
    """With factors that are parameters, whose gradients need what the op does not return."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.cos, self.sin = nn.Linear(WIDTH, WIDTH), *(nn.Parameter(torch.randn(WIDTH)) for _ in "cs")

    def forward(self, x: Tensor) -> Tensor:
        return llama(self.first(x), self.cos, self.sin)


def test_factors_with_gradients() -> None:
    def own(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sin().square().mean()

    captured = compared(Learned(), own, BATCHES, DIMS)
    assert counts(captured)["RotaryPositionEmbedding"] == 0


def test_16_bit_stays() -> None:
    """PyTorch rounds each product and the sum; the op rounds once."""

    def own(model: nn.Module, x: Tensor) -> Tensor:
        return loss(model, x.to(torch.bfloat16)).float()

    assert rotary(gradients(Rotated(llama).to(torch.bfloat16), own, (rows(3),))) == (0, 0)


def test_inference_has_standard_operators() -> None:
    """As evaluation has: only graphs with gradients have the ops."""
    import onnx_ops.torch

    captured = onnx_ops.torch.gradients(Rotated(llama), lambda model, x: loss(model, x), (rows(3),))
    assert rotary(captured) == (1, 1)
    assert captured.inference is not None
    assert not any(node.op_type in OPS for node in captured.inference.graph.node)


# --- with attention --------------------------------------------------------------------------------------------------


class Attending(nn.Module):
    """Self-attention as in Llama.

    Args:
        key_heads: heads of keys and values, which are repeated as transformers' repeat_kv does.
        form: a rotary embedding.
        by_sample: whether each sample has angles of its own.
        layers: number of them, which share their angles.
    """

    def __init__(self, key_heads: int = HEADS, form: Form = llama, by_sample: bool = False, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.key_heads, self.by_sample = form, key_heads, by_sample
        sizes = (WIDTH, *[key_heads * FEATURES] * 2, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, size) for size in sizes) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = (a[None, None] for a in angles(x.shape[1], x))
        if self.by_sample:
            factors = 1 + torch.arange(x.shape[0], dtype=x.dtype)[:, None, None, None]
            cos, sin = cos * factors, sin * factors
        for queries, keys, values, last in self.layers:  # type: ignore[misc]
            q, k, v = (layer(x).unflatten(-1, (-1, FEATURES)).transpose(1, 2) for layer in (queries, keys, values))
            q, k = self.form(q, cos, sin), self.form(k, cos, sin)
            k, v = (self.repeated(tensor) for tensor in (k, v))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + last(attended.transpose(1, 2).reshape(*x.shape))
        return x

    def repeated(self, x: Tensor) -> Tensor:
        count = HEADS // self.key_heads
        if count == 1:
            return x
        batch, heads, time, features = x.shape
        return x[:, :, None].expand(batch, heads, count, time, features).reshape(batch, -1, time, features)


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sin().square().mean()


@pytest.mark.parametrize(
    ("by_sample", "layers"),
    [
        (False, 1),
        (True, 2),
        pytest.param(False, 2, marks=pytest.mark.full),
        pytest.param(True, 1, marks=pytest.mark.full),
    ],
)
def test_attention_without_transposes(by_sample: bool, layers: int) -> None:
    """But for those of cosines and sines, which all layers share."""
    captured = compared(Attending(by_sample=by_sample, layers=layers), squares, BATCHES, DIMS)
    assert rotary(captured) == (2 * layers, 2 * layers)
    transposes = [node for node in captured.model.graph.node if node.op_type == "Transpose"]
    heads = [node for node in transposes if list(node.attribute[0].ints) == [0, 2, 1, 3]]
    assert len(heads) == 2
    assert len({node.input[0] for node in heads}) == 2


@pytest.mark.parametrize("form", [llama, pytest.param(partial, marks=pytest.mark.full)])
def test_attention_with_repeated_keys(form: Form) -> None:
    assert rotary(compared(Attending(1, form), squares, BATCHES, DIMS)) == (2, 2)


def test_embedding_that_is_read_twice() -> None:
    """By attention and by a linear layer."""

    class Both(Attending):
        def forward(self, x: Tensor) -> Tensor:
            cos, sin = (a[None, None] for a in angles(x.shape[1], x))
            queries, keys, values, last = self.layers[0]  # type: ignore[misc]
            q, k, v = (layer(x).unflatten(-1, (-1, FEATURES)).transpose(1, 2) for layer in (queries, keys, values))
            q, k = llama(q, cos, sin), llama(k, cos, sin)
            attended = functional.scaled_dot_product_attention(q, k, v) + q.square() + functional.relu(k)
            return last(attended.transpose(1, 2).flatten(2))

    assert rotary(compared(Both(), squares, BATCHES, DIMS)) == (2, 2)
