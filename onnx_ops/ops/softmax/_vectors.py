"""Vectors along an axis: their checks, and the layout of a run.

The axis divides a tensor into `outer` blocks of `length` rows of `inner` numbers, which are outer * inner vectors. A
unit of work is some vectors that are adjacent: columns of a block, or whole blocks where `inner` is 1. Short vectors of
adjacent numbers may be processed together, one per lane.
"""

from __future__ import annotations

from typing import Protocol

from onnx_ops.loops.memory import LANES, item_size, read_row, record_at, size_of, tail, write_row
from onnx_ops.loops.primitives import Array, ceil_divide, helper
from onnx_ops.loops.records import KERNEL, Job, attribute_record, record_of
from onnx_ops.loops.shapes import give_shape, volume
from onnx_ops.ops.axes import axis_attributes, axis_of

WORK = 1 << 15
"""Approximate number of elements per task."""
BATCH, STRIP = 1 << 11, 1 << 13
"""Approximate numbers of elements of a unit of adjacent numbers, and of columns, which remain in the cache between
passes."""


class Vectors(Protocol):
    """The layout of a run."""

    length: int
    inner: int
    outer: int
    width: int  # vectors of a unit
    strips: int  # units of one of the `outer` blocks, where `inner` is not 1
    units: int
    step: int  # units of a task


LAYOUT = record_of(Vectors)
ATTRIBUTES = attribute_record(axis_attributes())


@helper
def write_vectors(address: int, job: Job, short: int) -> bool:
    """Write the layout for input 0, whose shape the output has; returns whether it has the axis.

    Args:
        short: length of adjacent numbers up to which LANES vectors are processed together.
    """
    layout = record_at(address, LAYOUT)
    rank = job.rank[0]
    axis = axis_of(record_at(record_at(job.kernel, KERNEL).attributes, ATTRIBUTES).dim, rank)
    if axis < 0:
        return False
    outer, inner = volume(job, 0, 0, axis), volume(job, 0, axis + 1, rank)
    layout.outer, layout.length, layout.inner = outer, job.dims[0, axis], inner
    length = max(layout.length, 1)
    if inner == 1:
        layout.width, layout.strips = LANES if length <= short else max(BATCH // length, 1), 1
        layout.units = ceil_divide(outer, layout.width)
    else:
        layout.width = min(max(STRIP // length // LANES, 1) * LANES, inner)
        layout.strips = ceil_divide(inner, layout.width)
        layout.units = outer * layout.strips
    if layout.length == 0:
        layout.units = 0
    layout.step = max(WORK // max(layout.length * layout.width, 1), 1)
    job.tasks, job.scratch_bytes = ceil_divide(layout.units, layout.step), size_of(LAYOUT)
    give_shape(job, 0, 0)
    return True


@helper
def find_vectors(layout: Vectors, unit: int, address: int, size: int, addresses: Array) -> None:
    """Write the address of the vector of each lane, of adjacent numbers; the last vector is repeated."""
    for lane in range(LANES):
        vector = min(unit * LANES + lane, layout.outer - 1)
        addresses[lane] = address + vector * layout.length * size


@helper
def place_of(layout: Vectors, unit: int) -> tuple[int, int, int]:
    """The index of the first element of a unit, and its numbers of rows and of adjacent elements in each."""
    if layout.inner == 1:
        first = unit * layout.width
        return first * layout.length, 1, min(layout.width, layout.outer - first) * layout.length
    block, column = unit // layout.strips, unit % layout.strips * layout.width
    first = block * layout.length * layout.inner + column
    return first, layout.length, min(layout.width, layout.inner - column)


@helper
def read_rows(address: int, element_type: int, rows: int, count: int, apart: int, out: Array) -> None:
    """Convert `count` elements of each row, which begin every `apart` elements, to the computing dtype."""
    for k in range(rows):
        read_row(address + k * apart * item_size(element_type), element_type, count, tail(out, k * count))


@helper
def write_rows(numbers: Array, element_type: int, rows: int, count: int, apart: int, address: int) -> None:
    """Inverse of `read_rows`, rounded once."""
    for k in range(rows):
        write_row(tail(numbers, k * count), element_type, count, address + k * apart * item_size(element_type))
