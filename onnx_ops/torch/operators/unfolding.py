"""Windows along an axis, `unfold` and its gradient, as slices of blocks where window and step are multiples of some.

So they are for the frames of a sound, half or three quarters of which overlap, and for patches of a series. Others are
lookups of each element, and sums by its index.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.scattering import summed_windows

aten = torch.ops.aten
MOST_BLOCKS = 4
"""The largest number of blocks in a window for which slices are faster."""
SHORTEST = 4
"""The least number of elements of a block for which they are."""


@dataclass(frozen=True)
class _Blocks:
    """An axis as blocks.

    Attributes:
        length: elements of each.
        each: blocks of a window.
        step: blocks from one window to the next.
        windows: how many there are.
    """

    length: int
    each: int
    step: int
    windows: int

    @property
    def count(self) -> int:
        """Blocks that windows have."""
        return (self.windows - 1) * self.step + self.each

    @property
    def elements(self) -> int:
        return self.count * self.length

    def slices(self) -> list[tuple[int, int, int]]:
        """For each block of a window: start, end and step of the blocks that it is in all windows."""
        reach = (self.windows - 1) * self.step + 1
        return [(i, i + reach, self.step) for i in range(self.each)]


def _blocks_of(whole: Size, size: Size, step: Size) -> _Blocks | None:
    """The blocks; None if sizes are dynamic, or slices of blocks are slower."""
    if not (isinstance(whole, int) and isinstance(size, int) and isinstance(step, int)) or not 0 < size <= whole:
        return None
    length = math.gcd(size, step)
    each = size // length
    if each > MOST_BLOCKS or (each > 1 and length < SHORTEST):
        return None
    return _Blocks(length, each, step // length, (whole - size) // step + 1)


@decomposes(aten.unfold.default)
def _unfold(self: Tensor, dimension: int, size: int, step: int) -> Any:
    axis = dimension % max(self.dim(), 1)
    if self.dim() == 0 or (blocks := _blocks_of(self.shape[axis], size, step)) is None:
        return NotImplemented
    whole = self.narrow(axis, 0, blocks.elements).unflatten(axis, (blocks.count, blocks.length))
    parts = [aten.slice(whole, axis, *places) for places in blocks.slices()]
    return torch.cat(parts, axis + 1).movedim(axis + 1, -1)


@decomposes(aten.unfold_backward.default)
def _unfold_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    axis = dim % max(len(input_sizes), 1)
    if not input_sizes or (blocks := _blocks_of(input_sizes[axis], size, step)) is None:
        return summed_windows(grad, input_sizes, axis, size, step)
    windows = grad.movedim(-1, axis + 1)
    parts = windows.split(blocks.length, axis + 1)
    shape = [*input_sizes[:axis], blocks.count, blocks.length, *input_sizes[axis + 1 :]]
    placed = [
        aten.slice_backward(part, shape, axis, *places) for part, places in zip(parts, blocks.slices(), strict=True)
    ]
    total = functools.reduce(operator.add, placed).flatten(axis, axis + 1)
    after = [0, 0] * (len(input_sizes) - 1 - axis)
    return aten.constant_pad_nd(total, [*after, 0, input_sizes[axis] - blocks.elements], 0)
