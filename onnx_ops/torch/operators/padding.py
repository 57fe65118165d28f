"""Gradients of reflection and replication pads: those of the edges are added where the edges were copied from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from onnx_ops.torch.base.table import decomposes


def _axis_by_axis(
    fold: Callable[[Tensor, int, int, int], Tensor], grad: Tensor, self: Tensor, padding: Sequence[int]
) -> Tensor:
    """`padding` has two numbers for each axis, those of the last axis first."""
    for place in range(len(padding) // 2):
        before, after = padding[2 * place], padding[2 * place + 1]
        if before < 0 or after < 0:  # a crop: nothing has been copied
            grad = pad(grad, [0, 0] * place + [max(-before, 0), max(-after, 0)])
            before, after = max(before, 0), max(after, 0)
        if before or after:
            grad = fold(grad, -1 - place, before, after)
    return grad


def _reflected(grad: Tensor, axis: int, before: int, after: int) -> Tensor:
    size = grad.shape[axis] - before - after
    trailing = [0, 0] * (-1 - axis)
    inner = grad.narrow(axis, before, size)
    if before:
        mirrored = grad.narrow(axis, 0, before).flip(axis)
        inner = inner + pad(mirrored, [*trailing, 1, size - 1 - before])
    if after:
        mirrored = grad.narrow(axis, before + size, after).flip(axis)
        inner = inner + pad(mirrored, [*trailing, size - 1 - after, 1])
    return inner


def _replicated(grad: Tensor, axis: int, before: int, after: int) -> Tensor:
    size = grad.shape[axis] - before - after
    trailing = [0, 0] * (-1 - axis)
    first = grad.narrow(axis, 0, before).sum(axis, keepdim=True)
    last = grad.narrow(axis, before + size, after).sum(axis, keepdim=True)
    return grad.narrow(axis, before, size) + pad(first, [*trailing, 0, size - 1]) + pad(last, [*trailing, size - 1, 0])


for _rank in (1, 2, 3):
    for _kind, _fold in (("reflection", _reflected), ("replication", _replicated)):
        decomposes(getattr(torch.ops.aten, f"{_kind}_pad{_rank}d_backward").default)(
            functools.partial(_axis_by_axis, _fold)
        )
