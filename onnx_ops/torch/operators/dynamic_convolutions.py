"""Convolutions with dynamic numbers of groups, sizes of filters, strides, paddings or dilations.

As where each sample of a batch has weights of its own, or a filter is as long as a sequence: attributes of operators
cannot be dynamic.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.nn import functional

from onnx_ops.torch.base.requirements import require_size
from onnx_ops.torch.base.sizes import Setting, Size, of_each_axis
from onnx_ops.torch.base.table import replaces


def _are_dynamic(weight: Tensor, rank: int, groups: Size, *settings: Setting | str) -> bool:
    numbers = [number for each in settings if not isinstance(each, str) for number in of_each_axis(each, rank)]
    return any(map(is_symbolic, (groups, *weight.shape[2:], *numbers)))


def _padded(x: Tensor, pads: Sequence[int]) -> Tensor:
    return functional.pad(x, pads) if any(is_symbolic(pad) or pad for pad in pads) else x


def _pixels(
    x: Tensor,
    kernel: Sequence[int],
    after: Sequence[Size],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: Size,
) -> Tensor:
    """The pixels that each element of a kernel meets, (N, G, C * elements of the kernel, places).

    Args:
        x: (N, G * C, *space).
        kernel: its sizes.
        after: the number of places of the kernel along each axis of space.
        stride, dilation: of each axis of space.
        groups: G.
    """
    if any(map(is_symbolic, (*kernel, *stride, *dilation))):
        rank = len(kernel)
        for n, k, s, d in zip(after, kernel, stride, dilation, strict=True):
            places = torch.arange(n)[:, None] * s + torch.arange(k) * d
            # The axes of the kernel come last, so that the next one of space is in the place of this one.
            x = x.index_select(-rank, places.flatten()).unflatten(-rank, (n, k)).movedim(-rank, -1)
        places_last = x.flatten(2, rank + 1).flatten(3).unflatten(1, (groups, -1)).transpose(3, 4)
        return places_last.flatten(2, 3)
    taps = []
    for offsets in itertools.product(*map(range, kernel)):
        tap = x
        for axis, (offset, d, s, n) in enumerate(zip(offsets, dilation, stride, after, strict=True), 2):
            tap = tap.narrow(axis, offset * d, (n - 1) * s + 1)
            tap = tap[(slice(None),) * axis + (slice(None, None, s),)] if s > 1 else tap
        taps.append(tap.flatten(2).unflatten(1, (groups, -1)))
    return torch.stack(taps, 3).flatten(2, 3)


def _convolved(
    x: Tensor, weight: Tensor, stride: Sequence[int], pads: Sequence[int], dilation: Sequence[int], groups: Size
) -> Tensor:
    """For each group a product of its kernel and of the pixels that the kernel meets.

    Args:
        x: (N, G * C, *space).
        weight: (G * O, C, *kernel).
        stride, dilation: of each axis of space.
        pads: as those of torch.nn.functional.pad.
        groups: G.

    Returns:
        (N, G * O, *space).
    """
    kernel = weight.shape[2:]
    x = _padded(x, pads)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    for n, k, r in zip(x.shape[2:], kernel, reach, strict=True):
        require_size(k, 1)
        require_size(n, r)
    after = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride, strict=True)]
    pixels = _pixels(x, kernel, after, stride, dilation, groups)
    result = weight.reshape(groups, -1, weight.shape[1] * math.prod(kernel)) @ pixels
    return result.reshape(x.shape[0], weight.shape[0], *after)


def gradient_of_weight(
    x: Tensor,
    grad: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: Size,
) -> Tensor:
    """The gradient of a convolution with respect to its weight; of a transposed one with `x` and `grad` exchanged.

    Args:
        x: (N, G * C, *space), the input.
        grad: (N, G * O, *space), the gradient with respect to the output.
        kernel: the sizes of the kernel.
        stride, padding, dilation: of the convolution.
        groups: G, which may be a dynamic size.

    Returns:
        (G * O, C, *kernel).
    """
    rank = len(kernel)
    steps, gaps = of_each_axis(stride, rank), of_each_axis(dilation, rank)
    pads = [pad for p in reversed(of_each_axis(padding, rank)) for pad in (p, p)]
    x = _padded(x, pads)
    pixels = _pixels(x, kernel, grad.shape[2:], steps, gaps, groups)
    by_tap = (grad.flatten(2).unflatten(1, (groups, -1)) @ pixels.mT).sum(0)
    return by_tap.flatten(0, 1).unflatten(1, (-1, *kernel))


def _with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.to(y.dtype).reshape([-1] + [1] * (y.dim() - 2))


def _convolution(
    rank: int,
    original: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Setting = 1,
    padding: Setting | str = 0,
    dilation: Setting = 1,
    groups: Size = 1,
) -> Tensor:
    if not _are_dynamic(weight, rank, groups, stride, padding, dilation):
        return original(input, weight, bias, stride, padding, dilation, groups)
    dilations = of_each_axis(dilation, rank)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for k, d in zip(weight.shape[2:], dilations, strict=True)]
        around = [(t // 2, t - t // 2) for t in total]
    else:
        around = [(p, p) for p in of_each_axis(padding, rank)]
    x = input if input.dim() > rank + 1 else input.unsqueeze(0)
    pads = [pad for pair in reversed(around) for pad in pair]
    y = _with_bias(_convolved(x, weight, of_each_axis(stride, rank), pads, dilations, groups), bias)
    return y if x is input else y.squeeze(0)


def _transposed_convolution(
    rank: int,
    original: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Setting = 1,
    padding: Setting = 0,
    output_padding: Setting = 0,
    groups: Size = 1,
    dilation: Setting = 1,
) -> Tensor:
    """A convolution of the image with zeros between its pixels, by the mirrored kernel."""
    if not _are_dynamic(weight, rank, groups, stride, padding, output_padding, dilation):
        return original(input, weight, bias, stride, padding, output_padding, groups, dilation)
    x = input if input.dim() > rank + 1 else input.unsqueeze(0)
    dilations = of_each_axis(dilation, rank)
    pads: list[int] = []
    for axis, s in enumerate(of_each_axis(stride, rank), 2):
        if is_symbolic(s) or s > 1:
            apart = functional.pad(x.unsqueeze(axis + 1), [0, 0] * (rank + 1 - axis) + [0, s - 1])
            x = apart.flatten(axis, axis + 1).narrow(axis, 0, (x.shape[axis] - 1) * s + 1)
    for k, d, p, more in zip(
        weight.shape[2:], dilations, of_each_axis(padding, rank), of_each_axis(output_padding, rank), strict=True
    ):
        pads[:0] = [d * (k - 1) - p, d * (k - 1) - p + more]
    of_groups = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
    mirrored = of_groups.flip(tuple(range(3, rank + 3))).flatten(0, 1)
    y = _with_bias(_convolved(x, mirrored, [1] * rank, pads, dilations, groups), bias)
    return y if x.dim() == input.dim() else y.squeeze(0)


def convolved(
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: Size,
) -> Tensor:
    """As aten.convolution, of a batch without bias."""
    rank = input.dim() - 2
    forward, backward = FUNCTIONS[rank]
    if transposed:
        return _transposed_convolution(
            rank, backward, input, weight, None, stride, padding, output_padding, groups, dilation
        )
    return _convolution(rank, forward, input, weight, None, stride, padding, dilation, groups)


FUNCTIONS = {
    1: (torch.conv1d, torch.conv_transpose1d),
    2: (torch.conv2d, torch.conv_transpose2d),
    3: (torch.conv3d, torch.conv_transpose3d),
}
for _rank, (_forward, _transposed) in FUNCTIONS.items():
    replaces(_forward)(functools.partial(_convolution, _rank, _forward))
    replaces(_transposed)(functools.partial(_transposed_convolution, _rank, _transposed))
