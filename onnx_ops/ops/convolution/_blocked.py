"""Kernels of convolutions: the layout of a run, and tensors whose channels are interleaved in blocks of LANES.

An image of P places and C channels per group becomes blocks [sample, group, block of channels, P + 1, LANES]; the last
place of a plane is zero, for elements of windows that lie in the padding. Weights become [group, block of channels of
the result, channel of the source, tap, LANES]. A tap is an element of the kernel.

An input of few channels is packed: [sample, group, line, place of the padded line, channel]. What a window reads of a
line is contiguous then, and the taps along a line are like channels: weights become [group, block of channels of the
result, tap along a line, channel of the source, other taps, LANES].
"""

from __future__ import annotations

from collections.abc import Sequence
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
from onnx_ops.loops.primitives import Array, Floating, add_any_order, ceil_divide, helper, like
from onnx_ops.loops.records import Job, Numbers, record_of
from onnx_ops.ops.windows import AXES, LEAD, adds_too_much, volume

ELEMENTS = 8192
"""Approximate number of elements per lane of a task that interleaves."""

MOST_PACKED = 8
"""Channels of an input, per group, that are packed."""


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
    packed: int  # 1: the input is packed
    infinite: int  # 1: a number of the windows is infinite or NaN
    alone: int  # 1: each place of a product is computed by itself
    # tasks that interleave
    image_tasks: int
    windows_tasks: int
    weights_tasks: int
    # tasks that multiply
    per_block: int  # samples of a task of the product
    places: int  # places of a task of the product
    panels: int  # panels of a task of the product
    by_lines: int  # 1: the output is computed by lines
    lines: int  # of a task by lines
    columns: int  # places of each of its lines
    product_tasks: int
    by_input_lines: int  # 1: the gradient of the input is computed by lines
    rows_are_inputs: int  # 1: rows of the tiles of the gradient of the weights are inputs, else outputs
    taps: int  # taps of a task of the gradient of the weights
    tiles: int  # tiles of a task of it, below one another
    weight_tasks: int
    by_weight_lines: int  # 1: the gradient of the weights is computed by lines
    sums: int  # address of the sums of its tasks
    runs: int  # of lines, for each group
    chunks: int  # of runs, each of which is a task
    bias_tasks: int


LAYOUT = record_of(Blocks)


@helper
def blocks_of(channels: int) -> int:
    return ceil_divide(channels, LANES)


@helper
def plane_of(sizes: Sequence[int]) -> int:
    """Elements of a block of channels of a sample."""
    return (volume(sizes) + 1) * LANES


@helper
def unit_of(layout: Blocks) -> int:
    """Elements of a place of the image."""
    return int(layout.inputs) if layout.packed else LANES


@helper
def width_of(layout: Blocks) -> int:
    """Places of a line of the image."""
    return int(layout.length[2] + 2 * layout.before[2] * layout.packed)


@helper
def image_blocks(layout: Blocks) -> int:
    """Planes of a group of a sample of the image."""
    return 1 if layout.packed else blocks_of(layout.inputs)


@helper
def image_zeros(layout: Blocks) -> int:
    """Where the zeros of a plane of the image begin."""
    return int(layout.length[0] * layout.length[1] * width_of(layout) * unit_of(layout))


@helper
def image_plane(layout: Blocks) -> int:
    """Elements of a plane of the image; one that is packed ends with zeros for a line of a window and for tiles."""
    own = blocks_of(layout.kernel[2] * layout.inputs) + 1 if layout.packed else 1
    return image_zeros(layout) + own * LANES


@helper
def image_elements(layout: Blocks) -> int:
    return int(layout.samples * layout.groups * image_blocks(layout) * image_plane(layout))


@helper
def windows_elements(layout: Blocks) -> int:
    return int(layout.samples * layout.groups * blocks_of(layout.outputs) * plane_of(layout.count))


@helper
def taps_of_weights(layout: Blocks) -> int:
    """Taps that each channel of the weights has."""
    return int(layout.kernel[0] * layout.kernel[1]) if layout.packed else volume(layout.kernel)


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
    layout.packed = int(
        1 <= layout.inputs <= MOST_PACKED
        and layout.kernel[2] > 1
        and layout.dilation[2] == 1
        and layout.before[2] < layout.kernel[2]
    )
    return not adds_too_much(plane, padded)


@helper
def planes_per_task(sizes: Sequence[int]) -> int:
    return int(max(ELEMENTS // max(volume(sizes), 1), 1))


@helper
def image_tasks(layout: Blocks, blocks: int, sizes: Sequence[int]) -> int:
    """Number of tasks that interleave an image of so many blocks of channels."""
    return ceil_divide(layout.samples * layout.groups * blocks, planes_per_task(sizes))


@helper
def first_window(layout: Blocks, axis: int, offset: int, least: int) -> int:
    """First window, not before `least`, whose element at `offset` from its begin is not before the input."""
    return int(max(ceil_divide(layout.before[axis] - offset, layout.stride[axis]), least))


@helper
def window_count(layout: Blocks, axis: int, offset: int, first: int, end: int) -> int:
    """Number of windows from `first` on, before `end`, whose element at `offset` is not behind the input."""
    last = (layout.length[axis] - 1 + layout.before[axis] - offset) // layout.stride[axis]
    return int(max(min(last + 1, end) - first, 0))


# --- interleaving ----------------------------------------------------------------------------------------------------


@helper
def is_finite(numbers: Array, count: int) -> bool:
    """Whether none of `count` numbers is infinite or NaN."""
    nothing = like(0, numbers[0])
    for i in range(count):
        nothing = add_any_order(nothing, numbers[i] * like(0, numbers[0]))
    return bool(nothing == nothing)


@helper
def interleave_planes(
    layout: Blocks,
    number: int,
    channels: int,
    sizes: Sequence[int],
    source: int,
    element_type: int,
    target: int,
    dtype: Floating,
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
def interleave_windows(layout: Blocks, number: int, source: int, element_type: int, dtype: Floating) -> bool:
    """A task: interleave some planes of the gradient of the output; returns whether there was memory."""
    if not interleave_planes(layout, number, layout.outputs, layout.count, source, element_type, layout.windows, dtype):
        return False
    if layout.packed and layout.weight_tasks > 0 and not layout.by_weight_lines:
        # They are multiplied with the zeros of padded lines.
        plane, per_task = plane_of(layout.count), planes_per_task(layout.count)
        planes = min(per_task, layout.samples * layout.groups * blocks_of(layout.outputs) - number * per_task)
        begin = layout.windows + number * per_task * plane * size_of(dtype)
        if not is_finite(array_at(begin, planes * plane, dtype), planes * plane):
            layout.infinite = 1
    return True


@helper
def interleave_image(layout: Blocks, number: int, source: int, element_type: int, dtype: Floating) -> bool:
    """A task: interleave some planes of the input, or pack them; returns whether there was memory."""
    if not layout.packed:
        return interleave_planes(
            layout, number, layout.inputs, layout.length, source, element_type, layout.image, dtype
        )
    channels, length, width, plane = layout.inputs, layout.length[2], width_of(layout), image_plane(layout)
    memory, rows, line = allocate((LANES, np.int64), (length * LANES, dtype))
    if memory == 0:
        return False
    step, per_task = volume(layout.length) * item_size(element_type), planes_per_task(layout.length)
    for own in range(number * per_task, min((number + 1) * per_task, layout.samples * layout.groups)):
        out = array_at(layout.image + own * plane * size_of(dtype), plane, dtype)
        for lane in range(LANES):
            rows[lane] = source + (own * channels + min(lane, channels - 1)) * step
        for i in range(layout.length[0] * layout.length[1]):
            interleave(rows, element_type, i * length, length, line, 0)
            begin = i * width * channels
            for x in range(layout.before[2] * channels):
                out[begin + x] = like(0, out[0])
                out[begin + (layout.before[2] + length) * channels + x] = like(0, out[0])
            begin += layout.before[2] * channels
            for x in range(length):
                for k in range(channels):
                    out[begin + x * channels + k] = line[x * LANES + k]
        for i in range(image_zeros(layout), plane):
            out[i] = like(0, out[0])
    free(memory)
    return True


@helper
def interleave_weights(
    layout: Blocks, number: int, backward: bool, source: int, element_type: int, target: int, dtype: Floating
) -> bool:
    """A task: interleave the weights of a block of channels of the result; returns whether there was memory.

    backward: whether the result is the gradient of the input of the convolution.
    """
    taps = volume(layout.kernel)
    packed = layout.packed and not backward
    memory, rows, unordered = allocate((LANES, np.int64), (layout.inputs * taps * LANES if packed else 0, dtype))
    if memory == 0:
        return False
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
        if packed:
            interleave(rows, element_type, 0, inputs * taps, unordered, 0)
            lines, row = taps_of_weights(layout), layout.kernel[2]
            for k in range(inputs):
                for tap in range(taps):
                    at, to = (k * taps + tap) * LANES, ((tap % row * inputs + k) * lines + tap // row) * LANES
                    for lane in range(LANES):
                        out[to + lane] = unordered[at + lane]
        else:
            interleave(rows, element_type, 0, inputs * taps, out, 0)
    free(memory)
    # Zeros of the padding, with which other places of a tile have an element, must not be multiplied with these.
    if not is_finite(out, sources * taps * LANES):
        layout.alone = 1
    return True
