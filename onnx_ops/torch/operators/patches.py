"""Patches of images that are next to one another, as transposes; torch.nn.Unfold and Fold have them as columns.

Others are added up, or taken apart, by each element of a kernel: in `convolution.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.convolution_windows import window_of

aten = torch.ops.aten


@decomposes(aten.im2col.default)
def _tiles_to_columns(
    self: Tensor, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    """Patches that are next to one another: a transpose."""
    if not window_of(kernel_size, stride, padding, dilation, 1).is_tiling or self.dim() != 4:
        return NotImplemented
    (samples, channels, *space), (height, width) = self.shape, kernel_size
    rows, columns = (size // k for size, k in zip(space, kernel_size, strict=True))
    whole = self.narrow(2, 0, rows * height).narrow(3, 0, columns * width)
    tiles = whole.reshape(samples, channels, rows, height, columns, width).permute(0, 1, 3, 5, 2, 4)
    return tiles.reshape(samples, channels * height * width, rows * columns)


@decomposes(aten.col2im.default)
def _columns_to_tiles(
    self: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    if not window_of(kernel_size, stride, padding, dilation, 1).is_tiling or self.dim() != 3:
        return NotImplemented
    (samples, elements, _), (height, width) = self.shape, kernel_size
    rows, columns = (size // k for size, k in zip(output_size, kernel_size, strict=True))
    channels = elements // (height * width)
    tiles = self.reshape(samples, channels, height, width, rows, columns).permute(0, 1, 4, 2, 5, 3)
    image = tiles.reshape(samples, channels, rows * height, columns * width)
    behind = [output_size[1] - columns * width, output_size[0] - rows * height]
    if all(isinstance(size, int) and size == 0 for size in behind):
        return image
    return F.pad(image, (0, behind[0], 0, behind[1]))
