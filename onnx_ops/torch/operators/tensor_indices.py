"""Indices that are tensors of one number, such as `x[labels[0]]`, numbers that code has read from tensors, and sizes.

PyTorch's indexing makes a number of Python of them, or of each in a list, which a trace does not have. Masks beside
other indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.sizes_as_data import holds_traced_numbers, tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)

Item: TypeAlias = Size | np.integer | slice | EllipsisType | Tensor | np.ndarray | Sequence[Any] | None
Index: TypeAlias = Item | tuple[Item, ...]


@replaces(torch.Tensor.__getitem__)
def _getitem(self: Tensor, index: Index) -> Tensor:
    part, rest = _selected(self, _of_numbers(index))
    return part if _is_empty(rest) else torch.Tensor.__getitem__(part, rest)


@replaces(torch.Tensor.__setitem__)
def _setitem(self: Tensor, index: Index, value: Tensor | complex) -> None:
    part, rest = _selected(self, _of_numbers(index))
    torch.Tensor.__setitem__(part, ... if _is_empty(rest) else rest, value)


def _is_empty(index: Index) -> bool:
    """Whether this is an index without items; an array is not to be compared."""
    return isinstance(index, tuple) and not index


def _of_numbers(index: Index) -> Index:
    """An index whose arrays and lists of numbers from data are tensors, and masks beside others the places they select.

    PyTorch finds these in the operator, whose shape a trace then does not know.
    """
    if _is_array_of_numbers(index):
        return tensor(index.tolist())
    if not isinstance(index, tuple) or within_transforms():
        return index
    index = tuple(_of_sequence(item) for item in index)
    tensors = [item for item in index if isinstance(item, Tensor | list) and not _is_scalar(item)]
    if len(tensors) < 2 or not any(map(_is_mask, tensors)):
        return index
    parts = (item.nonzero().unbind(1) if _is_mask(item) else (item,) for item in index)
    return tuple(part for of_item in parts for part in of_item)


def _of_sequence(item: Item) -> Item:
    """An array or nested lists of numbers of a trace as a tensor; other items as they are."""
    if _is_array_of_numbers(item):
        return tensor(item.tolist())
    return tensor(item) if isinstance(item, list | tuple) and holds_traced_numbers(item) else item


def _is_array_of_numbers(item: object) -> TypeGuard[np.ndarray]:
    return isinstance(item, np.ndarray) and item.dtype == object


def _is_mask(item: object) -> TypeGuard[Tensor]:
    return isinstance(item, Tensor) and item.dtype is torch.bool and item.dim() > 0


def _selected(self: Tensor, index: Index) -> tuple[Tensor, Index]:
    """The part of a tensor at those indices that are numbers of a trace, a view, and the other indices."""
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(item, slice) and any(map(_is_scalar, _ends(item))) for item in items) and not within_transforms():
        items = tuple(slice(*map(_read, _ends(item))) if isinstance(item, slice) else item for item in items)
        index = items
    if not any(map(_is_number, items)) or within_transforms():
        return self, index
    axes = _axes(self, items)
    if axes is None:
        return self, index
    part, removed = self, 0
    for item, axis in zip(items, axes, strict=True):
        if _is_number(item):
            part = part.select(axis - removed, _read(item))
            removed += 1
    return part, tuple(item for item in items if not _is_number(item))


def _is_number(item: object) -> TypeGuard[Tensor | torch.SymInt]:
    return isinstance(item, torch.SymInt) or _is_scalar(item)


def _is_scalar(item: object) -> TypeGuard[Tensor]:
    return isinstance(item, Tensor) and item.dim() == 0 and item.dtype in INTEGERS


def _read(item: Tensor | Size | None) -> Size | None:
    return item.item() if isinstance(item, Tensor) else item


def _ends(item: slice) -> tuple[Any, Any, Any]:
    return item.start, item.stop, item.step


def _axes(self: Tensor, items: tuple[Item, ...]) -> list[int] | None:
    """The first axis of a tensor that each index is of; None if there are indices of other kinds."""
    counts = [_consumed(item) for item in items]
    if any(count is None and item is not Ellipsis for item, count in zip(items, counts, strict=True)):
        return None
    rest = self.dim() - sum(count for count in counts if count is not None)
    return list(itertools.accumulate((rest if count is None else count for count in counts[:-1]), initial=0))


def _consumed(item: Item) -> int | None:
    """The number of axes that an index takes; None for an ellipsis, and for indices of other kinds."""
    if item is None:
        return 0
    if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    if isinstance(item, bool) or item is Ellipsis:
        return None
    return 1 if isinstance(item, int | np.integer | slice | torch.SymInt | Tensor) else None
