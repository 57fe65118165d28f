"""The windows of convolutions, and by what convolutions and their gradients are computed fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnx_ops.torch.base.nodes import Value, sizes
from onnx_ops.torch.base.sizes import of_each_axis

FEW_CHANNELS = 8
"""Up to this number of input channels, all taps of a kernel are one product of matrices; above, each is its own."""
FEWEST_CHANNELS = 3
FEW_OUTPUTS = 16
"""Up to FEWEST_CHANNELS input channels, the convolution itself is faster by onnxruntime's Conv if it has more channels
of the output than this, unless it has MANY_TERMS products for each element."""
MANY_TERMS = 100
NARROW = 16
"""Up to this width of the output, the convolution itself is faster by onnxruntime's Conv, unless it has MANY_TERMS."""
FEW_PIXELS = 9
"""Up to this number of pixels of an image, a pointwise convolution is one product for all samples: onnxruntime's Conv
has one per sample, of as many columns as there are pixels, and takes up to three times as long. From 16 pixels on it is
faster."""


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an image; each list has an entry for every axis of space."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a product of matrices at each pixel."""
        alone = all(k == s == 1 and p == 0 for k, s, p in zip(self.kernel, self.stride, self.padding, strict=True))
        return alone and self.groups == 1

    @property
    def is_tiling(self) -> bool:
        """Whether windows of several elements are next to one another, as those of patches."""
        adjacent = self.kernel == self.stride and not any(self.padding) and all(d == 1 for d in self.dilation)
        return adjacent and math.prod(self.kernel) > 1

    @property
    def settings(self) -> dict[str, Any]:
        """The attributes of this domain's operators."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    @property
    def attributes(self) -> dict[str, Any]:
        """Those of the ONNX operators."""
        return {
            "kernel_shape": self.kernel,
            "strides": self.stride,
            "pads": [*self.padding, *self.padding],
            "dilations": self.dilation,
            "group": self.groups,
        }


def window_of(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Window:
    rank = len(kernel)
    return Window(
        list(kernel), of_each_axis(stride, rank), of_each_axis(padding, rank), of_each_axis(dilation, rank), groups
    )


def is_by_op(x: Value, weight: Value, window: Window) -> bool:
    """Whether an op of this domain computes a convolution."""
    if _has_groups_or_many(weight, window) or window.is_pointwise:
        return not window.is_pointwise
    width = sizes(x)[-1]
    is_narrow = 0 <= width <= NARROW * window.stride[-1]
    return _is_faster(weight, window) and (not is_narrow or _has_many_terms(weight, window))


def is_gradient_by_op(weight: Value, window: Window) -> bool:
    """Whether an op of this domain computes the gradients of a convolution, rather than products of matrices."""
    return not window.is_pointwise and (_has_groups_or_many(weight, window) or _is_whole(weight, window))


def _has_groups_or_many(weight: Value, window: Window) -> bool:
    """Whether an output is the sum of many channels, or of several of one of the groups."""
    return sizes(weight)[1] > (FEW_CHANNELS if window.groups == 1 else 1)


def _is_faster(weight: Value, window: Window) -> bool:
    """Whether a convolution with few input channels is faster by an op of this domain."""
    outputs, inputs = sizes(weight)[:2]
    is_faster = outputs <= FEW_OUTPUTS or inputs > FEWEST_CHANNELS or _has_many_terms(weight, window)
    return is_faster and _is_whole(weight, window)


def _is_whole(weight: Value, window: Window) -> bool:
    """Whether all input channels, of a known number, contribute to each output, and windows are no patches."""
    return window.groups == 1 and sizes(weight)[1] > 0 and not window.is_tiling


def _has_many_terms(weight: Value, window: Window) -> bool:
    return sizes(weight)[1] * math.prod(window.kernel) >= MANY_TERMS


def is_depthwise_op(x: Value, weight: Value, window: Window) -> bool:
    """Whether an op of this domain computes a convolution of each channel by itself."""
    return x.dtype != ir.DataType.DOUBLE and is_depthwise(window, sizes(weight)[1] * window.groups)


def is_product_of_pixels(window: Window, image: Value, channels: Sequence[int]) -> bool:
    """Whether a convolution and its gradients are computed as products of matrices for the pixels of all samples."""
    space = sizes(image)[2:]
    return window.is_pointwise and -1 not in (*space, *channels) and 1 <= math.prod(space) <= FEW_PIXELS


def is_depthwise(window: Window, channels: int) -> bool:
    """Whether each of the channels that are convolved is a group of its own."""
    return 1 < window.groups == channels
