"""Kernel of the gradient of a convolution's input that has few channels: vectors are adjacent places of a line.

The gradient of a place of the padded input is a sum over the taps that have its phase, the remainder of its division by
the stride, and over the channels of the output. By quotients, places of one phase are a convolution of the gradient of
the output, with strides of one: it is computed by lines, in which phases along a line are like channels.
"""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import LANES, allocate, array_at, free, item_size, read_row, size_of, tail, write_row
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper, like
from onnx_ops.loops.tiles import ROWS
from onnx_ops.ops.convolution._blocked import Blocks
from onnx_ops.ops.convolution._lines import (
    copy_lines,
    first_place,
    multiply_copies,
    room_of_copies,
    split_into_lines,
    write_rows,
)
from onnx_ops.ops.windows import AXES, volume

MOST_INPUTS = 8
"""Channels of an input, per group, up to which lines are faster than interleaved channels."""
FEWEST_COLUMNS = 8
"""Quotients along a line from which on vectors of them are fast."""
MOST_ROWS = 128
"""Most phases along a line of all channels, whose results a task keeps."""
MOST_COPIED = 1 << 18
"""As `split_into_lines` takes it; lines of many channels are copied."""


@helper
def split_input_lines(layout: Blocks, quotients: Blocks) -> bool:
    """Split the gradient of the input into tasks by lines; returns whether these are faster than tiles.

    quotients: the convolution by quotients, whose layout is written. Its first axis has the places of the input.
    """
    for axis in range(AXES):
        if layout.dilation[axis] != 1 or layout.stride[axis] > layout.kernel[axis]:
            return False
    if layout.inputs > MOST_INPUTS or layout.inputs * layout.outputs == 0:
        return False
    quotients.samples, quotients.groups = layout.samples, layout.groups
    quotients.inputs, quotients.outputs = layout.outputs, layout.inputs * layout.stride[2]
    for axis in range(AXES):
        stride, before = layout.stride[axis], layout.before[axis]
        quotients.stride[axis], quotients.dilation[axis] = 1, 1
        quotients.length[axis] = layout.count[axis]
        quotients.kernel[axis] = ceil_divide(layout.kernel[axis], stride)
        quotients.before[axis] = quotients.kernel[axis] - 1 - before // stride
        quotients.count[axis] = (before + layout.length[axis] - 1) // stride - before // stride + 1
    quotients.count[0] = layout.length[0]
    if quotients.count[2] < FEWEST_COLUMNS or quotients.outputs > MOST_ROWS:
        return False
    split_into_lines(quotients, MOST_COPIED)
    return True


@helper
def weights_of_row(quotients: Blocks) -> int:
    """Number of weights of a phase along a line of a channel."""
    return int(quotients.inputs * volume(quotients.kernel))


@helper
def weights_of_phase(quotients: Blocks) -> int:
    """Number of weights of a phase along the other axes."""
    return int(quotients.outputs * weights_of_row(quotients))


@helper
def order_weights(
    layout: Blocks, quotients: Blocks, number: int, weight: int, element_type: int, dtype: Floating
) -> bool:
    """A task: write the weights of a phase of a group, reversed; returns whether there was memory.

    They are ordered by channel of the input, phase along a line, line and tap of the window, channel of the output, and
    tap along the first axis. Where a phase has fewer taps than others, one is zero.
    """
    stride, kernel, taps, phases = layout.stride, layout.kernel, quotients.kernel, layout.stride[0] * layout.stride[1]
    group, phase_z, phase_y = number // phases, number % phases // layout.stride[1], number % layout.stride[1]
    elements, each, size = volume(kernel), weights_of_row(quotients), weights_of_phase(quotients)
    memory, own = allocate((elements, dtype))
    if memory == 0:
        return False
    out = array_at(layout.weights + number * size * size_of(dtype), size, dtype)
    for o in range(layout.outputs):
        for c in range(layout.inputs):
            place = ((group * layout.outputs + o) * layout.inputs + c) * elements
            read_row(weight + place * item_size(element_type), element_type, elements, own)
            for phase in range(stride[2]):
                at = (c * stride[2] + phase) * each + o * taps[0]
                for i in range(taps[0]):
                    for j in range(taps[1]):
                        for k in range(taps[2]):
                            a = (taps[0] - 1 - i) * stride[0] + phase_z
                            b = (taps[1] - 1 - j) * stride[1] + phase_y
                            d = (taps[2] - 1 - k) * stride[2] + phase
                            inside = (a < kernel[0]) & (b < kernel[1]) & (d < kernel[2])
                            value = like(0, own[0])
                            if inside:
                                value = own[(a * kernel[1] + b) * kernel[2] + d]
                            out[at + (j * taps[2] + k) * layout.outputs * taps[0] + i] = value
    free(memory)
    return True


@helper
def multiply_quotients(
    layout: Blocks,
    quotients: Blocks,
    number: int,
    grad: int,
    weight: int,
    target: int,
    element_type: int,
    dtype: Floating,
) -> bool:
    """A task: the gradients of all phases of some lines of quotients, or of a part of one; whether there was memory.

    Args:
        number: of the task.
        grad, weight, target: addresses of the gradient of the output, of the weights, and of the gradient of the input.
        dtype: of the computation.
    """
    stride, before, length, taps = layout.stride, layout.before, layout.length, quotients.kernel
    own, z, y, x = first_place(quotients, number)
    columns, lines = min(quotients.columns, quotients.count[2] - x), min(quotients.lines, quotients.count[1] - y)
    depth, group = z + before[0], own % layout.groups
    begin = depth // stride[0] - taps[0] + 1, y - quotients.before[1], x - quotients.before[2]
    # A tap along a line is an offset in it. Between the lines of a result are places that are not used.
    seen, width, size, span = lines + taps[1] - 1, columns + taps[2] - 1, item_size(element_type), columns * stride[2]
    blocks, plane, terms = ceil_divide(lines * width, LANES), room_of_copies(seen, 1, width), taps[1] * taps[2]
    each, room, all_rows = quotients.inputs * taps[0], blocks * LANES, ceil_divide(quotients.outputs, ROWS) * ROWS
    memory, copies, rows, starts, places, result, line, numbers = allocate(
        (each * plane + LANES, dtype), (terms * ROWS, np.int64), (terms, np.int64), (ROWS, np.int64),
        (all_rows * room, dtype), (span, dtype), (2, dtype),
    )  # fmt: skip
    if memory == 0:
        return False
    if not copy_lines(quotients, grad, element_type, own, begin, seen, width, 1, 1, copies, dtype):
        free(memory)
        return False
    for t in range(terms):
        starts[t] = t // taps[2] * width + t % taps[2]
    at = (x + before[2] // stride[2]) * stride[2] - before[2]  # of the first place of the line
    first, end = max(at, 0), min(at + span, length[2])
    for phase in range(stride[1]):
        index = (group * stride[0] + depth % stride[0]) * stride[1] + phase
        own_weights = array_at(layout.weights + index * weights_of_phase(quotients) * size_of(dtype), 1, dtype)
        for row in range(0, quotients.outputs, ROWS):
            write_rows(row, min(quotients.outputs - row, ROWS), terms, each, rows)
            out = tail(result, row * room)
            multiply_copies(own_weights, rows, terms, each, copies, starts, plane, out, places, blocks)
        for k in range(lines):
            place = (y + k + before[1] // stride[1]) * stride[1] + phase - before[1]
            if place < 0 or place >= length[1] or end <= first:
                continue
            for c in range(layout.inputs):
                channel = own * layout.inputs + c
                for i in range(stride[2]):
                    for j in range(columns):
                        line[j * stride[2] + i] = result[(c * stride[2] + i) * room + k * width + j]
                for i in range(first, end):  # a zero was multiplied with a number that is not finite
                    if line[i - at] != line[i - at]:
                        line[i - at] = gradient_of(layout, own, c, z, place, i, grad, weight, element_type, numbers)
                source = ((channel * length[0] + z) * length[1] + place) * length[2] + first
                write_row(tail(line, first - at), element_type, end - first, target + source * size)
    free(memory)
    return True


@helper
def gradient_of(
    layout: Blocks, own: int, c: int, z: int, y: int, x: int, grad: int, weight: int, element_type: int, numbers: Array
) -> float:
    """The gradient of one place of the input, from the taps that meet it; `numbers` has room for two."""
    stride, kernel, count, size = layout.stride, layout.kernel, layout.count, item_size(element_type)
    total, group = like(0, numbers[0]), own % layout.groups
    for o in range(layout.outputs):
        for tap in range(volume(kernel)):
            i = z + layout.before[0] - tap // (kernel[1] * kernel[2])
            j = y + layout.before[1] - tap // kernel[2] % kernel[1]
            k = x + layout.before[2] - tap % kernel[2]
            divides = (i % stride[0] == 0) & (j % stride[1] == 0) & (k % stride[2] == 0)
            i, j, k = i // stride[0], j // stride[1], k // stride[2]
            inside = (i >= 0) & (i < count[0]) & (j >= 0) & (j < count[1]) & (k >= 0) & (k < count[2])
            if divides & inside:
                place = (((own * layout.outputs + o) * count[0] + i) * count[1] + j) * count[2] + k
                read_row(grad + place * size, element_type, 1, numbers)
                place = ((group * layout.outputs + o) * layout.inputs + c) * volume(kernel) + tap
                read_row(weight + place * size, element_type, 1, tail(numbers, 1))
                total += numbers[0] * numbers[1]
    return total
