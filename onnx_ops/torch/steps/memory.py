"""Tensors that have elements of memory in common, such as views of one another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


def overlapping(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """The names of each two strided tensors that have elements in common."""
    ordered = sorted((_range(tensor), name) for name, tensor in tensors.items() if tensor.numel())
    for place, ((_, end), name) in enumerate(ordered):
        for (start, _), other in itertools.islice(ordered, place + 1, None):
            if start >= end:
                break
            if _overlap(tensors[name], tensors[other]):
                yield name, other


def _range(tensor: Tensor) -> tuple[int, int]:
    """The addresses of the first element and behind the last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, whose ranges of addresses overlap, have elements in common; not if one is between others."""
    ranges = [_range(one), _range(other)]
    if one.itemsize != other.itemsize or (one.is_contiguous() and other.is_contiguous()):
        return True
    first = min(start for start, _ in ranges)
    seen = torch.zeros((max(end for _, end in ranges) - first) // one.itemsize, dtype=torch.bool)
    views = [
        seen.as_strided(
            [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)],
            tensor.stride(),
            (tensor.data_ptr() - first) // tensor.itemsize,
        )
        for tensor in (one, other)
    ]
    views[0].fill_(True)
    return bool(views[1].any())
