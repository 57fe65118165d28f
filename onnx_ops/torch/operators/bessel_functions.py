"""Bessel functions of the first kind of order 0 and 1, and modified ones, also times exp(-abs(x))."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from onnx_ops.torch.base.table import corrects, decomposes
from onnx_ops.torch.operators.polynomials import in_float64, polynomial

aten = torch.ops.aten

FAR = 20
"""From here on the asymptotic expansions are used, Abramowitz and Stegun 9.2.5 and 9.7.1."""
TERMS = 36
"""Terms of the power series, Abramowitz and Stegun 9.6.10; the next one is below 1e-19 of the sum up to FAR."""
ASYMPTOTIC_TERMS = 26
"""Terms of the expansion; the next one is below 2e-17 of the sum."""

NODES = 64
"""Of the trapezoidal rule for Bessel's integral, whose error is below J_64(20) = 1e-25."""


def _series(order: int) -> list[float]:
    """The coefficients of powers of (z / FAR)**2.

    Those of powers of z would be as small as 1e-80, and onnxruntime omits the addition of a float64 constant that is 0
    in float32.
    """
    scale = Fraction(FAR, 2) ** 2
    return [float(scale**k / (math.factorial(k) * math.factorial(k + order))) for k in range(TERMS)]


def _expansion(order: int) -> list[float]:
    found = [Fraction(1)]
    for k in range(1, ASYMPTOTIC_TERMS):
        found.append(found[-1] * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k))
    return [float(coefficient) for coefficient in found]


def _parts(order: int, z: Tensor) -> tuple[Tensor, Tensor]:
    """The function for z < FAR, and the function times exp(-z) for others."""
    near = polynomial(z * z / FAR**2, _series(order))
    far = polynomial(z.reciprocal(), _expansion(order)) / (2 * math.pi * z).sqrt()
    return near * z / 2 if order else near, far


def _function(order: int) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        z = x.abs()
        near, far = _parts(order, z)
        root = (z / 2).exp()  # exp(z) overflows before the function does
        found = torch.where(z < FAR, near, root * far * root)
        return x.sign() * found if order else found

    return in_float64(function)


def _scaled(order: int) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        z = x.abs()
        near, far = _parts(order, z)
        found = torch.where(z < FAR, near * (-z).exp(), far)
        return x.sign() * found if order else found

    return in_float64(function)


decomposes(aten.i0.default, aten.special_modified_bessel_i0.default)(_function(0))
decomposes(aten.special_i1.default, aten.special_modified_bessel_i1.default)(_function(1))
decomposes(aten.special_i0e.default)(_scaled(0))
decomposes(aten.special_i1e.default)(_scaled(1))


@corrects(torch.special.bessel_j0)
@decomposes(aten.special_bessel_j0.default)
@in_float64
def _bessel_j0(x: Tensor) -> Tensor:
    """PyTorch's own, which leaves out the highest coefficients of polynomials, is off by up to 4e-7."""
    z = x.abs()
    even, odd = _amplitudes(0, z)
    far = even * (z.cos() + z.sin()) - odd * (z.sin() - z.cos())
    return torch.where(z < FAR, sum((z * sine).cos() for sine in SINES) / len(SINES), far)


@corrects(torch.special.bessel_j1)
@decomposes(aten.special_bessel_j1.default)
@in_float64
def _bessel_j1(x: Tensor) -> Tensor:
    z = x.abs()
    even, odd = _amplitudes(1, z)
    far = even * (z.sin() - z.cos()) + odd * (z.sin() + z.cos())
    return x.sign() * torch.where(z < FAR, sum(sine * (z * sine).sin() for sine in SINES) / len(SINES), far)


SINES = [math.sin((k + 0.5) * 2 * math.pi / NODES) for k in range(NODES // 4)]
"""Of the nodes in a quarter of the circle; those in the others give the same terms."""


def _amplitudes(order: int, z: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of the cosine and the sine of z - (order / 2 + 1 / 4) * pi, divided by the root of 2."""
    signed = [coefficient * (1, -1, -1, 1)[k % 4] for k, coefficient in enumerate(_expansion(order))]
    inverse = z.reciprocal()
    even, odd = (polynomial(inverse * inverse, signed[first::2]) for first in (0, 1))
    root = (math.pi * z).sqrt()
    return even / root, odd * inverse / root


@decomposes(aten.special_spherical_bessel_j0.default)
@in_float64
def _spherical_bessel_j0(x: Tensor) -> Tensor:
    found = torch.where(x == 0, 1.0, x.sin() / x)
    return torch.where(x.isinf(), 0.0, found)
