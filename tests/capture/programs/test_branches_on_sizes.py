"""Code that branches on dynamic sizes, and what is known of them: bounds, multiples, a size of 1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import compared_at, gradients, training_step
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention

import onnx_ops
import onnx_ops.torch
from onnx_ops import StepError, Trainer
from onnx_ops.torch import CaptureError

Loss = Callable[[nn.Module, Tensor], Tensor]


def test_filters_that_are_longer_than_the_sequence_are_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.conv1d(torch.arange(40.0).reshape(1, 1, 40), model(x).mT).square().sum()

    step = gradients(nn.Linear(2, 1), loss, (torch.randn(1, 6, 2),), dynamic_shapes=({1: Dim("T")},), inference=False)
    assert onnx_ops.Step.of(step.model).bounds["T"][:2] == (1, 40)


@pytest.mark.parametrize("rows", [3, 4])
def test_a_way_of_the_example_up_to_its_own_size(rows: int) -> None:
    """The trial with one row more takes another way: it is not compared."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean() if len(x) <= 4 else model(x).abs().mean()

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    example = (torch.randn(rows, 2),)
    step = onnx_ops.torch.training_step(
        model, loss, example, optimizer, dynamic_shapes=({0: Dim("N")},), specialize=True
    )
    trainer = Trainer(step)
    expected = loss(model, torch.ones(2, 2)).item()
    assert trainer.step(x=np.ones((2, 2), np.float32))["loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(StepError, match=r"'x' is float32 \(5, 2\), expected float32 \(N, 2\) with N from 0 to 4"):
        trainer.step(x=np.ones((5, 2), np.float32))


def test_halves_of_a_dynamic_number_of_pairs() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        first, second = model(x).split(len(x) // 2)
        return (first * second.exp()).sum()

    compared_at(nn.Linear(2, 2), loss, [(6, 2), (4, 2), (2, 2)], 2 * Dim("pairs"))


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


class Attention(nn.Linear):
    """Attention that is causal where there is more than one query, as many libraries have it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = super().forward(x)[:, None].chunk(3, -1)
        first = scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        return first + F.scaled_dot_product_attention(q, k, v, None, 0.0, x.shape[1] == x.shape[1] and x.shape[1] > 1)


def test_attention_that_is_causal_under_a_condition_on_sizes() -> None:
    compared_at(
        Attention(4, 12), lambda m, x: m(x).square().sum(), [(3, 5, 4), (2, 7, 4), (4, 1, 4)], Dim("N"), Dim("T")
    )


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
    compared_at(
        Patches(),
        lambda m, x: m(x).square().sum(),
        [(2, 1, 16, 32), (3, 1, 8, 16), (1, 1, 24, 48)],
        Dim("N"),
        Dim.STATIC,
        8 * side,
        16 * side,
    )


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
        compared_at(nn.Linear(8, 8), loss, [(12, 8)], 4 * Dim("t"))


def test_conditions_that_multiples_and_bounds_fulfil() -> None:
    compared_at(nn.Linear(8, 8), rows_more_than_8, [(12, 8), (16, 8)], 4 * Dim("t", min=3))
    compared_at(nn.Linear(8, 8), rows_in_threes, [(12, 8), (36, 8)], 12 * Dim("t"))


def test_a_size_that_is_no_multiple() -> None:
    with pytest.raises(CaptureError, match=r"a size of 6 in the example is not 4\*rows for any rows"):
        compared_at(nn.Linear(8, 8), lambda m, x: m(x).sum(), [(6, 8)], 4 * Dim("rows"))


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

    compared_at(nn.Linear(5, 2), loss, [(4, 5), (1, 5), (2, 5)], Dim("N"))


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

    compared_at(nn.Linear(5, 2), loss, [(4, 5), (1, 5), (2, 5), (3, 5), (7, 5), (8, 5), (9, 5)], Dim("N"))


def test_branches_on_sizes_that_equal_a_number() -> None:
    """As PyTorch compares those of a spectrum with those of a filter; of 7 rows there are 8 frequencies, as columns."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = len(x)
        filters = torch.exp(-torch.arange(rows) / 5)[:, None] * x[:1].detach()
        spectrum = torch.fft.rfft(model(x), n=2 * rows, dim=0) * torch.fft.rfft(filters, n=2 * rows, dim=0)
        return torch.fft.irfft(spectrum, n=2 * rows, dim=0)[:rows].square().mean()

    compared_at(nn.Linear(8, 8), loss, [(9, 8), (7, 8), (4, 8), (1, 8)], Dim("N"))


@pytest.mark.parametrize("rows", [6, 7])
@pytest.mark.parametrize("axis", ["behind", "before"])
def test_padding_to_a_multiple_that_is_cut_off_if_there_is_any(axis: str, rows: int) -> None:
    """As of the chunks of Mamba 2."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        padding = -len(y) % 3
        y = F.pad(y, (0, 0, 0, padding) if axis == "behind" else (0, 0, padding, 0))
        y = y.reshape(-1, 3, 2).cumsum(1).reshape(-1, 2)
        if padding > 0:
            y = y[: len(x)] if axis == "behind" else y[padding:]
        return (y * x).square().mean()

    compared_at(nn.Linear(2, 2), loss, [(rows, 2), (6, 2), (7, 2), (2, 2), (1, 2), (3, 2), (12, 2)], Dim("N"))


@pytest.mark.parametrize("rows", [6, 7])
@pytest.mark.parametrize("always", [False, True])
def test_padding_to_a_rounded_quotient(rows: int, always: bool) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        chunks = math.ceil(len(y) / 3)
        padding = 3 * chunks - len(y)
        y = F.pad(y, (0, 0, 0, padding)).reshape(chunks, 3, 2).cumsum(1).reshape(3 * chunks, 2)
        y = y[: len(x)] if always or padding > 0 else y
        return (y * x).square().mean()

    compared_at(nn.Linear(2, 2), loss, [(rows, 2), (6, 2), (7, 2), (2, 2), (1, 2), (3, 2), (12, 2)], Dim("N"))


@pytest.mark.parametrize("pairs", [6, 7])
def test_padding_of_patches_to_windows(pairs: int) -> None:
    """As of images of Swin."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        patches = model(x.reshape(-1, 4))
        padding = -len(patches) % 3
        y = F.pad(patches, (0, 0, 0, padding)).reshape(-1, 3, 2).cumsum(1).reshape(-1, 2)
        y = y[: len(patches)] if padding else y
        return (y * x[::2]).square().mean()

    shapes = [(2 * pairs, 2), (12, 2), (14, 2), (4, 2), (2, 2), (6, 2), (24, 2)]
    compared_at(nn.Linear(4, 2), loss, shapes, 2 * Dim("pairs"))


@pytest.mark.parametrize("shape", [(5, 7, 2), (4, 7, 2), (5, 6, 2), (4, 6, 2)])
def test_padding_of_two_axes_to_windows(shape: tuple[int, ...]) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        height, width, channels = x.shape
        below, beside = -height % 2, -width % 3
        y = model(x)
        if below or beside:
            y = F.pad(y, (0, 0, 0, beside, 0, below))
        windows = y.unflatten(0, (-1, 2)).unflatten(2, (-1, 3)).transpose(1, 2)
        attended = windows.flatten(2, 3).cumsum(2).sin().view_as(windows).transpose(1, 2)
        y = attended.reshape(height + below, width + beside, channels)
        if below or beside:
            y = y[:height, :width].contiguous()
        return (y * x).sum()

    shapes = [shape, (4, 6, 2), (5, 6, 2), (2, 4, 2), (1, 5, 2), (3, 1, 2)]
    compared_at(nn.Linear(2, 2), loss, shapes, Dim("height"), Dim("width"))


@pytest.mark.parametrize("rows", [6, 7])
@pytest.mark.parametrize(
    "branches",
    [
        lambda y: y.sin() if len(y) % 3 else y,
        lambda y: F.pad(y, (0, 0, 0, 3 - len(y) % 3)) if len(y) % 3 else y,  # 3 rows for a multiple
        lambda y: F.pad(y, (0, 0, 1, -1)) if len(y) % 3 == 0 else y,
        lambda y: y.clamp(max=1e3) if len(y) % 3 == 0 and len(y) > 64 else y,
        lambda y: torch.cat([y, y[: -len(y) % 3]]) if len(y) % 3 else y[1:],
        lambda y: y if len(y) % 3 else y[1:],
        lambda y: (z := y.detach() * 1.5, z[: len(z) - len(z) % 3].mul_(2) if len(y) % 3 else z)[0] * y,
    ],
    ids=["another result", "another padding", "shifted", "more conditions", "fewer rows", "a slice", "a write"],
)
def test_other_code_for_multiples_is_refused(branches: Callable[[Tensor], Tensor], rows: int) -> None:
    with pytest.raises(CaptureError, match="the graph is right only where"):
        gradients(
            nn.Linear(5, 2), lambda m, x: branches(m(x)).sum(), (torch.randn(rows, 5),), dynamic_shapes=({0: Dim("N")},)
        )


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
