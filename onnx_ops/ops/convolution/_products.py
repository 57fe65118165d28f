"""Kernels of convolutions: products of interleaved tensors, in tiles.

In a product each place of a target is the sum over taps and channels of a source: in the convolution itself, of the
input, and in the gradient of the input, of the gradient of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_ops.loops.memory import (
    LANES,
    address_of,
    allocate,
    array_at,
    free,
    item_size,
    read_row,
    separate,
    size_of,
    tail,
)
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper, like
from onnx_ops.loops.tiles import PANEL, ROWS, multiply_tile
from onnx_ops.ops.convolution._blocked import (
    Blocks,
    blocks_of,
    image_blocks,
    image_plane,
    image_zeros,
    plane_of,
    taps_of_weights,
    unit_of,
    width_of,
)
from onnx_ops.ops.windows import AXES, volume

FEWEST_PIXELS, MOST_PIXELS = 128, 1024
"""Approximate number of places of a product that a task computes; those of many are written in longer runs."""
TASKS = 16
"""Tasks that the work is split into as far as its sizes allow."""
MOST_PHASES = 64
"""Places of a target are ordered by their phases, their remainders of division by the stride, if there are so few."""


@helper
def split_product(layout: Blocks, targets: int, sizes: Sequence[int]) -> None:
    """Split a product, whose target has so many channels per group, into tasks."""
    places = volume(sizes)
    if layout.samples * places * targets == 0:
        layout.product_tasks = 0
        return
    panels = ceil_divide(targets, PANEL * LANES)
    pixels = layout.groups * layout.samples * places * panels // TASKS
    pixels = min(max(pixels, FEWEST_PIXELS), MOST_PIXELS)
    layout.per_block = min(layout.samples, max(ROWS, pixels // places))
    layout.places = min(places, max(pixels // layout.per_block, 1))
    boxes = layout.groups * ceil_divide(layout.samples, layout.per_block) * ceil_divide(places, layout.places)
    layout.panels = min(panels, max(panels * boxes // TASKS, 1))
    layout.product_tasks = boxes * ceil_divide(panels, layout.panels)


@helper
def phases_along(layout: Blocks, axis: int, sizes: Sequence[int]) -> int:
    """Number of remainders that places of the padded input have when they are divided by the stride."""
    return int(min(layout.stride[axis], sizes[axis] + 2 * layout.before[axis]))


@helper
def write_places(layout: Blocks, backward: bool, sizes: Sequence[int], first: int, count: int, places: Array) -> None:
    """Write where the places [first, first + count) of a target begin along each axis of the source, and their phases.

    A place of the gradient of an input has the phase of the taps that it meets, the remainders of division by strides.
    """
    stride, before, last = layout.stride, layout.before, sizes[2] - 1
    rows, columns = phases_along(layout, 1, sizes), phases_along(layout, 2, sizes)
    z, y, x = first // (sizes[1] * sizes[2]), first // sizes[2] % sizes[1], first % sizes[2] - 1
    base_z, base_y, base_x, line_phase, phase = 0, 0, 0, 0, 0
    for i in range(count):
        x += 1
        if x > last:
            x, y = 0, y + 1
            if y == sizes[1]:
                y, z = 0, z + 1
        if backward:
            if x == 0 or i == 0:
                base_z, base_y = (z + before[0]) // stride[0], (y + before[1]) // stride[1]
                line_phase = ((z + before[0]) % stride[0] * rows + (y + before[1]) % stride[1]) * columns
                base_x, phase = (x + before[2]) // stride[2], (x + before[2]) % stride[2]
            else:
                phase += 1
                if phase == stride[2]:
                    base_x, phase = base_x + 1, 0
        else:
            base_z, base_y = z * stride[0] - before[0], y * stride[1] - before[1]
            base_x = x * stride[2] - before[2]
        places[i], places[count + i], places[2 * count + i] = base_z, base_y, base_x
        places[3 * count + i] = line_phase + phase


@helper
def write_order(layout: Blocks, backward: bool, sizes: Sequence[int], phases: Array, count: int, order: Array) -> None:
    """Write the indices of the places of a target in an order in which adjacent ones have the same taps."""
    number = 1
    if backward:
        for axis in range(AXES):
            number *= min(phases_along(layout, axis, sizes), MOST_PHASES + 1)
    at = 0
    if number == 1 or number > MOST_PHASES:
        for i in range(count):
            order[i] = i
        return
    for phase in range(number):
        for i in range(count):
            if phases[i] == phase:
                order[at] = i
                at += 1


@helper
def write_taps(layout: Blocks, backward: bool, folded: bool, sizes: Sequence[int], taps: int, offsets: Array) -> None:
    """Write, of each tap, its offsets along the axes of the source, its phase, and where its weights begin.

    folded: whether the taps along a line are one.
    """
    row, lines = (1 if folded else layout.kernel[2]), taps_of_weights(layout)
    for tap in range(taps):
        c, rest = tap % row * layout.dilation[2], tap // row
        b, a = rest % layout.kernel[1] * layout.dilation[1], rest // layout.kernel[1] * layout.dilation[0]
        phase, begin = 0, tap
        if backward:
            rows, columns = phases_along(layout, 1, sizes), phases_along(layout, 2, sizes)
            phase = (a % layout.stride[0] * rows + b % layout.stride[1]) * columns + c % layout.stride[2]
            a, b, c = -(a // layout.stride[0]), -(b // layout.stride[1]), -(c // layout.stride[2])
        elif layout.packed:
            begin = tap % row * layout.inputs * lines + rest
        offsets[tap], offsets[taps + tap], offsets[2 * taps + tap] = a, b, c
        offsets[3 * taps + tap], offsets[4 * taps + tap] = phase, begin * LANES


@helper
def add_biases(sums: Array, start: int, places: int, biases: Array) -> None:
    """Add the biases of LANES channels to their sums at some places, of which the first one is `start`."""
    for i in range(start, start + places):
        for lane in range(LANES):
            sums[i * LANES + lane] += biases[lane]


@helper
def multiply(
    layout: Blocks, number: int, backward: bool, bias: int, target: int, element_type: int, dtype: Floating
) -> bool:
    """A task of the product; returns whether there was memory.

    Args:
        number: of the task.
        backward: whether the product is the gradient of the input of the convolution.
        bias: address of the bias of each channel; 0: none.
        target: address of the result.
        dtype: of the computation.
    """
    taps, folded = volume(layout.kernel), False
    if backward:
        source, sources, targets = layout.windows, layout.outputs, layout.inputs
        source_sizes, sizes = layout.count, layout.length
        width, unit, plane, blocks = layout.count[2], LANES, plane_of(layout.count), blocks_of(layout.outputs)
        zeros, block, lines = plane - LANES, plane, taps
    else:
        source, sources, targets = layout.image, layout.inputs, layout.outputs
        source_sizes, sizes = layout.length, layout.count
        width, unit, plane, blocks = width_of(layout), unit_of(layout), image_plane(layout), image_blocks(layout)
        zeros, block, lines = image_zeros(layout), plane, taps_of_weights(layout)
        if layout.packed:
            block = LANES
            if layout.alone == 0:
                folded, taps, sources = True, lines, layout.kernel[2] * layout.inputs
    all_places, panels = volume(sizes), ceil_divide(targets, PANEL * LANES)
    chunks, boxes = ceil_divide(panels, layout.panels), ceil_divide(all_places, layout.places)
    chunk, box = number % chunks, number // chunks
    first, box = box % boxes * layout.places, box // boxes
    batches = ceil_divide(layout.samples, layout.per_block)
    sample, group = box % batches * layout.per_block, box // batches
    samples, count = min(layout.per_block, layout.samples - sample), min(layout.places, all_places - first)
    entries = samples * count
    copies = 1 if layout.alone == 0 else ROWS  # of an entry in its tile
    tiles = ceil_divide(entries * copies, ROWS)
    whole = tiles * ROWS

    numbers, size = entries * PANEL * LANES, size_of(dtype)
    (
        memory, out, rows, starts, terms, slots, places, order,
        offsets, base, begins, none, phases, found, lanes, unused, biases,
    ) = allocate(
        (numbers, dtype), (whole * taps, np.int64), (tiles * taps, np.int64), (tiles, np.int64), (whole, np.int64),
        (4 * count, np.int64), (count, np.int64), (5 * taps, np.int64), (AXES * whole, np.int64), (whole, np.int64),
        (whole, np.int64), (whole, np.int64), (whole, np.int64), (LANES, np.int64), (count, np.float64),
        (LANES, dtype),
    )  # fmt: skip
    if memory == 0:
        return False

    height = source_sizes[1]
    step = layout.groups * blocks * plane
    origin = (sample * layout.groups + group) * blocks * plane
    margin = (width - source_sizes[2]) // 2  # before the line, if it is padded
    write_places(layout, backward, sizes, first, count, places)
    write_order(layout, backward, sizes, tail(places, 3 * count), count, order)
    write_taps(layout, backward, folded, sizes, taps, offsets)
    at = 0
    for i in range(count):
        place = order[i]
        z, y, x = places[place], places[count + place], places[2 * count + place]
        for s in range(samples):
            for _ in range(copies):
                base[at], base[whole + at], base[2 * whole + at] = z, y, x
                begins[at] = origin + s * step + ((z * height + y) * width + x + margin) * unit
                none[at] = origin + s * step + zeros
                phases[at], slots[at] = places[3 * count + place], s * count + place
                at += 1
    for more in range(at, whole):  # repeats the last entry
        for axis in range(AXES):
            base[axis * whole + more] = base[axis * whole + at - 1]
        begins[more], none[more] = begins[at - 1], none[at - 1]
        phases[more], slots[more] = phases[at - 1], slots[at - 1]

    # The elements of the source that each tile reads for each tap, without the taps that all lie in the padding.
    for tile in range(tiles):
        terms[tile] = 0
    low, high = (-margin, source_sizes[2] + margin) if folded else (0, source_sizes[2])
    for tap in range(taps):
        a, b, c, phase = offsets[tap], offsets[taps + tap], offsets[2 * taps + tap], offsets[3 * taps + tap]
        distance = ((a * height + b) * width + c) * unit
        for e in range(whole):
            z, y, x = base[e] + a, base[whole + e] + b, base[2 * whole + e] + c
            inside = (z >= 0) & (z < source_sizes[0]) & (y >= 0) & (y < height) & (x >= low) & (x < high)
            found[e] = begins[e] + distance if inside & (phases[e] == phase) else none[e]
        for tile in range(tiles):
            some = False
            for e in range(tile * ROWS, (tile + 1) * ROWS):
                some |= found[e] != none[e]
            if some:
                term = tile * taps + terms[tile]
                for r in range(ROWS):
                    rows[term * ROWS + r] = found[tile * ROWS + r]
                starts[term] = offsets[4 * taps + tap]
                terms[tile] += 1

    image = array_at(source, 1, dtype)
    panel_size, own = sources * taps * LANES, blocks_of(targets)
    result_bytes, beyond = all_places * item_size(element_type), address_of(unused) - first * item_size(element_type)
    for panel in range(chunk * layout.panels, min((chunk + 1) * layout.panels, panels)):
        begin = group * own + panel * PANEL
        weights = array_at(layout.weights + begin * panel_size * size, 1, dtype)
        vectors = min(own - panel * PANEL, PANEL)
        for tile in range(tiles):
            multiply_tile(
                image, rows, tile * taps * ROWS, terms[tile], sources, block, weights, starts, tile * taps, panel_size,
                lines, out, slots, tile * ROWS, entries, vectors,
            )  # fmt: skip
        for v in range(vectors):
            channel = (panel * PANEL + v) * LANES
            valid = min(targets - channel, LANES)
            if bias != 0:
                for lane in range(LANES):  # what happens to be in memory may be subnormal, with which sums are slow
                    biases[lane] = like(0, biases[0])
                read_row(bias + (group * targets + channel) * item_size(element_type), element_type, valid, biases)
                add_biases(out, v * entries, entries, biases)
            for s in range(samples):
                to = target + (((sample + s) * layout.groups + group) * targets + channel) * result_bytes
                for lane in range(LANES):
                    lanes[lane] = to + lane * result_bytes if lane < valid else beyond
                separate(out, v * entries + s * count, count, lanes, element_type, first)
    free(memory)
    return True
