"""Complex numbers and Fourier transforms within a step, compared with PyTorch's, and with float64."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import compared, gradients
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops.torch import CaptureError
from onnx_ops.torch.base.pairs import Pair
from onnx_ops.torch.operators import fourier


def weighted(function: Callable[[Tensor], list[Tensor]]) -> Callable[[nn.Module, Tensor], Tensor]:
    """A loss in which each element of the results of a function has another gradient."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        parts = [torch.view_as_real(part.resolve_conj()) if part.is_complex() else part for part in function(model(x))]
        return sum((part.sin().sum() for part in parts), torch.zeros((), dtype=x.dtype))

    return loss


def test_operators() -> None:
    def function(y: Tensor) -> list[Tensor]:
        z = torch.view_as_complex(y.reshape(-1, 4, 2))
        functions = [
            z.exp(),
            z.log(),
            z.sqrt(),
            z.sin(),
            z.cos(),
            z.tanh(),
            z.sinh(),
            z.cosh(),
            z.sgn(),
            z.reciprocal(),
        ]
        powers = [z**3, z**-2, z**0.5, z**1.7, z / (z + 2), 2 / z, z / 2j, torch.linalg.norm(z) * z, z.prod(1)]
        powers += [z ** torch.arange(4), z**z.real, z**z, (2 + 1j) ** z, (z * (z.real > 0)) ** torch.arange(1, 5)]
        parts = [
            z.conj() * 1j + z * (1 + 2j) - z.conj().imag,
            torch.complex(z.abs(), z.angle()),
            torch.polar(z.real, z.imag),
        ]
        products = [z @ z.mH @ z, torch.einsum("ij,kj->ik", z, z.conj()), torch.addmm(z[:, :1], z, z.mT, alpha=2)]
        shapes = [
            z.cumsum(0),
            z.logcumsumexp(0),
            z.mean(0) * z,
            torch.cat([z[:2], z[2:].real]),
            z.roll(1, -1),
            F.pad(z, (1, -1)),
            z.T[1:].flip(0),
        ]
        written = torch.zeros(z.shape[0], 3, dtype=z.dtype)
        written[:, 1:] = z[:, :2]
        written[1] += 1j * z[0, :3]
        chosen = [torch.where(z.real > 0, z, 0), z.masked_fill(z.imag > 0, 1 - 2j), z[[1, 0, 1]], written.mul_(2j)]
        return [*functions, *powers, *parts, *products, *shapes, *chosen, (z == z.conj()) * z]

    torch.manual_seed(0)
    x = torch.randn(4, 8, dtype=torch.float64)
    gradients(nn.Linear(8, 8).double(), weighted(function), (x.requires_grad_(),))


class Rotated(nn.Linear):
    """The rotary embedding of the first Llama, whose table is an attribute."""

    def __init__(self) -> None:
        super().__init__(16, 16)
        angles = torch.outer(torch.arange(32), 10000 ** -(torch.arange(0, 8, 2) / 8))
        self.rotations = torch.polar(torch.ones_like(angles), angles)

    def forward(self, x: Tensor) -> Tensor:
        q = super().forward(x).view(*x.shape[:-1], 2, 8)
        z = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        rotated = torch.view_as_real(z * self.rotations[: x.shape[1]].view(1, x.shape[1], 1, 4)).flatten(3)
        return rotated.type_as(q)


def test_rotary_embeddings() -> None:
    torch.manual_seed(0)
    examples = [torch.randn(2, 5, 16), torch.randn(3, 9, 16)]
    compared(Rotated(), lambda m, x: m(x).sin().sum(), examples, {0: Dim("N"), 1: Dim("T", max=32)})


class Spectral(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3, 3, 2, 2, 2) / 3)

    def forward(self, x: Tensor) -> Tensor:
        low, high = torch.view_as_complex(self.weight).unbind(0)
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(x.shape[0], 3, x.shape[-2], x.shape[-1] // 2 + 1, dtype=spectrum.dtype)
        out[:, :, :2, :2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :2, :2], low)
        out[:, :, -2:, :2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -2:, :2], high)
        return torch.fft.irfft2(out, s=x.shape[-2:])


@pytest.mark.full
def test_a_fourier_neural_operator() -> None:
    torch.manual_seed(0)
    examples = [torch.randn(2, 3, 6, 8), torch.randn(4, 3, 6, 8)]
    compared(
        nn.Sequential(Spectral(), nn.GELU(), Spectral()), lambda m, x: m(x).square().sum(), examples, {0: Dim("N")}
    )


def test_transforms() -> None:
    """Of whole rows, and of short times."""

    def function(y: Tensor) -> list[Tensor]:
        short = torch.stft(y, 16, 4, 12, torch.hann_window(12, dtype=y.dtype), return_complex=True)
        found = torch.istft(short * 2j, 16, 4, 12, torch.hann_window(12, dtype=y.dtype), length=140)
        return [torch.fft.rfft(y).abs(), torch.fft.ifft(y), short, found]

    torch.manual_seed(0)
    model = nn.Linear(150, 150, bias=False)
    examples = [torch.randn(2, 150), torch.randn(3, 150)]
    compared(model, weighted(function), examples, {0: Dim("N")})


WINDOWS: list[Callable[..., Tensor]] = [
    functools.partial(torch.hamming_window, periodic=False, alpha=0.6, beta=0.3),
    functools.partial(torch.bartlett_window, periodic=False),
    functools.partial(torch.kaiser_window, periodic=True, beta=5.0),
]


def test_windows() -> None:
    """Of static lengths, and of dynamic ones, among them 1, for which all windows are 1."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y, found = model(x), x.new_zeros(())
        for window in WINDOWS:
            static, dynamic = (window(n, dtype=x.dtype) for n in (4, x.shape[0]))
            found = found + (y * static * dynamic[:, None]).sum().square()
        return found + (y * torch.fft.rfftfreq(7, 0.3, dtype=x.dtype) * torch.fft.rfftfreq(len(x)).sum()).sum()

    torch.manual_seed(0)
    compared(nn.Linear(4, 4), loss, [torch.randn(n, 4) for n in (5, 1, 2, 8)], {0: Dim("N")})


def test_views_of_what_transforms_return() -> None:
    """The autocorrelation of heads, whose strides are not those of products of matrices."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        heads = model(x).view(len(x), 4, 2, 3).transpose(1, 2).reshape(2 * len(x), 4, 3)
        spectrum = torch.fft.rfft(heads, dim=1) * torch.fft.rfft(heads.cos(), dim=1).conj()
        found = torch.fft.irfft(spectrum, n=4, dim=1).view(len(x), 2, 4, 3)
        return (found.transpose(1, 2).reshape(len(x), 4, 6) * x).square().sum()

    torch.manual_seed(0)
    compared(nn.Linear(6, 6), loss, [torch.randn(3, 4, 6), torch.randn(2, 4, 6)], {0: Dim("N")})


def test_transforms_of_dynamic_sizes() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(model(x), dim=1, norm="ortho")
        return torch.fft.irfft(spectrum * (1 + 0.5j), dim=1).sin().sum() + torch.fft.fft(model(x), dim=1).abs().sum()

    torch.manual_seed(0)
    examples = [torch.randn(2, 6, 4), torch.randn(3, 10, 4)]
    compared(nn.Linear(4, 4), loss, examples, {0: Dim("N"), 1: 2 * Dim("half", min=2)})


SIZES = [1, 2, 7, 60, 127, 128, 129, 263, 1031, 2048, 2062, 3000]


@pytest.mark.parametrize("n", SIZES)
def test_accuracy_of_transforms(n: int) -> None:
    """The largest error, relative to the root of the mean square; PyTorch's own is up to 0.8e-6 in float32."""
    rng = np.random.default_rng(n)
    z = rng.normal(size=(3, n)) + 1j * rng.normal(size=(3, n))
    half = n // 2 + 1
    for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 8e-15)):
        real, imaginary = torch.from_numpy(z.real.copy()).to(dtype), torch.from_numpy(z.imag.copy()).to(dtype)
        pair, exact = Pair(real, imaginary), real.double().numpy() + 1j * imaginary.double().numpy()
        forward = fourier._fft_c2c(pair, [1], 0, True), np.fft.fft(exact)
        inverse = fourier._fft_c2c(pair, [1], 2, False), np.fft.ifft(exact)
        onesided = fourier._fft_r2c(real, [1], 1, True), np.fft.rfft(exact.real, norm="ortho")
        back = fourier._fft_c2r(Pair(real[:, :half], imaginary[:, :half]), [1], 2, n), np.fft.irfft(exact[:, :half], n)
        for got, wanted in (forward, inverse, onesided, back):
            found = got.real.double() + 1j * got.imaginary.double() if isinstance(got, Pair) else got.double()
            scale = np.sqrt(np.mean(np.abs(wanted) ** 2))
            assert np.abs(found.numpy() - wanted).max() <= bound * scale
        of_real_numbers = onesided[0].imaginary[:, [0, *([n // 2] if n % 2 == 0 else [])]]
        assert not of_real_numbers.any()  # or the angle of a negative number could be -pi


def test_what_onnxruntime_cannot_have() -> None:
    z = torch.ones(2, 2, dtype=torch.cfloat)
    with pytest.raises(CaptureError, match=r"argument or output of the step is complex.*torch\.view_as_complex"):
        gradients(nn.Linear(2, 2), lambda m, z: m(z.abs()).sum(), (z,))


def test_writes_to_parts_are_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        z = torch.complex(model(x), model(x))
        with torch.no_grad():
            torch.view_as_real(z)[..., 0].zero_()
        return z.abs().square().sum()

    with pytest.raises(CaptureError, match="writes to real or imaginary parts of a complex tensor in place"):
        gradients(nn.Linear(2, 2), loss, (torch.ones(2, 2),))


def test_means_of_dynamic_sizes() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        waves = torch.fft.fft(model(x), dim=1)
        return waves.mean(0).abs().sum() + (waves - waves.mean((0, 1), keepdim=True)).abs().mean() + waves.mean().abs()

    compared(nn.Linear(4, 4), loss, [torch.randn(3, 4), torch.randn(5, 4)], {0: Dim("N")})


def test_numbers_of_the_data_beside_complex_ones() -> None:
    """As TimesNet folds a series by the periods that a Fourier transform finds."""

    class Folding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(12, 12), nn.Conv2d(1, 2, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.before(x)
            frequency = int(torch.fft.rfft(x).abs().mean(0)[1:].argmax()) + 1
            period = x.shape[1] // frequency
            if x.shape[1] % period:
                y = F.pad(y, (0, period - x.shape[1] % period))
            result: Tensor = self.after(y.reshape(len(y), 1, -1, period))
            return result.flatten(1)[:, : 2 * x.shape[1]]

    torch.manual_seed(0)
    waves = torch.cos(torch.arange(12) * (2 * torch.pi / 4)) + 0.1 * torch.randn(5, 12)
    model = Folding()
    compared(model, lambda model, x: model(x).sin().sum(), [waves[:3], waves], {0: Dim("N")}, specialize=True)


def test_numbers_of_sizes_beside_complex_ones() -> None:
    """As QwenImage has a list with the shape of each image, beside a schedule that is indexed by the steps."""
    schedule, rows = torch.arange(5.0), Dim("rows")

    def loss(model: nn.Module, x: Tensor, steps: Tensor) -> Tensor:
        weights = schedule[steps]
        shapes = [x.shape[1:]] * x.shape[0]
        return (torch.view_as_complex(model(x).reshape(len(shapes), 2, 2)).abs().sum(1) * weights).sum()

    shapes = {"x": {0: rows}, "steps": {0: rows}}
    with pytest.raises(CaptureError, match=r"x\.size\(\)\[0\] is to be dynamic, but .* makes the number 3 of it"):
        gradients(nn.Linear(4, 4), loss, (torch.ones(3, 4), torch.arange(3)), dynamic_shapes=shapes)
