"""Kernels of the gradient of a convolution with respect to its weights: sums of outer products, in tiles."""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import LANES, address_of, allocate, array_at, free, item_size, separate, tail
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper, like
from onnx_ops.loops.tiles import PANEL, ROWS, add_outer_products
from onnx_ops.ops.convolution._blocked import (
    Blocks,
    blocks_of,
    first_window,
    image_blocks,
    image_plane,
    plane_of,
    taps_of_weights,
    unit_of,
    width_of,
    window_count,
)
from onnx_ops.ops.convolution._products import TASKS
from onnx_ops.ops.windows import volume

RUN = 2048
"""Approximate number of windows whose products are added up before they are added to a gradient of weights."""


@helper
def rows_of_tiles(layout: Blocks) -> int:
    """Number of rows that all tiles of a group have: channels of the input or the output, by `rows_are_inputs`."""
    if layout.packed:
        return int(layout.kernel[2] * layout.inputs)
    return int(layout.inputs if layout.rows_are_inputs else layout.outputs)


@helper
def columns_of_tiles(layout: Blocks) -> int:
    """Number of channels of the other side, which are columns of tiles."""
    return int(layout.outputs if layout.rows_are_inputs else layout.inputs)


@helper
def split_weight_gradient(layout: Blocks) -> None:
    """Split the gradient of the weights into tasks."""
    by_inputs = ceil_divide(layout.inputs, ROWS) * blocks_of(layout.outputs)
    by_outputs = ceil_divide(layout.outputs, ROWS) * blocks_of(layout.inputs)
    layout.rows_are_inputs = int(by_inputs < by_outputs or layout.packed)
    rows, columns = ceil_divide(rows_of_tiles(layout), ROWS), ceil_divide(columns_of_tiles(layout), PANEL * LANES)
    tiles, taps = layout.groups * rows * columns, taps_of_weights(layout)
    layout.taps = max(min(taps, taps * tiles // TASKS), 1)
    layout.tiles = max(min(rows, tiles * ceil_divide(taps, layout.taps) // TASKS), 1)
    layout.weight_tasks = layout.groups * columns * ceil_divide(rows, layout.tiles) * ceil_divide(taps, layout.taps)


@helper
def add_products(
    layout: Blocks,
    sums: Array,
    group: int,
    row: int,
    rows: int,
    panel: int,
    first_tap: int,
    taps: int,
    along: int,
    dtype: Floating,
) -> None:
    """Add up the products of all windows for some tiles and taps.

    Args:
        sums: [tile, row, vector, tap, LANES], of zeros.
        group, row, rows, panel: of the tiles.
        along: the tap along a line of a packed input whose elements are in the input; -1 for zeros in place of others.
        dtype: of the sums.
    """
    image, grad = array_at(layout.image, 1, dtype), array_at(layout.windows, 1, dtype)
    vectors = min(blocks_of(columns_of_tiles(layout)) - panel * PANEL, PANEL)
    plane, grad_plane, unit = image_plane(layout), plane_of(layout.count), unit_of(layout)
    by_image, by_grad = image_blocks(layout) * plane, blocks_of(layout.outputs) * grad_plane  # distances of groups
    image_step, grad_step = layout.groups * by_image, layout.groups * by_grad
    image_begin, grad_begin = group * by_image, group * by_grad
    if layout.rows_are_inputs:
        grad_begin += panel * PANEL * grad_plane
    else:
        image_begin += panel * PANEL * plane
    height, width = layout.length[1], width_of(layout)
    line = width * unit
    image_steps = (image_step, layout.stride[0] * height * line, layout.stride[1] * line, layout.stride[2] * unit)
    grad_steps = (grad_step, layout.count[1] * layout.count[2] * LANES, layout.count[2] * LANES, LANES)
    # Runs of places: some samples, or some of the first axis of one.
    axis = 0 if layout.count[0] > 1 else 1 if layout.count[1] > 1 else 2
    places = volume(layout.count)
    per_run = max(RUN // max(places, 1), 1)
    long = min(max(RUN // max(places // max(layout.count[axis], 1), 1), 1), layout.count[axis])
    for sample in range(0, layout.samples, per_run):
        samples = min(per_run, layout.samples - sample)
        for low in range(0, layout.count[axis], long):
            high = min(low + long, layout.count[axis])
            for tap in range(taps):
                c, rest = 0, first_tap + tap
                if not layout.packed:
                    c, rest = rest % layout.kernel[2] * layout.dilation[2], rest // layout.kernel[2]
                b, a = rest % layout.kernel[1] * layout.dilation[1], rest // layout.kernel[1] * layout.dilation[0]
                k = first_window(layout, 0, a, low if axis == 0 else 0)
                i = first_window(layout, 1, b, low if axis == 1 else 0)
                j, end = low if axis == 2 else 0, high if axis == 2 else layout.count[2]
                columns = end - j
                if not layout.packed or along >= 0:
                    offset = max(along, c)
                    j = first_window(layout, 2, offset, j)
                    columns = window_count(layout, 2, offset, j, end)
                layers = window_count(layout, 0, a, k, high if axis == 0 else layout.count[0])
                lines = window_count(layout, 1, b, i, high if axis == 1 else layout.count[1])
                if layers == 0 or lines == 0 or columns == 0:
                    continue
                z, y = k * layout.stride[0] - layout.before[0] + a, i * layout.stride[1] - layout.before[1] + b
                x = j * layout.stride[2] + c
                if not layout.packed:
                    x -= layout.before[2]
                image_at = image_begin + sample * image_step + (z * height + y) * line + x * unit
                grad_at = grad_begin + sample * grad_step + ((k * layout.count[1] + i) * layout.count[2] + j) * LANES
                counts = (samples, layers, lines, columns)
                # All tiles while what a run reads is in the cache.
                for own in range(row, row + rows, ROWS):
                    tile = tail(sums, (own - row) * PANEL * taps * LANES)
                    if layout.rows_are_inputs:
                        at = image_at + (own if layout.packed else own // LANES * plane + own % LANES)
                        add_outer_products(
                            tile, tap, taps, grad, grad_at, grad_plane, image, at, counts, grad_steps, image_steps,
                            vectors,
                        )  # fmt: skip
                    else:
                        at = grad_at + own // LANES * grad_plane + own % LANES
                        add_outer_products(
                            tile, tap, taps, image, image_at, plane, grad, at, counts, image_steps, grad_steps, vectors
                        )


@helper
def write_row(
    layout: Blocks, sums: Array, group: int, row: int, r: int, panel: int, first_tap: int, taps: int, target: int,
    element_type: int, lanes: Array, unused: Array,
) -> None:  # fmt: skip
    """Write row `r` of a tile, whose first one is `row`, to the gradient.

    Args:
        lanes: for LANES addresses.
        unused: for what lanes beyond the channels have.
    """
    bytes_of, all_taps, columns = item_size(element_type), volume(layout.kernel), columns_of_tiles(layout)
    by_output, by_input = layout.inputs * all_taps * bytes_of, all_taps * bytes_of  # distances in the result
    by_row, by_lane = (by_input, by_output) if layout.rows_are_inputs else (by_output, by_input)
    begin = target + group * layout.outputs * by_output
    if layout.packed:
        begin += (row + r) // layout.inputs * bytes_of + (row + r) % layout.inputs * by_row
    else:
        begin += (row + r) * by_row
    # The taps of a row are adjacent in the gradient; those of a packed input are a line of the kernel apart.
    run, apart = (1, layout.kernel[2]) if layout.packed else (taps, 1)
    for v in range(min(blocks_of(columns) - panel * PANEL, PANEL)):
        channel = (panel * PANEL + v) * LANES
        for tap in range(0, taps, run):
            to = begin + channel * by_lane + (first_tap + tap) * apart * bytes_of
            for lane in range(LANES):
                lanes[lane] = to + lane * by_lane if channel + lane < columns else address_of(unused)
            separate(sums, (r * PANEL + v) * taps + tap, run, lanes, element_type, 0)


@helper
def add_weight_gradient(layout: Blocks, number: int, target: int, element_type: int, dtype: Floating) -> bool:
    """A task of the gradient of the weights, tiles of ROWS by PANEL * LANES; returns whether there was memory."""
    taps, all_rows = taps_of_weights(layout), rows_of_tiles(layout)
    chunks = ceil_divide(taps, layout.taps)
    first_tap, task = number % chunks * layout.taps, number // chunks
    own_taps = min(layout.taps, taps - first_tap)
    panels, parts = ceil_divide(columns_of_tiles(layout), PANEL * LANES), ceil_divide(all_rows, layout.tiles * ROWS)
    panel, part, group = task % panels, task // panels % parts, task // panels // parts
    first_row = part * layout.tiles * ROWS
    end = min(first_row + layout.tiles * ROWS, all_rows)
    # Zeros of a padded line must not be multiplied with infinite numbers: then each tap along it has a pass of its own.
    alone = layout.packed == 1 and layout.infinite == 1
    step = ROWS if alone else layout.tiles * ROWS
    numbers = step * PANEL * own_taps * LANES
    memory, sums, lanes, unused = allocate((numbers, dtype), (LANES, np.int64), (own_taps, np.float64))
    if memory == 0:
        return False
    for row in range(first_row, end, step):
        rows, first, last = min(step, end - row), 0, 0
        if alone:
            first, last = row // layout.inputs, (row + rows - 1) // layout.inputs
        for along in range(first, last + 1):
            for i in range(numbers):
                sums[i] = like(0, sums[0])
            tap = along if alone else -1
            add_products(layout, sums, group, row, rows, panel, first_tap, own_taps, tap, dtype)
            for r in range(rows):
                if not alone or (row + r) // layout.inputs == along:
                    write_row(
                        layout, sums, group, row, r, panel, first_tap, own_taps, target, element_type, lanes, unused
                    )
    free(memory)
    return True
