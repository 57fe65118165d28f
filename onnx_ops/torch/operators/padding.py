"""Pads by elements of the tensor: the sizes that they need, and gradients of reflection and replication pads.

The gradients of the edges are added where the edges were copied from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_ops.torch.base.requirements import require_elements, require_size
from onnx_ops.torch.base.table import decomposes, replaces


@replaces(F.pad)
def _pad(input: Tensor, pad: Sequence[int | Tensor], mode: str = "constant", value: float | None = None) -> Tensor:
    """With the errors of PyTorch's kernels for dynamic sizes: the operators of a trace have none."""
    pad = [number.item() if isinstance(number, Tensor) else number for number in pad]
    if mode != "constant":
        padded = range(input.dim() - 1, input.dim() - 1 - len(pad) // 2, -1)
        for axis, before, after in zip(padded, pad[::2], pad[1::2], strict=True):
            if mode != "replicate":  # of an edge, of which there are as many copies as needed
                require_size(input.shape[axis], torch.sym_max(before, after) + (mode == "reflect"))
        if mode == "circular":
            return _wrapped(input, pad)
        require_elements(input, range(input.dim() - 1 - len(padded), input.dim()))
    return F.pad(input, pad, mode, value)


def _wrapped(input: Tensor, pad: Sequence[int]) -> Tensor:
    """A circular pad; PyTorch writes into a tensor, for which torch.onnx scatters."""
    result = input
    for place in range(len(pad) // 2):
        axis, (before, after) = input.dim() - 1 - place, pad[2 * place : 2 * place + 2]
        cropped = result.narrow(axis, max(-before, 0), result.shape[axis] - max(-before, 0) - max(-after, 0))
        parts = [cropped]
        if before > 0:
            parts.insert(0, cropped.narrow(axis, cropped.shape[axis] - before, before))
        if after > 0:
            parts.append(cropped.narrow(axis, 0, after))
        result = torch.cat(parts, axis) if len(parts) > 1 else cropped
    return result.clone() if result is input else result


def _axis_by_axis(
    fold: Callable[[Tensor, int, int, int], Tensor], grad: Tensor, self: Tensor, padding: Sequence[int]
) -> Tensor:
    """`padding` has two numbers for each axis, those of the last axis first."""
    for place in range(len(padding) // 2):
        before, after = padding[2 * place], padding[2 * place + 1]
        if before < 0 or after < 0:  # a crop: nothing has been copied
            grad = F.pad(grad, [0, 0] * place + [max(-before, 0), max(-after, 0)])
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
        inner = inner + F.pad(mirrored, [*trailing, 1, size - 1 - before])
    if after:
        mirrored = grad.narrow(axis, before + size, after).flip(axis)
        inner = inner + F.pad(mirrored, [*trailing, size - 1 - after, 1])
    return inner


def _replicated(grad: Tensor, axis: int, before: int, after: int) -> Tensor:
    size = grad.shape[axis] - before - after
    trailing = [0, 0] * (-1 - axis)
    first = grad.narrow(axis, 0, before).sum(axis, keepdim=True)
    last = grad.narrow(axis, before + size, after).sum(axis, keepdim=True)
    return (
        grad.narrow(axis, before, size) + F.pad(first, [*trailing, 0, size - 1]) + F.pad(last, [*trailing, size - 1, 0])
    )


for _rank in (1, 2, 3):
    for _kind, _fold in (("reflection", _reflected), ("replication", _replicated)):
        decomposes(getattr(torch.ops.aten, f"{_kind}_pad{_rank}d_backward").default)(
            functools.partial(_axis_by_axis, _fold)
        )
