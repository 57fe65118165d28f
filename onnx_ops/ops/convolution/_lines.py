"""Kernel of convolutions with few products: vectors are adjacent places of a line of the output.

Where a place of the output is the sum of few products, or has few channels, interleaving channels would take longer
than the products. Instead each line of the input is copied once for each tap along it, shifted by the tap: lines of an
output are sums of these lines, each multiplied with one weight. The padding is zero in them.
"""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import (
    LANES,
    address_of,
    allocate,
    copy_bytes,
    free,
    item_size,
    read_row,
    size_of,
    tail,
    write_row,
)
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper, like
from onnx_ops.loops.tiles import PANEL, ROWS, multiply_tile
from onnx_ops.ops.convolution._blocked import Blocks, is_finite
from onnx_ops.ops.windows import AXES, volume

MOST_PRODUCTS = 48 * 48
"""Products for one place in all channels of the output, up to which lines are faster than interleaved channels."""
MOST_PLACES = 1024
"""Approximate number of places of an output that a task computes."""
MOST_COPIED = 1 << 16
"""Approximate number of elements of the copies of a task, unless a vector of places has more."""


@helper
def has_few_products(layout: Blocks) -> bool:
    """Whether a convolution is computed by lines."""
    for axis in range(AXES):
        if layout.dilation[axis] != 1:
            return False
    places = volume(layout.count) if is_plain(layout) else layout.count[2]
    products = layout.inputs * layout.outputs * volume(layout.kernel)
    return bool(0 < products <= MOST_PRODUCTS and places > LANES)


@helper
def is_plain(layout: Blocks) -> bool:
    """Whether each place of the output is that of the input, so that a plane can be one line."""
    plain = volume(layout.kernel) == 1
    for axis in range(AXES):
        plain = plain and layout.stride[axis] == 1 and layout.before[axis] == 0
    return bool(plain)


@helper
def split_lines(layout: Blocks) -> None:
    """Split the output into tasks. Where a window is one element, a plane is one line."""
    if is_plain(layout):
        layout.length[2] = layout.count[2] = volume(layout.count)
        for axis in range(AXES - 1):
            layout.length[axis] = layout.count[axis] = 1
    width, height = layout.count[2], layout.count[1]
    if layout.samples * layout.groups * layout.outputs * volume(layout.count) == 0:
        layout.product_tasks = 0
        return
    copies = layout.inputs * layout.kernel[0] * layout.kernel[2] * max(layout.stride[1], 1)
    places = min(max(MOST_COPIED // copies, LANES), MOST_PLACES)
    layout.columns = min(width, ceil_divide(places, LANES) * LANES)
    lines = places // width if layout.columns == width else 1
    # Between windows that are further apart than their size, lines are not read.
    layout.lines = min(max(lines, 1), height) if layout.stride[1] <= layout.kernel[1] else 1
    layout.product_tasks = layout.samples * layout.groups * layout.count[0] * ceil_divide(height, layout.lines)
    layout.product_tasks *= ceil_divide(width, layout.columns)


@helper
def divide_line(line: Array, stride: int, each: int, phases: Array) -> None:
    """phases[p*each + i] = line[i*stride + p] for p in [0, stride) and i in [0, each)."""
    for p in range(stride):
        if stride == 2:  # which LLVM vectorizes if it knows it
            for i in range(each):
                phases[p * each + i] = line[2 * i + p]
        else:
            for i in range(each):
                phases[p * each + i] = line[i * stride + p]


@helper
def copy_lines(
    layout: Blocks,
    image: int,
    element_type: int,
    own: int,
    begin: tuple[int, int, int],
    lines: int,
    columns: int,
    apart: int,
    copies: Array,
    dtype: Floating,
) -> bool:
    """Copy lines of all channels, once for each tap along them; returns whether there was memory.

    Args:
        image: address of the input.
        own: index of the group of the sample.
        begin: where the first window begins along each spatial axis, which may lie in the padding.
        lines: number of lines of a copy.
        columns: number of windows along a line.
        apart: distance of lines in `copies`.
        copies: by channel, tap along the first spatial axis, tap along the line, and line.
    """
    inputs, length, kernel, stride = layout.inputs, layout.length, layout.kernel, layout.stride[2]
    span, size, width = (columns - 1) * stride + kernel[2], item_size(element_type), size_of(dtype)
    first, end = min(max(begin[2], 0), begin[2] + span), max(min(begin[2] + span, length[2]), begin[2])
    before, count = first - begin[2], max(end - first, 0)
    is_direct = count == span and stride == 1 and size == width
    each = columns + (kernel[2] - 1) // stride  # places of a phase, a remainder of division by the stride
    memory, line, phases = allocate((max(each * stride, span), dtype), (each * stride, dtype))
    if memory == 0:
        return False
    for k in range(max(each * stride, span)):
        line[k] = like(0, line[0])
    for c in range(inputs):
        for a in range(kernel[0]):
            at = (c * kernel[0] + a) * kernel[2] * lines * apart
            for j in range(lines):
                z, y = begin[0] + a, begin[1] + j
                to = at + j * apart
                if z < 0 or z >= length[0] or y < 0 or y >= length[1]:
                    for i in range(kernel[2]):
                        for k in range(columns):
                            copies[to + i * lines * apart + k] = like(0, copies[0])
                    continue
                place = (((own * inputs + c) * length[0] + z) * length[1] + y) * length[2] + first
                source = image + place * size
                if not is_direct:
                    read_row(source, element_type, count, tail(line, before))
                    source = address_of(line)
                if stride > 1:
                    divide_line(line, stride, each, phases)
                for i in range(kernel[2]):
                    shifted = source + i * width
                    if stride > 1:
                        shifted = address_of(phases) + (i % stride * each + i // stride) * width
                    copy_bytes(shifted, address_of(copies) + (to + i * lines * apart) * width, columns * width)
    free(memory)
    return True


@helper
def first_place(layout: Blocks, number: int) -> tuple[int, int, int, int]:
    """The group of a sample and the first place of the output of a task."""
    pieces, chunks = ceil_divide(layout.count[2], layout.columns), ceil_divide(layout.count[1], layout.lines)
    x, rest = number % pieces * layout.columns, number // pieces
    y, rest = rest % chunks * layout.lines, rest // chunks
    return rest // layout.count[0], rest % layout.count[0], y, x


@helper
def write_tables(layout: Blocks, lines: int, blocks: int, room: int, starts: Array, places: Array) -> None:
    """Write where the copies of each line of a window begin, and the results of each row of a tile, in vectors."""
    kernel = layout.kernel
    for t in range(layout.inputs * kernel[0] * kernel[1]):
        starts[t] = (t // kernel[1] * kernel[2] * lines + t % kernel[1]) * blocks
    for r in range(ROWS):
        places[r] = r * room


@helper
def steps_of(layout: Blocks) -> tuple[int, int]:
    """The number of parts of the weights of a channel whose copies are adjacent, and of weights in each.

    These are the lines of windows; where a window is one line, the copies of all channels are adjacent.
    """
    lines = layout.kernel[0] * layout.kernel[1]
    if lines == 1:
        return 1, layout.inputs * layout.kernel[2]
    return layout.inputs * lines, layout.kernel[2]


@helper
def write_rows(layout: Blocks, first: int, valid: int, rows: Array) -> None:
    """Write where the weights of each row of a tile begin, whose first `valid` rows are channels from `first` on."""
    steps, taps = steps_of(layout)
    for t in range(steps):
        for r in range(ROWS):
            rows[t * ROWS + r] = ((first + min(r, valid - 1)) * steps + t) * taps


@helper
def multiply_line(
    layout: Blocks,
    weights: Array,
    rows: Array,
    line: Array,
    starts: Array,
    plane: int,
    blocks: int,
    out: Array,
    places: Array,
) -> None:
    """A line of `blocks` vectors of the output in the channels of a tile; `plane` vectors are between adjacent taps."""
    steps, taps = steps_of(layout)
    for block in range(0, blocks, PANEL):
        multiply_tile(
            weights, rows, 0, steps, taps, LANES, tail(line, block * LANES), starts, 0, LANES, plane,
            tail(out, block * LANES), places, 0, 1, min(blocks - block, PANEL),
        )  # fmt: skip


@helper
def multiply_lines(
    layout: Blocks, number: int, image: int, weight: int, target: int, element_type: int, dtype: Floating
) -> bool:
    """A task: adjacent lines of all channels of a group of a sample, or a part of one line; whether there was memory.

    Args:
        number: of the task.
        image, weight, target: addresses of the inputs and of the output.
        dtype: of the computation.
    """
    outputs, kernel, stride, count = layout.outputs, layout.kernel, layout.stride, layout.count
    own, z, y, x = first_place(layout, number)
    columns, lines = min(layout.columns, count[2] - x), min(layout.lines, count[1] - y)
    begin = z * stride[0] - layout.before[0], y * stride[1] - layout.before[1], x * stride[2] - layout.before[2]
    blocks, terms = ceil_divide(columns, LANES), layout.inputs * kernel[0] * kernel[1]
    each, seen, apart = terms * kernel[2], (lines - 1) * stride[1] + kernel[1], blocks * LANES
    room, size = ceil_divide(lines * columns, LANES) + PANEL, item_size(element_type)
    memory, weights, copies, rows, starts, places, result = allocate(
        (outputs * each, dtype), (layout.inputs * kernel[0] * kernel[2] * seen * apart, dtype),
        (terms * ROWS, np.int64), (terms, np.int64), (ROWS, np.int64), (ROWS * room * LANES, dtype),
    )  # fmt: skip
    if memory == 0:
        return False
    read_row(weight + own % layout.groups * outputs * each * size, element_type, outputs * each, weights)
    finite = is_finite(weights, outputs * each)
    if not copy_lines(layout, image, element_type, own, begin, seen, columns, apart, copies, dtype):
        free(memory)
        return False
    write_tables(layout, seen, blocks, room, starts, places)
    for first in range(0, outputs, ROWS):
        valid = min(outputs - first, ROWS)
        write_rows(layout, first, valid, rows)
        for k in range(lines):
            line, out = tail(copies, k * stride[1] * apart), tail(result, k * columns)
            if finite:  # the numbers behind the end of a line are overwritten by the next one
                multiply_line(layout, weights, rows, line, starts, seen * blocks, blocks, out, places)
                continue
            from_line = begin[0], begin[1] + k * stride[1], begin[2]
            for r in range(valid):
                own_weights, row = tail(weights, (first + r) * each), tail(out, r * room * LANES)
                add_alone(layout, own_weights, line, starts, from_line, seen * apart, columns, row)
        for r in range(valid):
            place = (((own * outputs + first + r) * count[0] + z) * count[1] + y) * count[2] + x
            write_row(tail(result, r * room * LANES), element_type, lines * columns, target + place * size)
    free(memory)
    return True


@helper
def add_alone(
    layout: Blocks,
    weights: Array,
    copies: Array,
    starts: Array,
    begin: tuple[int, int, int],
    plane: int,
    columns: int,
    out: Array,
) -> None:
    """A line of the output from weights that are not finite, which no zero of the padding is multiplied with.

    Args:
        begin: where the first window begins along each spatial axis.
        plane: distance of the copies for adjacent taps.
    """
    kernel, length, stride = layout.kernel, layout.length, layout.stride
    for i in range(columns):
        total = like(0, out[0])
        for t in range(layout.inputs * kernel[0] * kernel[1]):
            z, y = begin[0] + t // kernel[1] % kernel[0], begin[1] + t % kernel[1]
            for c in range(kernel[2]):
                x = begin[2] + i * stride[2] + c
                inside = (z >= 0) & (z < length[0]) & (y >= 0) & (y < length[1]) & (x >= 0) & (x < length[2])
                if inside:
                    total += weights[t * kernel[2] + c] * copies[starts[t] * LANES + c * plane + i]
        out[i] = total
