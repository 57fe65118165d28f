"""Vectors along an axis: their checks, and the layout of a run.

The axis divides a tensor into `outer` blocks of `length` rows of `inner` numbers, which are outer * inner vectors. A
unit of work is one vector, of adjacent numbers, where `inner` is 1. LANES vectors, one per lane, are processed together
where they are short, and where their numbers are not adjacent.
"""

from __future__ import annotations

from typing import Any, Protocol

from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import Shape
from onnx_ops.loops.memory import LANES, interleave, item_size, read_row, record_at, separate, size_of, tail, write_row
from onnx_ops.loops.primitives import ceil_divide, helper
from onnx_ops.loops.records import KERNEL, Job, attribute_record, record_of
from onnx_ops.loops.shapes import give_shape, volume

WORK = 1 << 15
"""Approximate number of elements per task."""


class Vectors(Protocol):
    """The layout of a run."""

    length: int
    inner: int
    outer: int
    together: int  # 1: a unit is LANES vectors, else one
    blocks: int  # units of one of the `outer` blocks
    units: int
    step: int  # units of a task


LAYOUT = record_of(Vectors)


def axis_attributes() -> list[OpSchema.Attribute]:
    return [attribute("dim", -1, "The axis; a negative one counts from the end.")]


ATTRIBUTES = attribute_record(axis_attributes())


def check_axis(call: Call, *names: str) -> Shape | None:
    """The common shape of inputs, None if unknown; OpError for shapes that differ and an axis that they do not have."""
    known = next((shape for name in names if (shape := call.shape(name)) is not None), None)
    if known is None:
        return None
    rank, dim = len(known), call.attributes["dim"]
    if rank == 0:
        raise call.shape_error(names[0], "at least 1 dimension")
    if not -rank <= dim < rank:
        raise call.error(f"attribute 'dim' is {dim}, expected a number of at least {-rank}, at most {rank - 1}")
    for name in names[1:]:
        call.same_shape(name, call.shape(names[0]), f"the shape of '{names[0]}'")
    return known


@helper
def write_vectors(address: int, job: Job, short: int) -> bool:
    """Write the layout for input 0, whose shape the output has; returns whether it has the axis.

    Args:
        short: length of adjacent numbers up to which LANES vectors are processed together.
    """
    layout = record_at(address, LAYOUT)
    rank, dim = job.rank[0], record_at(record_at(job.kernel, KERNEL).attributes, ATTRIBUTES).dim
    if not -rank <= dim < rank:
        return False
    axis = dim + rank if dim < 0 else dim
    outer, inner = volume(job, 0, 0, axis), volume(job, 0, axis + 1, rank)
    layout.outer, layout.length, layout.inner = outer, job.dims[0, axis], inner
    layout.together = 1 if inner > 1 or layout.length <= short else 0
    layout.blocks = ceil_divide(inner, LANES)
    layout.units = outer * layout.blocks
    if inner == 1 and layout.together == 1:
        layout.units = ceil_divide(outer, LANES)
    if layout.length == 0:
        layout.units = 0
    layout.step = max(WORK // max(layout.length * (LANES if layout.together == 1 else 1), 1), 1)
    job.tasks, job.scratch_bytes = ceil_divide(layout.units, layout.step), size_of(LAYOUT)
    give_shape(job, 0, 0)
    return True


@helper
def load_vectors(layout: Vectors, unit: int, address: int, element_type: int, sources: Any, out: Any) -> None:
    """Convert the vectors of a unit of LANES: element k of the vector of a lane is out[k*LANES + lane].

    Args:
        address: of the tensor.
        sources: (LANES,) receives addresses, where `inner` is 1.
    """
    size, length, inner = item_size(element_type), layout.length, layout.inner
    if inner == 1:
        find_vectors(layout, unit, address, size, sources)
        interleave(sources, element_type, 0, length, out, 0)
    else:
        first, lanes = columns_of(layout, unit)
        for k in range(length):
            read_row(address + (first + k * inner) * size, element_type, lanes, tail(out, k * LANES))


@helper
def store_vectors(layout: Vectors, unit: int, numbers: Any, address: int, element_type: int, targets: Any) -> None:
    """Inverse of `load_vectors`, rounded once."""
    size, length, inner = item_size(element_type), layout.length, layout.inner
    if inner == 1:
        find_vectors(layout, unit, address, size, targets)
        separate(numbers, 0, length, targets, element_type, 0)
    else:
        first, lanes = columns_of(layout, unit)
        for k in range(length):
            write_row(tail(numbers, k * LANES), element_type, lanes, address + (first + k * inner) * size)


@helper
def find_vectors(layout: Vectors, unit: int, address: int, size: int, addresses: Any) -> None:
    """Write the address of the vector of each lane, of adjacent numbers; the last vector is repeated."""
    for lane in range(LANES):
        vector = min(unit * LANES + lane, layout.outer - 1)
        addresses[lane] = address + vector * layout.length * size


@helper
def columns_of(layout: Vectors, unit: int) -> tuple[int, int]:
    """Index of the first element of a unit of vectors that are not adjacent, and their number."""
    block, column = unit // layout.blocks, unit % layout.blocks * LANES
    return block * layout.length * layout.inner + column, min(LANES, layout.inner - column)
