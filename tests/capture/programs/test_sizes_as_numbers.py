"""Sizes that code computes with as numbers, and numbers and tensors that it makes of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from math import log10 as decadic
from math import sqrt

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import compared_at, gradients
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops import Trainer
from onnx_ops.torch import CaptureError

Loss = Callable[[nn.Module, Tensor], Tensor]


def test_len_of_a_tensor() -> None:
    """As in the losses of CLIP and of normalizing flows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        same = F.cross_entropy(y @ y.t(), torch.arange(len(x)))
        return same + y.view(len(y), 2, 4).sum(1).square().sum() / len(x) + len([1, 2]) * y.mean()

    before = len
    compared_at(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (1, 8)], Dim("N"))
    assert len is before


def test_numbers_of_elements_of_shapes() -> None:
    """As in the losses of torchrl."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        return y.reshape(y.shape[:2].numel(), -1).square().sum() / (y.shape + y.shape[:1]).numel() + y[0].size().numel()

    before = torch.Size.numel
    compared_at(nn.Linear(3, 2), loss, [(6, 4, 3), (3, 5, 3), (1, 1, 3)], Dim("N"), Dim("M"))
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

    compared_at(nn.Linear(4, 4), loss, [(6, 4), (3, 4), (1, 4)], Dim("N"))


def test_places_that_are_sizes() -> None:
    """As of the frame in the middle and of the last token."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, rows = model(x).clone(), len(x)
        y[rows - 1, 0] = y[rows // 2].sum()
        return (y[rows // 2, 1:] * y[None, rows - 1, ..., 1:].exp()).sum() + torch.arange(rows)[rows - 1] * y.mean()

    compared_at(nn.Linear(4, 4), loss, [(6, 4), (3, 4), (1, 4)], Dim("N"))


def test_min_and_max_of_sizes() -> None:
    """As of the last block of a sequence, and of elements that are not more than there are."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, size = model(x), x.shape[0]
        most = y.topk(min(3, size), 0).values.sum() / max(size, 4, 2) + min(x.shape) * max((size, 2 * size)) * y.mean()
        return most + sum((y[i : min(i + 4, size)] * (min(i + 4, size) - i)).square().sum() for i in range(0, 9, 4))

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (2, 8), (12, 8), (9, 8)], Dim("N", max=12))


def test_linspace() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        ends = torch.linspace(x[0, 0], x[0, 1], x.shape[0], dtype=torch.float64)
        return (model(x) * (torch.linspace(-1, 2.5, x.shape[0]) * ends)[:, None]).square().mean()

    compared_at(nn.Linear(3, 2), loss, [(7, 3), (2, 3), (4, 3)], Dim("N"))


def test_frequencies() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        by_row = (model(x).square() * torch.fft.fftfreq(x.shape[0], 0.3)[:, None]).sum()
        return by_row + (model(x) * torch.fft.fftfreq(8)).sum().exp()

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (3, 8)], Dim("N"))


def test_positions_that_are_counted_down() -> None:
    """As XLNet counts them, by a step that is a floating number."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        distances = torch.arange(x.shape[1] - 1, -1, -1.0)
        return (model(x) * torch.stack([distances, 2 * distances], 1).view(x.shape[1], 2)).square().mean()

    compared_at(nn.Linear(3, 2), loss, [(3, 5, 3), (2, 9, 3)], Dim("B"), Dim("T"))


def test_positions_between_integers_and_floating_numbers() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        first = torch.arange(0.0, x.shape[0]) + torch.arange(-x.shape[0], 0.0)
        even = torch.arange(0, 2 * x.shape[0], 2.0, dtype=torch.int32)
        return (model(x) * (first * even)[:, None] * torch.arange(-1, 2.0)).square().mean()

    compared_at(nn.Linear(3, 3), loss, [(3, 3), (1, 3), (6, 3)], Dim("B"))


def test_draws_of_as_many_numbers_as_samples() -> None:
    """By one algorithm for all numbers of them, so that 1 is one of the sizes that a step takes."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        drawn = torch.multinomial(torch.ones(3), len(x), replacement=True)
        return model(x).gather(1, drawn[:, None]).mean()

    capture = gradients(nn.Linear(4, 3), loss, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("N")},))
    Trainer(capture).step(x=np.ones((1, 4), np.float32))


def test_tensors_of_numbers_of_sizes() -> None:
    """As Longformer computes a number of chunks, and with it the shape of a view."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        chunks = torch.div(x.shape[0], 4, rounding_mode="trunc")
        changed = torch.tensor(x.shape[0])
        changed += 1  # another number
        rows = model(x).view(chunks, 4, 3)
        more = rows.new_ones(2 * chunks - 1, 1) * model.bias
        return (rows * rows.flip(1)).mean() + more.sin().sum() + changed * model.weight.sum()

    compared_at(nn.Linear(3, 3), loss, [(8, 3), (4, 3), (12, 3)], 4 * Dim("chunks"))


def test_numbers_that_depend_on_a_size() -> None:
    """The gradient of a variance has the factor 2 / (N - 1); sums and products with such a number."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        spread = y.std(0).sum() + y.var(dim=(0, 1)) + torch.var_mean(y, 0, correction=0)[0].sum()
        count = y.shape[0]
        add, mul, sub = torch.ops.aten.add.Scalar, torch.ops.aten.mul.Scalar, torch.ops.aten.sub.Scalar
        scaled = mul(y, 2 / count) + add(y.sin(), 0.1 * count, 2) + sub(y.cos(), count)
        return spread + scaled.sum() + torch.remainder(y, count / 9).sum()

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (9, 8)], Dim("N"))


def test_constants_times_numbers_that_depend_on_a_size() -> None:
    """Their values are known in a trace, products with such a number are not, nor what it changes in place."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        scaled, filled, changed = torch.ones(3) * (2 / len(x)), x.new_zeros(3), torch.ones(3)
        filled += 1 / len(x)
        changed[:2] *= len(x) * 0.5
        return (model(x) * (scaled + filled.mul_(1.5) * changed)).sum() + changed.sum().item() * model.bias.sum()

    compared_at(nn.Linear(3, 3), loss, [(4, 3), (1, 3), (9, 3)], Dim("N"))


def test_square_roots_of_ratios_of_sizes_by_numpy() -> None:
    """As Cosmos normalizes embeddings: the first term of the sum is a number, its factor one that NumPy computes."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        return (y / torch.add(0.5, norm, alpha=np.sqrt(norm.numel() / y.numel()))).sum()

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (3, 8), (1, 8)], Dim("N"))


def test_mathematics_of_sizes() -> None:
    """As in attention that is scaled by the logarithm of the length; Python computes with sizes in float64."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, size = model(x), x.shape[0]
        scale = math.log(size + 1) + math.sqrt(size) - sqrt(size + 2) * math.log2(size + 1) + np.log1p(size) / size
        scale += math.exp(-size) + math.pow(size, -0.3) * decadic(size + 5) + math.cos(size) * np.tanh(size / 9)
        # In float32 0.1 * 30 is not above 3; rounded down, and half to even.
        rounded = math.ceil(0.1 * size) + math.floor(-0.7 * size) + (4 - size) // 3 + (0.7 * size) // 0.2
        rounded += sum(divmod(size, 4)) + round(size / 4) + (3 - size) % 4 + (0.3 * size) % -0.4
        mixed = max(1.0, size / 4) + max(y.sum(), size, 2) + min(2, size, y.mean()) + min(float("inf"), size)
        return y.square().mean() * scale + y.mean() * rounded + y.sin().sum() * mixed

    sizes = 6, 3, 1, 30, 10
    compared_at(nn.Linear(8, 8), loss, [(size, 8) for size in sizes], Dim("N"))
    compared_at(nn.Linear(8, 8).double(), loss, [(size, 8) for size in sizes], Dim("N"), dtype=torch.float64)


def test_sizes_divided_by_floats_that_are_integers() -> None:
    """As the number of images that Swin computes of its windows."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        height, width, side = 4, 6, 2
        windows = model(x.unflatten(1, (2, side, 3, side)).transpose(2, 3).reshape(-1, side, side, 8))
        images = int(windows.shape[0] / (height * width / side / side))
        y = windows.view(images, 2, 3, side, side, -1).transpose(2, 3).reshape(images, height, width, -1)
        return y.cumsum(1).square().mean() + (y.sum() / (len(x) / 4.0)).sin()

    compared_at(nn.Linear(8, 8), loss, [(3, 24, 8), (5, 24, 8), (1, 24, 8)], Dim("N"))


def lines_of(loss: Loss) -> str:
    code = loss.__code__
    return rf"test_sizes_as_numbers\.py, line {code.co_firstlineno + 1}\)"


def test_the_line_that_makes_a_number_of_a_size_is_named() -> None:
    def by_range(model: nn.Module, x: Tensor) -> Tensor:
        return sum((model(x)[i].sum() for i in range(len(x))), torch.zeros(()))

    def by_condition(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() if x.shape[0] > 3 else model(x).mean()

    def by_rows(model: nn.Module, x: Tensor) -> Tensor:
        return torch.stack([model(row).sum() for row in x]).mean()

    number = "makes the number 6 of it"
    losses = by_range, by_rows
    for loss, said in (*((loss, number) for loss in losses), (by_condition, "right only where it is 4 or more")):
        with pytest.raises(CaptureError, match=rf"x\.size\(\)\[0\].* {said} \(at .*{lines_of(loss)}"):
            compared_at(nn.Linear(8, 8), loss, [(6, 8)], Dim("N"))


def test_whole_numbers_of_sizes() -> None:
    """As in losses of the hardest samples, and in masks whose size is a share of an image's."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x).square().mean(1)
        hardest, share = int(0.7 * len(x)), float(len(x)) / 8
        assert isinstance(hardest, int)
        assert isinstance(share, float)
        signed = int(-0.3 * len(x))
        return y.topk(hardest).values.mean() * share + y[signed:].sum() + torch.zeros(int(len(x) / 2)).add(y[0]).sum()

    compared_at(nn.Linear(8, 8), loss, [(6, 8), (10, 8), (4, 8)], Dim("N", min=4))
    assert "int" not in globals()


def test_ranges_of_sizes_as_indices() -> None:
    """As they select the value of an action, or the score of a label, in each row."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, size = model(x), x.shape[0]
        labels = torch.arange(size) % 3
        targets = torch.zeros(size, 3, dtype=x.dtype)
        targets[range(size), labels] = 1.0
        rows = range(1, size, 2)
        assert isinstance(rows, range)
        weights = torch.tensor(range(size)).to(x.dtype) + sum(range(3)) + sum(torch.tensor([1.0])[i] for i in range(1))
        return (
            (y[range(len(x)), labels] * weights).square().mean() + (y - targets).square().mean() + y[rows].exp().sum()
        )

    compared_at(nn.Linear(3, 3), loss, [(6, 3), (2, 3), (7, 3), (1, 3)], Dim("N"))
    assert "range" not in globals()


def test_sizes_that_are_checked_to_be_numbers() -> None:
    """As parameters of augmentations are in Kornia."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if not (isinstance(x.shape[0], int) and x.shape[0] >= 0):
            raise AssertionError(f"expected a positive integer, got {x.shape[0]}")
        if not isinstance(0.5 * x.shape[0], float | int):
            raise TypeError(f"expected a number, got {0.5 * x.shape[0]}")
        return model(x).square().sum() / x.shape[0]

    compared_at(nn.Linear(3, 2), loss, [(4, 3), (2, 3), (1, 3)], Dim("N"))


def test_positions_around_the_centre() -> None:
    """Whose ends are fractions of a size, and which are as many as the size says."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        centred = torch.arange(-x.shape[0] / 2, x.shape[0] / 2) + torch.arange(x.shape[0] - 1.0, -1.0, -1)
        halves = torch.arange(start=0, end=x.shape[0] / 2, step=0.5, dtype=torch.float64)
        return (model(x) * (centred * halves)[:, None]).square().mean() + torch.arange(x.shape[0] / 3).exp().sum()

    compared_at(nn.Linear(3, 2), loss, [(7, 3), (2, 3), (4, 3), (1, 3)], Dim("N"))


def test_bits_and_functions_of_sizes() -> None:
    """Of Python, and of the module math; and a copy by the module copy."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        size, y = len(x), model(x)
        bits = (size & 3) + (size << 1) + (size >> 1) * (size ^ 5) - (size | 8)
        counts = math.comb(size, 2) + math.perm(size, 3) + math.isqrt(size)
        angles = math.tan(1 / size) + math.asin(1 / size) + math.acos(1 / size) + math.atan(size)
        others = math.hypot(size, 2, 3) + math.sinh(1 / size) + math.cosh(1 / size)
        return y.square().mean() * bits + y.sin().mean() * counts + (y.cos() * copy.deepcopy(x)).sum() * angles * others

    compared_at(nn.Linear(8, 8), loss, [(size, 8) for size in (6, 3, 1, 16)], Dim("N"))


def test_functions_of_sizes_by_operators() -> None:
    """Those that PyTorch has for tensors only, also by NumPy; and a size that one of them returns."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        size, y = len(x), model(x)
        growth = math.lgamma(size + 1) + math.gamma(size / 4 - 2.1) + math.erf(1 / size) + math.erfc(size / 9)
        roots = math.cbrt(3 - size) + math.expm1(1 / size) + math.exp2(size / 2) + math.ldexp(0.3, size)
        angles = math.asinh(size) + math.acosh(size) + math.atanh(1 / (size + 1)) + math.atan2(1 - size, 2.0)
        parts = math.fmod(2.5 - size, 2) + math.fabs(3 - size) + math.copysign(size, -0.5)
        turned = math.degrees(size) * math.radians(size) + np.cbrt(size) + np.exp2(1 / size) + np.degrees(1 / size)
        rows = y.reshape(math.gcd(size, 6), -1).mean(1).square().sum() / math.lcm(size, 4)
        return y.square().mean() * (growth + roots) + y.sin().mean() * (angles + parts) + y.cos().mean() * turned + rows

    compared_at(nn.Linear(8, 8), loss, [(size, 8) for size in (6, 3, 1, 16)], Dim("N"))
