"""Rows that are normalized together: how tasks share them, and sums over them.

The elements of the normalized axes, the last ones, make up a row.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.types import Shape
from onnx_ops.graph.builder import Value
from onnx_ops.loops.memory import address_of, allocate, array_at, free, record_at, size_of, whole_lines, write_numbers
from onnx_ops.loops.primitives import ceil_divide, helper
from onnx_ops.loops.records import NO_MEMORY, Job, Kernel, record_of
from onnx_ops.loops.shapes import volume

WORK = 1 << 15
"""Approximate number of elements per task."""
LEAST_ROWS, MOST_TASKS = 16, 256
"""Bounds of the memory for the sums of tasks."""
GROUP = 4
"""Rows whose terms are added before they are added to the sums of a task."""


class Rows(Protocol):
    """The layout of a run."""

    width: int  # elements of a row
    rows: int
    step: int  # rows of a task


LAYOUT = record_of(Rows)


@helper
def divide_rows(layout: Rows, job: Job, i: int, first: int) -> None:
    """Write the layout for input i, whose normalized axes begin at axis `first`; and the number of tasks."""
    layout.rows, layout.width = volume(job, i, 0, first), volume(job, i, first, job.rank[i])
    step = max(WORK // max(layout.width, 1), ceil_divide(layout.rows, MOST_TASKS))
    layout.step = max(step, LEAST_ROWS)
    job.tasks = ceil_divide(layout.rows, layout.step)


@helper
def fits_gamma(job: Job, i: int, gamma: int) -> bool:
    """Whether the shape of input `gamma` is that of the last axes of input i."""
    first = job.rank[i] - job.rank[gamma]
    if first < 0 or job.rank[gamma] < 1:
        return False
    for axis in range(first, job.rank[i]):
        size = job.dims[gamma, axis - first]
        if job.dims[i, axis] != size:
            return False
    return True


@helper
def is_statistic(job: Job, i: int, of: int, first: int) -> bool:
    """Whether input i has the shape of another one, but for the axes from `first` on, whose sizes are 1."""
    if job.rank[i] != job.rank[of]:
        return False
    for axis in range(job.rank[of]):
        size = job.dims[of, axis] if axis < first else 1
        if job.dims[i, axis] != size:
            return False
    return True


# --- sums over rows ---------------------------------------------------------------------------------------------------
#
# A task adds up its rows' terms of the gradients of parameters, whether or not these are wanted, as memory is read more
# slowly than that; `add_tasks` adds the sums of the tasks.


@helper
def scratch_of_sums(layout: Rows, job: Job, kinds: int) -> None:
    """Request scratch memory for the layout and sums of `kinds` terms of each element of a row; no tasks for none."""
    if layout.width == 0:
        job.tasks = 0
    job.scratch_bytes = whole_lines(size_of(LAYOUT)) + job.tasks * kinds * whole_lines(8 * layout.width)


@helper
def sums_of(job: Job, layout: Rows, task: int, kind: int, kinds: int) -> Any:
    """Sums of a task, float64, in the scratch memory behind the layout."""
    begin = job.scratch + whole_lines(size_of(LAYOUT))
    return array_at(begin + (task * kinds + kind) * whole_lines(8 * layout.width), layout.width, np.float64)


@helper
def add_tasks(kernel: Kernel, job: Job, first: int, kinds: int) -> None:
    """Write outputs from `first` on, those that are wanted: the sums of the tasks, added up."""
    layout = record_at(job.scratch, LAYOUT)
    width = layout.width
    memory, totals = allocate((width, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for kind in range(kinds):
        if job.output[first + kind] == 0:
            continue
        for i in range(width):
            totals[i] = 0.0
        for number in range(job.tasks):
            sums = sums_of(job, layout, number, kind, kinds)
            for i in range(width):
                totals[i] += sums[i]
        write_numbers(
            kernel.write, address_of(totals), kernel.output_type[first + kind], width, job.output[first + kind]
        )
    free(memory)


# --- shapes ----------------------------------------------------------------------------------------------------------


def statistic_shape(whole: Shape, normalized: int) -> Shape:
    """A shape with 1 for the sizes of the last axes, as many as `normalized`."""
    return (*whole[: max(len(whole) - normalized, 0)], *[1] * normalized)


def check_statistic(call: Call, name: str, whole: Shape, normalized: int, of: str) -> None:
    """Raise OpError unless an input has the `statistic_shape` of an input `of` of shape `whole`."""
    call.same_shape(name, statistic_shape(whole, normalized), f"the shape of '{of}' with 1 for normalized axes")


def check_gamma(call: Call, name: str) -> Shape | None:
    """The shape of an input; raises OpError unless its last sizes are the shape of 'gamma'."""
    shape, gamma = call.shape(name), call.shape("gamma")
    if gamma == ():
        raise call.shape_error("gamma", "the sizes of the normalized axes, at least one")
    if shape is None or gamma is None:
        return shape
    expected = (*shape[: max(len(shape) - len(gamma), 0)], *gamma)
    call.same_shape(name, expected, "whose last sizes are the shape of 'gamma'")
    return shape


def row_shapes(b: Body, statistic: Value, normalized_shape: Value) -> tuple[Value, Value, Value]:
    """The number of elements of a row, and shapes: of all rows, (rows, width), and of statistics, (rows, 1)."""
    width = b.op("ReduceProd", normalized_shape, name="width", keepdims=1)
    rows = b.op("Reshape", b.op("Size", statistic), [1], name="row_count")
    return width, b.op("Concat", rows, width, axis=0), b.op("Concat", rows, [1], axis=0)


def reshaped(b: Body, value: Value, shape: Value, name: str) -> Value:
    return b.op("Reshape", value, shape, name=name, allowzero=1)


def row_average(b: Body, value: Value, count: Value, name: str) -> Value:
    """The averages of rows, (rows, 1), of `count` elements."""
    return (b.op("ReduceSum", value, [1], name=f"{name}_sum", keepdims=1) / count).named(name)
