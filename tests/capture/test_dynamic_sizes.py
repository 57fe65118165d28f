"""Code of models and losses that computes with dynamic sizes, compared at other sizes."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import logging.handlers
import math
import sys
import types
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import gradients, training_step
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.functional import scaled_dot_product_attention

import onnx_ops
from onnx_ops import StepError, Trainer
from onnx_ops.torch import CaptureError
from onnx_ops.torch.tracing.caches import without_traced_values
from onnx_ops.torch.tracing.effects import storages
from onnx_ops.torch.tracing.explanations import Locations
from onnx_ops.torch.tracing.fake_tensors import FakeTensors
from onnx_ops.torch.tracing.frames import Line, is_library, line_now
from onnx_ops.torch.tracing.trace import trace

Loss = Callable[[nn.Module, Tensor], Tensor]


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """With others exp() may be infinite, and gradients of angles large."""
    torch.manual_seed(0)


def compared(
    model: nn.Module, loss: Loss, shapes: list[tuple[int, ...]], *dims: Dim, dtype: torch.dtype = torch.float32
) -> None:
    """Capture at the first shape, and compare loss and gradients at all."""
    torch.manual_seed(0)
    examples = [torch.randn(shape, dtype=dtype) for shape in shapes]
    bound = 2e-5 if dtype is torch.float32 else 1e-13
    capture = gradients(model, loss, (examples[0],), dynamic_shapes=(dict(enumerate(dims)),))
    session = onnx_ops.InferenceSession(capture.model)
    for x in examples:
        value = loss(model, x)
        wanted = torch.autograd.grad(value, list(model.parameters()))
        names = ["loss", *(f"grad.{name}" for name, _ in model.named_parameters())]
        got = session.run(names, capture.state | {"x": x.numpy()})
        for name, array, tensor in zip(names, got, (value.detach(), *wanted), strict=True):
            scale = float(tensor.abs().max())
            np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=bound * scale, err_msg=name)


def test_len_of_a_tensor() -> None:
    """As in the losses of CLIP and of normalizing flows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        same = F.cross_entropy(y @ y.t(), torch.arange(len(x)))
        return same + y.view(len(y), 2, 4).sum(1).square().sum() / len(x) + len([1, 2]) * y.mean()

    before = len
    compared(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (1, 8)], Dim("N"))
    assert len is before


def test_numbers_of_elements_of_shapes() -> None:
    """As in the losses of torchrl."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return y.reshape(y.shape[:2].numel(), -1).square().sum() / (y.shape + y.shape[:1]).numel() + y[0].size().numel()

    before = torch.Size.numel
    compared(nn.Linear(3, 2), loss, [(6, 4, 3), (3, 5, 3), (1, 1, 3)], Dim("N"), Dim("M"))
    assert torch.Size.numel is before
    assert torch.Size([2, 3]).numel() == 6


def test_tensors_made_of_sizes() -> None:
    """As grids of coordinates, shapes of feature maps and pairs of samples are."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, (rows, columns) = model(x), x.shape
        scale = torch.tensor([[columns, rows], [rows, 2 * rows]]).prod(1) / torch.as_tensor(0.5 * rows)
        places = (
            torch.linspace(-1, 1.5, rows)[:, None]
            + torch.linspace(9, scale[0] - rows, rows, dtype=torch.int32)[:, None]
        )
        powers = torch.logspace(0, 1, rows, 2, dtype=torch.float64).float() / y.new_tensor([rows]) + scale.sum()
        similar = y @ y.T
        lower, upper = torch.tril_indices(rows, rows, -1), torch.triu_indices(rows, rows, 1)
        pairs = similar[lower[0], lower[1]].exp().sum() + similar[upper[0], upper[1]].sum()
        turned = y.roll((rows // 2, -1), (0, 1)) * x + y.roll(rows + 1)
        return (y * places).square().sum() + (y.T @ powers).exp().mean() + pairs + turned.square().sum()

    compared(nn.Linear(4, 4), loss, [(6, 4), (3, 4), (1, 4)], Dim("N"))


def test_fourier_transforms_along_several_axes() -> None:
    """Of which one is dynamic; PyTorch sorts them by their strides."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x[..., None]).squeeze(-1)
        return torch.fft.irfft2(torch.fft.rfft2(y) * 0.3, s=y.shape[-2:]).exp().sum()

    compared(nn.Linear(1, 1), loss, [(3, 2, 6), (3, 2, 3)], Dim.STATIC, Dim.STATIC, Dim("T"))


def test_filters_of_dynamic_sizes() -> None:
    """As long convolutions of state space models, and moving averages over a part of a sequence, have them."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, length = model(x).mT, x.shape[1]
        causal = F.conv1d(y, y[:1].transpose(0, 1) / length, padding=length - 1, groups=2)[..., :length]
        planes = F.conv2d(x[:, None], y[:1, :1, :, None].sin(), stride=(length // 2, 1), padding=(length // 3, 0))
        turned = F.conv_transpose1d(y, y[:2], stride=2, padding=1)
        return causal.square().sum() + planes.square().mean() + turned.sin().sum()

    shapes = [(3, 6, 4), (2, 5, 4), (2, 11, 4)]
    compared(nn.Linear(4, 2), loss, shapes, Dim("N"), Dim("T", min=4))


def test_filters_that_are_longer_than_the_sequence_are_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.conv1d(torch.arange(40.0).reshape(1, 1, 40), model(x).mT).square().sum()

    step = gradients(nn.Linear(2, 1), loss, (torch.randn(1, 6, 2),), dynamic_shapes=({1: Dim("T")},), inference=False)
    assert onnx_ops.Step.of(step.model).bounds["T"][:2] == (1, 40)


def test_halves_of_a_dynamic_number_of_pairs() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        first, second = model(x).split(len(x) // 2)
        return (first * second.exp()).sum()

    compared(nn.Linear(2, 2), loss, [(6, 2), (4, 2), (2, 2)], 2 * Dim("pairs"))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((5, 3), r"'x' is float32 \(5, 2\), expected float32 \(2\*pairs, 2\) for a number pairs"),
        ((6, 2), r"'y' is float32 \(2, 1\), expected float32 \(pairs, 1\) with pairs = 3 as in 'x'"),
        ((12, 6), r"'x' is float32 \(12, 2\), expected float32 \(2\*pairs, 2\) with 2\*pairs from 4 to 10"),
    ],
)
def test_sizes_that_are_no_multiple_are_refused(sizes: tuple[int, int], said: str) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x[::2]) * y).sum() + x.mean()

    pairs = Dim("pairs", min=2, max=5)
    example = torch.randn(8, 2), torch.randn(4, 1)
    step = gradients(nn.Linear(2, 1), loss, example, dynamic_shapes=({0: 2 * pairs}, {0: pairs}), inference=False)
    trainer = Trainer(step)
    trainer.step(x=np.ones((6, 2), np.float32), y=np.ones((3, 1), np.float32))
    x, y = (np.ones((size, columns), np.float32) for size, columns in zip(sizes, (2, 1), strict=True))
    with pytest.raises(StepError, match=said):
        trainer.step(x=x, y=y)


MEANS: dict[str, Loss] = {
    "of all": lambda model, x: model(x).mean(),
    "along the axis": lambda model, x: model(x).mean(1).sum() + model(x).mean(dim=(1, 2)).sum(),
    "losses": lambda model, x: F.mse_loss(model(x), x) + F.smooth_l1_loss(model(x), x) + F.huber_loss(model(x), x),
    "deviations": lambda model, x: model(x).std(1).sum() + model(x).var(),
    "pool": lambda model, x: F.adaptive_avg_pool1d(model(x).mT, 1).sum(),
    "covariances": lambda model, x: torch.cov(model(x)[0].mT).sum(),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", MEANS)
def test_means_of_no_elements(name: str) -> None:
    """NaN, for which onnxruntime's ReduceMean is 0."""
    model, example = nn.Linear(3, 3), torch.randn(4, 5, 3)
    step = gradients(model, MEANS[name], (example,), dynamic_shapes=({0: Dim("N"), 1: Dim("time")},), inference=False)
    trainer = Trainer(step, check_finite=False)
    for size in (0, 4):
        x = torch.randn(2, size, 3)
        wanted = MEANS[name](model, x).detach()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], wanted, rtol=1e-5)
        assert wanted.isnan() == (size == 0)


def test_places_that_are_sizes() -> None:
    """As of the frame in the middle and of the last token."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, rows = model(x).clone(), len(x)
        y[rows - 1, 0] = y[rows // 2].sum()
        return (y[rows // 2, 1:] * y[None, rows - 1, ..., 1:].exp()).sum() + torch.arange(rows)[rows - 1] * y.mean()

    compared(nn.Linear(4, 4), loss, [(6, 4), (3, 4), (1, 4)], Dim("N"))


def test_combinations() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        pairs = y[torch.combinations(torch.arange(len(x)))]
        threes = torch.combinations(y[:, 0], 3, with_replacement=True).prod(1).sum()
        return (pairs[:, 0] - pairs[:, 1]).square().sum() + threes + torch.combinations(y[:, 1], 3).prod(1).sum()

    compared(nn.Linear(4, 4), loss, [(6, 4), (3, 4), (2, 4)], Dim("N"))


def test_min_and_max_of_sizes() -> None:
    """As of the last block of a sequence, and of elements that are not more than there are."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, size = model(x), x.shape[0]
        most = y.topk(min(3, size), 0).values.sum() / max(size, 4, 2) + min(x.shape) * max((size, 2 * size)) * y.mean()
        return most + sum((y[i : min(i + 4, size)] * (min(i + 4, size) - i)).square().sum() for i in range(0, 9, 4))

    compared(nn.Linear(8, 8), loss, [(6, 8), (2, 8), (12, 8), (9, 8)], Dim("N", max=12))


def test_reshapes_of_slices() -> None:
    """As logits and labels of the next tokens are flattened: of two tokens one is left."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        logits, labels = model(x)[:, :-1], x.argmax(-1)[:, 1:]
        return F.cross_entropy(logits.reshape(-1, 3), labels.reshape(-1)) + logits.flatten().cos().mean()

    for first in (5, 2):
        compared(nn.Linear(3, 3), loss, [(4, first, 3), (2, 2, 3), (3, 7, 3)], Dim("B"), Dim("T"))


def test_attention_on_all_but_the_last_token() -> None:
    """As decoders are trained; its strides are those of a contiguous tensor where one token is left."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x[:, :-1], x[:, 1:], x[:, :-1], need_weights=False)[0].square().mean()

    model = nn.MultiheadAttention(4, 2, batch_first=True)
    compared(model, loss, [(4, 7, 4), (2, 2, 4), (3, 3, 4)], Dim("B"), Dim("T"))


def test_pairs_of_rows() -> None:
    """A reshape whose result is a view for even sizes only; and the spectrum of rows, whose halves are mirrored."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        pairs = y[:, : x.shape[1] // 2 * 2].reshape(x.shape[0], -1, 2, 3)
        whole = y[:, : x.shape[1] // 2 * 2].flatten(1).square().sum() + pairs.flatten(2).cos().sum()
        whole = whole + y[:, : x.shape[1] // 2 * 2].contiguous().view(x.shape[0], -1, 6).sin().sum()
        spectrum = torch.fft.rfft(y, dim=1)  # of real numbers at both ends, with the angle 0 or pi
        return (pairs[:, :, 0] * pairs[:, :, 1].cos()).sum() + whole + (spectrum.abs() + spectrum.angle()).sum()

    compared(nn.Linear(3, 3), loss, [(4, 7, 3), (2, 4, 3), (3, 2, 3)], Dim("B"), Dim("T"))


def test_writes_to_slices() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        moved = torch.zeros_like(y)
        moved[:, 0] = y[:, -1]
        moved[:, 1:] += 2 * y[:, :-1]
        return (moved * y).mean()

    compared(nn.Linear(3, 3), loss, [(4, 5, 3), (2, 2, 3), (3, 7, 3)], Dim("B"), Dim("T"))


def test_linspace() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        ends = torch.linspace(x[0, 0], x[0, 1], x.shape[0], dtype=torch.float64)
        return (model(x) * (torch.linspace(-1, 2.5, x.shape[0]) * ends)[:, None]).square().mean()

    compared(nn.Linear(3, 2), loss, [(7, 3), (2, 3), (4, 3)], Dim("N"))


def test_slices_from_the_end_that_may_be_empty() -> None:
    """PyTorch takes -0 for the start."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x)[:, 4 - x.shape[1] :] * torch.arange(8)).square().mean()

    with pytest.raises(CaptureError, match="right only where it is 5 or more"):
        compared(nn.Linear(8, 8), loss, [(4, 7, 8)], Dim("B"), Dim("T"))
    compared(nn.Linear(8, 8), loss, [(4, 7, 8), (2, 5, 8), (3, 8, 8)], Dim("B"), Dim("T", min=5, max=8))


def test_running_extremes() -> None:
    """Of integers too that are no float32."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        far = (1 << 24) + x.argsort(0)
        values, indices = far.cummax(0)
        counted = (values - (1 << 24) + indices + torch.cummin(-far, 0).indices) * (x > 0).cummax(0).values
        return (y * counted).mean() + y.cummax(1).values.square().mean() + y.cummin(0)[0].sum()

    compared(nn.Linear(8, 8), loss, [(6, 8), (2, 8), (12, 8)], Dim("N"))


def test_frequencies() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        by_row = (model(x).square() * torch.fft.fftfreq(x.shape[0], 0.3)[:, None]).sum()
        return by_row + (model(x) * torch.fft.fftfreq(8)).sum().exp()

    compared(nn.Linear(8, 8), loss, [(6, 8), (3, 8)], Dim("N"))


def test_chunks_of_a_padded_sequence() -> None:
    """As models with state spaces carry a state from chunk to chunk: the number of chunks is rounded up."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = F.pad(model(x), (0, 0, 0, -x.shape[1] % 4))
        chunks = y.reshape(x.shape[0], -1, 4, 3)
        states = torch.cat([torch.zeros_like(chunks[:, :1, 0]), chunks.sum(2)], 1)
        decay = F.pad(chunks.mean((2, 3)), (1, 0)).exp()
        carried = (decay[:, None] * decay[:, :, None])[..., None] * states[:, None]
        return (chunks * carried.sum(2)[:, :-1, None]).reshape(x.shape[0], -1, 3)[:, : x.shape[1]].square().mean()

    compared(nn.Linear(2, 3), loss, [(3, 9, 2), (2, 12, 2), (4, 3, 2), (1, 23, 2)], Dim("B"), Dim("T"))


def test_positions_that_are_counted_down() -> None:
    """As XLNet counts them, by a step that is a floating number."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        distances = torch.arange(x.shape[1] - 1, -1, -1.0)
        return (model(x) * torch.stack([distances, 2 * distances], 1).view(x.shape[1], 2)).square().mean()

    compared(nn.Linear(3, 2), loss, [(3, 5, 3), (2, 9, 3)], Dim("B"), Dim("T"))


def test_positions_between_integers_and_floating_numbers() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        first = torch.arange(0.0, x.shape[0]) + torch.arange(-x.shape[0], 0.0)
        even = torch.arange(0, 2 * x.shape[0], 2.0, dtype=torch.int32)
        return (model(x) * (first * even)[:, None] * torch.arange(-1, 2.0)).square().mean()

    compared(nn.Linear(3, 3), loss, [(3, 3), (1, 3), (6, 3)], Dim("B"))


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda y: y.square().sum(1), 0),
        (lambda y: y.diff(dim=1).sum(1), 1),  # whose gradient has the size -1 in a graph
        (lambda y: F.interpolate(y.mT, scale_factor=2).mean(2), 1),  # PyTorch takes no line without elements
    ],
)
def test_axes_without_elements(function: Callable[[Tensor], Tensor], least: int) -> None:
    """They are refused where the graph is not right for them, before the state changes, or PyTorch refuses them."""
    model = nn.Linear(3, 2)
    shapes = ({0: Dim("samples"), 1: Dim("time")},)
    step = training_step(
        model,
        lambda m, x: function(m(x)).square().mean(),
        (torch.randn(2, 4, 3),),
        torch.optim.SGD(model.parameters(), 0.1),
        dynamic_shapes=shapes,
    )
    trainer = Trainer(step)
    if least:
        with pytest.raises(StepError, match="with time >= 1"):
            trainer.step(x=np.zeros((2, 0, 3), np.float32))
    else:
        trainer.step(x=np.zeros((2, 0, 3), np.float32))
    trainer.step(x=np.ones((2, 1, 3), np.float32))


def test_draws_of_as_many_numbers_as_samples() -> None:
    """By one algorithm for all numbers of them, so that 1 is one of the sizes that a step takes."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        drawn = torch.multinomial(torch.ones(3), len(x), replacement=True)
        return model(x).gather(1, drawn[:, None]).mean()

    capture = gradients(nn.Linear(4, 3), loss, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("N")},))
    Trainer(capture).step(x=np.ones((1, 4), np.float32))


def test_sizes_that_are_tried_are_not_logged() -> None:
    """As sizes of a signal that its padding is too large for; PyTorch logs the tracebacks of its errors."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return torch.stft(model(x[..., None])[..., 0], 8, return_complex=True).abs().mean()

    logger, kept = logging.getLogger(FakeTensorMode.__module__), logging.handlers.BufferingHandler(100)
    logger.addHandler(kept)
    try:
        gradients(nn.Linear(1, 1), loss, (torch.randn(2, 16),), dynamic_shapes=({0: Dim("B"), 1: Dim("T")},))
    finally:
        logger.removeHandler(kept)
    assert not kept.buffer


def test_take_along_dim() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        ordered = y.take_along_dim(y.detach().argsort(dim=0), dim=0)
        first = torch.take_along_dim(y, torch.arange(x.shape[0])[None, :] % 2, -1)  # its rows are one, for all of y
        return (
            (ordered * torch.arange(x.shape[0])[:, None]).square().mean()
            + first.cos().sum()
            + y.take_along_dim(torch.tensor([1, 1])).sum()
        )

    compared(nn.Linear(3, 2), loss, [(4, 3), (2, 3), (7, 3)], Dim("N"))


def test_row_pointers_of_a_sparse_matrix() -> None:
    """As PyTorch Geometric sorts edges; some rows have no entry."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0]) // 3 * 2
        starts = torch._convert_indices_from_coo_to_csr(rows, x.shape[0])
        return (model(x) * starts[:-1, None] + starts[-1]).square().mean()

    compared(nn.Linear(3, 2), loss, [(7, 3), (4, 3), (11, 3)], Dim("N"))


def test_differences_and_correlations_of_rows() -> None:
    """Of variables that are rows, whose number is dynamic."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = model(x)
        slopes = [*torch.gradient(rows, spacing=(0.5, 2.0)), *torch.gradient(rows.exp(), dim=0)]
        smooth = torch.gradient(rows, dim=0, edge_order=2)[0]
        similar = torch.corrcoef(rows).exp().mean() + torch.cov(rows).square().sum()
        counts, weights = torch.arange(len(x)) + 1, x[:, 0].abs() + 0.1
        similar += torch.cov(rows.T, fweights=counts).exp().sum() + torch.cov(rows.T, aweights=weights).exp().sum()
        similar += torch.cov(rows.T, fweights=counts, aweights=weights, correction=2).sin().sum()
        return sum((slope.square().sum() for slope in slopes), smooth.square().sum()) + similar

    compared(nn.Linear(4, 5), loss, [(6, 4), (3, 4), (9, 4)], Dim("N", min=3))


def test_running_products_and_extremes() -> None:
    """The gradient with respect to a factor that is 0 is that of the product of the others: of none, one or two."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) * (torch.arange(x.shape[0])[:, None] >= torch.arange(3))
        largest, places = y.cummax(0)
        whole = y[:, :1].prod() + y[:, :2].prod() + y.prod()
        parts = [y.prod(0), y.prod(0, keepdim=True).sin(), whole, y.cumprod(0).cos() * y.logcumsumexp(0)]
        parts += [y.narrow(1, 0, 1).squeeze(1).cumprod(-1), largest * places, y.cummin(0).values * (x > 0).prod(0)]
        return sum((part.sum() for part in parts), start=torch.zeros(()))

    compared(nn.Linear(3, 3), loss, [(4, 3), (1, 3), (9, 3)], Dim("N"))


def test_table_of_a_dynamic_number_of_rows() -> None:
    """As a graph network looks up the nodes of edges."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        edges = torch.stack([torch.arange(2 * x.shape[0]) // 3, torch.arange(2 * x.shape[0]) % x.shape[0]])
        rows = F.embedding(edges, model(x), padding_idx=1)
        return rows.square().mean() + F.embedding(edges[0], model(x), scale_grad_by_freq=True).sin().sum()

    compared(nn.Linear(3, 2), loss, [(7, 3), (4, 3), (11, 3)], Dim("N"))


def test_modes_of_a_dynamic_batch() -> None:
    """As Fourier neural operators write the lowest frequencies into zeros, shifted and back."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        modes = torch.fft.fftshift(torch.fft.fft(model(x)), dim=1)
        kept = torch.zeros(modes.shape, dtype=modes.dtype)
        kept[:, 2:6] = modes[:, 2:6] * torch.view_as_complex(model.weight[:4, :2])
        found = torch.fft.fft(x)
        found[:, :2] = kept[:, 2:4] * 0.5
        return (torch.fft.ifft(torch.fft.ifftshift(kept + found, dim=1)).real - x).square().mean()

    compared(nn.Linear(8, 8), loss, [(3, 8), (2, 8), (7, 8)], Dim("N"))


def test_transforms_along_a_dynamic_axis() -> None:
    """Whether it is as long as another one makes no difference."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        whole = torch.fft.ifft(torch.fft.fft(y, dim=0) * torch.arange(8), dim=0).real
        return torch.fft.irfft2(torch.fft.rfft2(whole) ** 2, s=y.shape).square().mean()

    compared(nn.Linear(4, 8), loss, [(3, 4), (8, 4), (5, 4), (1, 4)], Dim("N"))


@pytest.mark.parametrize("edge_order", [1, 2])
def test_slopes(edge_order: int) -> None:
    """Of equal steps or between given places, along axes of static and dynamic size."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, times = model(x), torch.tensor([0.0, 0.5, 2.0, 2.3])
        by_time = torch.gradient(y, spacing=[times], dim=1, edge_order=edge_order)[0]
        by_row, by_column = torch.gradient(y, spacing=[0.5, 2.0], edge_order=edge_order)
        by_place = torch.gradient(y, spacing=(torch.arange(len(x)) ** 2,), dim=0, edge_order=edge_order)[0]
        return (by_time.exp() + by_row * by_column + by_place.sin()).sum()

    compared(nn.Linear(3, 4), loss, [(5, 3), (3, 3), (8, 3)], Dim("N", min=edge_order + 1))


def test_bincount() -> None:
    """As PyTorch Geometric counts the neighbours of a dynamic number of nodes."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        numbers = torch.arange(x.shape[0]) // 3
        counts = torch.bincount(numbers, minlength=x.shape[0])
        sums = torch.bincount(numbers, x[:, 0].detach() + numbers, minlength=x.shape[0])
        return (model(x) * (counts + sums)[:, None] + torch.bincount(numbers).sum()).square().mean()

    compared(nn.Linear(3, 2), loss, [(7, 3), (4, 3), (11, 3)], Dim("N"))


def test_bincount_refuses_negative_numbers() -> None:
    def loss(model: nn.Module, x: Tensor, numbers: Tensor) -> Tensor:
        return (model(x) * torch.bincount(numbers, minlength=4)[:4]).sum()

    captured = gradients(nn.Linear(3, 4), loss, (torch.ones(2, 3), torch.tensor([0, 3, 3])))
    session = onnx_ops.InferenceSession(captured.model)
    state = {"x": np.ones((2, 3), np.float32), **captured.state}
    session.run(None, state | {"numbers": np.array([1, 2, 2])})
    with pytest.raises(Exception, match="ScatterElements"):
        session.run(None, state | {"numbers": np.array([1, -1, 2])})


@pytest.mark.parametrize("chunks", [2, 3])
def test_chunks_of_a_batch(chunks: int) -> None:
    """As in losses of pairs and triples of samples, whose logits are computed in one batch."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        first, *others = model(x).mean(1).chunk(chunks)
        return -F.logsigmoid(first - 2 * sum(others)).mean()

    samples = [(chunks * n, 5) for n in (4, 2, 7)]
    compared(nn.Linear(5, 2), loss, samples, chunks * Dim("samples"))


def test_halves_of_any_batch() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        parts = (*x.chunk(2), *model(x).tensor_split(3)[::2], *torch.tensor_split(x, [2, 4], dim=1)[2:])
        return sum((part[..., :1].exp().sum() for part in parts), model(x.chunk(2)[1]).cos().sum())

    compared(nn.Linear(5, 2), loss, [(5, 5), (3, 5), (8, 5), (6, 5)], Dim("N"))


def test_einsum_with_the_package_opt_einsum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, which makes numbers of sizes."""

    def contract_path(equation: str, *operands: Any, optimize: Any, shapes: bool = False) -> Any:
        for operand in operands:
            assert all(int(size) for size in (operand if shapes else operand.shape))
        return [(1, 2), (0, 1)], None

    package = types.ModuleType("stand_in_for_opt_einsum")
    package.contract_path = package.contract = contract_path  # type: ignore[attr-defined]
    contract_path.__module__ = package.__name__
    monkeypatch.setitem(sys.modules, package.__name__, package)
    module = torch.backends.opt_einsum.m
    monkeypatch.setattr(module, "is_available", lambda: True)
    monkeypatch.setattr(module, "get_opt_einsum", lambda: package)
    monkeypatch.setattr(module, "enabled", True)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return torch.einsum("ni,oi,no->n", x, model.weight, model(x).tanh()).square().mean()

    compared(nn.Linear(3, 2), loss, [(4, 3), (2, 3), (7, 3)], Dim("N"))


def test_windows_that_overlap() -> None:
    """As Longformer cuts its sequences into chunks: the gradient of an element is the sum over its windows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        chunks = model(x).view(x.shape[0], x.shape[1] // 4, 4, 3)
        (samples, _, *sizes), (step, across, *strides) = chunks.shape, chunks.stride()
        number = 2 * torch.div(x.shape[1], 4, rounding_mode="trunc") - 1  # a tensor
        windows = chunks.as_strided((samples, number, *sizes), (step, across // 2, *strides))
        later = torch.as_strided(chunks, (samples, 2, 3), (step, 3, 1), chunks.storage_offset() + 6)
        apart = model(x.transpose(0, 1)).transpose(0, 1).view(chunks.shape)  # dense, in another order of axes
        step, across, *strides = apart.stride()
        others = apart.as_strided((samples, number, *sizes), (step, across // 2, *strides))
        squares = (windows * torch.arange(12.0).view(4, 3)).square() + (others * torch.arange(3.0)).sin()
        return squares.mean() + (later * x[:, :2]).sum()

    compared(nn.Linear(3, 3), loss, [(3, 16, 3), (2, 16, 3), (1, 16, 3)], Dim("N"))


def test_tensors_of_numbers_of_sizes() -> None:
    """As Longformer computes a number of chunks, and with it the shape of a view."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        chunks = torch.div(x.shape[0], 4, rounding_mode="trunc")
        changed = torch.tensor(x.shape[0])
        changed += 1  # another number
        rows = model(x).view(chunks, 4, 3)
        more = rows.new_ones(2 * chunks - 1, 1) * model.bias
        return (rows * rows.flip(1)).mean() + more.sin().sum() + changed * model.weight.sum()

    compared(nn.Linear(3, 3), loss, [(8, 3), (4, 3), (12, 3)], 4 * Dim("chunks"))


def test_numbers_that_depend_on_a_size() -> None:
    """The gradient of a variance has the factor 2 / (N - 1); sums and products with such a number."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        spread = y.std(0).sum() + y.var(dim=(0, 1)) + torch.var_mean(y, 0, correction=0)[0].sum()
        count = y.shape[0]
        add, mul, sub = torch.ops.aten.add.Scalar, torch.ops.aten.mul.Scalar, torch.ops.aten.sub.Scalar
        scaled = mul(y, 2 / count) + add(y.sin(), 0.1 * count, 2) + sub(y.cos(), count)
        return spread + scaled.sum() + torch.remainder(y, count / 9).sum()

    compared(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (9, 8)], Dim("N"))


def test_square_roots_of_ratios_of_sizes_by_numpy() -> None:
    """As Cosmos normalizes embeddings: the first term of the sum is a number, its factor one that NumPy computes."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        return (y / torch.add(0.5, norm, alpha=np.sqrt(norm.numel() / y.numel()))).sum()

    compared(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (1, 8)], Dim("N"))


def test_mathematics_of_sizes() -> None:
    """As in attention that is scaled by the logarithm of the length; Python computes with sizes in float64."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, size = model(x), x.shape[0]
        scale = math.log(size + 1) + math.sqrt(size) - sqrt(size + 2) * math.log2(size + 1) + np.log1p(size) / size
        scale += math.exp(-size) + math.pow(size, -0.3) * math.log10(size + 5) + math.cos(size) * np.tanh(size / 9)
        # In float32 0.1 * 30 is not above 3; rounded down, and half to even.
        rounded = math.ceil(0.1 * size) + math.floor(-0.7 * size) + (4 - size) // 3 + (0.7 * size) // 0.2
        rounded += sum(divmod(size, 4)) + round(size / 4) + (3 - size) % 4 + (0.3 * size) % -0.4
        mixed = max(1.0, size / 4) + max(y.sum(), size, 2) + min(2, size, y.mean()) + min(float("inf"), size)
        return y.square().mean() * scale + y.mean() * rounded + y.sin().sum() * mixed

    sizes = 6, 3, 1, 30, 10
    compared(nn.Linear(8, 8), loss, [(size, 8) for size in sizes], Dim("N"))
    compared(nn.Linear(8, 8).double(), loss, [(size, 8) for size in sizes], Dim("N"), dtype=torch.float64)


def test_one_chunk() -> None:
    """As in ghost batch norm with batches of at most one chunk."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        chunks = [*model(x).chunk(1), *torch.chunk(x.sin(), 1, 0)]
        return (torch.cat(chunks).square() * torch.cat([x, x]).cos()).mean()

    compared(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (1, 8)], Dim("N"))


def test_distances_between_any_number_of_rows() -> None:
    """PyTorch computes them in another way for more than 25 rows."""
    compared(
        nn.Linear(8, 8),
        lambda m, x: torch.cdist(m(x), x).sin().square().sum(),
        [(6, 8), (3, 8), (25, 8), (40, 8)],
        Dim("N"),
    )


def test_medians_and_quantiles_of_any_number_of_rows() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        gaps = torch.where(x > 0.8, torch.nan, y)
        ways = ("linear", "lower", "higher", "nearest", "midpoint")
        quantiles = [y.quantile(0.37, 0, interpolation=way).square().sum() for way in ways]
        places = y.median(0, keepdim=True).indices + gaps.nanmedian(0)[1] + gaps.median(0)[1]
        return (
            sum(quantiles)
            + (y.quantile(torch.tensor([0.3, 1.0]), -1, keepdim=True) * y).sum()
            + y.quantile(0.9)
            + y.quantile(0.2, keepdim=True).sum()
            + gaps.nanquantile(torch.tensor([0.1, 0.6]), 0).square().nansum()
            + gaps.quantile(0.5, 0).nansum()
            + (gaps.nanmedian(0)[0].nan_to_num() * y).sum()
            + gaps.median(0)[0].nansum()
            + y.median() * gaps.nanmedian()
            + (places * y).sum()
        )

    compared(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (9, 8)], Dim("N"))


def test_affine_grids() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        grid = F.affine_grid(model(x[:, :, 0]).view(-1, 2, 3), [len(x), 4, x.shape[2], 5], align_corners=False)
        return F.grid_sample(x.view(len(x), 1, 8, -1), grid, align_corners=False).sin().sum()

    compared(nn.Linear(8, 6), loss, [(6, 8, 3), (3, 8, 5), (9, 8, 1)], Dim("N"), Dim.STATIC, Dim("width"))


def test_affine_grids_that_are_the_identity() -> None:
    """As spatial transformers begin: samples have a kink at the pixels."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        theta = model(x.flatten(1)[:, :4]).view(-1, 2, 3)
        grid = F.affine_grid(theta, [x.shape[0], 1, *x.shape[1:]], align_corners=False)
        return (F.grid_sample(x[:, None], grid, align_corners=False) * x[:, None]).mean()

    model = nn.Linear(4, 6)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
    compared(model, loss, [(2, 12, 12), (3, 12, 12)], Dim("N"))


def test_samples_of_images_of_dynamic_sizes() -> None:
    """As images are warped by an optical flow, up to an image of one pixel."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        flow = 2 * model(x)
        return F.grid_sample(x.movedim(3, 1), flow, "bilinear", "reflection", align_corners=True).sin().mean()

    compared(nn.Linear(2, 2), loss, [(2, 5, 4, 2), (1, 3, 6, 2), (3, 1, 1, 2)], Dim("N"), Dim("height"), Dim("width"))


def test_pools_of_one_window() -> None:
    """Of equal elements the first one is the maximum."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        image = model(x).movedim(3, 1)
        doubled, flat = torch.cat([image, image.detach()], 3), image.flatten(2)
        height, width = image.shape[2:]
        pooled = [
            F.avg_pool1d(flat, height * width),
            F.max_pool1d(flat, flat.shape[2]),
            F.avg_pool2d(image, image.shape[2:]).flatten(2),
            F.avg_pool2d(image, (height, 1), 1).sum(3),
            F.max_pool2d(doubled, (height, 2 * width)).flatten(2),
            F.max_pool2d(flat.unsqueeze(3), (flat.shape[2], 1)).flatten(2),
            F.lp_pool2d(image, 2.0, image.shape[2:]).flatten(2),
            F.max_pool3d(image[:, :, None], (1, height, width)).flatten(2),
        ]
        return torch.cat(pooled, 2).sin().mean()

    compared(nn.Linear(2, 2), loss, [(2, 5, 4, 2), (1, 3, 6, 2), (3, 1, 1, 2)], Dim("N"), Dim("height"), Dim("width"))


def test_causal_masks_of_encoders() -> None:
    class Causal(nn.TransformerEncoder):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            return super().forward(x, nn.Transformer.generate_square_subsequent_mask(x.shape[1]))

    model = Causal(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), 1, enable_nested_tensor=False)
    lengths = [(2, 5, 4), (1, 3, 4), (3, 1, 4)]
    compared(model, lambda model, x: (model(x) * x).square().mean(), lengths, Dim("N"), Dim("time"))


class Attention(nn.Linear):
    """Attention that is causal where there is more than one query, as many libraries have it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = super().forward(x)[:, None].chunk(3, -1)
        first = scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        return first + F.scaled_dot_product_attention(q, k, v, None, 0.0, x.shape[1] == x.shape[1] and x.shape[1] > 1)


def test_attention_that_is_causal_under_a_condition_on_sizes() -> None:
    compared(Attention(4, 12), lambda m, x: m(x).square().sum(), [(3, 5, 4), (2, 7, 4), (4, 1, 4)], Dim("N"), Dim("T"))


@functools.lru_cache(maxsize=1)
def positions(count: int, scale: float = 0.5) -> Tensor:
    return torch.arange(count)[:, None] * scale


class Cached(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.held = functools.cache(lambda count: torch.ones(count, 1))

    @functools.cache  # noqa: B019
    def shifts(self, count: int) -> Tensor:
        return torch.arange(count)[:, None] ** 2.0

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        return super().forward(x) + positions(count) * self.shifts(count) + self.held(count) + positions(3).sum()


def test_cached_functions_of_sizes() -> None:
    positions.cache_clear()
    cached = positions, Cached.shifts
    compared(Cached(), lambda m, x: m(x).sin().sum(), [(3, 5, 4), (2, 7, 4)], Dim("N"), Dim("T"))
    assert (positions, Cached.shifts) == cached
    assert type(positions(3)) is torch.Tensor


class Evaluated(nn.Linear):
    def __init__(self, shift: Callable[[int], Tensor]) -> None:
        super().__init__(4, 4)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (0 if self.training else self.shift(4))


def test_caches_keep_no_tensor_of_a_trace() -> None:
    def check(cached: Any) -> None:
        gradients(Evaluated(cached), lambda m, x: m(x).square().sum(), (torch.randn(4, 4),), inference=True)
        assert type(cached(4)) is torch.Tensor

    positions.cache_clear()
    check(positions)
    check(functools.cache(lambda count: torch.ones(count)))  # made after a capture
    check(functools.cache(torch.ones))
    check(functools.cache(torch.signal.windows.hann))


def test_caches_with_values_of_a_trace_in_containers_are_cleared() -> None:
    @functools.cache
    def held(key: Any) -> Any:
        return {"pair": (1, [key])}

    @functools.cache
    def cyclic(number: int) -> list[Any]:
        values: list[Any] = [number]
        values.append(values)
        return values

    with FakeTensorMode(), without_traced_values():
        held(torch.ones(2))
        cyclic(1)
    assert held.cache_info().currsize == 0
    assert cyclic.cache_info().currsize == 1


def test_objects_are_looked_through_for_new_caches_alone() -> None:
    cached = [functools.cache(lambda: 0)]

    def looks() -> bool:
        with mock.patch.object(gc, "get_referrers", wraps=gc.get_referrers) as looked, without_traced_values():
            pass
        return looked.called

    assert looks()
    cached.clear()
    assert not looks()
    cached.append(functools.cache(lambda: 0))
    assert looks()


class Patches(nn.Module):
    """Patches of 4 x 4 pixels, a U-Net of one level, and conditions on the size."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 2, 3, padding=1), nn.ConvTranspose2d(2, 1, 2, stride=2)
        self.linear = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        n, _, height, width = x.shape
        if height % 8 or width % 4:
            raise ValueError("a size that is no multiple")
        y = torch.cat([x, self.up(F.max_pool2d(self.down(x).tanh(), 2))], 1).sum(1)
        patches = y.reshape(n, height // 4, 4, width // 4, 4).transpose(2, 3).reshape(n, -1, 16)
        return self.linear(patches)


def test_multiples_of_a_dimension() -> None:
    """The second one refers to a dimension that no input has, the third one to the same."""
    side = Dim("side")
    compared(
        Patches(),
        lambda m, x: m(x).square().sum(),
        [(2, 1, 16, 32), (3, 1, 8, 16), (1, 1, 24, 48)],
        Dim("N"),
        Dim.STATIC,
        8 * side,
        16 * side,
    )


class WindowsOfTime(nn.Module):
    """That overlap, with the time before the samples, as of Longformer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.linear(x).transpose(0, 1)
        step, sample, feature = rows.stride()
        return rows.as_strided((2, 4, rows.shape[1], 4), (2 * step, step, sample, feature)).sin()


@pytest.mark.parametrize("samples", [Dim("N"), Dim.STATIC], ids=["dynamic", "static"])
def test_windows_of_axes_in_another_order(samples: Any) -> None:
    shapes = [(3, 6, 3)] if samples is Dim.STATIC else [(3, 6, 3), (5, 6, 3), (1, 6, 3)]
    compared(WindowsOfTime(), lambda m, x: (m(x) * torch.arange(4)).square().mean(), shapes, samples)


def lines_of(loss: Loss) -> str:
    code = loss.__code__
    return rf"test_dynamic_sizes\.py, line {code.co_firstlineno + 1}\)"


def layout_of(result: Tensor, x: Tensor) -> tuple[Any, ...]:
    """What describes a result of `x`: whether it has the memory of `x`, and its dispatch keys too."""
    sizes = str((result.shape, result.stride(), result.storage_offset()))
    shared = storages([result]) == storages([x])
    return sizes, result.dtype, shared, str(torch._C._dispatch_key_set(result))


def test_results_that_a_trace_keeps_are_those_of_the_first_call() -> None:
    """The first call is computed, the second one kept, and the third made of what is kept."""
    mode = FakeTensors(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    dynamic = mode.from_tensor(torch.ones(6, 4, dtype=torch.complex64), symbolic_context=context)
    static = mode.from_tensor(torch.ones(6, 4, dtype=torch.complex64))
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.sin(),
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x.conj(),
        lambda x: x.conj().imag,
        lambda x: x.expand(3, -1, -1),
        lambda x: torch._efficientzerotensor(x.shape) * x,
    ]
    with mode:
        for x, call in itertools.product((dynamic, static), calls):
            first, second, third = call(x), call(x), call(x)
            for found in (second, third):
                assert layout_of(found, x) == layout_of(first, x)


def test_a_backward_pass_has_no_line_of_the_caller_of_the_capture() -> None:
    lines: list[Line | None] = []
    names = {"grad": torch.autograd.grad, "hook": Tensor.register_hook, "line_now": line_now, "lines": lines}
    # Python's own code, as it is in no file, runs them.
    step = eval("lambda given: dict(g=grad([hook(y := given['x'].sin(), note), y][1].sum(), given['x'])[0])", names)
    names["note"] = eval("lambda _: lines.append(line_now())", names)
    trace(step, {"x": torch.ones(3, requires_grad=True)}, {}, Locations(nn.Identity()))
    assert lines == [None]


def test_code_of_this_package_is_no_code_of_a_model() -> None:
    assert is_library(onnx_ops.__file__)
    assert not is_library(__file__)


def test_the_line_that_makes_a_number_of_a_size_is_named() -> None:
    def by_range(model: nn.Module, x: Tensor) -> Tensor:
        return sum((model(x)[i].sum() for i in range(len(x))), torch.zeros(()))

    def by_condition(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() if x.shape[0] > 3 else model(x).mean()

    def by_rows(model: nn.Module, x: Tensor) -> Tensor:
        return torch.stack([model(row).sum() for row in x]).mean()

    number = "makes the number 6 of it"
    for loss, said in ((by_range, number), (by_rows, number), (by_condition, "right only where it is 4 or more")):
        with pytest.raises(CaptureError, match=rf"x\.size\(\)\[0\].* {said} \(at .*{lines_of(loss)}"):
            compared(nn.Linear(8, 8), loss, [(6, 8)], Dim("N"))


def rows_more_than_8(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum() if x.shape[0] > 8 else model(x).sum()


def rows_in_sixes(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).reshape(-1, 6, 8).square().sum(1).exp().mean()


def rows_in_threes(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum() if (x.shape[0] // 4) % 3 == 0 else model(x).sum()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (rows_more_than_8, r"x\.size\(\)\[0\] > 8"),
        (rows_in_sixes, r"\(\(32\*t\) % 48\) == 0"),
        (rows_in_threes, r"\(t % 3\) == 0 .* such as 12 \*"),
    ],
)
def test_conditions_on_a_multiple_of_a_dimension_that_no_input_has(loss: Loss, said: str) -> None:
    with pytest.raises(CaptureError, match=rf"x\.size\(\)\[0\].*right only where {said}"):
        compared(nn.Linear(8, 8), loss, [(12, 8)], 4 * Dim("t"))


def test_conditions_that_multiples_and_bounds_fulfil() -> None:
    compared(nn.Linear(8, 8), rows_more_than_8, [(12, 8), (16, 8)], 4 * Dim("t", min=3))
    compared(nn.Linear(8, 8), rows_in_threes, [(12, 8), (36, 8)], 12 * Dim("t"))


def test_a_size_that_is_no_multiple() -> None:
    with pytest.raises(CaptureError, match=r"a size of 6 in the example is not 4\*rows for any rows"):
        compared(nn.Linear(8, 8), lambda m, x: m(x).sum(), [(6, 8)], 4 * Dim("rows"))


def test_an_error_beside_a_cache_of_sizes_is_reported() -> None:
    """Not that of the cache, behind which the trace is made again."""

    @functools.lru_cache(maxsize=1)
    def places(rows: int) -> Tensor:
        return torch.arange(rows)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) + places(x.shape[0])[:, None]
        return y.sum() if y.sum() > 0 else -y.sum()

    with pytest.raises(CaptureError, match=r"the loss decides by the numbers in a tensor .*specialize=True"):
        gradients(nn.Linear(3, 3), loss, (torch.ones(4, 3),), dynamic_shapes=({0: Dim("N")},))


def test_whole_numbers_of_sizes() -> None:
    """As in losses of the hardest samples, and in masks whose size is a share of an image's."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x).square().mean(1)
        hardest, share = int(0.7 * len(x)), float(len(x)) / 8
        assert isinstance(hardest, int)
        assert isinstance(share, float)
        signed = int(-0.3 * len(x))
        return y.topk(hardest).values.mean() * share + y[signed:].sum() + torch.zeros(int(len(x) / 2)).add(y[0]).sum()

    compared(nn.Linear(8, 8), loss, [(6, 8), (10, 8), (4, 8)], Dim("N", min=4))
    assert "int" not in globals()


OTHERWISE_FOR_1: dict[str, Callable[[Tensor], Tensor]] = {
    "branch": lambda y: y * 2 if len(y) == 1 else y,
    "branch around a deviation": lambda y: y.std(0) if y.shape[0] > 1 else y[0],
    "number of elements": lambda y: y * 2 if y[:, 0].numel() < 2 else y,
    "last part": lambda y: y.chunk(2)[-1],
    "mean of two rows": lambda y: y[:2].sum(0) / y[:2].shape[0],
}


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=[] if check or name == "branch" else pytest.mark.full)
        for name, check in itertools.product(OTHERWISE_FOR_1, (True, False))
    ],
)
@pytest.mark.filterwarnings("ignore:the graph does not have what the code does")
def test_a_size_of_1_for_which_code_does_something_else_is_refused(name: str, check: bool, tmp_path: Path) -> None:
    """A trace takes dynamic sizes to be 2 or more."""

    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return OTHERWISE_FOR_1[name](super().forward(x))

    model, x = Model(5, 2), torch.randn(4, 5)
    dims = ({0: Dim("N")},)
    optimizer = torch.optim.SGD(model.parameters())
    capture = training_step(
        model,
        lambda model, x: model(x).sum(),
        (x,),
        optimizer,
        dynamic_shapes=dims,
        check=check,
        inference=True,
        evaluation=True,
    )
    trainer = Trainer(capture)
    trainer.step(x=x[:2].numpy())
    with pytest.raises(StepError, match=r"'x' is float32 \(1, 5\), expected float32 \(N, 5\) with N >= 2"):
        trainer.step(x=x[:1].numpy())
    trainer.evaluate(x=x[:2].numpy())
    with pytest.raises(StepError, match=r"expected float32 \(N, 5\) with N >= 2"):
        trainer.evaluate(x=x[:1].numpy())
    trainer.export(tmp_path / "model.onnx")
    session = onnx_ops.InferenceSession(tmp_path / "model.onnx")
    session.run(None, {"x": x[:2].numpy()})
    with pytest.raises(Exception, match="N > 1"):
        session.run(None, {"x": x[:1].numpy()})


def test_warnings_are_of_the_line_that_captures() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return OTHERWISE_FOR_1["branch"](model(x)).sum()

    with pytest.warns(UserWarning, match="that size is refused") as warned:
        onnx_ops.torch.gradients(nn.Linear(5, 2), loss, (torch.randn(4, 5),), dynamic_shapes=({0: Dim("N")},))
    assert warned[0].filename == __file__


@pytest.mark.filterwarnings("ignore:the graph does not have what the code does")
def test_a_size_of_1_for_which_only_evaluation_does_something_else() -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if self.training or len(y) > 1 else 2 * y

    model, x = Model(5, 2), torch.randn(4, 5)
    optimizer = torch.optim.SGD(model.parameters())
    capture = training_step(
        model, lambda m, x: m(x).sum(), (x,), optimizer, dynamic_shapes=({0: Dim("N")},), evaluation=True
    )
    trainer = Trainer(capture)
    trainer.step(x=x[:1].numpy())
    trainer.evaluate(x=x[:2].numpy())
    with pytest.raises(Exception, match="N > 1"):
        trainer.evaluate(x=x[:1].numpy())


def test_a_size_of_1_for_which_code_does_the_same_is_allowed() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) / max(len(x) - 1, 1) + x.topk(min(3, len(x)), 0).values.sum()
        y = torch.cat([y[:1], y[1:]]) if len(y) > 1 else y
        return (y * 2 if x.shape[0] * x.shape[1] > 1 else y).exp().sum()

    compared(nn.Linear(5, 2), loss, [(4, 5), (1, 5), (2, 5)], Dim("N"))


def test_branches_on_sizes_that_compute_the_same_both_ways() -> None:
    """As those of diffusers on whether a batch is too large for a kernel."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        y = y.contiguous() if len(y) >= 8 else y
        y = y.contiguous() if 3 * len(y) > 8 else y
        columns = (y.T / 4).contiguous()  # which are the rows of what follows
        columns[:1].mul_(2)
        rows = columns.T.contiguous() if len(y) >= 8 else columns.T
        return (rows.sin() + rows.contiguous()).exp().sum()

    compared(nn.Linear(5, 2), loss, [(4, 5), (1, 5), (2, 5), (3, 5), (7, 5), (8, 5), (9, 5)], Dim("N"))


def test_branches_on_sizes_that_equal_a_number() -> None:
    """As PyTorch compares those of a spectrum with those of a filter; of 7 rows there are 8 frequencies, as columns."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = len(x)
        filters = torch.exp(-torch.arange(rows) / 5)[:, None] * x[:1].detach()
        spectrum = torch.fft.rfft(model(x), n=2 * rows, dim=0) * torch.fft.rfft(filters, n=2 * rows, dim=0)
        return torch.fft.irfft(spectrum, n=2 * rows, dim=0)[:rows].square().mean()

    compared(nn.Linear(8, 8), loss, [(9, 8), (7, 8), (4, 8), (1, 8)], Dim("N"))


@pytest.mark.parametrize(
    "branches",
    [
        lambda y: y.contiguous() if len(y) >= 64 else y * 1.5,
        lambda y: y.contiguous() if len(y) == 64 else y * 1.5,
        lambda y: y if len(y) != 64 and len(y) < 99 else y[:9].sin(),
        lambda y: (y * 2 if len(y) >= 100 else y) if len(y) >= 64 else y,
        lambda y: (y.contiguous() if len(y) >= 64 else y) * (1 if len(y) < 64 else 2),
        lambda y: (y.contiguous() if len(y) >= 64 else y) * (1 if len(y) <= 63 else 2),
        lambda y: (
            ((y * 2 if 3 * len(y) > 99 else y) if len(y) >= 64 else y) + (y.contiguous() if 3 * len(y) > 99 else y)
        ),
        lambda y: (z := y.detach() * 1.5, z[:1].mul_(2) if len(y) >= 64 else z)[0] * y,
        lambda y: (z := y.detach() * 1.5, (z.clone() if len(y) >= 64 else z)[:1].mul_(2))[0] * y,
        lambda y: (z := y.detach() * 1.5, z.clone() if len(y) >= 64 else z, z[:1].mul_(2))[1] * y,
        lambda y: (z := y.T.contiguous().T, z.contiguous() if len(y) >= 64 else z)[1].as_strided((3,), (1,)),
    ],
    ids=[
        "another result",
        "another result of one size",
        "several conditions",
        "a branch in the other way",
        "the same condition",
        "an equal condition",
        "both conditions",
        "a write",
        "a write to the copy",
        "a write to what is copied",
        "another order in memory",
    ],
)
def test_other_branches_on_sizes_are_refused(branches: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match="the graph is right only where"):
        gradients(
            nn.Linear(5, 2), lambda m, x: branches(m(x)).sum(), (torch.randn(4, 5),), dynamic_shapes=({0: Dim("N")},)
        )


@pytest.mark.filterwarnings(r"ignore:var\(\). degrees of freedom")
def test_means_of_what_may_be_empty() -> None:
    """NaN, as in PyTorch; onnxruntime's ReduceMean of no elements is 0."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        mask = x[:, 0] > 0
        chosen, wanted = y[mask], x[mask][:, :2]
        losses = [F.mse_loss(chosen, wanted), F.huber_loss(chosen, wanted), F.smooth_l1_loss(chosen, wanted)]
        means = [chosen.mean(0).sum(), chosen.mean(), chosen[:, 0].mean(), y[2:-1].mean(), chosen.var(0).sum()]
        return torch.stack([*losses, *means])

    model, x = nn.Linear(5, 2), torch.randn(6, 5)
    x[:, 0] = torch.tensor([1.0, -1, 1, 1, -1, 1])

    def total(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        found = loss(model, x)
        return found.nan_to_num().sum(), found

    capture = gradients(model, total, (x,), dynamic_shapes=({0: Dim("N", min=3)},))
    session = onnx_ops.InferenceSession(capture.model)
    (alone := x.clone())[1:, 0] = -1
    for batch in (x, alone, -x.abs(), x[:3]):
        (got,) = session.run(["output.1"], capture.state | {"x": batch.numpy()})
        np.testing.assert_allclose(got, loss(model, batch).detach().numpy(), rtol=2e-6)
