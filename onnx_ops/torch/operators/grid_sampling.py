"""Sampling of an image at the points of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.nodes import Value, aclnn
from onnx_ops.torch.base.table import replaces, translates
from onnx_ops.torch.operators.sizes_as_data import linspace

aten = torch.ops.aten


@replaces(torch.affine_grid_generator)
def _affine_grid_generator(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """As PyTorch's operator, whose gradient does not take dynamic sizes, with its rounding.

    Its decomposition rounds in another order. At the pixels of an image, where a theta that is the identity samples it,
    the gradient of samples jumps.
    """
    torch._check(theta.shape[0] == size[0])
    space = size[2:]
    rank = len(space)
    lines = [
        _line(count, align_corners, theta).view([1] * axis + [-1] + [1] * (rank - 1 - axis))
        for axis, count in enumerate(space)
    ]
    coordinates = [*reversed(lines), theta.new_ones([1] * rank)]  # x, the last axis, comes first
    points = torch.stack([each.expand(space) for each in coordinates], -1)
    return (points.flatten(0, -2) @ theta.mT).unflatten(1, space)


def _line(count: int, align_corners: bool, like: Tensor) -> Tensor:
    """The coordinates of the pixels along an axis, from -1 to 1; 0 of a single one."""
    line = linspace(-1, 1, count, dtype=like.dtype)
    if not align_corners:
        return line * (count - 1) / count
    return torch.where(torch.full((), count) > 1, line, 0) if is_symbolic(count) else line * (count > 1)


def _settings(interpolation_mode: int, padding_mode: int, align_corners: bool) -> dict[str, int]:
    return {
        "interpolation_mode": interpolation_mode,
        "padding_mode": padding_mode,
        "align_corners": int(align_corners),
    }


@translates(aten.grid_sampler_2d.default)
def _of_image(input: Value, grid: Value, *settings: Any) -> Value:
    return aclnn.GridSampler2D(input, grid, **_settings(*settings))


@translates(aten.grid_sampler_3d.default)
def _of_volume(input: Value, grid: Value, *settings: Any) -> Value:
    return aclnn.GridSampler3D(input, grid, **_settings(*settings))


def _gradients(op: Callable[..., Any], tensors: Sequence[Value], settings: Sequence[Any]) -> tuple[Value, ...]:
    *settings, (of_input, _) = settings
    both = op(*tensors, **_settings(*settings))
    # The gradient that is not wanted is not read; the exporter takes no None for it.
    return tuple(both) if of_input else (both[1], both[1])


@translates(aten.grid_sampler_2d_backward.default)
def _image_backward(grad: Value, input: Value, grid: Value, *settings: Any) -> tuple[Value, ...]:
    return _gradients(aclnn.GridSampler2DBackward, (grad, input, grid), settings)


@translates(aten.grid_sampler_3d_backward.default)
def _volume_backward(grad: Value, input: Value, grid: Value, *settings: Any) -> tuple[Value, ...]:
    return _gradients(aclnn.GridSampler3DBackward, (grad, input, grid), settings)
