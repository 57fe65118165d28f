"""Average pools and adaptive pools."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.whole.resizing import WIDTH, along_axis, matrix_of, resampled

aten = torch.ops.aten


def _averaging(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Callable[[Tensor, int], Tensor]:
    """An average pool as what it does along one axis; with a divisor of the caller's it adds up only."""
    divisor = None if divisor_override is None else 1

    def along(image: Tensor, axis: int) -> Tensor:
        window = [kernel_size[axis], 1], [stride[axis], 1], [padding[axis], 0]
        return aten.avg_pool2d(image, *window, ceil_mode, count_include_pad, divisor)

    return along


def _each(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _average_pool(
    rank: int,
    operator: Callable[..., Tensor],
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """onnxruntime averages no doubles, and counts the places of a last, cut window otherwise than PyTorch."""
    if input.dtype is not torch.float64 and not ceil_mode and divisor_override is None:
        return operator(input, kernel_size, stride or kernel_size, padding, ceil_mode, count_include_pad)
    kernel = _each(kernel_size, rank)
    steps = kernel if stride is None or stride == () or stride == [] else _each(stride, rank)
    along = _averaging(kernel, steps, _each(padding, rank), ceil_mode, count_include_pad, divisor_override)
    result = resampled(input, along, rank)
    return result if divisor_override is None else result / divisor_override


def _average_pool_backward(
    grad: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    rank = len(kernel_size) if len(kernel_size) > 1 else self.dim() - 2
    kernel, pads = _each(kernel_size, rank), _each(padding, rank)
    steps = _each(stride, rank) if stride else kernel
    space = [int(size) for size in self.shape[-rank:]]
    whole = all(size % k == 0 for size, k in zip(space, kernel, strict=True))
    if kernel == steps and not any(pads) and whole:
        return _repeated(grad, kernel) / (divisor_override or math.prod(kernel))
    along = _averaging(kernel, steps, pads, ceil_mode, count_include_pad, divisor_override)
    for axis, size in enumerate(space):
        matrix, changes = matrix_of(along, size, axis, grad.dtype)
        if changes:
            grad = along_axis(grad, matrix.T.contiguous(), axis - rank)
    return grad if divisor_override is None else grad / divisor_override


def _repeated(grad: Tensor, times: Sequence[int]) -> Tensor:
    """Each element as often along each of the last axes."""
    rank = len(times)
    lead, space = list(grad.shape[:-rank]), list(grad.shape[-rank:])
    pairs = [[size, 1] for size in space], [[size, n] for size, n in zip(space, times, strict=True)]
    apart, repeated = (sum(each, lead) for each in pairs)
    merged = lead + [size * n for size, n in zip(space, times, strict=True)]
    return grad.reshape(apart).expand(repeated).reshape(merged)


def _divided(x: Tensor, output_size: Any, rank: int) -> tuple[list[int], list[int], list[int] | None]:
    """The sizes of space before and after, and the windows where they are all of one size and do not overlap."""
    before = [int(size) for size in x.shape[-rank:]]
    after = [size if n is None else int(n) for n, size in zip(_each(output_size, rank), before, strict=True)]
    if any(size % n for size, n in zip(before, after, strict=True)):
        return before, after, None
    return before, after, [size // n for size, n in zip(before, after, strict=True)]


def _adaptive_average_pool(rank: int, input: Tensor, output_size: Any) -> Tensor:
    _, after, kernel = _divided(input, output_size, rank)
    if kernel is not None:
        if after == [1] * rank:
            return input.mean(tuple(range(-rank, 0)), keepdim=True)
        operator = (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)[rank - 1]
        return _average_pool(rank, operator, input, kernel, kernel)
    return resampled(input, lambda image, axis: aten._adaptive_avg_pool2d(image, [after[axis], WIDTH]), rank)


def _adaptive_max_pool(rank: int, input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest along one axis after the other, which finds the same first place of equal ones as PyTorch."""
    before, after, kernel = _divided(input, output_size, rank)
    if kernel is not None:
        pool: Any = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[rank - 1]
        return pool(input, kernel, kernel, return_indices=return_indices)
    values, indices = input, None
    for axis in reversed(range(rank)):
        size, count = before[axis], after[axis]
        starts = [i * size // count for i in range(count)]
        ends = [-(-(i + 1) * size // count) for i in range(count)]
        width = max(end - start for start, end in zip(starts, ends, strict=True))
        # A shorter window repeats its last element.
        table = [min(s + i, e - 1) for s, e in zip(starts, ends, strict=True) for i in range(width)]
        places = torch.tensor(table, device=input.device)
        windows = values.index_select(axis - rank, places).unflatten(axis - rank, (count, width))
        values, chosen = windows.max(axis - rank)
        first = torch.tensor(starts, device=input.device).reshape([-1] + [1] * (rank - 1 - axis))
        here = (first + chosen) * math.prod(before[axis + 1 :])
        if indices is None:
            indices = here
        else:
            seen = indices.index_select(axis - rank, places).unflatten(axis - rank, (count, width))
            indices = here + seen.gather(axis - rank, chosen.unsqueeze(axis - rank)).squeeze(axis - rank)
    assert indices is not None
    return (values, indices) if return_indices else values


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.avg_pool1d: functools.partial(_average_pool, 1, aten.avg_pool1d),
    torch._C._nn.avg_pool2d: functools.partial(_average_pool, 2, aten.avg_pool2d),
    torch._C._nn.avg_pool3d: functools.partial(_average_pool, 3, aten.avg_pool3d),
    torch.adaptive_avg_pool1d: functools.partial(_adaptive_average_pool, 1),
    torch._C._nn.adaptive_avg_pool2d: functools.partial(_adaptive_average_pool, 2),
    torch._C._nn.adaptive_avg_pool3d: functools.partial(_adaptive_average_pool, 3),
    functional.adaptive_max_pool1d: functools.partial(_adaptive_max_pool, 1),
    functional.adaptive_max_pool2d: functools.partial(_adaptive_max_pool, 2),
    functional.adaptive_max_pool3d: functools.partial(_adaptive_max_pool, 3),
}
OPERATORS = {
    aten.avg_pool2d_backward.default: _average_pool_backward,
    aten.avg_pool3d_backward.default: _average_pool_backward,
}
