"""Windows of signals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._python_dispatch import _disable_current_modes

from onnx_ops.torch.base.table import replaces


def _window(function: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Replaces a function of PyTorch by one whose windows are constants, and those of dynamic lengths a formula.

    The formula has the places of the elements on [0, 1] and the further arguments of PyTorch's function.
    """

    def enter(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @replaces(function)
        @functools.wraps(function)
        def window(window_length: Any, periodic: bool = True, *args: float, **options: Any) -> Tensor:
            if not is_symbolic(window_length):
                with _disable_current_modes():
                    return function(window_length, periodic, *args, **options)
            dtype = options.get("dtype") or torch.get_default_dtype()
            further = {name: value for name, value in options.items() if name in ("alpha", "beta")}
            length = torch.full((), window_length, dtype=torch.float64)
            steps = length if periodic else (length - 1).clamp(min=1.0)
            values = formula(torch.arange(window_length, dtype=torch.float64) / steps, *args, **further)
            values = torch.where(length == 1, 1.0, values)
            return values.to(dtype).requires_grad_(options.get("requires_grad", False))

        return window

    return enter


def _cosines(places: Tensor, weights: Sequence[float]) -> Tensor:
    """The sum of (-1)**k * weights[k] * cos(2 pi k places)."""
    terms = [(-1) ** k * weight * torch.cos(2 * math.pi * k * places) for k, weight in enumerate(weights)]
    return torch.stack(terms).sum(0)


@_window(torch.hann_window)
def _hann(places: Tensor) -> Tensor:
    return _cosines(places, (0.5, 0.5))


@_window(torch.hamming_window)
def _hamming(places: Tensor, alpha: float = 0.54, beta: float = 0.46) -> Tensor:
    return _cosines(places, (alpha, beta))


@_window(torch.blackman_window)
def _blackman(places: Tensor) -> Tensor:
    return _cosines(places, (0.42, 0.5, 0.08))


@_window(torch.bartlett_window)
def _bartlett(places: Tensor) -> Tensor:
    return 1 - (2 * places - 1).abs()


@_window(torch.kaiser_window)
def _kaiser(places: Tensor, beta: float = 12.0) -> Tensor:
    height = (1 - (2 * places - 1).square()).clamp(min=0.0).sqrt()
    return torch.special.i0(beta * height) / torch.special.i0(torch.full((), beta, dtype=torch.float64))
