"""Functions of numbers, and of the numbers along an axis: their order, their products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.return_types import cummax, cummin, kthvalue, median


def _kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, indices = input.sort(dim)
    found = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return kthvalue(found if keepdim else tuple(part.squeeze(dim) for part in found))


def _median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower one of the two in the middle."""
    if dim is None:
        flat = input.flatten()
        return _kthvalue(flat, (int(flat.shape[0]) + 1) // 2, 0)[0]
    size = int(input.shape[dim]) if input.dim() else 1
    return median(tuple(_kthvalue(input, (size + 1) // 2, dim, keepdim)))


def _running(name: str, kind: Any) -> Callable[..., Any]:
    """cummax or cummin, with the last place of equal ones as PyTorch has it."""

    def running(input: Tensor, dim: int) -> Any:
        if input.dim() == 0:
            return kind((input.clone(), torch.zeros_like(input, dtype=torch.int64)))
        rows = input.movedim(dim, -1)
        size = int(rows.shape[-1])
        seen = torch.ones(size, size, dtype=torch.bool, device=input.device).tril()
        unseen = float("-inf") if name == "amax" else float("inf")
        values = torch.where(seen, rows.detach().unsqueeze(-2), unseen)
        best = getattr(values, name)(-1, keepdim=True)
        order = torch.arange(size, device=input.device)
        indices = torch.where((values == best) & seen, order, -1).amax(-1)
        return kind((rows.gather(-1, indices).movedim(-1, dim), indices.movedim(-1, dim)))

    return running


def _prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Pairs after pairs, so that the gradient at a 0 is the product of the others."""
    rows = input if dtype is None else input.to(dtype)
    if not rows.is_floating_point():
        rows = rows.to(torch.int64)
    if dim is None:
        rows, dim = rows.flatten(), 0
    if input.dim() == 0:
        return rows.clone()
    rows = rows.movedim(dim, -1)
    size = int(rows.shape[-1])
    if size == 0:
        rows, size = rows.sum(-1, keepdim=True) + 1, 1
    while size > 1:
        half = size // 2
        products = rows.narrow(-1, 0, half) * rows.narrow(-1, half, half)
        rows = products if size % 2 == 0 else torch.cat([products, rows.narrow(-1, size - 1, 1)], -1)
        size -= half
    return rows.movedim(-1, dim) if keepdim else rows.squeeze(-1).clone()


def _cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Products of twice as many numbers in each round."""
    rows = (input if dtype is None else input.to(dtype)).clone()
    size = int(rows.shape[dim]) if rows.dim() else 1
    step = 1
    while step < size:
        ones = torch.ones_like(rows.narrow(dim, 0, step))
        rows = rows * torch.cat([ones, rows.narrow(dim, 0, size - step)], dim)
        step *= 2
    return rows


def _fmax(input: Tensor, other: Tensor) -> Tensor:
    return torch.where(input.isnan(), other, torch.where(other.isnan(), input, torch.maximum(input, other)))


def _fmin(input: Tensor, other: Tensor) -> Tensor:
    return torch.where(input.isnan(), other, torch.where(other.isnan(), input, torch.minimum(input, other)))


def _hypot(input: Tensor, other: Tensor) -> Tensor:
    larger = torch.maximum(input.abs(), other.abs()).detach()
    scale = torch.where((larger > 0) & (larger < float("inf")), larger, 1.0)
    return ((input / scale).square() + (other / scale).square()).sqrt() * scale


def _copysign(input: Tensor, other: Tensor | float) -> Tensor:
    if not isinstance(other, Tensor):
        other = torch.full((), float(other), dtype=input.dtype, device=input.device)
    negative = (other < 0) | ((other == 0) & (other.detach().reciprocal() < 0))  # a zero has a sign too
    return torch.where(negative, -input.abs(), input.abs())


def _activation(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """What takes the place of an activation that can write its result over its input."""

    def activation(input: Tensor, inplace: bool = False) -> Tensor:
        # Autograd keeps the argument of the function for the backward pass: it must not be the tensor written to.
        return input.copy_(function(input.clone())) if inplace else function(input)

    return activation


def _mish(input: Tensor) -> Tensor:
    return input * torch.nn.functional.softplus(input).tanh()


def _silu(input: Tensor) -> Tensor:
    return input * input.sigmoid()


def _hardsigmoid_backward(grad: Tensor, self: Tensor) -> Tensor:
    """PyTorch's sixth is a float32 also among doubles."""
    return torch.where((self > -3) & (self < 3), grad * float(np.float32(1 / 6)), 0.0)


def _sinc(input: Tensor) -> Tensor:
    angle = torch.where(input == 0, 1.0, input * math.pi)
    return torch.where(input == 0, 1.0, angle.sin() / angle)


OPERATORS = {torch.ops.aten.hardsigmoid_backward.default: _hardsigmoid_backward}
FUNCTIONS = {
    torch.sinc: _sinc,
    torch.Tensor.sinc: _sinc,
    torch.nn.functional.silu: _activation(_silu),
    torch.nn.functional.mish: _activation(_mish),
    torch.copysign: _copysign,
    torch.Tensor.copysign: _copysign,
    torch.cumprod: _cumprod,
    torch.Tensor.cumprod: _cumprod,
    torch.fmax: _fmax,
    torch.Tensor.fmax: _fmax,
    torch.fmin: _fmin,
    torch.Tensor.fmin: _fmin,
    torch.hypot: _hypot,
    torch.Tensor.hypot: _hypot,
    torch.cummax: _running("amax", cummax),
    torch.Tensor.cummax: _running("amax", cummax),
    torch.cummin: _running("amin", cummin),
    torch.Tensor.cummin: _running("amin", cummin),
    torch.kthvalue: _kthvalue,
    torch.Tensor.kthvalue: _kthvalue,
    torch.median: _median,
    torch.Tensor.median: _median,
    torch.prod: _prod,
    torch.Tensor.prod: _prod,
}
