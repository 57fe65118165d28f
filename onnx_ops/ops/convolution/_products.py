"""Kernels of convolutions: products of interleaved tensors, in tiles.

In a product each place of a target is the sum over taps and channels of a source: in the convolution itself, of the
input, and in the gradient of the input, of the gradient of the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ops.loops.memory import LANES, address_of, allocate, array_at, free, item_size, separate, size_of
from onnx_ops.loops.primitives import ceil_divide, helper, like
from onnx_ops.loops.tiles import PANEL, ROWS, add_outer_products, multiply_tile
from onnx_ops.ops.convolution._blocked import Blocks, blocks_of, plane_of
from onnx_ops.ops.windows import AXES, volume

PIXELS = 128
"""Approximate number of places of a product that a task computes."""
TASKS = 32
"""Tasks that the work is split into as far as its sizes allow."""
RUN = 2048
"""Approximate number of windows whose products are added up before they are added to a gradient of weights."""
MOST_PHASES = 64
"""Places of a target are ordered by their phases, their remainders of division by the stride, if there are so few."""


@helper
def split_product(layout: Blocks, targets: int, sizes: Any) -> None:
    """Split a product, whose target has so many channels per group, into tasks."""
    places = volume(sizes)
    if layout.samples * places * targets == 0:
        layout.product_tasks = 0
        return
    layout.per_block = min(layout.samples, max(ROWS, PIXELS // places))
    layout.places = min(places, max(PIXELS // layout.per_block, 1))
    boxes = layout.groups * ceil_divide(layout.samples, layout.per_block) * ceil_divide(places, layout.places)
    panels = ceil_divide(targets, PANEL * LANES)
    layout.panels = min(panels, max(panels * boxes // TASKS, 1))
    layout.product_tasks = boxes * ceil_divide(panels, layout.panels)


@helper
def write_order(layout: Blocks, backward: bool, sizes: Any, first: int, count: int, order: Any) -> None:
    """Write the places [first, first + count) of a target in an order in which adjacent ones have the same taps: where
    the gradient of an input is computed, those that are a multiple of the stride apart."""
    phases = 1
    if backward:
        for axis in range(AXES):
            phases *= min(layout.stride[axis], sizes[axis], MOST_PHASES + 1)
    if phases == 1 or phases > MOST_PHASES:
        for i in range(count):
            order[i] = first + i
        return
    rows, columns = min(layout.stride[1], sizes[1]), min(layout.stride[2], sizes[2])
    at = 0
    for phase in range(phases):
        for place in range(first, first + count):
            z, y, x = place // (sizes[1] * sizes[2]), place // sizes[2] % sizes[1], place % sizes[2]
            z, y, x = z % layout.stride[0], y % layout.stride[1], x % layout.stride[2]
            if (z * rows + y) * columns + x == phase:
                order[at] = place
                at += 1


@helper
def multiply(layout: Blocks, number: int, backward: bool, target: int, element_type: int, dtype: Any) -> bool:
    """A task of the product; returns whether there was memory.

    Args:
        number: of the task.
        backward: whether the product is the gradient of the input of the convolution.
        target: address of the result.
        dtype: of the computation.
    """
    if backward:
        source, sources, targets = layout.windows, layout.outputs, layout.inputs
        source_sizes, sizes = layout.count, layout.length
    else:
        source, sources, targets = layout.image, layout.inputs, layout.outputs
        source_sizes, sizes = layout.length, layout.count
    places, panels, taps = volume(sizes), ceil_divide(targets, PANEL * LANES), volume(layout.kernel)
    chunks, boxes = ceil_divide(panels, layout.panels), ceil_divide(places, layout.places)
    chunk, box = number % chunks, number // chunks
    first, box = box % boxes * layout.places, box // boxes
    batches = ceil_divide(layout.samples, layout.per_block)
    sample, group = box % batches * layout.per_block, box // batches
    samples, count = min(layout.per_block, layout.samples - sample), min(layout.places, places - first)
    entries = samples * count
    rows_of_tile = ROWS if layout.alone == 0 else 1  # others repeat the last one
    tiles = ceil_divide(entries, rows_of_tile)

    numbers, size = entries * PANEL * LANES, size_of(dtype)
    memory, out, rows, starts, terms, slots, order, base, phase, batch, lanes, unused = allocate(
        (numbers, dtype), (tiles * taps * ROWS, np.int64), (tiles * taps, np.int64), (tiles, np.int64),
        (tiles * ROWS, np.int64), (count, np.int64), (AXES * ROWS, np.int64), (AXES * ROWS, np.int64),
        (ROWS, np.int64), (LANES, np.int64), (count, np.float64),
    )  # fmt: skip
    if memory == 0:
        return False

    # The elements of the source that each tile reads for each tap, without the taps that all lie in the padding.
    plane = plane_of(source_sizes)
    step = layout.groups * blocks_of(sources) * plane
    origin = (sample * layout.groups + group) * blocks_of(sources) * plane
    zeros = plane - LANES
    write_order(layout, backward, sizes, first, count, order)
    for tile in range(tiles):
        for r in range(ROWS):
            entry = min(tile * rows_of_tile + min(r, rows_of_tile - 1), entries - 1)
            rest = order[entry // samples]
            slots[tile * ROWS + r] = entry % samples * count + rest - first
            batch[r] = entry % samples
            for axis in (2, 1, 0):
                i, rest = rest % sizes[axis], rest // sizes[axis]
                if backward:
                    base[axis * ROWS + r] = (i + layout.before[axis]) // layout.stride[axis]
                    phase[axis * ROWS + r] = (i + layout.before[axis]) % layout.stride[axis]
                else:
                    base[axis * ROWS + r] = i * layout.stride[axis] - layout.before[axis]
                    phase[axis * ROWS + r] = 0
        kept = 0
        for tap in range(taps):
            c, rest = tap % layout.kernel[2] * layout.dilation[2], tap // layout.kernel[2]
            b, a = rest % layout.kernel[1] * layout.dilation[1], rest // layout.kernel[1] * layout.dilation[0]
            phase_a, phase_b, phase_c = 0, 0, 0
            if backward:
                phase_a, phase_b, phase_c = a % layout.stride[0], b % layout.stride[1], c % layout.stride[2]
                a, b, c = -(a // layout.stride[0]), -(b // layout.stride[1]), -(c // layout.stride[2])
            to, some = (tile * taps + kept) * ROWS, False
            for r in range(ROWS):
                z, y, x = base[r] + a, base[ROWS + r] + b, base[2 * ROWS + r] + c
                inside = 0 <= z < source_sizes[0] and 0 <= y < source_sizes[1] and 0 <= x < source_sizes[2]
                inside &= phase[r] == phase_a and phase[ROWS + r] == phase_b and phase[2 * ROWS + r] == phase_c
                own = ((z * source_sizes[1] + y) * source_sizes[2] + x) * LANES if inside else zeros
                rows[to + r] = origin + batch[r] * step + own
                some |= inside
            if some:
                starts[tile * taps + kept] = tap
                kept += 1
        terms[tile] = kept

    image = array_at(source, 1, dtype)
    block, own = sources * taps * LANES, blocks_of(targets)
    result_bytes, beyond = places * item_size(element_type), address_of(unused) - first * item_size(element_type)
    for panel in range(chunk * layout.panels, min((chunk + 1) * layout.panels, panels)):
        begin = group * own + panel * PANEL
        weights = array_at(layout.weights + begin * block * size, 1, dtype)
        apart = block if panel * PANEL + 1 < own else 0
        for tile in range(tiles):
            multiply_tile(
                image, rows, tile * taps * ROWS, terms[tile], sources, plane, weights, starts, tile * taps, apart, taps,
                out, slots, tile * ROWS, entries,
            )  # fmt: skip
        for v in range(PANEL):
            channel = (panel * PANEL + v) * LANES
            valid = min(targets - channel, LANES)
            if valid <= 0:
                continue
            for s in range(samples):
                to = target + (((sample + s) * layout.groups + group) * targets + channel) * result_bytes
                for lane in range(LANES):
                    lanes[lane] = to + lane * result_bytes if lane < valid else beyond
                separate(out, v * entries + s * count, count, lanes, element_type, first)
    free(memory)
    return True


# --- gradients of the weights ----------------------------------------------------------------------------------------


@helper
def split_weight_gradient(layout: Blocks) -> None:
    """Split the gradient of the weights into tasks."""
    tiles = layout.groups * ceil_divide(layout.outputs, ROWS) * ceil_divide(layout.inputs, PANEL * LANES)
    taps = volume(layout.kernel)
    layout.taps = max(min(taps, taps * tiles // TASKS), 1)
    layout.weight_tasks = tiles * ceil_divide(taps, layout.taps)


@helper
def first_window(layout: Blocks, axis: int, offset: int, least: int) -> int:
    """First window, not before `least`, whose element at `offset` from its begin is not before the input."""
    return int(max(ceil_divide(layout.before[axis] - offset, layout.stride[axis]), least))


@helper
def window_count(layout: Blocks, axis: int, offset: int, first: int, end: int) -> int:
    """Number of windows from `first` on, before `end`, whose element at `offset` is not behind the input."""
    last = (layout.length[axis] - 1 + layout.before[axis] - offset) // layout.stride[axis]
    return int(max(min(last + 1, end) - first, 0))


@helper
def add_weight_gradient(layout: Blocks, number: int, target: int, element_type: int, dtype: Any) -> bool:
    """A task of the gradient of the weights, ROWS outputs by PANEL blocks of inputs; False if there was no memory."""
    inputs, outputs, taps = layout.inputs, layout.outputs, volume(layout.kernel)
    chunks = ceil_divide(taps, layout.taps)
    first_tap, tile = number % chunks * layout.taps, number // chunks
    own_taps = min(layout.taps, taps - first_tap)
    panels, rows = ceil_divide(inputs, PANEL * LANES), ceil_divide(outputs, ROWS)
    panel, tile = tile % panels, tile // panels
    row, group = tile % rows * ROWS, tile // rows
    numbers = ROWS * PANEL * own_taps * LANES
    memory, sums, lanes, unused = allocate((numbers, dtype), (LANES, np.int64), (own_taps, np.float64))
    if memory == 0:
        return False
    for i in range(numbers):
        sums[i] = like(0, sums[0])

    image, grad = array_at(layout.image, 1, dtype), array_at(layout.windows, 1, dtype)
    blocks, plane = blocks_of(inputs), plane_of(layout.length)
    grad_blocks, grad_plane = blocks_of(outputs), plane_of(layout.count)
    image_step, grad_step = layout.groups * blocks * plane, layout.groups * grad_blocks * grad_plane
    image_begin = (group * blocks + panel * PANEL) * plane
    apart = plane if panel * PANEL + 1 < blocks else 0
    grad_begin = (group * grad_blocks + row // LANES) * grad_plane + row % LANES
    height, width = layout.length[1], layout.length[2]
    # Runs of places: some samples, or some of the first axis of one.
    axis = 0 if layout.count[0] > 1 else 1 if layout.count[1] > 1 else 2
    places = volume(layout.count)
    per_run = max(RUN // max(places, 1), 1)
    long = min(max(RUN // max(places // max(layout.count[axis], 1), 1), 1), layout.count[axis])
    for sample in range(0, layout.samples, per_run):
        samples = min(per_run, layout.samples - sample)
        for low in range(0, layout.count[axis], long):
            high = min(low + long, layout.count[axis])
            for tap in range(own_taps):
                c, rest = (first_tap + tap) % layout.kernel[2], (first_tap + tap) // layout.kernel[2]
                c, b = c * layout.dilation[2], rest % layout.kernel[1] * layout.dilation[1]
                a = rest // layout.kernel[1] * layout.dilation[0]
                k = first_window(layout, 0, a, low if axis == 0 else 0)
                i = first_window(layout, 1, b, low if axis == 1 else 0)
                j = first_window(layout, 2, c, low if axis == 2 else 0)
                layers = window_count(layout, 0, a, k, high if axis == 0 else layout.count[0])
                lines = window_count(layout, 1, b, i, high if axis == 1 else layout.count[1])
                columns = window_count(layout, 2, c, j, high if axis == 2 else layout.count[2])
                if layers == 0 or lines == 0 or columns == 0:
                    continue
                z, y = k * layout.stride[0] - layout.before[0] + a, i * layout.stride[1] - layout.before[1] + b
                x = j * layout.stride[2] - layout.before[2] + c
                add_outer_products(
                    sums,
                    tap,
                    own_taps,
                    image,
                    image_begin + sample * image_step + ((z * height + y) * width + x) * LANES,
                    apart,
                    grad,
                    grad_begin + sample * grad_step + ((k * layout.count[1] + i) * layout.count[2] + j) * LANES,
                    (samples, layers, lines, columns),
                    (
                        image_step,
                        layout.stride[0] * height * width * LANES,
                        layout.stride[1] * width * LANES,
                        layout.stride[2] * LANES,
                    ),
                    (grad_step, layout.count[1] * layout.count[2] * LANES, layout.count[2] * LANES, LANES),
                )
    bytes_of = item_size(element_type)
    beyond = address_of(unused) - first_tap * bytes_of
    for r in range(min(ROWS, outputs - row)):
        for v in range(PANEL):
            channel = (panel * PANEL + v) * LANES
            to = target + ((group * outputs + row + r) * inputs + channel) * taps * bytes_of
            for lane in range(LANES):
                lanes[lane] = to + lane * taps * bytes_of if channel + lane < inputs else beyond
            separate(sums, (r * PANEL + v) * own_taps, own_taps, lanes, element_type, first_tap)
    free(memory)
    return True
