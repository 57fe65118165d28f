"""ScatterMax: maxima of the rows that have the same index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    FLOAT,
    address_of,
    allocate,
    array_at,
    free,
    item_size,
    read_floats,
    record_at,
    write_floats,
)
from onnx_ops.loops.primitives import Array, ceil_divide, choose, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel
from onnx_ops.loops.shapes import give_shape, same_sizes, size_of, volume
from onnx_ops.ops.indices import (
    INDICES,
    NONE,
    check_indices,
    indices_fit,
    link_places,
    links,
    links_bytes,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.row_tasks import COLUMNS, rows_per_task, tasks_of_rows

SIGNATURE = Signature(
    "ScatterMax",
    """
Maxima of slices of a tensor and of the updates with their index (aclnnScatterMax). In a graph network each node gets
the largest of the messages of its edges.

    out[v, ...] = max(var[v, ...], updates[i, ...] for all i with indices[i] = v)

Shapes: `var` (N, ...) of rank 1 to 8; `indices` of rank 0 to 7; `updates` the shape of `indices` and that of `var`
without its first axis, of rank 8 at most; `out` the shape of `var`.

Dtypes: `var` and `updates` have one dtype, float16, bfloat16, float or double, and `out` the same; `indices` int64 or
int32. The results are exact.

Edge rules: a slice whose index does not occur is copied. An index outside `[0, N)` is an error. NaN in `var` or in an
update propagates to the maximum. Among equal values, 0 and -0 included, the first is kept.

Without a kernel: values are not checked; an index outside its range makes all of `out` NaN, and is an error of the
runtime if N is 0. The sign of a zero is that of any of the zeros.
""",
    inputs=(
        Input("var", "The tensor that is updated, (N, ...)."),
        Input("indices", "The slice that each update belongs to.", dtypes=INDICES),
        Input("updates", "The updates.", like="var"),
    ),
    outputs=(Output("out", "The maxima, (N, ...).", "var"),),
)


def reference(
    var: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """The definition in NumPy.

    Args:
        var: floating array (N, ...).
        indices: whole numbers in [0, N).
        updates: floating array of the shape of indices and that of var without its first axis.
        dtype: dtype of the result instead of var's.

    Returns:
        Array of var's shape.
    """
    out = var.astype(np.float64)
    with np.errstate(invalid="ignore"):
        np.maximum.at(out, indices, updates.astype(np.float64))
    return rounded(out, var.dtype, dtype)


# --- the kernel: one task for some slices of `out`, and some of their numbers -----------------------------------------

VAR, INDEX, UPDATES = range(3)


@helper
def updates_fit(job: Job) -> bool:
    """Whether the shape of the updates is that of the indices and that of a slice."""
    rank = job.rank[INDEX]
    fit = job.rank[VAR] > 0 and job.rank[UPDATES] == rank + job.rank[VAR] - 1
    if fit:
        fit = same_sizes(job, UPDATES, INDEX, rank)
        for axis in range(1, job.rank[VAR]):
            fit = fit and job.dims[UPDATES, rank + axis - 1] == job.dims[VAR, axis]
    return bool(fit)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes and indices."""
    if not updates_fit(job):
        return REFUSED
    rows, count, width = job.dims[VAR, 0], size_of(job, INDEX), volume(job, VAR, 1, job.rank[VAR])
    if not indices_fit(kernel, job, INDEX, count, rows):
        return REFUSED
    give_shape(job, 0, VAR)
    job.tasks = tasks_of_rows(rows, width, count)
    job.scratch_bytes = 0 if job.tasks == 0 else links_bytes(kernel, INDEX, rows, count)
    return OK


def begin(kernel: Kernel, job: Job) -> None:
    if job.scratch_bytes > 0:
        link_places(kernel, job, INDEX, job.dims[VAR, 0], size_of(job, INDEX))


@helper
def keep_larger(largest: Array, numbers: Array, count: int) -> None:
    for j in range(count):
        own, other = largest[j], numbers[j]
        largest[j] = choose(other > own or other != other, other, own)


def task(job: Job, number: int) -> None:
    """Some numbers of some slices."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, size = kernel.element_type[VAR], item_size(kernel.element_type[VAR])
    rows, count, width = job.dims[VAR, 0], size_of(job, INDEX), volume(job, VAR, 1, job.rank[VAR])
    first, following = links(kernel, job, INDEX, rows, count)
    parts, step = ceil_divide(width, COLUMNS), rows_per_task(rows, width, count)
    start, column = number // parts * step, number % parts * COLUMNS
    columns = min(COLUMNS, width - column)

    memory, largest, numbers = allocate((COLUMNS, np.float32), (COLUMNS, np.float32))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for v in range(start, min(start + step, rows)):
        target = job.output[0] + (v * width + column) * size
        if job.output[0] != job.data[VAR]:
            halves = columns * (size // 2)
            copy = array_at(target, halves, np.uint16)
            given = array_at(job.data[VAR] + (v * width + column) * size, halves, np.uint16)
            for j in range(halves):
                copy[j] = given[j]
        i = first[v]
        if i == NONE:
            continue
        if element_type != FLOAT and element_type != DOUBLE:
            read_floats(target, element_type, columns, address_of(largest))
        while i != NONE:
            source = job.data[UPDATES] + (i * width + column) * size
            if element_type == FLOAT:
                keep_larger(array_at(target, columns, np.float32), array_at(source, columns, np.float32), columns)
            elif element_type == DOUBLE:
                keep_larger(array_at(target, columns, np.float64), array_at(source, columns, np.float64), columns)
            else:
                read_floats(source, element_type, columns, address_of(numbers))
                keep_larger(largest, numbers, columns)
            i = following[i]
        if element_type != FLOAT and element_type != DOUBLE:
            write_floats(address_of(largest), element_type, columns, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, begin, in_place=(("var", "out"),))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """ScatterElements takes NaN for any number: where an update is NaN is counted apart."""
    b.widen()
    var = b.load("var")
    slice_shape = b.op("Shape", var, name="slice_shape", start=1)
    indices = b.op("Reshape", b.load_as("indices", TensorProto.INT64), [-1], name="flat_indices")
    fits = (indices.greater_or_equal(0) & indices.less(b.op("Shape", var, name="rows", end=1))).named("fits")
    misfits = b.op("ReduceSum", (~fits).cast(TensorProto.INT64), name="misfits", keepdims=0)
    places = b.op("Where", fits, indices, 0, name="places")
    number = b.op("Shape", places, name="number")
    shape = b.op("Concat", number, slice_shape, name="updates_shape", axis=0)
    updates = b.op("Reshape", b.load("updates"), shape, name="updates_by_place", allowzero=1)
    ones = b.op("Expand", [1], b.op("Shape", slice_shape), name="ones")
    column = b.op("Reshape", places, b.op("Concat", number, ones, axis=0), name="indices_column", allowzero=1)
    index = b.op("Expand", column, shape, name="index")

    def scattered(start: Value, values: Value, name: str, reduction: str) -> Value:
        return b.op("ScatterElements", start, index, values, name=name, axis=0, reduction=reduction)

    largest = scattered(var, updates, "largest", "max")
    invalid = scattered(
        b.op("IsNaN", var).cast(TensorProto.INT64), b.op("IsNaN", updates).cast(TensorProto.INT64), "invalid", "add"
    )
    b.store("out", b.op("Where", (invalid + misfits).equal(0), largest, np.nan, name="maxima"), "var")


def infer(call: Call) -> tuple[TensorType, ...]:
    var, indices = call.shape("var"), call.shape("indices")
    if var == ():
        raise call.shape_error("var", "at least 1 dimension")
    if var is not None and indices is not None:
        if len(indices) + len(var) - 1 > MAX_RANK:
            raise call.shape_error("indices", f"at most {MAX_RANK + 1 - len(var)} dimensions, for 'updates' to have 8")
        what = "the shape of 'indices' and that of 'var' without its first axis"
        call.same_shape("updates", (*indices, *var[1:]), what)
    return (TensorType(call.dtype("var"), var),)


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    var = arrays[VAR]
    assert var is not None
    check_indices(call, "indices", arrays[INDEX], var.shape[0], "slices")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "var": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
            "indices": [2, 0, 2],
            "updates": [[0.5, 9.0], [1.5, -1.0], [7.0, 8.0]],
        },
        {"out": [[1.5, 2.0], [3.0, 4.0], [7.0, 9.0]]},
    ),
    check_values=check_values,
    body_opset=18,  # ScatterElements has maxima from opset 18 on
)
