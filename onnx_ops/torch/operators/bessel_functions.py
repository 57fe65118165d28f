"""Modified Bessel functions of the first kind of order 0 and 1, also times exp(-abs(x))."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.polynomials import in_float64, polynomial

aten = torch.ops.aten

FAR = 20
"""From here on the asymptotic expansion is used, Abramowitz and Stegun 9.7.1."""
TERMS = 36
"""Terms of the power series, Abramowitz and Stegun 9.6.10; the next one is below 1e-19 of the sum up to FAR."""
ASYMPTOTIC_TERMS = 26
"""Terms of the expansion; the next one is below 2e-17 of the sum."""


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
