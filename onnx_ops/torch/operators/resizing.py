"""Resizing of images, as products with a matrix along each axis, or as copies of the elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.along_axis import WIDTH, resampled
from onnx_ops.torch.operators.reshaping import MOST_COPIES, repeated

aten = torch.ops.aten


def _sampling(name: str, before: Size, after: Size, aligns: bool, scale: float | None) -> Tensor:
    """The matrix (after, before) of a function of PyTorch along an axis whose size is dynamic, before or after."""
    nearest, cubic = "nearest" in name, "bicubic" in name
    dtype = torch.float32 if nearest else torch.float64  # in which PyTorch finds the nearest
    places, neighbours = torch.arange(after, dtype=dtype), torch.arange(before, dtype=dtype)
    # No slices, whose size is not known to be 1 where these sizes depend on data.
    last, end = (torch.full((1,), size - 1, dtype=dtype) for size in (before, after))
    step: Any
    if aligns:
        step = last * end.clamp(max=1) / end.clamp(min=1)
    elif scale is None:
        step = (last + 1) / (end + 1)
    else:
        step = torch.where(end == last, last.new_ones(()), 1 / scale) if _keeps_size(name) else 1 / scale
    if name.endswith("_aa"):
        centers = (places + 0.5) * step
        width = step.clamp(min=1) if isinstance(step, Tensor) else max(step, 1.0)
        weights = (_cubic if cubic else _triangle)((neighbours + 0.5 - centers.unsqueeze(1)) / width)
        return weights / weights.sum(1, keepdim=True)
    shift = 0.0 if aligns or (nearest and "exact" not in name) else 0.5
    source = (places + shift) * step
    if nearest:
        return torch.minimum(source.floor(), last).unsqueeze(1) == neighbours
    source = source - shift
    if not cubic:
        return _triangle(torch.minimum(source.clamp(min=0), last).unsqueeze(1) - neighbours)
    first = source.floor()

    def of_neighbour(place: Tensor) -> Tensor:
        found = torch.minimum(place.clamp(min=0), last).unsqueeze(1) == neighbours
        return found * _cubic(source - place, -0.75).unsqueeze(1)

    return sum((of_neighbour(first + i) for i in range(3)), of_neighbour(first - 1))


def _keeps_size(name: str) -> bool:
    """Whether a function copies along an axis whose size stays the same, with a factor such as 1.1 too."""
    return name == "upsample_nearest2d" or name.endswith("_aa") or "linear" in name


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    """Keys' kernel; PyTorch has another one with antialiasing than without."""
    x = x.abs().clamp(max=2)
    return torch.where(x <= 1, ((a + 2) * x - (a + 3)) * x * x + 1, ((x - 5) * x + 8) * a * x - 4 * a)


def _resized(name: str, operator: Callable[..., Tensor], rank: int, aligns: bool, *args: Any) -> Tensor:
    """The function `name` of torch._C._nn; `operator` computes the same on images of two axes."""
    x, output_size, *rest = args
    flags = [rest.pop(0)] if aligns else []
    factors = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], Sequence) else list(rest)
    scales = factors if any(factor is not None for factor in factors) else [None] * rank
    if output_size is None:
        size = [torch.sym_int(n * (int(s) if s == int(s) else s)) for n, s in zip(x.shape[2:], scales, strict=True)]
    else:
        size = [int(number) if isinstance(number, Tensor) else number for number in output_size]
    for each in (*x.shape[2:], *size):
        if free_unbacked_symbols(each):
            torch._check(each > 0)  # for which PyTorch raises an error
    if "nearest" in name:
        for axis in reversed(range(rank)):
            if (times := _copies(x.shape[2 + axis], size[axis], scales[axis])) is not None:
                x, scales[axis] = repeated(x, times, axis - rank), None
    one = [1.0 if scale is not None else None for scale in scales]

    def along(image: Tensor, axis: int) -> Tensor:
        return operator(image, [size[axis], WIDTH], *flags, scales[axis], one[axis])

    def dynamic(before: Size, axis: int) -> Tensor | None:
        if scales[axis] is None and statically_known_true(before == size[axis]):
            return None
        return _sampling(name, before, size[axis], any(flags), scales[axis])

    return resampled(x, along, rank, dynamic, size)


def _copies(before: Size, after: Size, scale: float | None) -> int | None:
    """How often each element is the nearest of several, if all are equally often and few times."""
    known = isinstance(before, int) and isinstance(after, int) and before > 0
    times = scale if scale is not None else after / before if known else 0
    few = times in range(2, MOST_COPIES + 1)
    return int(times) if few and statically_known_true(after == int(times) * before) else None


def _nearest(image: Tensor, output_size: Sequence[int], scale: float | None, _: float | None) -> Tensor:
    """That of one axis, and of three, which copies no axis; that of two copies those whose size stays the same."""
    return aten.upsample_nearest1d(image[..., 0], output_size[:1], scale).unsqueeze(-1)


for _name, _operator, _rank, _aligns in (
    ("upsample_nearest1d", _nearest, 1, False),
    ("upsample_nearest2d", aten.upsample_nearest2d, 2, False),
    ("upsample_nearest3d", _nearest, 3, False),
    ("_upsample_nearest_exact1d", aten._upsample_nearest_exact2d, 1, False),
    ("_upsample_nearest_exact2d", aten._upsample_nearest_exact2d, 2, False),
    ("_upsample_nearest_exact3d", aten._upsample_nearest_exact2d, 3, False),
    ("upsample_linear1d", aten.upsample_bilinear2d, 1, True),
    ("upsample_bilinear2d", aten.upsample_bilinear2d, 2, True),
    ("upsample_bicubic2d", aten.upsample_bicubic2d, 2, True),
    ("upsample_trilinear3d", aten.upsample_bilinear2d, 3, True),
    ("_upsample_bilinear2d_aa", aten._upsample_bilinear2d_aa, 2, True),
    ("_upsample_bicubic2d_aa", aten._upsample_bicubic2d_aa, 2, True),
):
    replaces(getattr(torch._C._nn, _name))(functools.partial(_resized, _name, _operator, _rank, _aligns))
