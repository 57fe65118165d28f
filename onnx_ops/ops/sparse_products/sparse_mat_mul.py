"""SparseMatMul: product of sparse matrices in coordinate format with dense ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Default, Input, Output, Signature
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
from onnx_ops.loops.primitives import Array, ceil_divide, helper, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attributes_of
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
from onnx_ops.ops.row_tasks import COLUMNS, is_narrow, rows_per_task, tasks_of_rows
from onnx_ops.ops.sparse_products._coordinates import check_coordinates, check_dense, fits

SIGNATURE = Signature(
    "SparseMatMul",
    """
Products of sparse matrices, whose elements are given by their coordinates (COO format), with dense ones. In a graph
network each node gets the weighted sum of the rows of its neighbours: the elements of the sparse matrix are the edges.

    out[i, h, d] = sum of values[e, h] * dense[column[e], h, d] over all e with row[e] = i

There is a sparse matrix for each index h, and all have the same coordinates. Elements with the same coordinates add up.
This is also the gradient with respect to `dense`, with `row` and `column` exchanged, and SampledMatMul the one with
respect to `values`.

Shapes: `dense` (N, ..., D) of rank 2 to 8, where `...` are the axes of h, if any; `row` and `column` (E); `values`
(E, ...), or a scalar for all elements; `out` (M, ..., D), where M is `num_rows`, or N if that is -1.

Dtypes: `dense` and `values` have one dtype, float16, bfloat16, float or double, and `out` the same; `row` and `column`
each int64 or int32. Computed in double, in the order of the elements, and rounded once; the sums do not depend on the
number of threads.

Edge rules: a row without elements is 0, and so are all of `out` if E is 0. An index outside `[0, M)` in `row` or
`[0, N)` in `column` is an error, as is `num_rows` above 2147483647. NaN and infinities propagate as in the sum.

Without a kernel: values are not checked; an index outside its range makes all of `out` NaN. The order of summation is
that of the runtime's ScatterElements.
""",
    inputs=(
        Input("dense", "Dense matrices, (N, ..., D)."),
        Input("row", "The row of each element, (E).", dtypes=INDICES),
        Input("column", "The column of each element, (E).", dtypes=INDICES),
        Input("values", "The elements, (E, ...) or a scalar.", like="dense", default=Default(1.0)),
    ),
    outputs=(Output("out", "The products, (M, ..., D).", "dense"),),
    attributes=(attribute("num_rows", -1, "Number of rows of the sparse matrices; -1: as many as `dense` has."),),
)


def reference(
    dense: np.ndarray,
    row: np.ndarray,
    column: np.ndarray,
    values: np.ndarray | None = None,
    *,
    num_rows: int = -1,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """The definition in NumPy, in float64.

    Args:
        dense: floating array (N, ..., D).
        row, column: whole numbers (E) in [0, M) and in [0, N).
        values: floating array (E, ...), or a scalar; None: ones.
        num_rows: M; -1: N.
        dtype: dtype of the result instead of dense's.

    Returns:
        Array (M, ..., D).
    """
    out = np.zeros((dense.shape[0] if num_rows < 0 else num_rows, *dense.shape[1:]))
    factors = np.ones(()) if values is None else values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(out, row, factors[..., None] * dense[column].astype(np.float64))
    return rounded(out, dense.dtype, dtype)


# --- the kernel: one task for some rows, and some columns, of `out` ---------------------------------------------------

DENSE, ROW, COLUMN, VALUES = range(4)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
GROUP = 4
"""Rows that are added at a time."""


@helper
def values_fit(kernel: Kernel, job: Job) -> bool:
    """Whether there is a value for each element and index h, or one for all."""
    if kernel.element_type[VALUES] == 0 or job.rank[VALUES] == 0:
        return True
    fit = job.rank[VALUES] == job.rank[DENSE] - 1 and job.dims[VALUES, 0] == job.dims[ROW, 0]
    for axis in range(1, job.rank[VALUES]):
        fit = fit and job.dims[VALUES, axis] == job.dims[DENSE, axis]
    return bool(fit)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes and indices."""
    rank = job.rank[DENSE]
    if rank < 2 or job.rank[ROW] != 1 or not same_shape(job, COLUMN, ROW) or not values_fit(kernel, job):
        return REFUSED
    rows = record_at(kernel.attributes, ATTRIBUTES).num_rows
    if rows < 0:
        rows = job.dims[DENSE, 0]
    count, width = job.dims[ROW, 0], volume(job, DENSE, 1, rank)
    if not indices_fit(kernel, job, ROW, count, rows) or not indices_fit(
        kernel, job, COLUMN, count, job.dims[DENSE, 0]
    ):
        return REFUSED
    job.output_rank[0] = rank
    job.output_dims[0, 0] = rows
    for axis in range(1, rank):
        job.output_dims[0, axis] = job.dims[DENSE, axis]
    indices = widened_bytes(kernel, ROW, count) + widened_bytes(kernel, COLUMN, count)
    if rows * width == 0:
        job.tasks, job.scratch_bytes = 0, 0
    elif is_narrow(rows, width, count):
        job.tasks, job.scratch_bytes = 1, indices + 8 * rows * width
    else:
        job.tasks = tasks_of_rows(rows, width, count)
        job.scratch_bytes = indices + 8 * (rows + 1 + 2 * count)
    return OK


@helper
def memory_of_columns(kernel: Kernel, job: Job, count: int) -> int:
    return int(job.scratch + widened_bytes(kernel, ROW, count))


@helper
def memory_of_sums(kernel: Kernel, job: Job, count: int) -> int:
    """Where the scratch memory has more than indices."""
    return int(memory_of_columns(kernel, job, count) + widened_bytes(kernel, COLUMN, count))


def begin(kernel: Kernel, job: Job) -> None:
    """Into the scratch memory: the elements by row (CSR format), each with its column, and its value or number."""
    rows, count, width = job.output_dims[0, 0], job.dims[ROW, 0], volume(job, DENSE, 1, job.rank[DENSE])
    if job.scratch_bytes == 0:
        return
    write_widened(kernel, job, ROW, count, job.scratch)
    write_widened(kernel, job, COLUMN, count, memory_of_columns(kernel, job, count))
    if is_narrow(rows, width, count):
        return
    row = widened(kernel, job, ROW, count, job.scratch)
    column = widened(kernel, job, COLUMN, count, memory_of_columns(kernel, job, count))
    memory = memory_of_sums(kernel, job, count)
    ends, columns = array_at(memory, rows + 1, np.int64), array_at(memory + 8 * (rows + 1), count, np.int64)
    numbers = array_at(memory + 8 * (rows + 1 + count), count, np.int64)
    for v in range(rows + 1):
        ends[v] = 0
    for e in range(count):
        ends[row[e] + 1] += 1
    for v in range(rows):
        ends[v + 1] += ends[v]
    # ends[v] is where row v begins, and, once its elements are entered, where it ends.
    if kernel.element_type[DENSE] == FLOAT and width == job.dims[DENSE, job.rank[DENSE] - 1]:
        factors = array_at(memory + 8 * (rows + 1 + count), count, np.float64)
        step = 0 if kernel.element_type[VALUES] == 0 or job.rank[VALUES] == 0 else 1
        one = value_of_all(kernel, job)
        values = array_at(job.data[VALUES], count, np.float32)
        for e in range(count):
            at = ends[row[e]]
            columns[at], ends[row[e]] = column[e], at + 1
            factors[at] = values[e] if step == 1 else one
        return
    for e in range(count):
        at = ends[row[e]]
        columns[at], numbers[at], ends[row[e]] = column[e], e, at + 1


@helper
def value_of_all(kernel: Kernel, job: Job) -> float:
    """The value of all elements, where they have the same."""
    if kernel.element_type[VALUES] == 0 or job.rank[VALUES] != 0:
        return 1.0
    memory, value = allocate((1, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return 1.0
    read_numbers(kernel.read, job.data[VALUES], kernel.element_type[VALUES], 1, address_of(value))
    found = float(value[0])
    free(memory)
    return found


@helper
def read_factors(kernel: Kernel, job: Job, e: int, first: int, last: int, heads: int, factors: Array) -> None:
    """The values of an element for h in [first, last), of `heads`."""
    element_type = kernel.element_type[VALUES]
    if element_type == 0 or job.rank[VALUES] == 0:  # they are there already
        return
    source = job.data[VALUES] + (e * heads + first) * item_size(element_type)
    if element_type == FLOAT:
        numbers = array_at(source, last - first, np.float32)
        for h in range(last - first):
            factors[h] = numbers[h]
    else:
        read_numbers(kernel.read, source, element_type, last - first, address_of(factors))


@helper
def add_rows(
    sums: Array, a: Array, b: Array, c: Array, d: Array, column: int, columns: int, length: int, factors: Array
) -> None:
    """Add columns [column, column + columns) of GROUP rows, each times the factor of its h."""
    h, begin, end = 0, 0, min((column // length + 1) * length - column, columns)
    while begin < columns:
        f, g, i, j = factors[h], factors[COLUMNS + h], factors[2 * COLUMNS + h], factors[3 * COLUMNS + h]
        for k in range(begin, end):
            sums[k] = sums[k] + f * a[k] + g * b[k] + i * c[k] + j * d[k]
        begin, end, h = end, min(end + length, columns), h + 1


@helper
def add_row(sums: Array, row: Array, column: int, columns: int, length: int, factors: Array) -> None:
    """Add columns [column, column + columns) of a row, each times the factor of its h."""
    h, begin, end = 0, 0, min((column // length + 1) * length - column, columns)
    while begin < columns:
        factor = factors[h]
        for k in range(begin, end):
            sums[k] += factor * row[k]
        begin, end, h = end, min(end + length, columns), h + 1


@helper
def add_floats(
    sums: Array, dense: int, width: int, columns: int, sources: Array, factors: Array, k: int, end: int
) -> None:
    """Add rows [k, end) of `sources`, each times its factor, to float64 sums.

    Args:
        dense: address of the first column of the float32 rows, which are `width` apart.
    """
    step = 4 * width
    while k + GROUP <= end:
        a = array_at(dense + step * sources[k], columns, np.float32)
        b = array_at(dense + step * sources[k + 1], columns, np.float32)
        c = array_at(dense + step * sources[k + 2], columns, np.float32)
        d = array_at(dense + step * sources[k + 3], columns, np.float32)
        f, g, h, i = factors[k], factors[k + 1], factors[k + 2], factors[k + 3]
        for j in range(columns):
            sums[j] = sums[j] + f * a[j] + g * b[j] + h * c[j] + i * d[j]
        k += GROUP
    while k < end:
        a = array_at(dense + step * sources[k], columns, np.float32)
        f = factors[k]
        for j in range(columns):
            sums[j] += f * a[j]
        k += 1


@helper
def add_all(kernel: Kernel, job: Job, row: Array, column: Array, sums: Array, numbers: Array, factors: Array) -> None:
    """All narrow sums."""
    element_type, rank = kernel.element_type[DENSE], job.rank[DENSE]
    width, length, count = volume(job, DENSE, 1, rank), job.dims[DENSE, rank - 1], job.dims[ROW, 0]
    heads, scaled = width // length, kernel.element_type[VALUES] != 0 and job.rank[VALUES] != 0
    for i in range(job.output_dims[0, 0] * width):
        sums[i] = 0.0
    if heads == 1 and element_type == FLOAT:
        dense, values = array_at(job.data[DENSE], 1, np.float32), array_at(job.data[VALUES], count, np.float32)
        factor = factors[0]
        for e in range(count):
            if scaled:
                factor = wide(values[e])
            place, source = row[e] * width, column[e] * width
            for j in range(width):
                sums[place + j] += factor * dense[source + j]
        return
    for e in range(count):
        source = job.data[DENSE] + column[e] * width * item_size(element_type)
        own = tail(sums, row[e] * width)
        read_factors(kernel, job, e, 0, heads, heads, factors)
        if element_type == FLOAT:
            add_row(own, array_at(source, width, np.float32), 0, width, length, factors)
        else:
            read_numbers(kernel.read, source, element_type, width, address_of(numbers))
            add_row(own, numbers, 0, width, length, factors)


def task(job: Job, number: int) -> None:
    """Some columns of some rows."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, size = kernel.element_type[DENSE], item_size(kernel.element_type[DENSE])
    rank, rows, count = job.rank[DENSE], job.output_dims[0, 0], job.dims[ROW, 0]
    width, length = volume(job, DENSE, 1, rank), job.dims[DENSE, rank - 1]
    heads, parts, step = width // length, ceil_divide(width, COLUMNS), rows_per_task(rows, width, count)
    start, column = number // parts * step, number % parts * COLUMNS
    columns = min(COLUMNS, width - column)
    memory, sums, numbers, factors = allocate(
        (COLUMNS, np.float64), (GROUP * COLUMNS, np.float64), (GROUP * COLUMNS, np.float64)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    one = value_of_all(kernel, job)
    for h in range(GROUP * COLUMNS):
        factors[h] = one
    scratch = memory_of_sums(kernel, job, count)
    if is_narrow(rows, width, count):
        row = widened(kernel, job, ROW, count, job.scratch)
        columns_of = widened(kernel, job, COLUMN, count, memory_of_columns(kernel, job, count))
        add_all(kernel, job, row, columns_of, array_at(scratch, rows * width, np.float64), numbers, factors)
        write_numbers(kernel.write, scratch, element_type, rows * width, job.output[0])
        free(memory)
        return
    first, last = column // length, ceil_divide(column + columns, length)
    ends, sources = array_at(scratch, rows + 1, np.int64), array_at(scratch + 8 * (rows + 1), count, np.int64)
    elements = array_at(scratch + 8 * (rows + 1 + count), count, np.int64)
    values = array_at(scratch + 8 * (rows + 1 + count), count, np.float64)
    a, b, c, d = numbers, tail(numbers, COLUMNS), tail(numbers, 2 * COLUMNS), tail(numbers, 3 * COLUMNS)
    origin = job.data[DENSE] + column * size
    for v in range(start, min(start + step, rows)):
        for j in range(columns):
            sums[j] = 0.0
        k, end = ends[v - 1] if v > 0 else 0, ends[v]
        if element_type == FLOAT and heads == 1:
            add_floats(sums, origin, width, columns, sources, values, k, end)
            k = end
        while k < end:
            own = GROUP if k + GROUP <= end else 1
            for i in range(own):
                read_factors(kernel, job, elements[k + i], first, last, heads, tail(factors, i * COLUMNS))
                source = origin + sources[k + i] * width * size
                if element_type != FLOAT:
                    read_numbers(kernel.read, source, element_type, columns, address_of(tail(numbers, i * COLUMNS)))
                elif own == 1:
                    add_row(sums, array_at(source, columns, np.float32), column, columns, length, factors)
            if element_type == FLOAT and own != 1:
                add_rows(
                    sums,
                    array_at(origin + sources[k] * width * size, columns, np.float32),
                    array_at(origin + sources[k + 1] * width * size, columns, np.float32),
                    array_at(origin + sources[k + 2] * width * size, columns, np.float32),
                    array_at(origin + sources[k + 3] * width * size, columns, np.float32),
                    column,
                    columns,
                    length,
                    factors,
                )
            elif element_type != FLOAT:
                if own == 1:
                    add_row(sums, numbers, column, columns, length, factors)
                else:
                    add_rows(sums, a, b, c, d, column, columns, length, factors)
            k += own
        target = job.output[0] + (v * width + column) * size
        if element_type == FLOAT:
            out = array_at(target, columns, np.float32)
            for j in range(columns):
                out[j] = np.float32(sums[j])
        else:
            write_numbers(kernel.write, address_of(sums), element_type, columns, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, begin)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """What elements with indices out of range would get goes into one more row, which is cut off."""
    b.widen()
    dense, row, column = b.load("dense"), b.load_as("row", TensorProto.INT64), b.load_as("column", TensorProto.INT64)
    shape = b.op("Shape", dense, name="shape")
    own_rows = b.op("Slice", shape, [0], [1], name="own_rows")
    given = b.value_of("num_rows")
    rows = b.op("Where", given.less(0), own_rows, given, name="rows")
    known = fits(column, own_rows, "column")
    kept = (known & fits(row, rows, "row")).named("kept")
    neighbours = b.op("Gather", dense, b.op("Where", known, column, 0, name="columns"), name="neighbours", axis=0)
    factors = b.op("Unsqueeze", b.load("values"), [-1], name="factors") if b.has("values") else 1.0
    terms = (neighbours * factors).named("terms")
    misfits = b.op("ReduceSum", (~kept).cast(TensorProto.INT64), name="misfits", keepdims=0)
    start = b.op("Where", misfits.equal(0), 0.0, np.nan, name="start")
    rest = b.op("Slice", shape, [1], [2**31], name="rest")
    begun = b.op("Expand", start, b.op("Concat", rows + 1, rest, axis=0), name="begun")
    ones = b.op("Expand", 1, b.op("Shape", rest), name="ones")
    places = b.op("Reshape", b.op("Where", kept, row, rows), b.op("Concat", [-1], ones, axis=0), name="places")
    own = b.op("Expand", places, b.op("Shape", terms), name="own_places")
    total = b.op("ScatterElements", begun, own, terms, name="sums_and_one", axis=0, reduction="add")
    b.store("out", b.op("Slice", total, [0], rows, [0], name="sums"), "dense")


def infer(call: Call) -> tuple[TensorType, ...]:
    call.check_range("num_rows", -1)
    check_dense(call, "dense")
    count, dense = check_coordinates(call), call.shape("dense")
    if call.shape("values") != ():
        call.same_shape("values", None if dense is None else (count, *dense[1:-1]), "or a scalar")
    rows = call.attributes["num_rows"]
    if dense is None:
        return (TensorType(call.dtype("dense"), None),)
    return (TensorType(call.dtype("dense"), (dense[0] if rows < 0 else rows, *dense[1:])),)


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    columns = np.asarray(arrays[DENSE]).shape[0]
    rows = call.attributes["num_rows"]
    check_indices(call, "row", arrays[ROW], columns if rows < 0 else rows, "a row")
    check_indices(call, "column", arrays[COLUMN], columns, "a row of 'dense'")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "dense": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
            "row": [0, 0, 2, 2],
            "column": [1, 2, 0, 0],
            "values": [2.0, -1.0, 1.0, 0.5],
        },
        {"out": [[1.0, 2.0], [0.0, 0.0], [1.5, 3.0]]},
    ),
    check_values=check_values,
    body_opset=16,  # ScatterElements adds up from opset 16 on
)
