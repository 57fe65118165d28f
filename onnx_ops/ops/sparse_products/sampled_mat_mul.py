"""SampledMatMul: the elements of a product of dense matrices at given coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    FLOAT,
    address_of,
    allocate,
    array_at,
    free,
    item_size,
    read_numbers,
    record_at,
    tail,
    write_numbers,
)
from onnx_ops.loops.primitives import Array, add_any_order, ceil_divide, helper, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel
from onnx_ops.loops.shapes import same_shape, volume
from onnx_ops.ops.indices import (
    INDICES,
    check_indices,
    indices_fit,
    widened,
    widened_bytes,
    write_widened,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.sparse_products._coordinates import check_coordinates, check_dense, fits

SIGNATURE = Signature(
    "SampledMatMul",
    """
The elements at given coordinates of the product of a dense matrix and a transposed one (sampled dense-dense matrix
multiplication). In a graph network each edge gets the dot product of rows of the two nodes that it connects.

    out[e, h] = sum of left[row[e], h, d] * right[column[e], h, d] over all d

There is a product for each index h. It is the gradient of SparseMatMul with respect to `values`; its own gradients with
respect to `left` and `right` are SparseMatMul.

Shapes: `left` (M, ..., D) and `right` (N, ..., D) of rank 2 to 8, where `...` are the axes of h, if any; `row` and
`column` (E); `out` (E, ...).

Dtypes: `left` and `right` have one dtype, float16, bfloat16, float or double, and `out` the same; `row` and `column`
each int64 or int32. Computed in double and rounded once. The order of summation is fixed and does not depend on the
number of threads.

Edge rules: with D = 0 all of `out` is 0. An index outside `[0, M)` in `row` or `[0, N)` in `column` is an error. NaN
and infinities propagate as in the sum.

Without a kernel: values are not checked; an element with an index outside its range is NaN. The order of summation is
that of the runtime's ReduceSum.
""",
    inputs=(
        Input("left", "Dense matrices, (M, ..., D)."),
        Input("right", "Dense matrices, (N, ..., D).", like="left"),
        Input("row", "The row of `left` for each element, (E).", dtypes=INDICES),
        Input("column", "The row of `right` for each element, (E).", dtypes=INDICES),
    ),
    outputs=(Output("out", "The elements, (E, ...).", "left"),),
)


def reference(
    left: np.ndarray,
    right: np.ndarray,
    row: np.ndarray,
    column: np.ndarray,
    *,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """The definition in NumPy, in float64.

    Args:
        left: floating array (M, ..., D).
        right: floating array (N, ..., D).
        row, column: whole numbers (E) in [0, M) and in [0, N).
        dtype: dtype of the result instead of left's.

    Returns:
        Array (E, ...).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        products = left[row].astype(np.float64) * right[column].astype(np.float64)
        return rounded(products.sum(axis=-1), left.dtype, dtype)


# --- the kernel: one task for some elements ---------------------------------------------------------------------------

LEFT, RIGHT, ROW, COLUMN = range(4)
WORK = 32768
"""Numbers that a task reads."""


@helper
def elements_per_task(width: int) -> int:
    return max(WORK // max(2 * width, 1), 1)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes and indices."""
    rank = job.rank[LEFT]
    if rank < 2 or job.rank[RIGHT] != rank or job.rank[ROW] != 1 or not same_shape(job, COLUMN, ROW):
        return REFUSED
    for axis in range(1, rank):
        if job.dims[LEFT, axis] != job.dims[RIGHT, axis]:
            return REFUSED
    count = job.dims[ROW, 0]
    if not indices_fit(kernel, job, ROW, count, job.dims[LEFT, 0]):
        return REFUSED
    if not indices_fit(kernel, job, COLUMN, count, job.dims[RIGHT, 0]):
        return REFUSED
    job.output_rank[0] = rank - 1
    job.output_dims[0, 0] = count
    for axis in range(1, rank - 1):
        job.output_dims[0, axis] = job.dims[LEFT, axis]
    heads = volume(job, LEFT, 1, rank - 1)
    job.tasks = 0 if heads == 0 else ceil_divide(count, elements_per_task(heads * job.dims[LEFT, rank - 1]))
    job.scratch_bytes = widened_bytes(kernel, ROW, count) + widened_bytes(kernel, COLUMN, count)
    return OK


@helper
def memory_of_columns(kernel: Kernel, job: Job, count: int) -> int:
    return int(job.scratch + widened_bytes(kernel, ROW, count))


def begin(kernel: Kernel, job: Job) -> None:
    count = job.dims[ROW, 0]
    write_widened(kernel, job, ROW, count, job.scratch)
    write_widened(kernel, job, COLUMN, count, memory_of_columns(kernel, job, count))


@helper
def dot(a: Array, b: Array, count: int) -> Any:
    total = 0.0
    for k in range(count):
        total = add_any_order(total, wide(a[k]) * wide(b[k]))
    return total


def task(job: Job, number: int) -> None:
    """Some elements, for all h."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, size = kernel.element_type[LEFT], item_size(kernel.element_type[LEFT])
    rank, count = job.rank[LEFT], job.dims[ROW, 0]
    heads, length = volume(job, LEFT, 1, rank - 1), job.dims[LEFT, rank - 1]
    width = heads * length
    step = elements_per_task(width)
    memory, sums, lefts, rights = allocate((step * heads, np.float64), (width, np.float64), (width, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    row = widened(kernel, job, ROW, count, job.scratch)
    column = widened(kernel, job, COLUMN, count, memory_of_columns(kernel, job, count))
    start = number * step
    own = min(step, count - start)
    for e in range(own):
        left = job.data[LEFT] + row[start + e] * width * size
        right = job.data[RIGHT] + column[start + e] * width * size
        if element_type != FLOAT:
            read_numbers(kernel.read, left, element_type, width, address_of(lefts))
            read_numbers(kernel.read, right, element_type, width, address_of(rights))
        for h in range(heads):
            at = h * length
            if element_type == FLOAT:
                ahead = at * size
                found = dot(
                    array_at(left + ahead, length, np.float32), array_at(right + ahead, length, np.float32), length
                )
            else:
                found = dot(tail(lefts, at), tail(rights, at), length)
            sums[e * heads + h] = found
    target = job.output[0] + start * heads * size
    write_numbers(kernel.write, address_of(sums), element_type, own * heads, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, begin)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    b.widen()
    rows, known = [], []
    for name, indices in (("left", "row"), ("right", "column")):
        own, index = b.load(name), b.load_as(indices, TensorProto.INT64)
        known.append(fits(index, b.op("Shape", own, name=f"{name}_rows", end=1), indices))
        safe = b.op("Where", known[-1], index, 0, name=f"safe_{indices}")
        rows.append(b.op("Gather", own, safe, name=f"{name}_rows_of_elements", axis=0))
    sums = b.op("ReduceSum", rows[0] * rows[1], [-1], name="sums", keepdims=0)
    ones = b.op("Expand", 1, b.op("Shape", b.op("Shape", sums, start=1)), name="ones")
    kept = b.op("Reshape", known[0] & known[1], b.op("Concat", [-1], ones, axis=0), name="kept")
    b.store("out", b.op("Where", kept, sums, np.nan, name="elements"), "left", "right")


def infer(call: Call) -> tuple[TensorType, ...]:
    check_dense(call, "left")
    check_dense(call, "right")
    count, left, right = check_coordinates(call), call.shape("left"), call.shape("right")
    call.same_shape("right", None if left is None else (None, *left[1:]), "rows as in 'left'")
    shape = left or right
    return (TensorType(call.dtype("left"), None if shape is None else (count, *shape[1:-1])),)


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    check_indices(call, "row", arrays[ROW], np.asarray(arrays[LEFT]).shape[0], "a row of 'left'")
    check_indices(call, "column", arrays[COLUMN], np.asarray(arrays[RIGHT]).shape[0], "a row of 'right'")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "left": [[1.0, 2.0], [3.0, 4.0]],
            "right": [[1.0, -1.0], [0.5, 0.0], [2.0, 2.0]],
            "row": [0, 1, 1],
            "column": [2, 0, 1],
        },
        {"out": [6.0, -1.0, 1.5]},
    ),
    check_values=check_values,
    body_opset=16,
)
