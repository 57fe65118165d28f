"""Channels in kernels: interleaved, LANES numbers of a place after those of the place before.

A group of channels that are fewer is filled with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ops.loops.memory import (
    LANES,
    allocate,
    array_at,
    computing_size,
    free,
    interleave,
    item_size,
    record_at,
    separate,
    size_of,
    whole_lines,
)
from onnx_ops.loops.primitives import Array, Floating, choose, helper, like
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job
from onnx_ops.ops.grid_sampling._corners import POINTS, Points


@helper
def group_bytes(layout: Points, size: int) -> int:
    """Bytes of a group of channels of the image, and of a row of zeros behind it, for corners outside."""
    return (layout.elements + 1) * LANES * size


@helper
def rows_of(address: int, row_bytes: int, layout: Points, group: int, beyond: int, rows: Array) -> int:
    """Write the addresses of the channels of a group, `beyond` for those that there are not; returns their number.

    Args:
        address: of the channels of all samples, which are `row_bytes` apart.
        group: number among those of all samples.
    """
    first = group % layout.groups * LANES
    count = min(LANES, layout.channels - first)
    start = address + (group // layout.groups * layout.channels + first) * row_bytes
    for lane in range(LANES):
        rows[lane] = start + lane * row_bytes if lane < count else beyond
    return count


@helper
def read_lanes(
    address: int,
    element_type: int,
    row: int,
    layout: Points,
    group: int,
    first: int,
    count: int,
    rows: Array,
    out: Array,
) -> None:
    """Interleave elements [first, first + count) of channels of a group, whose rows have `row` elements."""
    channels = rows_of(address, row * item_size(element_type), layout, group, address, rows)
    interleave(rows, element_type, first, count, out, 0)
    if channels < LANES:
        for i in range(count * LANES):
            out[i] = choose(i % LANES < channels, out[i], like(0, out[i]))


@helper
def reserve(layout: Points, job: Job, element_type: int) -> None:
    """Set the bytes of scratch memory: of the layout, and of the channels that tasks of `prepare` interleave."""
    size = group_bytes(layout, computing_size(element_type))
    job.scratch_bytes = whole_lines(size_of(POINTS)) + job.prepare_tasks * size


@helper
def interleaved(layout: Points, job: Job, group: int, dtype: Floating) -> Any:
    """A group of channels of the image in the scratch memory, and the row of zeros behind it."""
    address = job.scratch + whole_lines(size_of(POINTS)) + group * group_bytes(layout, size_of(dtype))
    return array_at(address, (layout.elements + 1) * LANES, dtype)


@helper
def interleave_image(job: Job, group: int, image: int, dtype: Floating) -> None:
    """Write a group of channels of the image, and zeros, to the scratch memory."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, POINTS)
    out, elements = interleaved(layout, job, group, dtype), layout.elements
    own, rows = allocate((LANES, np.int64))
    if own == 0:
        job.failed = NO_MEMORY
        return
    read_lanes(job.data[image], kernel.element_type[image], elements, layout, group, 0, elements, rows, out)
    for lane in range(LANES):
        out[elements * LANES + lane] = 0.0
    free(own)


@helper
def write_lanes(
    address: int, element_type: int, row: int, layout: Points, group: int, first: int, count: int, beyond: int,
    rows: Array, numbers: Array,
) -> None:  # fmt: skip
    """Inverse of `read_lanes`.

    Args:
        beyond: address of memory for a row of `count` elements, in place of channels that there are not.
    """
    size = item_size(element_type)
    channels = rows_of(address + first * size, row * size, layout, group, beyond, rows)
    if channels > 0:
        separate(numbers, 0, count, rows, element_type, 0)
