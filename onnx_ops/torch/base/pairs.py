"""Complex tensors as pairs of real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pair:
    """Real and imaginary part of a complex tensor."""

    real: Tensor
    imaginary: Tensor


def parts(value: Pair | Tensor | complex) -> tuple[Any, Any]:
    """Real and imaginary part of a Pair, a real tensor or a number."""
    if isinstance(value, Pair):
        return value.real, value.imaginary
    if isinstance(value, Tensor):
        return value, torch.zeros_like(value)
    if isinstance(value, complex):
        return value.real, value.imag
    return value, 0


def as_real(tensor: Tensor) -> Tensor:
    """A tensor as it is state of a step: a complex one as (..., 2), as torch.view_as_real returns it."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_real`: complex where `like` is."""
    return torch.view_as_complex(tensor) if like.is_complex() else tensor


def is_complex(value: object) -> bool:
    """Whether a value is a Pair, or a complex tensor, number or dtype."""
    if isinstance(value, Tensor):
        return value.is_complex()
    return value.is_complex if isinstance(value, torch.dtype) else isinstance(value, Pair | complex)
