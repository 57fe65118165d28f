"""Convolutions, transposed ones included, and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from onnx_ops.torch.translations.nodes import integers, number, op, sizes, spatial, taps
from onnx_ops.torch.whole.operators import aclnn

FEW_CHANNELS = 8
"""Up to so many input channels all taps of a kernel are one product of matrices; else each is one of its own."""


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an image; each has an entry for every axis of space."""

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
        """Whether it is a product of matrices at each place."""
        alone = all(k == s == 1 and p == 0 for k, s, p in zip(self.kernel, self.stride, self.padding, strict=True))
        return alone and self.groups == 1

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


def _window(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Window:
    def each(values: Sequence[int]) -> list[int]:
        return list(values) * len(kernel) if len(values) == 1 else list(values)

    return Window(list(kernel), each(stride), each(padding), each(dilation), groups)


def _convolution(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
) -> Any:
    window = _window(sizes(weight)[2:], stride, padding, dilation, groups)
    if not transposed:
        return _added(_forward(x, weight, window), bias, window.rank)
    extra = list(output_padding) * window.rank if len(output_padding) == 1 else list(output_padding)
    shape = spatial(x, "a transposed convolution", window.rank)
    reach = zip(shape, window.kernel, window.stride, window.padding, window.dilation, extra, strict=True)
    out = [(size - 1) * s - 2 * p + d * (k - 1) + more + 1 for size, k, s, p, d, more in reach]
    return _added(_by_input(x, weight, window, out), bias, window.rank)


def _added(y: Any, bias: Any, rank: int) -> Any:
    return y if bias is None else op.Add(y, op.Unsqueeze(bias, integers(range(1, rank + 1))))


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Any, ...]:
    window = _window(sizes(weight)[2:], stride, padding, dilation, groups)
    # The exporter takes no None for what nobody reads.
    by_x = by_weight = by_bias = grad
    if output_mask[0]:
        if transposed:
            by_x = _forward(grad, weight, window)
            shape = spatial(x, "the gradient of a convolution", window.rank)
            axes = integers(range(2, window.rank + 2))
            by_x = op.Slice(by_x, integers([0] * window.rank), integers(shape), axes)  # output_padding may add some
        else:
            shape = spatial(x, "the gradient of a convolution", window.rank)
            if _is_depthwise(window, sizes(x)[1]):
                by_x = aclnn.DepthwiseConv2DBackpropInput(
                    weight, grad, input_size=[sizes(x)[1], *shape], **_depthwise_attributes(window)
                )
            else:
                by_x = _by_input(grad, weight, window, shape)
    if output_mask[1]:
        by_weight = _by_weight(x, grad, window) if transposed else _by_weight(grad, x, window)
    if output_mask[2]:
        by_bias = op.ReduceSum(grad, integers([0, *range(2, window.rank + 2)]), keepdims=0)
    return by_x, by_weight, by_bias


def _forward(x: Any, weight: Any, window: Window) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Conv(x, weight, **window.attributes)
    # onnxruntime convolves no doubles: the kernel's places side by side, times the weights.
    outputs, inputs = sizes(weight)[0], sizes(weight)[1]
    out = _reached(spatial(x, "a convolution in float64", window.rank), window)
    axes = range(2, window.rank + 2)
    seen = taps(_padded(x, window), axes, window.kernel, window.stride, window.dilation, out)
    columns = op.Concat(*(op.Unsqueeze(tap, integers([2])) for tap in seen), axis=2)
    width = inputs * math.prod(window.kernel)
    columns = op.Reshape(columns, integers([sizes(x)[0], window.groups, width, math.prod(out)]))
    rows = op.Reshape(weight, integers([window.groups, outputs // window.groups, width]))
    return op.Reshape(op.MatMul(rows, columns), integers([sizes(x)[0], outputs, *out]))


def _by_input(grad: Any, weight: Any, window: Window, shape: Sequence[int]) -> Any:
    """The gradient by an input of so many places; also a transposed convolution of `grad`."""
    arrived = spatial(grad, "the gradient of a convolution", window.rank)
    reach = zip(shape, arrived, window.kernel, window.stride, window.padding, window.dilation, strict=True)
    extra = [size - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for size, n, k, s, p, d in reach]
    if grad.dtype != ir.DataType.DOUBLE:
        if window.is_pointwise and list(shape) == arrived:  # Conv takes three quarters of the time
            return op.Conv(grad, op.Transpose(weight, perm=[1, 0, *range(2, window.rank + 2)]), **window.attributes)
        return op.ConvTranspose(grad, weight, **window.attributes, output_padding=extra)
    outputs, inputs = sizes(weight)[0], sizes(weight)[1]
    count, places = math.prod(window.kernel), math.prod(arrived)
    rows = op.Reshape(weight, integers([window.groups, outputs // window.groups, inputs * count]))
    columns = op.Reshape(grad, integers([sizes(grad)[0], window.groups, outputs // window.groups, places]))
    columns = op.MatMul(op.Transpose(rows, perm=[0, 2, 1]), columns)
    columns = op.Reshape(columns, integers([sizes(grad)[0], inputs * window.groups, count, *arrived]))
    return scattered(columns, grad, window, arrived, shape)


def scattered(columns: Any, like: Any, window: Window, arrived: Sequence[int], shape: Sequence[int]) -> Any:
    """Each place of a kernel put back where it has looked, and added up.

    `columns` are (N, C, places of the kernel, *arrived), the result is (N, C, *shape).
    """
    zero, whole = number(0.0, like), None
    for i, places in enumerate(itertools.product(*map(range, window.kernel))):
        part = op.Gather(columns, op.Constant(value_int=i), axis=2)
        for axis, (n, s) in enumerate(zip(arrived, window.stride, strict=True)):
            if s > 1:  # zeros between its elements
                part = op.Unsqueeze(part, integers([axis + 3]))
                after = [0] * (window.rank + 3)
                after[axis + 3] = s - 1
                part = op.Pad(part, integers([0] * len(after) + after), zero)
                merged = [n * t for n, t in zip(arrived, window.stride, strict=True)]
                merged[axis + 1 :] = arrived[axis + 1 :]
                part = op.Reshape(part, integers([0, 0, *merged]))
        start = [t * d - p for t, d, p in zip(places, window.dilation, window.padding, strict=True)]
        reach = zip(shape, arrived, window.stride, start, strict=True)
        end = [size - n * s - begin for size, n, s, begin in reach]
        part = op.Pad(part, integers([0, 0, *start, 0, 0, *end]), zero)
        whole = part if whole is None else op.Add(whole, part)
    return whole


def _by_weight(grad: Any, x: Any, window: Window) -> Any:
    """The gradient by the weights of a convolution of x.

    Convolving x with grad would be this too, and takes up to twice as long.
    """
    shape, out = (spatial(value, "the gradient of a convolution", window.rank) for value in (x, grad))
    outputs, inputs = sizes(grad)[1], sizes(x)[1]
    groups, per_group = window.groups, inputs // window.groups
    # With an output_padding as large as its stride, a transposed convolution leaves room for more places of the kernel.
    if _is_depthwise(window, inputs) and _reached(shape, window) == out:
        return aclnn.DepthwiseConv2DBackpropFilter(x, grad, filter_size=window.kernel, **_depthwise_attributes(window))
    space = list(range(2, window.rank + 2))
    if groups == 1 and inputs <= FEW_CHANNELS:
        seen = taps(_padded(x, window), space, window.kernel, window.stride, window.dilation, out)
        columns = op.Concat(*(op.Unsqueeze(tap, integers([2])) for tap in seen), axis=2)
        columns = op.Reshape(columns, integers([0, inputs * math.prod(window.kernel), math.prod(out)]))
        rows = op.Reshape(grad, integers([0, 0, math.prod(out)]))
        product = op.MatMul(rows, op.Transpose(columns, perm=[0, 2, 1]))
        product = op.ReduceSum(product, integers([0]), keepdims=0)
        return op.Reshape(product, integers([outputs, inputs, *window.kernel]))
    if groups == 1:
        channels_last = op.Transpose(x, perm=[0, *space, 1])
        if any(window.padding):
            channels_last = op.Pad(channels_last, integers([0, *window.padding, 0] * 2))
        rows = op.Reshape(op.Transpose(grad, perm=[1, 0, *space]), integers([outputs, -1]))
        seen = taps(channels_last, range(1, window.rank + 1), window.kernel, window.stride, window.dilation, out)
        products = [op.MatMul(rows, op.Reshape(tap, integers([-1, inputs]))) for tap in seen]
        product = op.Reshape(op.Concat(*products, axis=1), integers([outputs, *window.kernel, inputs]))
        return op.Transpose(product, perm=[0, window.rank + 1, *range(1, window.rank + 1)])
    rows = op.Transpose(grad, perm=[1, 0, *space])
    rows = op.Reshape(rows, integers([groups, outputs // groups, -1]))
    channels_first = op.Transpose(_padded(x, window), perm=[1, 0, *space])
    products = []
    for tap in taps(channels_first, space, window.kernel, window.stride, window.dilation, out):
        columns = op.Transpose(op.Reshape(tap, integers([groups, per_group, -1])), perm=[0, 2, 1])
        products.append(op.Unsqueeze(op.MatMul(rows, columns), integers([3])))
    return op.Reshape(op.Concat(*products, axis=3), integers([outputs, per_group, *window.kernel]))


def _is_depthwise(window: Window, channels: int) -> bool:
    """Whether each of the channels that are convolved is a group of its own."""
    return 1 < window.groups == channels


def _depthwise_attributes(window: Window) -> dict[str, Any]:
    """Those of this domain's operators."""
    return {"strides": window.stride, "pads": [*window.padding, *window.padding], "dilations": window.dilation}


def _padded(x: Any, window: Window) -> Any:
    return op.Pad(x, integers([0, 0, *window.padding] * 2)) if any(window.padding) else x


def _reached(shape: Sequence[int], window: Window) -> list[int]:
    """How many places a kernel takes on an image."""
    reach = zip(shape, window.kernel, window.stride, window.padding, window.dilation, strict=True)
    return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in reach]


def _image_to_columns(
    x: Any,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    window = _window(kernel_size, stride, padding, dilation, 1)
    out = _reached(spatial(x, "unfold", 2), window)
    seen = taps(_padded(x, window), (2, 3), window.kernel, window.stride, window.dilation, out)
    columns = op.Concat(*(op.Unsqueeze(tap, integers([2])) for tap in seen), axis=2)
    return op.Reshape(columns, integers([0, sizes(x)[1] * math.prod(kernel_size), math.prod(out)]))


def _columns_to_image(
    x: Any,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    window = _window(kernel_size, stride, padding, dilation, 1)
    out = _reached(output_size, window)
    count = math.prod(kernel_size)
    columns = op.Reshape(x, integers([0, sizes(x)[1] // count, count, *out]))
    return scattered(columns, x, window, out, output_size)


TABLE = {
    torch.ops.aten.convolution.default: _convolution,
    torch.ops.aten.convolution_backward.default: _convolution_backward,
    torch.ops.aten.im2col.default: _image_to_columns,
    torch.ops.aten.col2im.default: _columns_to_image,
}
