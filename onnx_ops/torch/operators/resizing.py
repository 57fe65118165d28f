"""Resizing of images, as products with a matrix along each axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.along_axis import WIDTH, resampled

aten = torch.ops.aten


def _sampling(name: str, before: Any, after: Any, aligns: bool, scale: float | None) -> Tensor:
    """The matrix (after, before) of a function of PyTorch along an axis of dynamic size."""
    linear = "linear1d" in name or "linear2d" in name or "linear3d" in name
    if "nearest" not in name and (not linear or name.endswith("_aa")):
        raise CaptureError(f"{name} needs sizes of space that are not dynamic: leave those axes out of dynamic_shapes")
    dtype = torch.float64 if linear else torch.float32  # in which PyTorch finds the nearest
    places, neighbours = torch.arange(after, dtype=dtype), torch.arange(before, dtype=dtype)
    last = neighbours[-1:]
    if aligns:
        source = places * (last / places[-1:].clamp(min=1))
    else:
        step = (last + 1) / (places[-1:] + 1) if scale is None else 1 / scale
        shift = 0.0 if "nearest" in name and "exact" not in name else 0.5
        source = (places + shift) * step - (shift if linear else 0)
    if linear:
        source = torch.minimum(source.clamp(min=0), last)
        return (1 - (source.unsqueeze(1) - neighbours).abs()).clamp(min=0)
    return torch.minimum(source.floor(), last).unsqueeze(1) == neighbours


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
    one = [1.0 if scale is not None else None for scale in scales]

    def along(image: Tensor, axis: int) -> Tensor:
        if is_symbolic(size[axis]):
            raise CaptureError(f"{name} to a size that is dynamic needs an image whose size is dynamic as well")
        return operator(image, [size[axis], WIDTH], *flags, scales[axis], one[axis])

    def dynamic(before: Any, axis: int) -> Tensor:
        return _sampling(name, before, size[axis], any(flags), scales[axis])

    return resampled(x, along, rank, dynamic)


for _name, _operator, _rank, _aligns in (
    ("upsample_nearest1d", aten.upsample_nearest2d, 1, False),
    ("upsample_nearest2d", aten.upsample_nearest2d, 2, False),
    ("upsample_nearest3d", aten.upsample_nearest2d, 3, False),
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
