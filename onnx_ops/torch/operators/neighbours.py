"""Elements beside others along an axis, which may have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, is_symbolic, statically_known_true

from onnx_ops.torch.base.sizes import Number, Size
from onnx_ops.torch.base.table import decomposes, replaces


@decomposes(torch.ops.aten.roll.default)
def _roll(self: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Any:
    """The translation of torch.onnx takes shifts modulo the size, and so none of 0, and numbers alone."""
    sizes = [self.shape[dim] for dim in dims] if dims else list(self.shape)
    if not any(map(is_symbolic, shifts)) and all(statically_known_true(size >= 1) for size in sizes):
        return NotImplemented
    if not dims:
        return _roll(self.flatten(), shifts, [0]).view(self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = self.shape[dim]
        self = self.index_select(dim, (torch.arange(size) - shift) % size)
    return self


@replaces(torch.diff, torch.Tensor.diff)
def _diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Any:
    """Of a number of elements that depends on data; there may be none, which have no differences."""
    parts = [part for part in (prepend, input, append) if part is not None]
    if n < 1 or not any(free_unbacked_symbols(part.shape[dim]) for part in parts):
        return torch.diff(input, n, dim, prepend, append)
    rows = torch.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(n):
        before, after = _neighbours(rows, dim)
        rows = after - before
    return rows


def _neighbours(rows: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """All elements along an axis but the last, and all but the first."""
    places = torch.arange(torch.sym_max(rows.shape[dim] - 1, 0))
    return rows.index_select(dim, places), rows.index_select(dim, places + 1)


def _integral(function: Callable[..., Tensor], add: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An integral by trapezoids, which `add` adds up, of a number of elements that may depend on data."""

    def integral(y: Tensor, x: Tensor | None = None, *, dx: Number = 1, dim: int = -1) -> Tensor:
        if not free_unbacked_symbols(y.shape[dim]):
            return function(y, dx=dx, dim=dim) if x is None else function(y, x, dim=dim)
        before, after = _neighbours(y, dim)
        if x is not None:
            axis = dim % y.dim() - y.dim()
            places = x if x.dim() == y.dim() else x.reshape([-1] + [1] * (-1 - axis))
            left, right = _neighbours(places, axis)
            dx = right - left
        return add((before + after) * dx / 2, dim)

    return integral


replaces(torch.trapezoid, torch.trapz)(_integral(torch.trapezoid, torch.sum))
replaces(torch.cumulative_trapezoid)(_integral(torch.cumulative_trapezoid, torch.cumsum))


@replaces(torch.gradient)
def _gradient(
    input: Tensor,
    *,
    spacing: Number | Tensor | Sequence[Number | Tensor] = 1.0,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> Any:
    """Slopes of tensors with a dynamic size, of which PyTorch's own function makes numbers."""
    if not any(map(is_symbolic, input.shape)):
        return torch.gradient(input, spacing=spacing, dim=dim, edge_order=edge_order)
    axes = list(range(input.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    steps = list(spacing) if isinstance(spacing, list | tuple) else [spacing] * len(axes)
    return tuple(
        _slopes(input.movedim(axis, 0), step, edge_order).movedim(0, axis)
        for axis, step in zip(axes, steps, strict=True)
    )


def _slopes(rows: Tensor, spacing: Number | Tensor, edge_order: int) -> Tensor:
    """Those of second order along the first axis, and at the ends of first or second order.

    Args:
        rows: at least `edge_order` + 1 of them.
        spacing: between rows, a number, or a vector of the places of all.
        edge_order: 1 or 2.
    """
    torch._check(rows.shape[0] > edge_order)
    if isinstance(spacing, Tensor):
        steps = torch.diff(spacing).reshape(-1, *[1] * (rows.dim() - 1))
        between = torch.diff(rows, dim=0) / steps
        before, after = steps[:-1], steps[1:]
        first, last = before / (before + after), after / (before + after)
    else:
        between = torch.diff(rows, dim=0) / spacing
        first = last = 0.5
    inside = last * between[:-1] + first * between[1:]
    if edge_order == 1:
        return torch.cat([between[:1], inside, between[-1:]])
    return torch.cat([2 * between[:1] - inside[:1], inside, 2 * between[-1:] - inside[-1:]])
