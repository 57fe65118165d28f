"""Max pools over three axes, and their gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from onnx_ops.torch.translations.nodes import integers, number, op, sizes, spatial

RANK = 3


def _each(values: Sequence[int]) -> list[int]:
    return list(values) * RANK if len(values) == 1 else list(values)


def _max_pool3d_with_indices(
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Any, Any]:
    kernel = _each(kernel_size)
    unbatched = len(sizes(x)) == RANK + 1
    values, indices = op.MaxPool(
        op.Unsqueeze(x, integers([0])) if unbatched else x,
        kernel_shape=kernel,
        strides=_each(stride) if stride else kernel,
        pads=_each(padding) * 2,
        dilations=_each(dilation),
        ceil_mode=int(ceil_mode),
    )
    # ONNX counts the places of all images on, PyTorch those of each anew.
    indices = op.Mod(indices, integers([math.prod(spatial(x, "a max pool", RANK))]))
    if unbatched:
        values, indices = (op.Squeeze(value, integers([0])) for value in (values, indices))
    return values, indices


def _max_pool3d_with_indices_backward(
    grad: Any,
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Any,
) -> Any:
    lead = len(sizes(x)) - RANK
    flat = integers([0] * lead + [-1])
    space = spatial(x, "the gradient of a max pool", RANK)
    rows, places = op.Reshape(grad, flat), op.Reshape(indices, flat)
    # A place may be the largest of several windows; onnxruntime adds up one after the other.
    shape = op.Concat(op.Shape(x, end=lead), integers([math.prod(space)]), axis=0)
    zeros = op.Expand(number(0.0, grad), shape)
    summed = op.ScatterElements(zeros, places, rows, axis=lead, reduction="add")
    return op.Reshape(summed, integers([0] * lead + space))


TABLE = {
    torch.ops.aten.max_pool3d_with_indices.default: _max_pool3d_with_indices,
    torch.ops.aten.max_pool3d_with_indices_backward.default: _max_pool3d_with_indices_backward,
}
