"""EmbeddingDenseBackward: gradient of a lookup of rows by the table that the rows come from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute, required_attribute
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.graph.builder import Value
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
    write_numbers,
)
from onnx_ops.loops.primitives import Array, ceil_divide, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import same_sizes, size_of
from onnx_ops.ops.indices import (
    INDICES,
    NONE,
    check_indices,
    indices_fit,
    link_places,
    links,
    links_bytes,
    widened,
    widened_bytes,
    write_widened,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.row_tasks import COLUMNS, NARROW, is_narrow, rows_per_task, tasks_of_rows

SIGNATURE = Signature(
    "EmbeddingDenseBackward",
    """
Gradient of an embedding, a lookup of rows of a table, with respect to the table (aclnnEmbeddingDenseBackward). Each row
of the table gets the sum of the gradients at all places where it was looked up.

    out[v, d] = sum of grad[i, d] over all i with indices[i] = v
                0  for v = padding_idx

With `scale_grad_by_freq` 1 the sum is divided by the number of its terms.

Shapes: `indices` of any shape of rank 0 to 7; `grad` (..., D), the shape of `indices` and one more axis; `out`
(num_weights, D).

Dtypes: `grad` float16, bfloat16, float or double, and `out` the same; `indices` int64 or int32. Sums are computed in
double, always in the order of `indices`, and rounded once; they do not depend on the number of threads.

Edge rules: a row that was not looked up gets 0. `padding_idx` -1: no row is excluded. Without indices, with
`num_weights` 0 and with D = 0 nothing is summed. An index outside `[0, num_weights)` is an error, as is a `num_weights`
above 2147483647. NaN and infinities propagate as in the sum, except for the row `padding_idx`, which is 0.

Without a kernel: values are not checked; an index outside its range makes all of `out` NaN. The order of summation is
that of the runtime's ScatterElements.
""",
    inputs=(
        Input("grad", "Gradient of the loss with respect to the rows that were looked up, (..., D)."),
        Input("indices", "The row looked up at each place.", dtypes=INDICES),
    ),
    outputs=(Output("out", "Gradient of the loss with respect to the table, (num_weights, D).", "grad"),),
    attributes=(
        required_attribute("num_weights", OpSchema.AttrType.INT, "Number of rows of the table."),
        attribute("padding_idx", -1, "A row without a gradient; -1: none."),
        attribute("scale_grad_by_freq", 0, "1: divide each row by the number of times that it was looked up."),
    ),
)


def reference(
    grad: np.ndarray,
    indices: np.ndarray,
    *,
    num_weights: int,
    padding_idx: int = -1,
    scale_grad_by_freq: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """The definition in NumPy, in float64.

    Args:
        grad: floating array (..., D).
        indices: whole numbers (...) in [0, num_weights).
        num_weights, padding_idx, scale_grad_by_freq: as in the schema.
        dtype: dtype of the result instead of grad's.

    Returns:
        Array (num_weights, D).
    """
    rows, width = indices.reshape(-1), grad.shape[-1]
    out = np.zeros((num_weights, width))
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(out, rows, grad.reshape(rows.size, width).astype(np.float64))
        if scale_grad_by_freq:
            out /= np.maximum(np.bincount(rows, minlength=num_weights), 1)[:, None]
    if padding_idx >= 0:
        out[padding_idx] = 0
    return rounded(out, grad.dtype, dtype)


# --- the kernel: one task for some rows of the table, and some columns -----------------------------------------------

GRAD, INDEX = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


@helper
def makes_all_sums(kernel: Kernel, rows: int, width: int, count: int) -> bool:
    """Whether one task makes all sums in the order of `indices`."""
    scaled = record_at(kernel.attributes, ATTRIBUTES).scale_grad_by_freq != 0
    return bool(is_narrow(rows, width, count) and not scaled)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes and indices."""
    rows = record_at(kernel.attributes, ATTRIBUTES).num_weights
    if job.rank[GRAD] != job.rank[INDEX] + 1 or not same_sizes(job, GRAD, INDEX, job.rank[INDEX]):
        return REFUSED
    count, width = size_of(job, INDEX), job.dims[GRAD, job.rank[INDEX]]
    if not indices_fit(kernel, job, INDEX, count, rows):
        return REFUSED
    job.output_rank[0] = 2
    job.output_dims[0, 0], job.output_dims[0, 1] = rows, width
    job.tasks = tasks_of_rows(rows, width, count)
    if job.tasks == 0:
        job.scratch_bytes = 0
    elif makes_all_sums(kernel, rows, width, count):
        job.tasks, job.scratch_bytes = 1, widened_bytes(kernel, INDEX, count) + 8 * rows * width
    else:
        job.scratch_bytes = links_bytes(kernel, INDEX, rows, count)
    return OK


def begin(kernel: Kernel, job: Job) -> None:
    if job.scratch_bytes == 0:
        return
    rows, width, count = job.output_dims[0, 0], job.output_dims[0, 1], size_of(job, INDEX)
    if makes_all_sums(kernel, rows, width, count):
        write_widened(kernel, job, INDEX, count, job.scratch)
    else:
        link_places(kernel, job, INDEX, rows, count)


@helper
def add_all(kernel: Kernel, job: Job, count: int, width: int, indices: Array, sums: Array, numbers: Array) -> None:
    """All narrow sums, but for rows of padding."""
    element_type = kernel.element_type[GRAD]
    for i in range(job.output_dims[0, 0] * width):
        sums[i] = 0.0
    if element_type == FLOAT:
        grad = array_at(job.data[GRAD], 1, np.float32)
        for i in range(count):
            place, source = indices[i] * width, i * width
            for j in range(width):
                sums[place + j] += grad[source + j]
        return
    for start in range(0, count, COLUMNS // NARROW):
        own = min(count - start, COLUMNS // NARROW)
        source = job.data[GRAD] + start * width * item_size(element_type)
        read_numbers(kernel.read, source, element_type, own * width, address_of(numbers))
        for i in range(own):
            place = indices[start + i] * width
            for j in range(width):
                sums[place + j] += numbers[i * width + j]


def task(job: Job, number: int) -> None:
    """Some columns of some rows."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    element_type, size = kernel.element_type[GRAD], item_size(kernel.element_type[GRAD])
    rows, width, count = job.output_dims[0, 0], job.output_dims[0, 1], size_of(job, INDEX)
    parts, step = ceil_divide(width, COLUMNS), rows_per_task(rows, width, count)
    start, column = number // parts * step, number % parts * COLUMNS
    columns = min(COLUMNS, width - column)
    halves = columns * (size // 2)  # 16-bit words, of which copies and zeros are made

    memory, sums, numbers = allocate((COLUMNS, np.float64), (COLUMNS, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    if makes_all_sums(kernel, rows, width, count):
        scratch = job.scratch + widened_bytes(kernel, INDEX, count)
        all_sums = array_at(scratch, rows * width, np.float64)
        add_all(kernel, job, count, width, widened(kernel, job, INDEX, count, job.scratch), all_sums, numbers)
        if attributes.padding_idx != NONE:
            for j in range(width):
                all_sums[attributes.padding_idx * width + j] = 0.0
        write_numbers(kernel.write, scratch, element_type, rows * width, job.output[0])
        free(memory)
        return
    first, following = links(kernel, job, INDEX, rows, count)
    for v in range(start, min(start + step, rows)):
        target = job.output[0] + (v * width + column) * size
        i = first[v]
        if i == NONE or v == attributes.padding_idx:
            zeros = array_at(target, halves, np.uint16)
            for j in range(halves):
                zeros[j] = 0
            continue
        source = job.data[GRAD] + (i * width + column) * size
        if following[i] == NONE:
            copy, given = array_at(target, halves, np.uint16), array_at(source, halves, np.uint16)
            for j in range(halves):
                copy[j] = given[j]
            continue
        for j in range(columns):
            sums[j] = 0.0
        terms = 0
        while i != NONE:
            source = job.data[GRAD] + (i * width + column) * size
            if element_type == FLOAT:
                row = array_at(source, columns, np.float32)
                for j in range(columns):
                    sums[j] += row[j]
            else:
                read_numbers(kernel.read, source, element_type, columns, address_of(numbers))
                for j in range(columns):
                    sums[j] += numbers[j]
            terms += 1
            i = following[i]
        if attributes.scale_grad_by_freq != 0:
            for j in range(columns):
                sums[j] /= terms
        write_numbers(kernel.write, address_of(sums), element_type, columns, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, begin)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """What the row padding_idx and indices out of range would get goes into one more row, which is cut off."""
    b.widen()
    indices = b.op("Reshape", b.load_as("indices", TensorProto.INT64), [-1, 1], name="indices_column")
    number = b.op("Shape", indices, name="number", end=1)
    width = b.op("Shape", b.inputs["grad"], name="width", start=-1)
    grad = b.op("Reshape", b.load("grad"), b.op("Concat", number, width, axis=0), name="grad_rows", allowzero=1)
    rows = b.value_of("num_weights")
    fits = (indices.greater_or_equal(0) & indices.less(rows)).named("fits")
    counts = (fits & ~indices.equal(b.value_of("padding_idx"))).named("counts")
    places = b.op("Where", counts, indices, rows, name="places")
    number_of_rows = b.op("Reshape", rows, [1], name="number_of_rows")

    def added(values: Value, start: Value, name: str) -> Value:
        """The sum of the values of each row of the table, upon a start."""
        columns = b.op("Shape", values, name=f"{name}_columns", start=1)
        shape = b.op("Concat", number_of_rows + 1, columns, name=f"{name}_shape", axis=0)
        begun = b.op("Expand", start, shape, name=f"{name}_begun")
        own = b.op("Expand", places, b.op("Shape", values), name=f"{name}_places")
        total = b.op("ScatterElements", begun, own, values, name=f"{name}_and_one", axis=0, reduction="add")
        return b.op("Slice", total, [0], number_of_rows, [0], name=name)

    misfits = b.op("ReduceSum", (~fits).cast(TensorProto.INT64), name="misfits", keepdims=0)
    sums = added(grad, b.op("Where", misfits.equal(0), 0.0, np.nan, name="start"), "sums")
    scale = b.attribute("scale_grad_by_freq")
    if scale != 0:
        ones = b.op("Expand", 1.0, b.op("Shape", indices), name="ones")
        terms = b.op("Max", added(ones, b.constant(0.0), "terms"), 1.0, name="terms_or_one")
        if scale is None:
            terms = b.op("Where", b.value_of("scale_grad_by_freq").cast(TensorProto.BOOL), terms, 1.0, name="divisor")
        sums = (sums / terms).named("means")
    b.store("out", sums, "grad")


def infer(call: Call) -> tuple[TensorType, ...]:
    rows, padding = call.attributes["num_weights"], call.attributes["padding_idx"]
    call.check_range("num_weights", 0)
    if not NONE <= padding < max(rows, 1):
        raise call.error(f"attribute 'padding_idx' is {padding}, expected a row in [0, {rows}), or -1 for none")
    call.check_choice("scale_grad_by_freq", {0: "no", 1: "yes"})
    grad, indices = call.shape("grad"), call.shape("indices")
    if grad == ():
        raise call.shape_error("grad", "the shape of 'indices' and one more axis")
    if grad is not None:
        call.same_shape("indices", grad[:-1], "the shape of 'grad' without its last axis")
    if indices is not None and len(indices) == MAX_RANK:
        raise call.shape_error("indices", f"at most {MAX_RANK - 1} dimensions")
    return (TensorType(call.dtype("grad"), (rows, grad[-1] if grad else None)),)


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    rows = call.attributes["num_weights"]
    check_indices(call, "indices", arrays[INDEX], rows, "rows")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], "indices": [2, 0, 2, 1]},
        {"out": [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]},
        {"num_weights": 3, "padding_idx": 1},
    ),
    check_values=check_values,
    body_opset=16,  # ScatterElements adds up from opset 16 on
)
