"""Convolutions, transposed ones included, and their gradients."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.nodes import Extent, Value, aclnn, integers, number, op, replace_node, sizes, taps
from onnx_ops.torch.base.sizes import of_each_axis
from onnx_ops.torch.base.table import computes_float64, differentiates, requires, rewrites, translates
from onnx_ops.torch.operators.convolution_windows import (
    FEW_CHANNELS,
    Window,
    is_by_op,
    is_depthwise,
    is_depthwise_op,
    is_gradient_by_op,
    is_product_of_pixels,
    window_of,
)

aten = torch.ops.aten


@differentiates(aten.convolution_backward.default)
def _gradients_again(
    grads: Sequence[Tensor | None],
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *rest: Any,
) -> tuple[Tensor | None, ...]:
    """A convolution is linear in image and weight, its gradients in one of these and in the gradient given."""
    (by_input, by_weight, by_bias), settings = grads, rest[:-1]
    pairs = ((by_input, weight), (input, by_weight))
    of_grad = [
        aten.convolution(*pair, None, *settings) for pair in pairs if pair[0] is not None and pair[1] is not None
    ]
    if by_bias is not None:
        of_grad.append(by_bias.reshape(-1, *[1] * (grad.dim() - 2)).expand_as(grad))

    def gradient(image: Tensor, kernel: Tensor, place: int) -> Tensor:
        wanted = [place == 0, place == 1, False]
        return aten.convolution_backward(grad, image, kernel, None, *settings, wanted)[place]

    of_input = None if by_weight is None else gradient(input, by_weight, 0)
    of_weight = None if by_input is None else gradient(by_input, weight, 1)
    return functools.reduce(operator.add, of_grad) if of_grad else None, of_input, of_weight


@requires(aten.convolution.default)
def _requires_channels(input: Tensor, weight: Tensor, *settings: Any) -> None:
    """Those of the kernel, which PyTorch's trace does not require of a transposed convolution."""
    *_, transposed, _, groups = settings
    torch._check(input.shape[1] == (weight.shape[0] if transposed else weight.shape[1] * groups))


@translates(aten.convolution.default)
def _convolution(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
) -> Value:
    window = window_of(sizes(weight)[2:], stride, padding, dilation, groups)
    if not transposed:
        return _forward(x, weight, window, bias)
    return _added(_transposed(x, weight, window, of_each_axis(output_padding, window.rank)), bias, window.rank)


def _added(y: Value, bias: Value | None, rank: int) -> Value:
    return y if bias is None else op.Add(y, op.Unsqueeze(bias, integers(range(1, rank + 1))))


@translates(aten.convolution_backward.default)
def _convolution_backward(
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value, ...]:
    window = window_of(sizes(weight)[2:], stride, padding, dilation, groups)
    if not transposed and is_gradient_by_op(weight, window):
        return aclnn.ConvolutionBackward(grad, x, weight, **window.settings)
    # The exporter takes no None for outputs that are not used.
    by_x = by_weight = by_bias = grad
    if output_mask[0]:
        space = Extent.of(x, window.rank)
        if transposed:
            by_x = _cut(_forward(grad, weight, window), space, window.rank)  # output_padding may add some
        elif space.numbers is not None and is_depthwise(window, sizes(x)[1]):
            by_x = aclnn.DepthwiseConv2DBackpropInput(
                weight, grad, input_size=[sizes(x)[1], *space.numbers], **_depthwise_attributes(window)
            )
        elif space.numbers is not None:
            by_x = _by_input(grad, weight, window, _left(space.numbers, Extent.of(grad, window.rank), window))
        else:  # the number of elements at the end that no window reaches is not known
            by_x = _by_input(grad, weight, window, [s - 1 for s in window.stride])
            by_x = _cut(by_x, space, window.rank) if any(s > 1 for s in window.stride) else by_x
    if output_mask[1]:
        if transposed:
            image, window_of_image = _without_room(grad, x, window, of_each_axis(output_padding, window.rank))
            if is_gradient_by_op(weight, window) and not is_depthwise(window, sizes(image)[1]):
                by_weight = aclnn.ConvolutionBackward(x, image, weight, **window_of_image.settings)[1]
            else:
                by_weight = _by_weight(x, image, window_of_image)
        else:
            by_weight = _by_weight(grad, x, window)
    if output_mask[2]:
        by_bias = op.ReduceSum(grad, integers([0, *range(2, window.rank + 2)]), keepdims=0)
    return by_x, by_weight, by_bias


@rewrites("Convolution")
def _without_gradients(node: ir.Node) -> None:
    """A convolution without gradients, as in an inference graph, becomes ONNX's: with constant weights it is faster."""
    stride, padding, dilation = _settings_of(node, "stride", "padding", "dilation")
    x, weight, *bias = node.inputs
    assert x is not None
    assert weight is not None
    window = Window(sizes(weight)[2:], stride, padding, dilation, node.attributes["groups"].as_int())
    if len(weight.uses()) > 1 and is_product_of_pixels(window, x, sizes(weight)[:2]):
        _become_product(node, x, weight, *bias)
    elif not _is_used_by(weight, "ConvolutionBackward"):
        replace_node(node, ir.node("Conv", node.inputs, window.attributes))


@rewrites("DepthwiseConv2D")
def _depthwise_without_gradients(node: ir.Node) -> None:
    stride, pads, dilation = _settings_of(node, "strides", "pads", "dilations")
    x, weight = node.inputs[:2]
    assert x is not None
    assert weight is not None
    if not _is_used_by(weight, "DepthwiseConv2DBackpropInput") and not _is_used_by(x, "DepthwiseConv2DBackpropFilter"):
        window = Window(sizes(weight)[2:], stride, pads[: len(pads) // 2], dilation, sizes(x)[1])
        replace_node(node, ir.node("Conv", node.inputs, window.attributes))


def _settings_of(node: ir.Node, *names: str) -> list[list[int]]:
    return [list(node.attributes[name].as_ints()) for name in names]


def _is_used_by(value: ir.Value, op_type: str) -> bool:
    return any(user.op_type == op_type for user, _ in value.uses())


def _become_product(node: ir.Node, x: ir.Value, weight: ir.Value, *bias: ir.Value | None) -> None:
    """Replace a pointwise convolution by a product of the pixels of all samples."""
    added: list[ir.Node] = []

    def new(op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        added.append(ir.node(op_type, inputs, attributes))
        return added[-1].outputs[0]

    def reshaped(value: ir.Value, *shape: int) -> ir.Value:
        return new("Reshape", value, new("Constant", value_ints=shape))

    outputs, inputs, *kernel = sizes(weight)
    space = sizes(x)[2:]
    pixels = reshaped(new("Transpose", x, perm=[0, *range(2, len(space) + 2), 1]), -1, inputs)
    product = new("Gemm", pixels, reshaped(weight, outputs, inputs), *bias, transB=1)
    new("Transpose", reshaped(product, -1, *space, outputs), perm=[0, len(kernel) + 1, *range(1, len(kernel) + 1)])
    replace_node(node, *added)


def _forward(x: Value, weight: Value, window: Window, bias: Value | None = None) -> Value:
    inputs = (x, weight) if bias is None else (x, weight, bias)
    if is_depthwise_op(x, weight, window):
        return aclnn.DepthwiseConv2D(*inputs, **_depthwise_attributes(window))
    if x.dtype != ir.DataType.DOUBLE:
        if is_by_op(x, weight, window) or is_product_of_pixels(window, x, sizes(weight)[:2]):
            return aclnn.Convolution(*inputs, **window.settings)
        return op.Conv(*inputs, **window.attributes)
    # onnxruntime has no float64 Conv: im2col, times the weights.
    outputs, channels = sizes(weight)[0], sizes(weight)[1]
    columns, out = _columns(x, window)
    width = channels * math.prod(window.kernel) if channels >= 0 else -1  # a dynamic size, in second derivatives
    columns = op.Reshape(columns, integers([_rows(x, out), window.groups, width, out.product]))
    rows = op.Reshape(weight, integers([window.groups, outputs // window.groups, width]))
    return _added(op.Reshape(op.MatMul(rows, columns), out.after(_rows(x, out), outputs)), bias, window.rank)


def _pixels(image: Value) -> Value:
    """The pixels of all samples, (pixels, channels)."""
    _, channels, *space = sizes(image)
    return op.Reshape(op.Transpose(image, perm=[0, *range(2, len(space) + 2), 1]), integers([-1, channels]))


def _rows(x: Value, space: Extent) -> int:
    """The first size of a shape that Reshape takes: a dynamic one is copied where another one is worked out."""
    return 0 if space.numbers is None else sizes(x)[0]


def _columns(x: Value, window: Window) -> tuple[Value, Extent]:
    """im2col: the columns (N, C, taps of the kernel, *out), and the sizes `out`."""
    out = _reached(Extent.of(x, window.rank), window)
    axes = range(2, window.rank + 2)
    seen = taps(_padded(x, window), axes, window.kernel, window.stride, window.dilation, out)
    return op.Concat(*(op.Unsqueeze(tap, integers([2])) for tap in seen), axis=2), out


def _left(space: Sequence[int], arrived: Extent, window: Window) -> list[int]:
    """How many elements at the end of each axis of an image no window reaches; `arrived` is the number of windows."""
    assert arrived.numbers is not None
    reach = zip(space, arrived.numbers, window.kernel, window.stride, window.padding, window.dilation, strict=True)
    return [size - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for size, n, k, s, p, d in reach]


def _cut(image: Value, space: Extent, rank: int) -> Value:
    """An image cropped at the end to the sizes `space`."""
    return op.Slice(image, integers([0] * rank), space.value, integers(range(2, rank + 2)))


def _by_input(grad: Value, weight: Value, window: Window, extra: Sequence[int]) -> Value:
    """The gradient with respect to an input with `extra` elements at the end that no window reaches; also a transposed
    convolution of `grad`."""
    if is_product_of_pixels(window, grad, sizes(weight)[:2]) and not any(extra):
        outputs, inputs, *kernel = sizes(weight)
        product = op.MatMul(_pixels(grad), op.Reshape(weight, integers([outputs, inputs])))
        product = op.Reshape(product, integers([-1, *sizes(grad)[2:], inputs]))
        return op.Transpose(product, perm=[0, len(kernel) + 1, *range(1, len(kernel) + 1)])
    if grad.dtype != ir.DataType.DOUBLE:
        if window.is_pointwise and not any(extra):  # Conv takes three quarters of the time
            return op.Conv(grad, op.Transpose(weight, perm=[1, 0, *range(2, window.rank + 2)]), **window.attributes)
        if all(more < s for more, s in zip(extra, window.stride, strict=True)):
            return op.ConvTranspose(grad, weight, **window.attributes, output_padding=extra)
        # onnxruntime refuses more elements: fewer are cropped at the end, or zeros added.
        rims = list(zip(window.padding, extra, strict=True))
        pads = [*window.padding, *(max(p - more, 0) for p, more in rims)]
        image = op.ConvTranspose(grad, weight, **window.attributes | {"pads": pads})
        behind = [max(more - p, 0) for p, more in rims]
        return op.Pad(image, integers([0] * (window.rank + 4) + behind)) if any(behind) else image
    outputs, inputs = sizes(weight)[0], sizes(weight)[1]
    count, arrived = math.prod(window.kernel), Extent.of(grad, window.rank)
    rows = op.Reshape(weight, integers([window.groups, outputs // window.groups, inputs * count]))
    shape = [_rows(grad, arrived), window.groups, outputs // window.groups, arrived.product]
    columns = op.MatMul(op.Transpose(rows, perm=[0, 2, 1]), op.Reshape(grad, integers(shape)))
    columns = op.Reshape(columns, arrived.after(_rows(grad, arrived), inputs * window.groups, count))
    reach = zip(window.kernel, window.stride, window.padding, window.dilation, extra, strict=True)
    behind = [more + 1 - s - 2 * p + d * (k - 1) for k, s, p, d, more in reach]
    return _scattered(columns, grad, window, arrived, Extent(behind))


def _transposed(x: Value, weight: Value, window: Window, output_padding: Sequence[int | Value]) -> Value:
    """A transposed convolution of x; an `output_padding` that depends on dynamic sizes is a value."""
    if all(isinstance(more, int) for more in output_padding):
        return _by_input(x, weight, window, output_padding)
    most = [max(s, d) - 1 for s, d in zip(window.stride, window.dilation, strict=True)]
    image = _by_input(x, weight, window, most)
    space = Extent(op.Shape(image, start=2)).minus(Extent(most)).plus(Extent.given(output_padding))
    return _cut(image, space, window.rank)


def _without_room(grad: Value, x: Value, window: Window, output_padding: Sequence[int | Value]) -> tuple[Value, Window]:
    """The gradient of a transposed convolution of x, and its window, with as many windows as x has elements.

    An `output_padding` as large as the stride has room for more.
    """
    axes = zip(output_padding, window.stride, window.dilation, strict=True)
    if all(more < s if isinstance(more, int) else d <= s for more, s, d in axes):
        return grad, window
    widths = [d * (k - 1) + 1 - s for k, s, d in zip(window.kernel, window.stride, window.dilation, strict=True)]
    reached = Extent.of(x, window.rank).times(window.stride).plus(Extent(widths))
    cut = _cut(_padded(grad, window), reached, window.rank)
    cut.type, cut.shape = grad.type, ir.Shape([*grad.shape[:2], *(reached.numbers or (None,) * window.rank)])
    return cut, replace(window, padding=[0] * window.rank)


def _scattered(columns: Value, like: Value, window: Window, arrived: Extent, behind: Extent) -> Value:
    """col2im: the columns of all taps added up where they come from.

    Args:
        columns: (N, C, taps of the kernel, *arrived).
        like: a value of the dtype of the result.
        behind: space - arrived * stride.
    Returns:
        (N, C, *space).
    """
    zero, whole = number(0.0, like), None
    for i, places in enumerate(itertools.product(*map(range, window.kernel))):
        part = op.Gather(columns, op.Constant(value_int=i), axis=2)
        for axis, s in enumerate(window.stride):
            if s > 1:  # zeros between its elements
                part = op.Unsqueeze(part, integers([axis + 3]))
                after = [0] * (window.rank + 3)
                after[axis + 3] = s - 1
                part = op.Pad(part, integers([0] * len(after) + after), zero)
                merged = arrived.times([*window.stride[: axis + 1], *[1] * (window.rank - axis - 1)])
                part = op.Reshape(part, merged.after(0, 0))
        start = [t * d - p for t, d, p in zip(places, window.dilation, window.padding, strict=True)]
        part = op.Pad(part, behind.minus(Extent(start)).after(0, 0, *start, 0, 0), zero)
        whole = part if whole is None else op.Add(whole, part)
    return whole


def _by_weight(grad: Value, x: Value, window: Window) -> Value:
    """The gradient with respect to the weights of a convolution of x.

    A convolution of x with grad would be the same, and takes up to twice as long.
    """
    out = Extent.of(grad, window.rank)
    outputs, inputs = sizes(grad)[1], sizes(x)[1]
    groups, per_group = window.groups, inputs // window.groups
    if is_depthwise(window, inputs):
        return aclnn.DepthwiseConv2DBackpropFilter(x, grad, filter_size=window.kernel, **_depthwise_attributes(window))
    if is_product_of_pixels(window, x, (outputs, inputs)):
        product = op.MatMul(op.Transpose(_pixels(grad), perm=[1, 0]), _pixels(x))
        return op.Reshape(product, integers([outputs, inputs, *window.kernel]))
    axes = list(range(2, window.rank + 2))
    is_tiling = window.is_tiling and inputs > 0
    if groups == 1 and inputs <= FEW_CHANNELS and not is_tiling:
        seen = taps(_padded(x, window), axes, window.kernel, window.stride, window.dilation, out)
        columns = op.Concat(*(op.Unsqueeze(tap, integers([2])) for tap in seen), axis=2)
        columns = op.Reshape(columns, integers([0, inputs * math.prod(window.kernel), out.product]))
        rows = op.Reshape(grad, integers([0, 0, out.product]))
        product = op.MatMul(rows, op.Transpose(columns, perm=[0, 2, 1]))
        product = op.ReduceSum(product, integers([0]), keepdims=0)
        return op.Reshape(product, integers([outputs, inputs, *window.kernel]))
    if groups == 1:
        rows = op.Reshape(op.Transpose(grad, perm=[1, 0, *axes]), integers([outputs, -1]))
        if is_tiling:
            return op.Reshape(op.MatMul(rows, _patches(x, window, out)), integers([outputs, inputs, *window.kernel]))
        channels_last = op.Transpose(x, perm=[0, *axes, 1])
        if any(window.padding):
            channels_last = op.Pad(channels_last, integers([0, *window.padding, 0] * 2))
        seen = taps(channels_last, range(1, window.rank + 1), window.kernel, window.stride, window.dilation, out)
        products = [op.MatMul(rows, op.Reshape(tap, integers([-1, inputs]))) for tap in seen]
        product = op.Reshape(op.Concat(*products, axis=1), integers([outputs, *window.kernel, inputs]))
        return op.Transpose(product, perm=[0, window.rank + 1, *range(1, window.rank + 1)])
    rows = op.Transpose(grad, perm=[1, 0, *axes])
    rows = op.Reshape(rows, integers([groups, outputs // groups, -1]))
    channels_first = op.Transpose(_padded(x, window), perm=[1, 0, *axes])
    products = []
    for tap in taps(channels_first, axes, window.kernel, window.stride, window.dilation, out):
        columns = op.Transpose(op.Reshape(tap, integers([groups, per_group, -1])), perm=[0, 2, 1])
        products.append(op.Unsqueeze(op.MatMul(rows, columns), integers([3])))
    return op.Reshape(op.Concat(*products, axis=3), integers([outputs, per_group, *window.kernel]))


def _patches(x: Value, window: Window, out: Extent) -> Value:
    """What each of the `out` windows that tile an image sees of it, (windows of all samples, elements of a window)."""
    channels, covered = sizes(x)[1], out.times(window.kernel)
    if covered.numbers is None or covered.numbers != sizes(x)[2:]:
        x = _cut(x, covered, window.rank)
    if out.numbers is None:
        kernel = integers(window.kernel)
        pairs = op.Concat(*(op.Unsqueeze(each, integers([1])) for each in (out.value, kernel)), axis=1)
        shape = op.Concat(integers([0, 0]), op.Reshape(pairs, integers([-1])), axis=0)
    else:
        shape = integers([0, 0, *itertools.chain(*zip(out.numbers, window.kernel, strict=True))])
    places, elements = range(2, 2 * window.rank + 2, 2), range(3, 2 * window.rank + 3, 2)
    patches = op.Transpose(op.Reshape(x, shape), perm=[0, *places, 1, *elements])
    return op.Reshape(patches, integers([-1, channels * math.prod(window.kernel)]))


def _depthwise_attributes(window: Window) -> dict[str, Any]:
    """Those of this domain's operators."""
    return {"strides": window.stride, "pads": [*window.padding, *window.padding], "dilations": window.dilation}


def _padded(x: Value, window: Window) -> Value:
    return op.Pad(x, integers([0, 0, *window.padding] * 2)) if any(window.padding) else x


def _reached(space: Extent, window: Window) -> Extent:
    """The number of windows along each axis of an image."""
    rims = zip(window.kernel, window.stride, window.padding, window.dilation, strict=True)
    return space.plus(Extent([2 * p - d * (k - 1) - 1 + s for k, s, p, d in rims])).over(window.stride)


@translates(aten.im2col.default)
def _image_to_columns(
    x: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    window = window_of(kernel_size, stride, padding, dilation, 1)
    columns, out = _columns(x, window)
    channels, count = sizes(x)[1], math.prod(kernel_size)
    if channels >= 0:
        return op.Reshape(columns, integers([0, channels * count, out.product]))
    of_channels = op.Mul(op.Shape(x, start=1, end=2), integers([count]))
    return op.Reshape(columns, op.Concat(integers([0]), of_channels, integers([-1]), axis=0))


@translates(aten.col2im.default)
def _columns_to_image(
    x: Value,
    output_size: Sequence[int | Value],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    window = window_of(kernel_size, stride, padding, dilation, 1)
    space = Extent.given(output_size)
    out = _reached(space, window)
    count = math.prod(kernel_size)
    columns = op.Reshape(x, out.after(0, sizes(x)[1] // count, count))
    return _scattered(columns, x, window, out, space.minus(out.times(window.stride)))


def _of_node(translate: Callable[..., Any]) -> Callable[..., Any]:
    """A convolution as a function of the inputs and attributes that `Window.attributes` gives its node."""

    def translated(
        x: Value,
        weight: Value,
        *bias: Value,
        kernel_shape: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        group: int,
        output_padding: Sequence[int] | None = None,
        auto_pad: bytes = b"NOTSET",
    ) -> Value:
        window = Window(kernel_shape, strides, pads[: len(kernel_shape)], dilations, group)
        return translate(x, weight, window, *([] if output_padding is None else [output_padding]), *bias)

    return translated


computes_float64("Conv")(_of_node(_forward))
computes_float64("ConvTranspose")(_of_node(_by_input))
