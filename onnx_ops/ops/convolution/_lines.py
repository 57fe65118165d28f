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
"""As `split_into_lines` takes it."""


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
    split_into_lines(layout, MOST_COPIED)


@helper
def split_into_lines(layout: Blocks, most_copied: int) -> None:
    """Split the output into tasks of adjacent lines, or of a part of one.

    most_copied: approximate number of elements of the copies of a task, unless a vector of places has more.
    """
    width, height = layout.count[2], layout.count[1]
    if layout.samples * layout.groups * layout.outputs * volume(layout.count) == 0:
        layout.product_tasks = 0
        return
    copies = layout.inputs * layout.kernel[0] * layout.kernel[2] * max(layout.stride[1], 1)
    places = min(max(most_copied // copies, LANES), MOST_PLACES)
    layout.columns = min(width, ceil_divide(places, LANES) * LANES)
    lines = places // width if layout.columns == width else 1
    # Between windows that are further apart than their size, lines are not read.
    layout.lines = min(max(lines, 1), height) if layout.stride[1] <= layout.kernel[1] else 1
    layout.product_tasks = layout.samples * layout.groups * layout.count[0] * ceil_divide(height, layout.lines)
    layout.product_tasks *= ceil_divide(width, layout.columns)


@helper
def room_of_copies(lines: int, step: int, columns: int) -> int:
    """Elements of the copies of lines for one tap along them, in whole vectors; arguments as in `copy_lines`."""
    return ceil_divide(ceil_divide(lines, step) * step * columns, LANES) * LANES


@helper
def copied_line(line: int, lines: int, step: int) -> int:
    """Index of a line among its copies."""
    return line % step * ceil_divide(lines, step) + line // step


@helper
def copy_every(line: Array, first: int, stride: int, count: int, out: Array, at: int) -> None:
    """out[at + k] = line[first + k*stride] for k in [0, count)."""
    if stride == 2:  # LLVM vectorizes these strides if it knows them
        for k in range(count):
            out[at + k] = line[first + 2 * k]
    elif stride == 4:
        for k in range(count):
            out[at + k] = line[first + 4 * k]
    else:
        for k in range(count):
            out[at + k] = line[first + k * stride]


@helper
def copy_lines(
    layout: Blocks,
    image: int,
    element_type: int,
    own: int,
    begin: tuple[int, int, int],
    lines: int,
    columns: int,
    step: int,
    taps: int,
    copies: Array,
    dtype: Floating,
) -> bool:
    """Copy lines of all channels, once for each tap along them; returns whether there was memory.

    Lines that adjacent windows begin with are adjacent, so that lines of an output are sums of contiguous copies.
    Everything else is zero: numbers that happen to be in memory may be subnormal, with which processors are slow.

    Args:
        image: address of the input.
        own: index of the group of the sample.
        begin: where the first window begins along each spatial axis, which may lie in the padding.
        lines: number of lines to copy.
        columns: number of windows along a line.
        step: distance of the lines that adjacent windows begin with.
        taps: number of taps along a line.
        copies: by channel, tap along the first spatial axis and tap along the line; then in the order of `copied_line`.
            At the end is room for one vector more.
    """
    inputs, length, kernel, stride = layout.inputs, layout.length, layout.kernel, layout.stride[2]
    dilation, reach = layout.dilation, (taps - 1) * layout.dilation[2]
    span, size, width = (columns - 1) * stride + reach + 1, item_size(element_type), size_of(dtype)
    room, slots = room_of_copies(lines, step, columns), ceil_divide(lines, step) * step
    for k in range(LANES):
        copies[inputs * kernel[0] * taps * room + k] = like(0, copies[0])
    first, end = min(max(begin[2], 0), begin[2] + span), max(min(begin[2] + span, length[2]), begin[2])
    before, count = first - begin[2], max(end - first, 0)
    is_direct = count == span and stride == 1 and size == width
    memory, line = allocate((span, dtype))
    if memory == 0:
        return False
    for k in range(span):
        line[k] = like(0, line[0])
    for c in range(inputs):
        for a in range(kernel[0]):
            at = (c * kernel[0] + a) * taps * room
            for i in range(taps):
                for k in range(slots * columns, room):
                    copies[at + i * room + k] = like(0, copies[0])
            for j in range(slots):
                z, y = begin[0] + a * dilation[0], begin[1] + j
                to = at + copied_line(j, lines, step) * columns
                if j >= lines or z < 0 or z >= length[0] or y < 0 or y >= length[1]:
                    for i in range(taps):
                        for k in range(columns):
                            copies[to + i * room + k] = like(0, copies[0])
                    continue
                place = (((own * inputs + c) * length[0] + z) * length[1] + y) * length[2] + first
                source = image + place * size
                if not is_direct:
                    read_row(source, element_type, count, tail(line, before))
                    source = address_of(line)
                for i in range(taps):
                    offset, at_tap = i * dilation[2], to + i * room
                    if stride > 1:
                        copy_every(line, offset, stride, columns, copies, at_tap)
                    else:
                        copy_bytes(source + offset * width, address_of(copies) + at_tap * width, columns * width)
    free(memory)
    return True


@helper
def first_place(layout: Blocks, number: int) -> tuple[int, int, int, int]:
    """The sample, or its group where tasks are parts of groups, and the first place of the output along each axis."""
    pieces, chunks = ceil_divide(layout.count[2], layout.columns), ceil_divide(layout.count[1], layout.lines)
    x, rest = number % pieces * layout.columns, number // pieces
    y, rest = rest % chunks * layout.lines, rest // chunks
    return rest // layout.count[0], rest % layout.count[0], y, x


@helper
def write_rows(first: int, valid: int, terms: int, each: int, rows: Array) -> None:
    """Write where the weights of each row of a tile begin, whose first `valid` rows are channels from `first` on.

    A channel has `terms` times `each` weights.
    """
    for t in range(terms):
        for r in range(ROWS):
            rows[t * ROWS + r] = ((first + min(r, valid - 1)) * terms + t) * each


@helper
def multiply_copies(
    weights: Array,
    rows: Array,
    terms: int,
    each: int,
    copies: Array,
    starts: Array,
    plane: int,
    out: Array,
    places: Array,
    blocks: int,
) -> None:
    """Products of the weights of a tile of channels with `blocks` vectors of copies.

    Args:
        rows, terms, each: as in `write_rows`.
        starts: where the copies of the first weight of each term begin.
        plane: distance of the copies for adjacent weights.
        places: for ROWS indices.
    """
    for r in range(ROWS):
        places[r] = r * blocks
    for block in range(0, blocks, PANEL):
        multiply_tile(
            weights, rows, 0, terms, each, LANES, tail(copies, block * LANES), starts, 0, LANES, plane // LANES,
            tail(out, block * LANES), places, 0, 1, min(blocks - block, PANEL),
        )  # fmt: skip


@helper
def order_lines(layout: Blocks, given: Array, weights: Array) -> None:
    """Order the weights of each channel of the output by line of the window, channel of the input, and other taps."""
    kernel, taps, to = layout.kernel, volume(layout.kernel), 0
    for o in range(layout.outputs):
        for b in range(kernel[1]):
            for i in range(layout.inputs * kernel[0]):
                at = o * layout.inputs * taps + (i * kernel[1] + b) * kernel[2]
                for c in range(kernel[2]):
                    weights[to] = given[at + c]
                    to += 1


@helper
def multiply_lines(
    layout: Blocks, number: int, image: int, weight: int, bias: int, target: int, element_type: int, dtype: Floating
) -> bool:
    """A task: adjacent lines of all channels of a group of a sample, or a part of one line; whether there was memory.

    Args:
        number: of the task.
        image, weight, bias, target: addresses of the inputs and of the output; 0: no bias.
        dtype: of the computation.
    """
    outputs, kernel, stride, count = layout.outputs, layout.kernel, layout.stride, layout.count
    own, z, y, x = first_place(layout, number)
    columns, lines = min(layout.columns, count[2] - x), min(layout.lines, count[1] - y)
    begin = z * stride[0] - layout.before[0], y * stride[1] - layout.before[1], x * stride[2] - layout.before[2]
    each, seen, run = layout.inputs * kernel[0] * kernel[2], (lines - 1) * stride[1] + kernel[1], lines * columns
    step, blocks, size = min(stride[1], seen), ceil_divide(run, LANES), item_size(element_type)
    plane = room_of_copies(seen, step, columns)
    memory, given, weights, copies, rows, starts, places, result, biases = allocate(
        (outputs * kernel[1] * each, dtype), (outputs * kernel[1] * each, dtype), (each * plane + LANES, dtype),
        (kernel[1] * ROWS, np.int64), (kernel[1], np.int64), (ROWS, np.int64), (ROWS * blocks * LANES, dtype),
        (outputs, dtype),
    )  # fmt: skip
    if memory == 0:
        return False
    numbers = outputs * kernel[1] * each
    read_row(weight + own % layout.groups * numbers * size, element_type, numbers, given)
    order_lines(layout, given, weights)
    if bias != 0:
        read_row(bias + own % layout.groups * outputs * size, element_type, outputs, biases)
    finite = is_finite(weights, numbers)
    if not copy_lines(layout, image, element_type, own, begin, seen, columns, step, kernel[2], copies, dtype):
        free(memory)
        return False
    for b in range(kernel[1]):
        starts[b] = copied_line(b, seen, step) * columns
    for first in range(0, outputs, ROWS):
        valid = min(outputs - first, ROWS)
        write_rows(first, valid, kernel[1], each, rows)
        if finite:
            multiply_copies(weights, rows, kernel[1], each, copies, starts, plane, result, places, blocks)
        for r in range(valid):
            row = tail(result, r * blocks * LANES)
            if not finite:
                own_weights = tail(weights, (first + r) * kernel[1] * each)
                add_alone(layout, own_weights, copies, starts, begin, plane, lines, columns, row)
            if bias != 0:
                for i in range(run):
                    row[i] += biases[first + r]
            place = (((own * outputs + first + r) * count[0] + z) * count[1] + y) * count[2] + x
            write_row(row, element_type, run, target + place * size)
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
    lines: int,
    columns: int,
    out: Array,
) -> None:
    """Lines of the output from weights that are not finite, which no zero of the padding is multiplied with.

    Args:
        begin: where the first window begins along each spatial axis.
        plane: distance of the copies for adjacent taps.
    """
    kernel, length, stride = layout.kernel, layout.length, layout.stride
    taps = layout.inputs * kernel[0] * kernel[2]
    for i in range(lines * columns):
        total, first, left = like(0, out[0]), i // columns * stride[1], i % columns * stride[2]
        for b in range(kernel[1]):
            for t in range(taps):
                z, y, x = begin[0] + t // kernel[2] % kernel[0], begin[1] + first + b, begin[2] + left + t % kernel[2]
                inside = (z >= 0) & (z < length[0]) & (y >= 0) & (y < length[1]) & (x >= 0) & (x < length[2])
                if inside:
                    total += weights[b * taps + t] * copies[t * plane + starts[b] + i]
        out[i] = total
