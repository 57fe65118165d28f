"""Code of models and losses that computes with dynamic sizes, compared at other sizes."""

from __future__ import annotations

import itertools
import logging
import logging.handlers
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import compared_at, gradients
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import onnx_ops
from onnx_ops.torch.tracing.effects import storages
from onnx_ops.torch.tracing.explanations import Locations
from onnx_ops.torch.tracing.fake_tensors import FakeTensors
from onnx_ops.torch.tracing.frames import Line, is_library, line_now
from onnx_ops.torch.tracing.trace import trace

Loss = Callable[[nn.Module, Tensor], Tensor]


def test_fourier_transforms_along_several_axes() -> None:
    """Of which one is dynamic; PyTorch sorts them by their strides."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x[..., None]).squeeze(-1)
        return torch.fft.irfft2(torch.fft.rfft2(y) * 0.3, s=y.shape[-2:]).exp().sum()

    compared_at(nn.Linear(1, 1), loss, [(3, 2, 6), (3, 2, 3)], Dim.STATIC, Dim.STATIC, Dim("T"))


def test_filters_of_dynamic_sizes() -> None:
    """As long convolutions of state space models, and moving averages over a part of a sequence, have them."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, length = model(x).mT, x.shape[1]
        causal = F.conv1d(y, y[:1].transpose(0, 1) / length, padding=length - 1, groups=2)[..., :length]
        planes = F.conv2d(x[:, None], y[:1, :1, :, None].sin(), stride=(length // 2, 1), padding=(length // 3, 0))
        turned = F.conv_transpose1d(y, y[:2], stride=2, padding=1)
        return causal.square().sum() + planes.square().mean() + turned.sin().sum()

    shapes = [(3, 6, 4), (2, 5, 4), (2, 11, 4)]
    compared_at(nn.Linear(4, 2), loss, shapes, Dim("N"), Dim("T", min=4))


def test_combinations() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        pairs = y[torch.combinations(torch.arange(len(x)))]
        threes = torch.combinations(y[:, 0], 3, with_replacement=True).prod(1).sum()
        return (pairs[:, 0] - pairs[:, 1]).square().sum() + threes + torch.combinations(y[:, 1], 3).prod(1).sum()

    compared_at(nn.Linear(4, 4), loss, [(6, 4), (3, 4), (2, 4)], Dim("N"))


def test_reshapes_of_slices() -> None:
    """As logits and labels of the next tokens are flattened: of two tokens one is left."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        logits, labels = model(x)[:, :-1], x.argmax(-1)[:, 1:]
        return F.cross_entropy(logits.reshape(-1, 3), labels.reshape(-1)) + logits.flatten().cos().mean()

    for first in (5, 2):
        compared_at(nn.Linear(3, 3), loss, [(4, first, 3), (2, 2, 3), (3, 7, 3)], Dim("B"), Dim("T"))


def test_attention_on_all_but_the_last_token() -> None:
    """As decoders are trained; its strides are those of a contiguous tensor where one token is left."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x[:, :-1], x[:, 1:], x[:, :-1], need_weights=False)[0].square().mean()

    model = nn.MultiheadAttention(4, 2, batch_first=True)
    compared_at(model, loss, [(4, 7, 4), (2, 2, 4), (3, 3, 4)], Dim("B"), Dim("T"))


def test_pairs_of_rows() -> None:
    """A reshape whose result is a view for even sizes only; and the spectrum of rows, whose halves are mirrored."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        pairs = y[:, : x.shape[1] // 2 * 2].reshape(x.shape[0], -1, 2, 3)
        whole = y[:, : x.shape[1] // 2 * 2].flatten(1).square().sum() + pairs.flatten(2).cos().sum()
        whole = whole + y[:, : x.shape[1] // 2 * 2].contiguous().view(x.shape[0], -1, 6).sin().sum()
        spectrum = torch.fft.rfft(y, dim=1)  # of real numbers at both ends, with the angle 0 or pi
        return (pairs[:, :, 0] * pairs[:, :, 1].cos()).sum() + whole + (spectrum.abs() + spectrum.angle()).sum()

    compared_at(nn.Linear(3, 3), loss, [(4, 7, 3), (2, 4, 3), (3, 2, 3)], Dim("B"), Dim("T"))


def test_writes_to_slices() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        moved = torch.zeros_like(y)
        moved[:, 0] = y[:, -1]
        moved[:, 1:] += 2 * y[:, :-1]
        return (moved * y).mean()

    compared_at(nn.Linear(3, 3), loss, [(4, 5, 3), (2, 2, 3), (3, 7, 3)], Dim("B"), Dim("T"))


def test_running_extremes() -> None:
    """Of integers too that are no float32."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        far = (1 << 24) + x.argsort(0)
        values, indices = far.cummax(0)
        counted = (values - (1 << 24) + indices + torch.cummin(-far, 0).indices) * (x > 0).cummax(0).values
        ties = x.repeat(1, 5).round()
        counted = counted + (ties.cummax(1).indices - ties.cummin(1).indices)[:, -8:]
        return (y * counted).mean() + y.cummax(1).values.square().mean() + y.cummin(0)[0].sum()

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (2, 8), (12, 8)], Dim("N"))


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pads_by_numbers_in_tensors(mode: str) -> None:
    """As EnCodec pads a signal up to whole windows, whose size is in a buffer."""
    total = torch.tensor(1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        windows = torch.ceil((x.shape[-1] - 3 + total) / 2 + 1).to(torch.int64)
        missing = (windows - 1) * 2 + 3 - total - x.shape[-1]
        return model(F.pad(x, (total, missing), mode=mode)).square().mean()

    compared_at(nn.Conv1d(2, 2, 3, stride=2), loss, [(2, 2, 9), (3, 2, 12)], Dim("N"), None, Dim("T", min=4))


def test_chunks_of_a_padded_sequence() -> None:
    """As models with state spaces carry a state from chunk to chunk: the number of chunks is rounded up."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = F.pad(model(x), (0, 0, 0, -x.shape[1] % 4))
        chunks = y.reshape(x.shape[0], -1, 4, 3)
        states = torch.cat([torch.zeros_like(chunks[:, :1, 0]), chunks.sum(2)], 1)
        decay = F.pad(chunks.mean((2, 3)), (1, 0)).exp()
        carried = (decay[:, None] * decay[:, :, None])[..., None] * states[:, None]
        return (chunks * carried.sum(2)[:, :-1, None]).reshape(x.shape[0], -1, 3)[:, : x.shape[1]].square().mean()

    compared_at(nn.Linear(2, 3), loss, [(3, 9, 2), (2, 12, 2), (4, 3, 2), (1, 23, 2)], Dim("B"), Dim("T"))


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

    compared_at(nn.Linear(3, 2), loss, [(4, 3), (2, 3), (7, 3)], Dim("N"))


def test_row_pointers_of_a_sparse_matrix() -> None:
    """As PyTorch Geometric sorts edges; some rows have no entry."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0]) // 3 * 2
        starts = torch._convert_indices_from_coo_to_csr(rows, x.shape[0])
        return (model(x) * starts[:-1, None] + starts[-1]).square().mean()

    compared_at(nn.Linear(3, 2), loss, [(7, 3), (4, 3), (11, 3)], Dim("N"))


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

    compared_at(nn.Linear(4, 5), loss, [(6, 4), (3, 4), (9, 4)], Dim("N", min=3))


def test_running_products_and_extremes() -> None:
    """The gradient with respect to a factor that is 0 is that of the product of the others: of none, one or two."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) * (torch.arange(x.shape[0])[:, None] >= torch.arange(3))
        largest, places = y.cummax(0)
        whole = y[:, :1].prod() + y[:, :2].prod() + y.prod()
        parts = [y.prod(0), y.prod(0, keepdim=True).sin(), whole, y.cumprod(0).cos() * y.logcumsumexp(0)]
        parts += [y.narrow(1, 0, 1).squeeze(1).cumprod(-1), largest * places, y.cummin(0).values * (x > 0).prod(0)]
        return sum((part.sum() for part in parts), start=torch.zeros(()))

    compared_at(nn.Linear(3, 3), loss, [(4, 3), (1, 3), (9, 3)], Dim("N"))


def test_running_sums_of_exponentials_keep_the_digits_of_float64() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (40 * model(x)).logcumsumexp(0).sin().sum()

    compared_at(nn.Linear(4, 4).double(), loss, [(9, 4), (1, 4), (33, 4), (70, 4)], Dim("N"), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_of_any_number_of_factors(dtype: torch.dtype) -> None:
    """None, one or two of them are 0; derivatives of both orders."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) * (torch.arange(x.shape[0])[:, None] >= torch.arange(4) - 1)
        scale = torch.where(torch.arange(x.shape[0])[:, None] % 2 == 0, 1e-25, 1e25)
        (slope,) = torch.autograd.grad(y.prod(0).square().sum(), y, create_graph=True)
        return (y[:, 2:].prod(0, keepdim=True) + (y[:, :2] * scale).prod(0)).sin().sum() + (slope * y.detach()).sum()

    compared_at(nn.Linear(3, 4).to(dtype), loss, [(4, 3), (1, 3), (6, 3)], Dim("N"), dtype=dtype)


def test_table_of_a_dynamic_number_of_rows() -> None:
    """As a graph network looks up the nodes of edges."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        edges = torch.stack([torch.arange(2 * x.shape[0]) // 3, torch.arange(2 * x.shape[0]) % x.shape[0]])
        rows = F.embedding(edges, model(x), padding_idx=1)
        return rows.square().mean() + F.embedding(edges[0], model(x), scale_grad_by_freq=True).sin().sum()

    compared_at(nn.Linear(3, 2), loss, [(7, 3), (4, 3), (11, 3)], Dim("N"))


def test_modes_of_a_dynamic_batch() -> None:
    """As Fourier neural operators write the lowest frequencies into zeros, shifted and back."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        modes = torch.fft.fftshift(torch.fft.fft(model(x)), dim=1)
        kept = torch.zeros(modes.shape, dtype=modes.dtype)
        kept[:, 2:6] = modes[:, 2:6] * torch.view_as_complex(model.weight[:4, :2])
        found = torch.fft.fft(x)
        found[:, :2] = kept[:, 2:4] * 0.5
        return (torch.fft.ifft(torch.fft.ifftshift(kept + found, dim=1)).real - x).square().mean()

    compared_at(nn.Linear(8, 8), loss, [(3, 8), (2, 8), (7, 8)], Dim("N"))


def test_transforms_along_a_dynamic_axis() -> None:
    """Whether it is as long as another one makes no difference."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        whole = torch.fft.ifft(torch.fft.fft(y, dim=0) * torch.arange(8), dim=0).real
        return torch.fft.irfft2(torch.fft.rfft2(whole) ** 2, s=y.shape).square().mean()

    compared_at(nn.Linear(4, 8), loss, [(3, 4), (8, 4), (5, 4), (1, 4)], Dim("N"))


@pytest.mark.parametrize("edge_order", [1, 2])
def test_slopes(edge_order: int) -> None:
    """Of equal steps or between given places, along axes of static and dynamic size."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, times = model(x), torch.tensor([0.0, 0.5, 2.0, 2.3])
        by_time = torch.gradient(y, spacing=[times], dim=1, edge_order=edge_order)[0]
        by_row, by_column = torch.gradient(y, spacing=[0.5, 2.0], edge_order=edge_order)
        by_place = torch.gradient(y, spacing=(torch.arange(len(x)) ** 2,), dim=0, edge_order=edge_order)[0]
        return (by_time.exp() + by_row * by_column + by_place.sin()).sum()

    compared_at(nn.Linear(3, 4), loss, [(5, 3), (3, 3), (8, 3)], Dim("N", min=edge_order + 1))


def test_segments_of_more_rows_than_there_are() -> None:
    """In a batch of another size that a capture tries, PyTorch would read outside of the rows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = model(x)[:5]
        return torch.segment_reduce(rows, "mean", lengths=torch.tensor([2, 3]), unsafe=True).square().sum()

    gradients(nn.Linear(3, 2), loss, (torch.randn(6, 3),), dynamic_shapes=({0: Dim("N", min=5)},))


def test_histograms() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows, flat = model(x), torch.ones_like(x)
        counts, edges = torch.histogram(x.round(), 4, range=(-2.0, 2.0))
        shares = x.histogram(torch.tensor([-1.0, 0.3, 2.0]).to(x), weight=x.abs(), density=True).hist
        other = torch.histogram(flat, 3).hist * torch.histogram(x, 3).bin_edges[1:]
        return rows.square().mean() * ((counts * edges[1:]).sum() + shares[0] + other.sum())

    compared_at(nn.Linear(3, 2), loss, [(6, 3), (2, 3), (9, 3)], Dim("N"))


def test_bincount() -> None:
    """As PyTorch Geometric counts the neighbours of a dynamic number of nodes."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        numbers = torch.arange(x.shape[0]) // 3
        counts = torch.bincount(numbers, minlength=x.shape[0])
        sums = torch.bincount(numbers, x[:, 0].detach() + numbers, minlength=x.shape[0])
        return (model(x) * (counts + sums)[:, None] + torch.bincount(numbers).sum()).square().mean()

    compared_at(nn.Linear(3, 2), loss, [(7, 3), (4, 3), (11, 3)], Dim("N"))


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
    compared_at(nn.Linear(5, 2), loss, samples, chunks * Dim("samples"))


def test_halves_of_any_batch() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        parts = (*x.chunk(2), *model(x).tensor_split(3)[::2], *torch.tensor_split(x, [2, 4], dim=1)[2:])
        return sum((part[..., :1].exp().sum() for part in parts), model(x.chunk(2)[1]).cos().sum())

    compared_at(nn.Linear(5, 2), loss, [(5, 5), (3, 5), (8, 5), (6, 5)], Dim("N"))


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

    compared_at(nn.Linear(3, 2), loss, [(4, 3), (2, 3), (7, 3)], Dim("N"))


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

    compared_at(nn.Linear(3, 3), loss, [(3, 16, 3), (2, 16, 3), (1, 16, 3)], Dim("N"))


def test_one_chunk() -> None:
    """As in ghost batch norm with batches of at most one chunk."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        chunks = [*model(x).chunk(1), *torch.chunk(x.sin(), 1, 0)]
        return (torch.cat(chunks).square() * torch.cat([x, x]).cos()).mean()

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (1, 8)], Dim("N"))


def test_distances_between_any_number_of_rows() -> None:
    """PyTorch computes them in another way for more than 25 rows."""
    compared_at(
        nn.Linear(8, 8),
        lambda m, x: torch.cdist(m(x), x).sin().square().sum(),
        [(6, 8), (3, 8), (25, 8), (40, 8)],
        Dim("N"),
    )


def test_distances_that_are_0() -> None:
    """Of batches with one set of rows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) * torch.arange(1.0, 3)[:, None, None]
        return torch.cdist(y, y[:1, 1:].detach()).sin().sum()

    compared_at(nn.Linear(4, 4), loss, [(6, 4), (2, 4), (25, 4)], Dim("N", min=2))


def test_second_derivatives_of_distances() -> None:
    """PyTorch has them for more than 25 rows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        (slope,) = torch.autograd.grad(torch.cdist(y, x[1:] + 1).sin().sum(), y, create_graph=True)
        return slope.square().sum()

    compared_at(nn.Linear(4, 4).double(), loss, [(30, 4), (27, 4)], Dim("N", min=3), dtype=torch.float64)


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

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (9, 8)], Dim("N"))


def test_affine_grids() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        grid = F.affine_grid(model(x[:, :, 0]).view(-1, 2, 3), [len(x), 4, x.shape[2], 5], align_corners=False)
        return F.grid_sample(x.view(len(x), 1, 8, -1), grid, align_corners=False).sin().sum()

    compared_at(nn.Linear(8, 6), loss, [(6, 8, 3), (3, 8, 5), (9, 8, 1)], Dim("N"), Dim.STATIC, Dim("width"))


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
    compared_at(model, loss, [(2, 12, 12), (3, 12, 12)], Dim("N"))


def test_samples_of_images_of_dynamic_sizes() -> None:
    """As images are warped by an optical flow, up to an image of one pixel."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        flow = 2 * model(x)
        return F.grid_sample(x.movedim(3, 1), flow, "bilinear", "reflection", align_corners=True).sin().mean()

    compared_at(
        nn.Linear(2, 2), loss, [(2, 5, 4, 2), (1, 3, 6, 2), (3, 1, 1, 2)], Dim("N"), Dim("height"), Dim("width")
    )


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

    compared_at(
        nn.Linear(2, 2), loss, [(2, 5, 4, 2), (1, 3, 6, 2), (3, 1, 1, 2)], Dim("N"), Dim("height"), Dim("width")
    )


def test_causal_masks_of_encoders() -> None:
    class Causal(nn.TransformerEncoder):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            return super().forward(x, nn.Transformer.generate_square_subsequent_mask(x.shape[1]))

    model = Causal(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), 1, enable_nested_tensor=False)
    lengths = [(2, 5, 4), (1, 3, 4), (3, 1, 4)]
    compared_at(model, lambda model, x: (model(x) * x).square().mean(), lengths, Dim("N"), Dim("time"))


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
    compared_at(WindowsOfTime(), lambda m, x: (m(x) * torch.arange(4)).square().mean(), shapes, samples)


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


def test_chains_of_products_and_powers() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = model(x)
        chain = torch.linalg.multi_dot([rows[0], rows.T, rows, rows.T, x[:, 0]]) + torch.chain_matmul(rows.T, x).sum()
        powers = torch.vander(x[:, 1]) + torch.vander(x[:, 1], len(x), increasing=True)
        return chain + (powers @ rows).square().mean() / x.nbytes

    compared_at(nn.Linear(3, 2), loss, [(4, 3), (2, 3), (5, 3)], Dim("N"))


def test_lengths_that_are_quotients_by_the_number_of_samples() -> None:
    """As recurrent policies unflatten steps of several environments."""

    def loss(model: nn.Module, x: Tensor, start: Tensor) -> Tensor:
        rows, samples = x.flatten(0, 1), len(start)
        steps = int(rows.size(0) / samples)
        hidden, _ = model(rows.view(steps, samples, rows.size(1)), start[None])
        return hidden.square().mean()

    torch.manual_seed(0)
    model, samples = nn.GRU(4, 3), Dim("samples")
    shapes = {0: Dim("steps", min=2), 1: samples}, {0: samples}
    captured = gradients(model, loss, (torch.randn(5, 3, 4), torch.randn(3, 3)), dynamic_shapes=shapes)
    x, start = torch.randn(6, 4, 4), torch.randn(4, 3)
    found = onnx_ops.Trainer(captured).step(x=x.numpy(), start=start.numpy())["loss"]
    np.testing.assert_allclose(found, loss(model, x, start).item(), rtol=1e-5)
