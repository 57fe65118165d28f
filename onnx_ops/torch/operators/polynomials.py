"""Polynomials, of which special functions consist; these are computed in float64 for arguments of any dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.nodes import Value, double, number, op


def horner(self: Value, coefficients: Sequence[float], like: Value | None = None) -> Value:
    """The nodes of `polynomial`, for numbers of the dtype of `like` if it is given."""
    *rest, found = (double(value) if like is None else number(value, like) for value in coefficients)
    for coefficient in reversed(rest):
        found = op.Add(op.Mul(found, self), coefficient)
    return found


@custom_operator(
    lambda self, coefficients: horner(self, coefficients), lambda self, coefficients: torch.empty_like(self)
)
def polynomial(self: Tensor, coefficients: list[float]) -> Tensor:
    """A polynomial of float64 numbers by Horner's rule; the first coefficient is the constant term."""
    found = torch.full_like(self, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * self + coefficient
    return found


def ratio(x: Tensor, numerator: Sequence[float], denominator: Sequence[float]) -> Tensor:
    """A ratio of polynomials, whose coefficients begin with the constant term."""
    found: Tensor = polynomial(x, list(numerator)) / polynomial(x, list(denominator))
    return found


def in_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of float64 numbers as one of numbers of any dtype.

    The last argument is a tensor, whose dtype is that of the result; those before it may be tensors too. A float32
    result has an error of half a unit in the last place; that of an integer is a float32.
    """

    @functools.wraps(function)
    def converted(*args: Any) -> Tensor:
        dtype = args[-1].dtype if args[-1].is_floating_point() else torch.get_default_dtype()
        return function(*(arg.double() if isinstance(arg, Tensor) else arg for arg in args)).to(dtype)

    return converted
