"""Gradients of pointwise convolutions with strides, as those without strides of the pixels that they read.

These are products of matrices. For many channels, as in the shortcuts of residual networks, ConvolutionBackward takes
up to three times as long.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.convolution_windows import Window, window_of

aten = torch.ops.aten
MANY_WEIGHTS = 1 << 16
"""The number of weights from which the products are faster."""


def _of_pixels(weight: Tensor, transposed: bool, window: Window) -> Window | None:
    """The window without strides; None if the convolution has none, or is no pointwise one with many weights."""
    pixels = replace(window, stride=[1] * window.rank)
    is_strided = not transposed and window.stride != pixels.stride and pixels.is_pointwise
    outputs, inputs = weight.shape[:2]
    is_large = isinstance(outputs, int) and isinstance(inputs, int) and outputs * inputs >= MANY_WEIGHTS
    return pixels if is_strided and is_large else None


def _read(input: Tensor, window: Window) -> list[Tensor]:
    """The pixels that a pointwise convolution reads: along the first axis of space, and along each further one too."""
    found = [input]
    for axis, step in enumerate(window.stride, start=2):
        found.append(aten.slice(found[-1], axis, 0, sys.maxsize, step))
    return found


@decomposes(aten.convolution_backward.default)
def _convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    window = window_of(weight.shape[2:], stride, padding, dilation, groups)
    pixels = _of_pixels(weight, transposed, window)
    if pixels is None:
        return NotImplemented
    *sliced, read = _read(input, window)
    settings = (pixels.stride, padding, dilation, False, output_padding, 1)
    by_input, *others = aten.convolution_backward(grad_output, read, weight, bias_sizes, *settings, output_mask)
    if output_mask[0]:
        for axis in reversed(range(2, input.dim())):
            sizes, step = sliced[axis - 2].shape, window.stride[axis - 2]
            by_input = aten.slice_backward(by_input, sizes, axis, 0, sys.maxsize, step)
    return by_input, *others
