"""Discrete Fourier transforms as products with matrices, and the transforms of short times made of them.

A transform of n = a * b elements consists of transforms of a and of b elements (Cooley and Tukey 1965), down to sizes
for which one product with a matrix is faster; one of a large prime is a convolution (Bluestein 1970).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._python_dispatch import _disable_current_modes

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import Pair
from onnx_ops.torch.base.requirements import require_elements
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import on_pairs, replaces, requires

aten = torch.ops.aten

DIRECT = 128
"""The largest number of elements whose transform is one product: with fewer steps, it takes less time up to there."""

# --- constants --------------------------------------------------------------------------------------------------------


def _constant(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    """A tensor outside of the trace that may be running."""
    with _disable_current_modes():
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)


def _roots(products: np.ndarray, n: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of sign * 2 pi * products / n, exactly 0 where they are, as those of n / 2."""
    turns = products % n
    angle = 2 * math.pi * turns / n
    cosine = np.where(np.isin(4 * turns, (n, 3 * n)), 0.0, np.cos(angle))
    return cosine, sign * np.where(2 * turns % n == 0, 0.0, np.sin(angle))


@functools.cache
def _matrix(n: int, given: int, kept: int, sign: int, real: str, dtype: torch.dtype) -> Tensor:
    """The matrix of a transform, which rows of real parts, then imaginary parts, are multiplied by.

    Args:
        n: number of elements.
        given: number of those that are not 0.
        kept: number of results.
        sign: of the exponent.
        real: "input" or "output" if that has no imaginary parts, or "".
    """
    cosine, sine = _roots(np.outer(np.arange(given), np.arange(kept)), n, sign)
    whole = np.block([[cosine, sine], [-sine, cosine]])
    rows, columns = given if real == "input" else 2 * given, kept if real == "output" else 2 * kept
    return _constant(whole[:rows, :columns], dtype)


@functools.cache
def _twiddles(rows: int, columns: int, n: int, sign: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    cosine, sine = _roots(np.outer(np.arange(rows), np.arange(columns)), n, sign)
    return _constant(cosine, dtype), _constant(sine, dtype)


@functools.cache
def _divisor(n: int) -> int:
    """The largest divisor of n that is at most its root."""
    return next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)


# --- transforms of the last axis --------------------------------------------------------------------------------------


def _times(z: Pair, factor: tuple[Tensor, Tensor]) -> Pair:
    cosine, sine = factor
    return Pair(z.real * cosine - z.imaginary * sine, z.real * sine + z.imaginary * cosine)


def _both(z: Pair | Tensor, function: Callable[[Tensor], Tensor]) -> Any:
    return function(z) if isinstance(z, Tensor) else Pair(function(z.real), function(z.imaginary))


def _product(z: Pair | Tensor, matrix: Tensor, real_output: bool = False) -> Any:
    found = (z if isinstance(z, Tensor) else torch.cat([z.real, z.imaginary], -1)) @ matrix
    return found if real_output else Pair(*found.unflatten(-1, (2, -1)).unbind(-2))


def _transform(z: Pair | Tensor, n: Size, sign: int, kept: Size | None = None) -> Pair:
    """The first `kept` results of the transform of complex or real numbers (..., n)."""
    kept = n if kept is None else kept
    real = "input" if isinstance(z, Tensor) else ""
    first = z if isinstance(z, Tensor) else z.real
    if is_symbolic(n):
        return _product(z, _symbolic_matrix(n, n, kept, sign, real, first.dtype))
    if n <= DIRECT:
        return _product(z, _matrix(n, n, int(kept), sign, real, first.dtype))
    if isinstance(z, Tensor):
        whole = _composed(z, n, sign, int(kept))
        return Pair(whole.real, whole.imaginary * _is_complex(n, int(kept), z.dtype))
    return _composed(z, n, sign, int(kept))


@functools.cache
def _is_complex(n: int, kept: int, dtype: torch.dtype) -> Tensor:
    """0 for the results of the transform of real numbers that are real, whose angle is 0 or pi; 1 for the others."""
    return _constant(2 * np.arange(kept) % n != 0, dtype)


def _composed(z: Pair | Tensor, n: int, sign: int, kept: int) -> Pair:
    """A transform made of smaller ones."""
    a, dtype = _divisor(n), (z if isinstance(z, Tensor) else z.real).dtype
    if a == 1:
        whole = _bluestein(z if isinstance(z, Pair) else Pair(z, torch.zeros_like(z)), n, sign)
        return _both(whole, lambda part: part[..., :kept])
    b = n // a
    # Element j1 * b + j2, result k1 + a * k2.
    rows = _both(z, lambda part: part.unflatten(-1, (a, b)).mT)
    inner = _times(_transform(rows, a, sign), _twiddles(b, a, n, sign, dtype))
    outer = _transform(_both(inner, lambda part: part.mT), b, sign, -(-kept // a))
    return _both(outer, lambda part: part.mT.flatten(-2)[..., :kept])


def _real_transform(z: Pair, n: Size, sign: int) -> Tensor:
    """The real part of the transform of n elements, of which the first ones are given and the others are 0."""
    given = z.real.shape[-1]
    if is_symbolic(n) or is_symbolic(given):
        return _product(z, _symbolic_matrix(n, given, n, sign, "output", z.real.dtype), True)
    if n <= DIRECT:
        return _product(z, _matrix(n, given, n, sign, "output", z.real.dtype), True)
    a = _divisor(n)
    rows = -(-given // a) * a
    if a == 1:
        return _bluestein(_both(z, lambda part: functional.pad(part, (0, n - given))), n, sign).real
    b = n // a
    # Element k1 + a * k2, result j1 * b + j2.
    columns = _both(z, lambda part: functional.pad(part, (0, rows - given)).unflatten(-1, (-1, a)).mT)
    outer = (
        _product(columns, _matrix(b, rows // a, b, sign, "", z.real.dtype))
        if b <= DIRECT
        else _transform(_both(columns, lambda part: functional.pad(part, (0, b - rows // a))), b, sign)
    )
    inner = _both(_times(outer, _twiddles(a, b, n, sign, z.real.dtype)), lambda part: part.mT)
    return _real_transform(inner, a, sign).mT.flatten(-2)


def _bluestein(z: Pair, n: int, sign: int) -> Pair:
    """Of any number of elements, by a circular convolution of a power of two of elements."""
    size = 1 << (2 * n - 2).bit_length()
    chirp = _chirp(n, sign, z.real.dtype)
    spread = _both(_times(z, chirp), lambda part: functional.pad(part, (0, size - n)))
    product = _times(_transform(spread, size, -1), _chirp_spectrum(n, size, sign, z.real.dtype))
    return _times(_both(_transform(product, size, 1), lambda part: part[..., :n]), chirp)


def _chirp_angles(n: int) -> np.ndarray:
    return math.pi * (np.arange(n) ** 2 % (2 * n)) / n


@functools.cache
def _chirp(n: int, sign: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angle = _chirp_angles(n)
    return _constant(np.cos(angle), dtype), _constant(sign * np.sin(angle), dtype)


@functools.cache
def _chirp_spectrum(n: int, size: int, sign: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The transform of the conjugate chirp, divided by the number of elements."""
    chirp = np.exp(-1j * sign * _chirp_angles(n))
    whole = np.zeros(size, np.complex128)
    whole[:n] = chirp
    whole[size - n + 1 :] = chirp[:0:-1]
    spectrum = np.fft.fft(whole) / size
    return _constant(spectrum.real, dtype), _constant(spectrum.imag, dtype)


def _number(size: Size) -> Tensor:
    """A dynamic size as a float64 tensor (1,); operators of torch.onnx take none for a number."""
    return torch.arange(size, size + 1).double()


def _symbolic_matrix(n: Size, given: Size, kept: Size, sign: int, real: str, dtype: torch.dtype) -> Tensor:
    """As `_matrix`, of a dynamic number of elements."""
    products = torch.arange(given)[:, None] * torch.arange(kept)
    number = _number(n)
    count = number.long()
    turns = products % count
    angle = turns.double() * (2 * math.pi) / number
    cosine = torch.where(turns * 4 % (2 * count) == count, 0.0, angle.cos())
    sine = torch.where(2 * turns % count == 0, 0.0, sign * angle.sin())
    above = cosine if real == "output" else torch.cat([cosine, sine], 1)
    below = -sine if real == "output" else torch.cat([-sine, cosine], 1)
    return (above if real == "input" else torch.cat([above, below], 0)).to(dtype)


# --- PyTorch's operators ----------------------------------------------------------------------------------------------


def _normalized(z: Pair | Tensor, sizes: Sequence[Size], normalization: int) -> Any:
    """Divided by nothing (0), the root of the number of elements (1), or that number (2)."""
    if normalization == 0:
        return z
    count = math.prod(sizes)
    if is_symbolic(count):
        number = _number(count)
        divisor: Any = number.sqrt() if normalization == 1 else number
        return _both(z, lambda part: part / divisor.to(part.dtype))
    divisor = math.sqrt(count) if normalization == 1 else count
    return _both(z, lambda part: part / divisor)


def _along(z: Pair, axis: int, sign: int) -> Pair:
    moved = _both(z, lambda part: part.movedim(axis, -1))
    return _both(_transform(moved, moved.real.shape[-1], sign), lambda part: part.movedim(-1, axis))


def _transforms_no_rows() -> bool:
    """Whether PyTorch transforms no rows: with oneMKL it does as of version 2.15."""
    try:
        torch.fft.rfft(torch.empty(0, 2))
    except RuntimeError:
        return False
    return True


TRANSFORMS_NO_ROWS = _transforms_no_rows()


@requires(aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default)
def _requires_rows(self: Tensor, *_: Any) -> None:
    if not TRANSFORMS_NO_ROWS:
        require_elements(self)


@on_pairs(aten._fft_c2c)
def _fft_c2c(self: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    z = self
    for axis in dim:
        z = _along(z, axis, -1 if forward else 1)
    return _normalized(z, [self.real.shape[axis] for axis in dim], normalization)


@on_pairs(aten._fft_r2c)
def _fft_r2c(self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Pair:
    *others, last = dim
    size = self.shape[last]
    z = _both(
        _transform(self.movedim(last, -1), size, -1, size // 2 + 1 if onesided else size),
        lambda part: part.movedim(-1, last),
    )
    for axis in others:
        z = _along(z, axis, -1)
    return _normalized(z, [self.shape[axis] for axis in dim], normalization)


@on_pairs(aten._fft_c2r)
def _fft_c2r(self: Pair, dim: Sequence[int], normalization: int, last_dim_size: Size) -> Tensor:
    *others, last = dim
    z, size = self, last_dim_size
    for axis in others:
        z = _along(z, axis, 1)
    half = size // 2 + 1
    # The other half are the conjugates. The first element, and of an even number the last one, are no pairs.
    place = torch.arange(half)
    weight = torch.where((place == 0) | (2 * place == size), 1.0, 2.0).to(z.real.dtype)
    given = _both(z, lambda part: part.movedim(last, -1)[..., :half] * weight)
    found = _real_transform(given, size, 1).movedim(-1, last)
    return _normalized(found, [*(self.real.shape[axis] for axis in others), size], normalization)


# --- short times ------------------------------------------------------------------------------------------------------


def _window(window: Tensor | None, length: int, n_fft: int, like: Tensor) -> Tensor:
    made = torch.ones(length, dtype=like.dtype) if window is None else window
    before = (n_fft - length) // 2
    return functional.pad(made, (before, n_fft - length - before))


@replaces(torch.stft, torch.Tensor.stft)
def _stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """Of frames that `unfold` returns, where PyTorch has a view with strides."""
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    is_complex = input.is_complex() or (window is not None and window.is_complex())
    if return_complex is None and not is_complex:
        raise CaptureError("torch.stft of real numbers requires the argument return_complex")
    x = input if input.dim() == 2 else input.unsqueeze(0)
    if center:
        x = functional.pad(x.unsqueeze(1), (n_fft // 2, n_fft // 2), pad_mode).squeeze(1)
    frames = x.unfold(-1, n_fft, hop) * _window(window, length, n_fft, x)
    half = not is_complex if onesided is None else onesided
    norm = "ortho" if normalized else "backward"
    if is_complex:
        found = torch.fft.fft(frames, norm=norm)
    else:
        found = (torch.fft.rfft if half else torch.fft.fft)(frames, norm=norm)
    found = found.transpose(-1, -2)
    found = found if input.dim() == 2 else found.squeeze(0)
    return found if return_complex is None or return_complex else torch.view_as_real(found)


@replaces(torch.istft, torch.Tensor.istft)
def _istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Without PyTorch's check that the windows cover each element, which the graph cannot refuse."""
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    spectra = (input if input.dim() == 3 else input.unsqueeze(0)).transpose(-1, -2)
    norm = "ortho" if normalized else "backward"
    half = spectra.shape[-1] != n_fft if onesided is None else onesided
    if return_complex:
        frames = torch.fft.ifft(spectra, norm=norm)
    elif half:
        frames = torch.fft.irfft(spectra, n_fft, norm=norm)
    else:
        frames = torch.fft.ifft(spectra, norm=norm).real
    weights = _window(window, width, n_fft, frames.real if return_complex else frames)
    count = frames.shape[1]
    whole = n_fft + hop * (count - 1)
    added = aten.unfold_backward(frames * weights, [frames.shape[0], whole], 1, n_fft, hop)
    covered = aten.unfold_backward(weights.square().expand(1, count, n_fft), [1, whole], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole - (n_fft // 2 if center else 0)
    signal = added[:, start:end] / covered[:, start:end]
    if length is not None and not is_symbolic(whole) and end > whole:
        signal = functional.pad(signal, (0, end - whole))
    return signal if input.dim() == 3 else signal.squeeze(0)


@replaces(torch.fft.fftfreq)
def _fftfreq(
    n: Size, d: float = 1.0, *, dtype: torch.dtype | None = None, device: torch.types.Device = None, **others: Any
) -> Tensor:
    """Whole numbers from 0 on, then the negative ones, in units of 1 / (n * d)."""
    if others:
        return torch.fft.fftfreq(n, d, dtype=dtype, device=device, **others)
    places = torch.arange(n, dtype=dtype, device=device)
    return torch.where(places < (n + 1) // 2, places, places - n) * (1.0 / (n * d))


@replaces(torch.fft.rfftfreq)
def _rfftfreq(n: Size, d: float = 1.0, *, dtype: Any = None, device: Any = None, **others: Any) -> Tensor:
    if others:
        return torch.fft.rfftfreq(n, d, dtype=dtype, device=device, **others)
    return torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), device=device) * (1.0 / (n * d))
