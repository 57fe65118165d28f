"""Losses and layers that a capture exports as ops of this domain: their nodes, and their results as in PyTorch."""

from __future__ import annotations

import collections
import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from captures import gradients
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.functional import kl_div as k

import onnx_ops
from onnx_ops.torch import CaptureError, translation_table, whole_ops

N = Dim("N")
pytestmark = [
    pytest.mark.filterwarnings("ignore:size_average and reduce args:UserWarning"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
]


class Parameter(nn.Module):
    """Its only parameter, so that a loss of it has its gradient."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value.detach().clone())

    def forward(self) -> Tensor:
        return self.value


def nodes(model: onnx.ModelProto) -> dict[str, int]:
    """How many nodes of each op of this domain the graph has."""
    return dict(collections.Counter(node.op_type for node in model.graph.node if node.domain == "aclnn"))


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = onnx_ops.InferenceSession(model, options)
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def close(got: np.ndarray, wanted: Tensor, tolerance: float | None = None, size: float = 1e-3) -> None:
    """Equal but for sums in another order and elementary functions of another library: units of the last place.

    Of float16 PyTorch rounds every step of a loss, the nodes once. `size` is that of what the numbers are made of.
    """
    allowed = {torch.float64: 1e-10, torch.float32: 2e-6, torch.float16: 4e-3}.get(wanted.dtype, 0.0)
    expected = wanted.detach().numpy()
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    size = np.abs(expected.astype(np.float64)).max(initial=size, where=np.isfinite(expected))
    np.testing.assert_allclose(got, expected, rtol=0, atol=(tolerance or allowed) * size)


def same_as_torch(
    loss: Callable[..., Tensor],
    value: Tensor,
    *args: Any,
    dynamic: Any = None,
    other: tuple[Any, ...] | None = None,
    oracle: torch.dtype | None = None,
) -> onnx.ModelProto:
    """Capture a loss of a parameter and of arguments, and compare it and all gradients with PyTorch.

    Args:
        loss: of the parameter and the arguments.
        value: of the parameter.
        args: those to capture with.
        dynamic: dynamic_shapes of the arguments.
        other: arguments of other sizes to compare with.
        oracle: the dtype that PyTorch computes in; its own results are off by more than is allowed here.
    """
    model = Parameter(value)
    captured = gradients(model, lambda model, *args: loss(model(), *args), args, dynamic_shapes=dynamic, check=False)
    for given in (args, *([other] if other is not None else [])):
        leaves = [_leaf(a, oracle) for a in given]
        parameter = _leaf(model.value, oracle)
        expected = loss(parameter, *leaves)
        expected.backward()
        feeds = {"value": model.value.detach().numpy()}
        feeds |= {f"args.{i}" if len(args) > 1 else "args.0": a.detach().numpy() for i, a in enumerate(given)}
        got = run(captured.model, {n: a for n, a in feeds.items() if n in {v.name for v in captured.model.graph.input}})
        close(got["loss"], expected if oracle is None else expected.to(value.dtype))
        close(got["grad.value"], parameter.grad.to(value.dtype))
        for i, leaf in enumerate(leaves):
            if leaf.requires_grad:
                close(got[f"grad.args.{i}"], leaf.grad.to(given[i].dtype))
    return captured.model


def _leaf(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor that requires a gradient, in another dtype if it is floating."""
    value = tensor.detach()
    value = value.to(dtype) if dtype is not None and value.is_floating_point() else value
    return value.requires_grad_(tensor.requires_grad)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def parts(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers between 0 and 1."""
    return numbers(*shape, seed=seed, dtype=torch.float64).sigmoid().to(dtype)


DTYPES = names_with(full=[torch.float64], names=[torch.float16, torch.float32, torch.float64])
FLOATS = pytest.mark.parametrize("dtype", DTYPES, ids=str)


# Divergence


@FLOATS
def test_kl_div_in_every_form(dtype: torch.dtype) -> None:
    def loss(x: Tensor, y: Tensor, logs: Tensor) -> Tensor:
        x = x.log_softmax(-1)
        total = functional.kl_div(x, y, reduction="none")[0].sum() + functional.kl_div(x, y, reduction="sum")
        total = total + k(x, y, reduction="batchmean") + nn.KLDivLoss(reduction="batchmean", log_target=True)(x, logs)
        total = total + torch.kl_div(x, logs, 1, log_target=True) + k(x, y, size_average=False)
        return (
            total
            + k(x[0], y, reduction="batchmean")
            + k(x, y[0], reduction="sum")
            + k(x[0, 0], y[0, 0], reduction="batchmean")
        )

    y, logs = parts(3, 4, seed=1, dtype=dtype), parts(3, 4, seed=2, dtype=dtype).log()
    model = same_as_torch(loss, numbers(3, 4, dtype=dtype), y.requires_grad_(), logs.requires_grad_())
    assert nodes(model) == {"KlDiv": 8, "KlDivBackward": 8, "KlDivTargetBackward": 8}


def test_kl_div_of_a_dynamic_batch() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return functional.kl_div(x + 0 * y, y, reduction="batchmean") + functional.kl_div(x, y, reduction="batchmean")

    y = parts(3, 4).requires_grad_()
    same_as_torch(loss, numbers(4), y, dynamic=({0: N},), other=(parts(7, 4, seed=5).requires_grad_(),))


def test_kl_div_of_two_dtypes_and_of_nothing() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        empty = functional.kl_div(x[:0], y[:0].float(), reduction="sum")
        return functional.kl_div(x, y, reduction="sum") + empty

    same_as_torch(loss, numbers(3, 4).log_softmax(-1), parts(3, 4, dtype=torch.float64).requires_grad_())


# Binary cross entropy


@FLOATS
def test_binary_cross_entropy_in_every_form(dtype: torch.dtype) -> None:
    def loss(x: Tensor, y: Tensor, w: Tensor, p: Tensor) -> Tensor:
        bce = functional.binary_cross_entropy_with_logits
        total = bce(x, y) + bce(x, y, w, reduction="sum") + bce(x, y, pos_weight=p, reduction="none")[0].sum()
        total = total + bce(x, y, w, size_average=False, pos_weight=p) + bce(x, y, w[0])
        total = total + nn.BCEWithLogitsLoss(weight=w, pos_weight=p)(x, y)
        return total + torch.binary_cross_entropy_with_logits(x, y, None, None, 2)

    args = (parts(3, 4, seed=1, dtype=dtype).requires_grad_(), parts(3, 1, dtype=dtype), 1 + parts(4, dtype=dtype))
    model = same_as_torch(loss, numbers(3, 4, dtype=dtype), *args)
    name = "BinaryCrossEntropyWithLogits"
    assert nodes(model) == {name: 7, f"{name}Backward": 7, f"{name}TargetBackward": 7}


def test_binary_cross_entropy_of_a_dynamic_batch() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(x.expand(y.shape), y)

    y = parts(3, 4).requires_grad_()
    same_as_torch(loss, numbers(4), y, dynamic=({0: N},), other=(parts(7, 4, seed=5).requires_grad_(),))


def test_binary_cross_entropy_refuses_what_torch_does() -> None:
    x, bce = numbers(3), functional.binary_cross_entropy_with_logits
    with whole_ops():
        with pytest.raises(RuntimeError, match="can't be cast"):
            bce(x, torch.ones(3, dtype=torch.int64))
        with pytest.raises(ValueError, match="Target size"):
            bce(x, torch.ones(2))
        with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
            bce(x, torch.ones(3), torch.ones(3, requires_grad=True))
        with pytest.raises(ValueError, match="batchmean is not a valid value for reduction"):
            bce(x, torch.ones(3), reduction="batchmean")


# Hardshrink


@FLOATS
def test_hardshrink_in_every_form(dtype: torch.dtype) -> None:
    """Limits that float32 rounds are compared with as PyTorch does, in the dtype of the tensor."""
    limits = torch.tensor([0.7, 0.3, -0.7, 0.1], dtype=dtype)

    def loss(x: Tensor) -> Tensor:
        total = functional.hardshrink(x) + 2 * torch.hardshrink(x, 0.7) + 3 * x.hardshrink(0.3)
        return (total + 4 * nn.Hardshrink(0.1)(x) + functional.hardshrink(x, -1.0)).sum()

    model = same_as_torch(loss, torch.cat([numbers(20, dtype=dtype), limits]))
    assert set(nodes(model)) == {"Hardshrink", "HardshrinkBackward"}


# CTC


def ctc_forms(log_probs: Tensor, targets: Tensor, steps: Any, lengths: Any) -> Tensor:
    z = log_probs.log_softmax(-1)
    total = functional.ctc_loss(z, targets, steps, lengths) + nn.CTCLoss(reduction="sum", blank=1)(
        z, targets, steps, lengths
    )
    some = functional.ctc_loss(z, targets, steps, lengths, reduction="none", zero_infinity=True)
    return total + some.reshape(-1)[0] + torch.ctc_loss(z, targets, steps, lengths, 0, 2, True)


@pytest.mark.parametrize(
    ("dtype", "whole"),
    [(torch.float32, torch.int32), pytest.param(torch.float64, torch.int64, marks=pytest.mark.full)],
    ids=str,
)
def test_ctc_of_padded_and_of_concatenated_targets(dtype: torch.dtype, whole: torch.dtype) -> None:
    padded = torch.tensor([[2, 3, 2], [3, 3, 0]], dtype=whole)
    joined = torch.tensor([2, 3, 2, 3, 3], dtype=whole)
    steps, lengths = torch.tensor([7, 6], dtype=whole), torch.tensor([3, 2], dtype=whole)

    def loss(x: Tensor, padded: Tensor, joined: Tensor, steps: Tensor, lengths: Tensor) -> Tensor:
        total = ctc_forms(x, padded, steps, lengths) + 2 * ctc_forms(x, joined, steps, lengths)
        total = total + 3 * ctc_forms(x, padded, (7, 6), [3, 2]) + 4 * ctc_forms(x, joined, (7, 6), (3, 2))
        total = total + 5 * ctc_forms(x, padded, steps.tolist(), lengths.tolist())
        alone = ctc_forms(x[:, 0], padded[0], steps[0], lengths[0]) + ctc_forms(
            x[:, 0], padded[:1], steps[:1], lengths[:1]
        )
        return total + alone + ctc_forms(x[:, 0], padded[0], (7,), (3,))

    model = same_as_torch(loss, numbers(7, 2, 4, dtype=dtype), padded, joined, steps, lengths, oracle=torch.float64)
    assert set(nodes(model)) == {"CtcLoss", "CtcLossBackward"}


def test_ctc_of_dynamic_sizes() -> None:
    def loss(scale: Tensor, x: Tensor, padded: Tensor, joined: Tensor, steps: Tensor, lengths: Tensor) -> Tensor:
        return ctc_forms(x * scale, padded, steps, lengths) + ctc_forms(x * scale, joined, steps, lengths)

    def arguments(time: int, labels: list[list[int]], steps: list[int]) -> tuple[Tensor, ...]:
        lengths = torch.tensor([len(label) for label in labels])
        padded = nn.utils.rnn.pad_sequence([torch.tensor(label) for label in labels], batch_first=True)
        joined = torch.tensor([label for sample in labels for label in sample])
        return numbers(time, len(labels), 5).requires_grad_(), padded, joined, torch.tensor(steps), lengths

    dynamic = ({0: Dim("T"), 1: N}, {0: N, 1: Dim("S")}, {0: Dim("J")}, {0: N}, {0: N})
    first = arguments(9, [[2, 3, 2], [4, 4]], [9, 7])
    other = arguments(13, [[2, 3, 4, 2], [2], [3, 4]], [13, 12, 5])
    same_as_torch(loss, numbers(5), *first, dynamic=dynamic, other=other, oracle=torch.float64)


def test_ctc_without_a_path() -> None:
    def loss(x: Tensor, targets: Tensor) -> Tensor:
        z = x.log_softmax(-1)
        return functional.ctc_loss(z, targets, (2, 7), (3, 2), zero_infinity=True)

    same_as_torch(loss, numbers(7, 2, 4), torch.tensor([[2, 3, 2], [3, 3, 0]]))


# Batch norm


class Norms(nn.Module):
    """Batch norms of three ranks, one after another."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.first = nn.BatchNorm3d(3, **options)
        self.second = nn.BatchNorm2d(3, **options)
        self.third = nn.BatchNorm1d(3, **options)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(parts(3, seed=i) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x * self.scale[:, None, None, None]).square()
        return self.third(self.second(x.flatten(3)).square().flatten(2))


def weighted(x: Tensor) -> Tensor:
    """A sum that no norm makes 0, of gradients that no norm cancels."""
    return (x.square() * torch.linspace(-1, 2, x[0].numel(), dtype=x.dtype).reshape(x[0].shape)).sum()


def norms_same_as_torch(model: nn.Module, x: Tensor, *others: Tensor, dynamic: Any = None) -> onnx.ModelProto:
    """Steps through batch norms, each from the running values of the one before, beside PyTorch's in double."""
    captured = gradients(model, lambda model, x: weighted(model(x)), (x,), dynamic_shapes=dynamic)
    state, twin = dict(captured.state), copy.deepcopy(model).double()
    # In float32 the nodes round three times more than the double oracle in each of the three norms.
    allowed = None if x.dtype is torch.float64 else 1e-5
    for given in (x, *others):
        leaf = given.detach().double().requires_grad_()
        twin.zero_grad()
        loss = weighted(twin(leaf))
        loss.backward()
        got = run(captured.model, state | {"x": given.detach().numpy()})
        close(got["loss"], loss.to(x.dtype), allowed)
        close(got["grad.x"], leaf.grad.to(x.dtype), allowed)
        largest = max(float(tensor.grad.abs().max()) for tensor in (leaf, *twin.parameters()))
        for name, parameter in twin.named_parameters():  # a norm makes the gradient of `scale` nearly 0
            close(got[f"grad.{name}"], parameter.grad.to(x.dtype), allowed, largest)
        for name, buffer in twin.named_buffers():
            if model.training:
                state[name] = got[f"next.{name}"]
            close(state[name], buffer.to(model.get_buffer(name).dtype), allowed)
    return captured.model


TRAINED = {"BatchNormStats", "BatchNormElemt", "BatchNormReduceBackward", "BatchNormElemtBackward"}


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {}),
        pytest.param(torch.float32, {"momentum": None}, marks=pytest.mark.full),
        pytest.param(torch.float32, {"affine": False, "momentum": 0.3}, marks=pytest.mark.full),
        pytest.param(torch.float32, {"track_running_stats": False}, marks=pytest.mark.full),
        pytest.param(torch.float64, {"momentum": 0.3, "eps": 1e-3}, marks=pytest.mark.full),
        (torch.float64, {"momentum": None, "affine": False}),
    ],
    ids=str,
)
def test_batch_norm_in_training(dtype: torch.dtype, options: dict[str, Any]) -> None:
    x, more = numbers(4, 3, 2, 3, 2, dtype=dtype) * 3 + 2, numbers(7, 3, 2, 3, 2, seed=1, dtype=dtype)
    model = Norms(**options).to(dtype)
    graph = norms_same_as_torch(model, x.requires_grad_(), more, dynamic=({0: N},))
    tracks = "track_running_stats" not in options
    assert nodes(graph) == dict.fromkeys(TRAINED | ({"BatchNormGatherStatsWithCounts"} if tracks else set()), 3)


@pytest.mark.parametrize("dtype", names_with(full=[torch.float64], names=[torch.float32, torch.float64]), ids=str)
def test_batch_norm_in_evaluation_while_the_rest_trains(dtype: torch.dtype) -> None:
    model = Norms(eps=1e-3).to(dtype)
    for norm in (model.first, model.second, model.third):
        norm.running_mean.copy_(numbers(3, seed=7))
        norm.running_var.copy_(parts(3, seed=8))
    norms_same_as_torch(model.eval(), numbers(4, 3, 2, 3, 2, dtype=dtype).requires_grad_(), dynamic=({0: N},))


def test_instance_norm_is_a_batch_norm_of_the_channels_of_each_sample() -> None:
    """Sizes are dynamic, and the running statistics have a step."""
    model = nn.InstanceNorm1d(3, affine=True, track_running_stats=True).double()
    x, more = numbers(4, 3, 5, dtype=torch.float64), numbers(2, 3, 7, seed=1, dtype=torch.float64)
    space = Dim("space", min=2)
    captured = gradients(model, lambda model, x: (model(x) * x).sum(), (x,), dynamic_shapes=({0: N, 2: space},))
    trained = TRAINED - {"BatchNormElemtBackward"} | {"BatchNormGatherStatsWithCounts"}  # x has no gradient
    assert nodes(captured.model) == dict.fromkeys(trained, 1)
    got = run(captured.model, captured.state | {"x": more.numpy()})
    ((model(more) * more).sum()).backward()
    for name in ("running_mean", "running_var"):
        close(got[f"next.{name}"], getattr(model, name))
    for name in ("weight", "bias"):
        close(got[f"grad.{name}"], getattr(model, name).grad)


def test_batch_norm_of_half_precision() -> None:
    """Statistics are float, those of the running values have the dtype of their buffers."""
    model = nn.BatchNorm1d(3).half()
    x = numbers(8, 3, dtype=torch.float16)
    captured = gradients(model, lambda model, x: (model(x) * x).sum(), (x,))
    model(x)
    got = run(captured.model, captured.state | {"x": x.numpy()})
    close(got["next.running_mean"], model.running_mean)
    close(got["next.running_var"], model.running_var)


def test_batch_norm_of_one_value_is_refused_as_in_torch() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        gradients(nn.BatchNorm1d(3), lambda model, x: model(x).sum(), (numbers(1, 3),))


class Synchronized(torch.autograd.Function):
    """Batch norm of two workers that hold the same elements, in the steps that PyTorch has on GPUs only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        statistics = torch.batch_norm_stats(x, 1e-5)
        both = [torch.stack([value, value]) for value in statistics]
        count = x.numel() // x.shape[1]
        counts = torch.full((2,), count, dtype=torch.int32)
        merged = torch.batch_norm_gather_stats_with_counts(x, *both, mean, variance, 0.1, 1e-5, counts)
        again = torch.batch_norm_gather_stats(x, *both, None, None, 0.1, 1e-5, count)
        ctx.save_for_backward(x, *merged, weight, counts)
        return torch.batch_norm_elemt(x, weight, bias, *again, 1e-5)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, mean, inverse, weight, counts = ctx.saved_tensors
        sums = torch.batch_norm_backward_reduce(grads[0], x, mean, inverse, weight, True, True, True)
        total, product = (2 * value for value in sums[:2])
        by_input = torch.batch_norm_backward_elemt(grads[0], x, mean, inverse, weight, total, product, counts)
        return by_input, *sums[2:], None, None


class SynchronizedNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return Synchronized.apply(x, self.weight, self.bias, self.running_mean, self.running_var)


@pytest.mark.parametrize("dtype", names_with(full=[torch.float64], names=[torch.float32, torch.float64]), ids=str)
def test_synchronized_batch_norm_in_steps(dtype: torch.dtype) -> None:
    """As workers with the same elements have their mean and variance, so does batch norm of one of them alone."""
    x = numbers(4, 3, 2, 3, dtype=dtype).requires_grad_()
    captured = gradients(SynchronizedNorm(3).to(dtype), lambda model, x: weighted(model(x)), (x,))
    assert set(nodes(captured.model)) == TRAINED | {"BatchNormGatherStatsWithCounts"}
    plain = nn.BatchNorm2d(3, dtype=dtype)
    loss = weighted(plain(x))
    loss.backward()
    got = run(captured.model, captured.state | {"x": x.detach().numpy()})
    allowed = 1e-7 if dtype is torch.float64 else 1e-5  # the attribute eps of the nodes is a float
    close(got["loss"], loss, allowed)
    close(got["grad.x"], x.grad, allowed)
    close(got["grad.weight"], plain.weight.grad, allowed)
    close(got["grad.bias"], plain.bias.grad, allowed)
    close(got["next.running_mean"], plain.running_mean, allowed)
    # Of 48 elements instead of 24 the unbiased variance is another.
    alone = (plain.running_var - 0.9) / 0.1
    close(got["next.running_var"], 0.9 + 0.1 * alone * (23 / 24) * (48 / 47), allowed)


# Embedding


def test_the_gradient_of_an_embedding_is_one_node() -> None:
    def loss(table: Tensor, rows: Tensor) -> Tensor:
        total = functional.embedding(rows, table).square().sum() + functional.embedding(rows, table, 2).exp().sum()
        return total + functional.embedding(rows.int(), table, scale_grad_by_freq=True).tanh().sum()

    first, other = torch.tensor([[0, 2, 2], [4, 0, 2]]), torch.tensor([[1, 2, 2]])
    model = same_as_torch(loss, numbers(5, 3), first, dynamic=({0: N},), other=(other,))
    assert nodes(model) == {"EmbeddingDenseBackward": 3}


# Random numbers


class Dropped(nn.Module):
    """Dropouts of one tensor of ones, reported."""

    def __init__(self) -> None:
        super().__init__()
        self.ones = nn.Parameter(torch.ones(100, 20))
        self.layer = nn.Dropout(0.3)

    def forward(self) -> tuple[Tensor, Tensor]:
        return self.layer(self.ones), self.layer(self.ones)


@pytest.mark.parametrize("dtype", names_with(full=[torch.float64], names=[torch.float32, torch.float64]), ids=str)
def test_dropout_has_one_mask_in_loss_and_gradient_and_others_elsewhere(dtype: torch.dtype) -> None:
    def loss(model: nn.Module) -> dict[str, Tensor]:
        first, second = model()
        return {"error": first.sum() + 2 * second.sum(), "first": first, "second": second}

    captured = gradients(Dropped().to(dtype), loss, (), inference=True)
    assert nodes(captured.model)["DropoutV3"] == 2
    step = run(captured.model, captured.state)
    scale = np.asarray(1 / 0.7, step["first"].dtype)
    assert np.isclose(np.unique(step["first"]), [0, scale], rtol=1e-7, atol=0).all()
    np.testing.assert_allclose(step["grad.ones"], step["first"] + 2 * step["second"], rtol=2e-7)
    assert step["next.seed"] == captured.state["seed"] + 1
    later = run(captured.model, captured.state | {"seed": step["next.seed"]})
    again = run(captured.model, captured.state)
    assert np.array_equal(again["first"], step["first"])
    for one, other in (("first", "second"), ("first", "first")):
        both = np.mean((step[one] != 0) & ((later if one == other else step)[other] != 0))
        assert abs(both - 0.49) < 0.06  # independent masks: 5 standard deviations of 2000 draws
    assert abs(np.mean(step["first"] != 0) - 0.7) < 0.05
    plain = onnx.load_from_string(captured.inference.SerializeToString())
    assert nodes(plain) == {}


@pytest.mark.full
def test_every_dropout_draws_from_the_seed() -> None:
    """The check of a capture compares with PyTorch, whose own operators draw from the same seed then."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True)
            self.attention = nn.MultiheadAttention(4, 2, 0.1)
            self.lstm = nn.LSTM(4, 3, 2, dropout=0.2, batch_first=True, bidirectional=True, proj_size=2)
            self.gru = nn.GRU(4, 4, 2, dropout=0.3, bias=False, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.encoder(x)
            x = self.attention(x, x, x)[0]
            x = self.gru(self.lstm(x)[0])[0]
            return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3 * self.training)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        y = y + functional.dropout1d(y, 0.2) + functional.dropout2d(y[..., None], 0.2)[..., 0]
        y = y + functional.dropout3d(y[..., None, None], 0.2)[..., 0, 0] + torch.dropout(y, 0.1, True)
        y = y + functional.alpha_dropout(y, 0.2, True) + functional.feature_alpha_dropout(y, 0.3, True)
        y = y + functional.dropout(y, 1.0) + functional.dropout(y, 0.0) + functional.dropout(y, 0.4, training=False)
        return functional.dropout(y, 0.2, inplace=True).square().mean()

    captured = gradients(Layers(), loss, (numbers(3, 2, 4),), dynamic_shapes=({0: N},), inference=True)
    assert nodes(captured.model)["DropoutV3"] == 15
    assert "DropoutV3" not in nodes(captured.inference)


def test_other_random_numbers_come_from_the_seed_too() -> None:
    size = 20000

    def loss(model: nn.Module) -> dict[str, Tensor]:
        like, weights = torch.empty(size, dtype=torch.float64), torch.tensor([0.0, 1.0, 3.0])
        drawn = {
            "uniform": torch.rand(size),
            "stretched": like.clone().uniform_(-1, 3),
            "normal": torch.randn_like(like),
            "shifted": torch.normal(torch.full((size,), 2.0), 3.0),
            "exponential": like.clone().exponential_(0.5),
            "arctangent": like.clone().cauchy_(1, 2).sub(1).div(2).arctan(),
            "logarithm": like.clone().log_normal_(-1, 0.5).log(),
            "trials": like.clone().geometric_(0.25),
            "truth": torch.bernoulli(torch.full((size,), 0.2)),
            "whole": torch.randint(3, 7, (size,)),
            "order": torch.randperm(100),
            "chosen": torch.multinomial(weights, size, replacement=True),
            "pairs": torch.multinomial(weights.expand(1000, 3), 2),
        }
        return {"error": model().sum() * drawn["uniform"].mean()} | drawn

    captured = gradients(Parameter(numbers(3)), loss, ())
    drawing = nodes(captured.model)
    assert (drawing["InplaceNormal"], drawing["InplaceUniform"], "DropoutV3" in drawing) == (3, 10, False)
    got = run(captured.model, captured.state)
    # Mean and variance, within 5 standard deviations of a mean of `size` numbers.
    moments = {
        "uniform": (1 / 2, 1 / 12),
        "stretched": (1, 16 / 12),
        "normal": (0, 1),
        "shifted": (2, 9),
        "exponential": (2, 4),
        "arctangent": (0, np.pi**2 / 12),  # of a Cauchy distribution: uniform
        "logarithm": (-1, 0.25),
        "trials": (4, 12),
        "truth": (0.2, 0.16),
        "whole": (4.5, 1.25),
        "chosen": (1.75, 0.1875),
    }
    for name, (mean, variance) in moments.items():
        assert abs(got[name].mean() - mean) < 5 * np.sqrt(variance / size), name
        assert abs(got[name].var() - variance) < 15 * variance / np.sqrt(size), name
    assert 0 <= got["uniform"].min() <= got["uniform"].max() < 1
    assert sorted(got["order"]) == list(range(100))
    assert set(got["whole"]) == {3, 4, 5, 6}
    assert set(got["chosen"]) == {1, 2}  # never the one of weight 0
    assert (np.sort(got["pairs"], 1) == [1, 2]).all()
    assert abs((got["pairs"][:, 0] == 2).mean() - 0.75) < 5 * np.sqrt(0.1875 / 1000)
    later = run(captured.model, captured.state | {"seed": got["next.seed"]})
    assert all(not np.array_equal(later[name], got[name]) for name in (*moments, "order"))


def test_a_model_that_draws_in_evaluation_too_has_no_inference_graph() -> None:
    captured = gradients(
        nn.Linear(3, 3), lambda model, x: (model(x) + torch.randn(3)).sum(), (numbers(2, 3),), inference=True
    )
    assert captured.inference is not None

    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn_like(x)

    captured = gradients(Noisy(3, 3), lambda model, x: model(x).sum(), (numbers(2, 3),), inference=True)
    assert captured.inference is None


class NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] + torch.randn_like(grads[0])


def test_random_numbers_that_a_graph_cannot_have_are_refused() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), numbers(2, 3)
    with pytest.raises(CaptureError, match=r"aten.uniform.default draws random numbers, which a graph can do only for"):
        gradients(model, lambda model, x: (model(x) * torch.ops.aten.uniform(x)).sum(), (x,))
    with pytest.raises(CaptureError, match="within the gradient, where they would be others than in the loss"):
        gradients(model, lambda model, x: NoisyGradient.apply(model(x)).sum(), (x,))


# torch.onnx.export


def exported(module: nn.Module, *args: Tensor) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A module as torch.onnx.export writes it with the translations of this package, and what it computes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.onnx.export(
            module, args, dynamo=True, verbose=False, custom_translation_table=translation_table(), opset_version=21
        )
    model = program.model_proto
    feeds = {v.name: a.detach().numpy() for v, a in zip(model.graph.input, args, strict=True)}
    return model, list(run(model, feeds).values())


@pytest.mark.parametrize("context", [whole_ops, contextlib.nullcontext])
def test_an_export_with_the_translations(context: Callable[[], Any]) -> None:
    """With the context, and where an operator has a translation of its own also without it."""
    x, y = torch.tensor([-200.0, 1.0, 200.0]), torch.tensor([1.0, 0.0, 1.0])
    image = numbers(4, 3, 5)

    class Everything(nn.BatchNorm1d):
        def forward(self, x: Tensor, y: Tensor, image: Tensor) -> tuple[Tensor, ...]:
            losses = functional.binary_cross_entropy_with_logits(x, y, reduction="none")
            return losses, torch.ops.aten.hardshrink_backward(y, x, 0.3), super().forward(image)

    with context():
        model, got = exported(Everything(3), x, y, image)
    assert set(nodes(model)) >= {"BinaryCrossEntropyWithLogits", "HardshrinkBackward", "BatchNormStats"}
    np.testing.assert_allclose(got[0], [200, np.log1p(np.exp(1)), 0], rtol=1e-6)
    np.testing.assert_array_equal(got[1], [1, 0, 1])
    close(got[2], nn.BatchNorm1d(3)(image))


def test_an_export_of_gradients_within_the_context() -> None:
    log_probs, targets = numbers(7, 2, 4).log_softmax(-1), torch.tensor([[1, 2, 3], [3, 3, 0]])

    def gradient(log_probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        leaf = log_probs.detach().requires_grad_()
        loss = functional.ctc_loss(leaf, targets, (7, 5), (3, 2))
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    with whole_ops():
        graph = make_fx(gradient, tracing_mode="fake", _allow_non_fake_inputs=True)(log_probs, targets)
    model, got = exported(graph, log_probs, targets)
    assert nodes(model) == {"CtcLoss": 1, "CtcLossBackward": 1}
    for value, wanted in zip(got, gradient(log_probs, targets), strict=True):
        close(value, wanted)


def test_the_context_changes_nothing_in_what_torch_computes() -> None:
    """The operators run in PyTorch too, forward and backward."""
    x, y = numbers(7, 2, 4, dtype=torch.float64), parts(7, 2, 4, dtype=torch.float64)

    weight = parts(4, dtype=torch.float64)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        total = functional.kl_div(x[0], y, reduction="sum") + functional.kl_div(
            x, y[0].log(), log_target=True, reduction="mean"
        )
        total = total + functional.binary_cross_entropy_with_logits(x, y, weight, pos_weight=weight)
        return total + functional.hardshrink(x, 0.3).sum() + ctc_forms(x, torch.tensor([1, 2, 3, 3]), (7, 6), (2, 2))

    results = []
    for context in (contextlib.nullcontext(), whole_ops()):
        leaves = [_leaf(x, None).requires_grad_(), _leaf(y, None).requires_grad_()]
        with context:
            value = loss(*leaves)
        results.append((value, *torch.autograd.grad(value, leaves)))
    for ours, wanted in zip(*reversed(results), strict=True):
        close(ours.detach().numpy(), wanted)
