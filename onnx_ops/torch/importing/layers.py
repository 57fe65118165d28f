"""Imported operators that are layers of neural networks: convolutions, pooling, normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.importing.nodes import Node, Value, tensor


def gemm(node: Node, a: Value, b: Value, c: Value = None) -> Tensor:
    left = tensor(a).T if node.get("transA", 0) else tensor(a)
    right = tensor(b).T if node.get("transB", 0) else tensor(b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is not None and alpha == beta == 1:
        return torch.addmm(tensor(c), left, right)
    product = left @ right * alpha
    return product if c is None else product + beta * tensor(c)


def _padding(node: Node, spatial: int, kernel: Sequence[int], x: Tensor) -> list[int]:
    """Padding before all axes, then after them."""
    mode = node.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return list(node.get("pads", [0] * 2 * spatial))
    if mode == "VALID":
        return [0] * 2 * spatial
    strides, dilations = node.get("strides", [1] * spatial), node.get("dilations", [1] * spatial)
    totals = [
        max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        for size, k, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*small, *large] if mode == "SAME_UPPER" else [*large, *small]


def _padded(x: Tensor, pads: Sequence[int], value: float) -> tuple[Tensor, list[int]]:
    """The tensor padded where the two ends of an axis differ, and the padding that remains for each axis."""
    spatial = len(pads) // 2
    begin, end = list(pads[:spatial]), list(pads[spatial:])
    if begin == end:
        return x, begin
    pairs = [amount for axis in reversed(range(spatial)) for amount in (begin[axis], end[axis])]
    return F.pad(x, pairs, value=value), [0] * spatial


CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

TRANSPOSED: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

MAXIMA: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}

MEANS: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def conv(node: Node, x: Value, weight: Value, bias: Value = None) -> Tensor:
    own, w = tensor(x), tensor(weight)
    spatial = own.ndim - 2
    own, padding = _padded(own, _padding(node, spatial, w.shape[2:], own), 0)
    return CONVOLUTIONS[spatial](
        own,
        w,
        None if bias is None else tensor(bias),
        stride=node.get("strides", [1] * spatial),
        padding=padding,
        dilation=node.get("dilations", [1] * spatial),
        groups=node.get("group", 1),
    )


def conv_transpose(node: Node, x: Value, weight: Value, bias: Value = None) -> Tensor:
    own = tensor(x)
    spatial = own.ndim - 2
    pads = list(node.get("pads", [0] * 2 * spatial))
    if pads[:spatial] != pads[spatial:] or "output_shape" in node.attributes or "auto_pad" in node.attributes:
        raise CaptureError("ConvTranspose with auto_pad, output_shape or different pads at both ends is not supported")
    return TRANSPOSED[spatial](
        own,
        tensor(weight),
        None if bias is None else tensor(bias),
        stride=node.get("strides", [1] * spatial),
        padding=pads[:spatial],
        output_padding=node.get("output_padding", [0] * spatial),
        groups=node.get("group", 1),
        dilation=node.get("dilations", [1] * spatial),
    )


def max_pool(node: Node, x: Value) -> Tensor:
    own, kernel = tensor(x), node.get("kernel_shape")
    own, padding = _padded(own, _padding(node, len(kernel), kernel, own), -torch.inf)
    return MAXIMA[len(kernel)](
        own,
        kernel,
        stride=node.get("strides", [1] * len(kernel)),
        padding=padding,
        dilation=node.get("dilations", [1] * len(kernel)),
        ceil_mode=bool(node.get("ceil_mode", 0)),
    )


def average_pool(node: Node, x: Value) -> Tensor:
    own, kernel = tensor(x), node.get("kernel_shape")
    pads, counted = _padding(node, len(kernel), kernel, own), bool(node.get("count_include_pad", 0))
    different = pads[: len(kernel)] != pads[len(kernel) :]
    if (different and not counted) or any(dilation != 1 for dilation in node.get("dilations", ())):
        raise CaptureError("AveragePool with dilations, or with different pads that are not counted, is not supported")
    own, padding = _padded(own, pads, 0)
    return MEANS[len(kernel)](
        own,
        kernel,
        stride=node.get("strides", [1] * len(kernel)),
        padding=padding,
        ceil_mode=bool(node.get("ceil_mode", 0)),
        count_include_pad=counted,
    )


def spatial_axes(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


def layer_norm(node: Node, x: Value, weight: Value, bias: Value = None) -> Tensor:
    own, w = tensor(x), tensor(weight)
    shape = own.shape[node.get("axis", -1) :]
    b = None if bias is None else tensor(bias).expand(shape)
    return F.layer_norm(own, shape, w.expand(shape), b, node.get("epsilon", 1e-5))


def group_norm(node: Node, x: Value, weight: Value, bias: Value) -> Tensor:
    own, groups = tensor(x), node.get("num_groups")
    w, b = tensor(weight), tensor(bias)
    if w.shape[0] != own.shape[1]:  # before opset 21, one number per group
        w, b = (parameter.repeat_interleave(own.shape[1] // groups) for parameter in (w, b))
    return F.group_norm(own, groups, w, b, node.get("epsilon", 1e-5))
