"""Kernels of convolutions: the layout of a run, and tensors whose channels are interleaved in blocks of LANES.

An image of P places and C channels per group becomes blocks [sample, group, block of channels, P + 1, LANES]; the last
place of a plane is zero, for elements of windows that lie in the padding. Weights become [group, block of channels of
the result, channel of the source, tap, LANES]. A tap is an element of the kernel.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import numpy as np

from onnx_ops.loops.memory import (
    LANES,
    allocate,
    array_at,
    free,
    interleave,
    item_size,
    setting,
    size_of,
)
from onnx_ops.loops.primitives import add_any_order, ceil_divide, helper, like
from onnx_ops.loops.records import Job, Numbers, record_of
from onnx_ops.ops.windows import AXES, LEAD, adds_too_much, volume

ELEMENTS = 8192
"""Approximate number of elements per lane of a task that interleaves."""


class Blocks(Protocol):
    """The layout of a convolution and its gradients."""

    # by spatial axis
    length: Annotated[Numbers, AXES]  # of the input of the convolution
    count: Annotated[Numbers, AXES]  # windows, the size of its output
    kernel: Annotated[Numbers, AXES]
    stride: Annotated[Numbers, AXES]
    before: Annotated[Numbers, AXES]  # padding
    dilation: Annotated[Numbers, AXES]
    samples: int
    groups: int
    inputs: int  # channels per group
    outputs: int
    # addresses of interleaved tensors
    image: int
    windows: int
    weights: int
    alone: int  # 1: each place of a product is computed by itself
    # tasks that interleave
    image_tasks: int
    windows_tasks: int
    weights_tasks: int
    # tasks that multiply
    per_block: int  # samples of a task of the product
    places: int  # places of a task of the product
    panels: int  # panels of a task of the product
    product_tasks: int
    taps: int  # taps of a task of the gradient of the weights
    weight_tasks: int
    bias_tasks: int


LAYOUT = record_of(Blocks)


@helper
def blocks_of(channels: int) -> int:
    return ceil_divide(channels, LANES)


@helper
def plane_of(sizes: Any) -> int:
    """Elements of a block of channels of a sample."""
    return (volume(sizes) + 1) * LANES


@helper
def image_elements(layout: Blocks, channels: int, sizes: Any) -> int:
    """Elements of an interleaved image."""
    return int(layout.samples * layout.groups * blocks_of(channels) * plane_of(sizes))


@helper
def weights_elements(layout: Blocks, sources: int, targets: int) -> int:
    """Elements of interleaved weights."""
    return int(layout.groups * blocks_of(targets) * sources * volume(layout.kernel) * LANES)


# --- sizes -----------------------------------------------------------------------------------------------------------


@helper
def write_windows(layout: Blocks, attributes: Any, job: Job, image: int, weight: int) -> bool:
    """Write the sizes of a convolution, and the number of windows; returns whether the shapes fit.

    Args:
        image, weight: indices of the inputs.
    """
    rank = job.rank[image]
    spatial = rank - LEAD
    if spatial < 1 or spatial > AXES or job.rank[weight] != rank:
        return False
    for count in (attributes.stride_count, attributes.padding_count, attributes.dilation_count):
        if count != 0 and count != spatial:
            return False
    layout.samples, layout.groups, layout.inputs = job.dims[image, 0], attributes.groups, job.dims[weight, 1]
    if job.dims[weight, 0] % layout.groups != 0 or job.dims[image, 1] != layout.groups * layout.inputs:
        return False
    layout.outputs = job.dims[weight, 0] // layout.groups
    plane, padded = 1.0, 1.0
    for i in range(AXES):
        axis = i - (AXES - spatial)
        length, kernel, stride, before, dilation = 1, 1, 1, 0, 1
        if axis >= 0:
            length, kernel = job.dims[image, LEAD + axis], job.dims[weight, LEAD + axis]
            stride = setting(attributes.stride, attributes.stride_count, axis, 1)
            before = setting(attributes.padding, attributes.padding_count, axis, 0)
            dilation = setting(attributes.dilation, attributes.dilation_count, axis, 1)
        if kernel < 1 or kernel > 2147483647:
            return False
        rest = length + 2 * before - dilation * (kernel - 1) - 1
        if rest < 0:
            return False
        layout.length[i], layout.kernel[i], layout.count[i] = length, kernel, rest // stride + 1
        layout.stride[i], layout.before[i], layout.dilation[i] = stride, before, dilation
        plane, padded = plane * length, padded * (length + 2 * before)
    return not adds_too_much(plane, padded)


@helper
def planes_per_task(sizes: Any) -> int:
    return int(max(ELEMENTS // max(volume(sizes), 1), 1))


@helper
def image_tasks(layout: Blocks, channels: int, sizes: Any) -> int:
    """Number of tasks that interleave an image."""
    return ceil_divide(layout.samples * layout.groups * blocks_of(channels), planes_per_task(sizes))


# --- interleaving ----------------------------------------------------------------------------------------------------


@helper
def interleave_image(
    layout: Blocks,
    number: int,
    channels: int,
    sizes: Any,
    source: int,
    element_type: int,
    target: int,
    dtype: Any,
) -> bool:
    """A task: interleave some planes of an image; returns whether there was memory.

    Args:
        number: of the task.
        channels: per group.
        source, target: addresses.
        dtype: of the elements of the target.
    """
    memory, rows = allocate((LANES, np.int64))
    if memory == 0:
        return False
    blocks, places, plane = blocks_of(channels), volume(sizes), plane_of(sizes)
    step, size = places * item_size(element_type), size_of(dtype)
    per_task = planes_per_task(sizes)
    first = number * per_task
    for block in range(first, min(first + per_task, layout.samples * layout.groups * blocks)):
        begin = block // blocks * channels
        for lane in range(LANES):
            rows[lane] = source + (begin + min(block % blocks * LANES + lane, channels - 1)) * step
        out = array_at(target + block * plane * size, plane, dtype)
        interleave(rows, element_type, 0, places, out, 0)
        for lane in range(LANES):
            out[places * LANES + lane] = like(0, out[0])
    free(memory)
    return True


@helper
def interleave_weights(
    layout: Blocks, number: int, backward: bool, source: int, element_type: int, target: int, dtype: Any
) -> bool:
    """A task: interleave the weights of a block of channels of the result; returns whether there was memory.

    backward: whether the result is the gradient of the input of the convolution.
    """
    memory, rows = allocate((LANES, np.int64))
    if memory == 0:
        return False
    taps = volume(layout.kernel)
    inputs, outputs = layout.inputs, layout.outputs
    targets, sources = (inputs, outputs) if backward else (outputs, inputs)
    blocks = blocks_of(targets)
    group, block = number // blocks, number % blocks
    step = taps * item_size(element_type)
    out = array_at(target + number * sources * taps * LANES * size_of(dtype), sources * taps * LANES, dtype)
    if backward:
        for k in range(outputs):
            for lane in range(LANES):
                rows[lane] = source + ((group * outputs + k) * inputs + min(block * LANES + lane, inputs - 1)) * step
            interleave(rows, element_type, 0, taps, out, k * taps)
    else:
        for lane in range(LANES):
            rows[lane] = source + (group * outputs + min(block * LANES + lane, outputs - 1)) * inputs * step
        interleave(rows, element_type, 0, inputs * taps, out, 0)
    free(memory)
    # Zeros of the padding, with which other places of a tile have an element, must not be multiplied with these.
    nothing = like(0, out[0])
    for i in range(sources * taps * LANES):
        nothing = add_any_order(nothing, out[i] * like(0, out[0]))
    if nothing != nothing:
        layout.alone = 1
    return True
