"""SoftmaxBackward: gradient of softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    allocate,
    bfloats_at,
    doubles_at,
    floats_at,
    free,
    halves_at,
    item_size,
    read_row,
    record_at,
    write_row,
)
from onnx_ops.loops.primitives import Array, Number, add_any_order, helper, like
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.shapes import same_shape
from onnx_ops.ops.axes import axis_attributes, check_axis
from onnx_ops.ops.references import rounded
from onnx_ops.ops.softmax._vectors import (
    LAYOUT,
    Vectors,
    place_of,
    write_vectors,
)

SIGNATURE = Signature(
    "SoftmaxBackward",
    """
Gradient of softmax along an axis (aclnnSoftmaxBackward).

    grad_input = output * (grad_output - sum of grad_output * output)

where the sum is over the axis `dim`.

Shapes: `grad_output`, `output` and `grad_input` have the same shape, of rank 1 to 8.

Dtypes: all have one dtype, float16, bfloat16, float or double. Computed in double if that is double, else in float, and
rounded once. The order of summation is fixed and does not depend on the number of threads.

Edge rules: NaN and infinities propagate as in the formula. Empty inputs give an empty output.

Without a kernel: the order of summation is that of the runtime's ReduceSum. Shapes known only at run time are not
checked.
""",
    inputs=(
        Input("grad_output", "Gradient of the loss with respect to the result of softmax."),
        Input("output", "The result of softmax.", like="grad_output"),
    ),
    outputs=(Output("grad_input", "Gradient of the loss with respect to the input of softmax.", "grad_output"),),
    attributes=tuple(axis_attributes()),
)


def reference(
    grad_output: np.ndarray, output: np.ndarray, *, dim: int = -1, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition, computed in float64.

    Args:
        grad_output, output: floating arrays of one shape.
        dim: the axis.
        dtype: dtype of the result instead of grad_output's.

    Returns:
        Array of the same shape.
    """
    grad, out = grad_output.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        return rounded(out * (grad - (grad * out).sum(axis=dim, keepdims=True)), grad_output.dtype, dtype)


GRAD, OUTPUT = range(2)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shape of the output; returns whether the shapes of the inputs fit."""
    return bool(same_shape(job, OUTPUT, GRAD) and write_vectors(address, job, 0))


PLAN = Layout(write_layout, LAYOUT.itemsize)


SHORT = 63
"""Length up to which it is faster to convert the 16-bit numbers of many vectors at once than within each."""


@helper
def _converts(layout: Vectors, element_type: int) -> bool:
    """Whether vectors are converted to float32 many at a time."""
    return layout.inner == 1 and layout.length <= SHORT and item_size(element_type) == 2


@helper
def _along_rows(g: Array, out: Array, result: Array, count: int, length: int, nought: Number) -> None:
    """The gradients of vectors of adjacent numbers, `count` numbers altogether."""
    for begin in range(0, count, length):
        summed = nought
        for i in range(begin, begin + length):
            summed = add_any_order(summed, g[i] * out[i])
        for i in range(begin, begin + length):
            result[i] = out[i] * (g[i] - summed)


@helper
def _along_columns(g: Array, out: Array, result: Array, columns: int, length: int, inner: int, total: Array) -> None:
    """The gradients of adjacent columns of `length` numbers, which are `inner` apart."""
    for c in range(columns):
        total[c] = like(0, total[c])
    for row in range(0, length * inner, inner):
        for c in range(columns):
            total[c] += g[row + c] * out[row + c]
    for row in range(0, length * inner, inner):
        for c in range(columns):
            result[row + c] = out[row + c] * (g[row + c] - total[c])


@helper
def _differentiate(
    layout: Vectors,
    number: int,
    operands: tuple[int, ...],
    element_type: int,
    buffers: tuple[Array, ...],
    at: Callable[..., Any],
) -> None:
    """Compute the units of task `number`.

    Args:
        operands: addresses of the inputs and of the output.
        buffers: for the numbers of a unit in float32, three times, and for `width` numbers of the computing dtype.
        at: at(address, count) is a view of elements.
    """
    length, inner, size = layout.length, layout.inner, item_size(element_type)
    read, weights, written, total = buffers
    converts, nought = _converts(layout, element_type), like(0, total[0])
    first = number * layout.step
    for unit in range(first, min(first + layout.step, layout.units)):
        start, rows, columns = place_of(layout, unit)
        grad, output, target = operands[0] + start * size, operands[1] + start * size, operands[2] + start * size
        span = (rows - 1) * inner + columns
        if converts:
            read_row(grad, element_type, columns, read)
            read_row(output, element_type, columns, weights)
            _along_rows(read, weights, written, columns, length, like(0, read[0]))
            write_row(written, element_type, columns, target)
        elif inner == 1:
            _along_rows(at(grad, span), at(output, span), at(target, span), columns, length, nought)
        else:
            _along_columns(at(grad, span), at(output, span), at(target, span), columns, length, inner, total)


def task(job: Job, number: int) -> None:
    """Some units of work."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    element_type, width = kernel.element_type[GRAD], layout.width
    count = width * layout.length if _converts(layout, element_type) else 0
    memory, read, weights, written, short, wide = allocate(
        (count, np.float32), (count, np.float32), (count, np.float32), (width, np.float32), (width, np.float64)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    operands = (job.data[GRAD], job.data[OUTPUT], job.output[0])
    if element_type == DOUBLE:
        _differentiate(layout, number, operands, element_type, (read, weights, written, wide), doubles_at)
    elif element_type == FLOAT:
        _differentiate(layout, number, operands, element_type, (read, weights, written, short), floats_at)
    elif element_type == FLOAT16:
        _differentiate(layout, number, operands, element_type, (read, weights, written, short), halves_at)
    else:
        _differentiate(layout, number, operands, element_type, (read, weights, written, short), bfloats_at)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task)


def body(b: Body) -> None:
    grad, out = b.load("grad_output"), b.load("output")
    axes = b.op("Reshape", b.value_of("dim"), [1], name="axes")
    total = b.op("ReduceSum", grad * out, axes, name="total", keepdims=1)
    b.store("grad_input", (out * (grad - total)).named("gradient"), "grad_output")


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("grad_output"), check_axis(call, "grad_output", "output")),)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example({"grad_output": [1.0, 3.0], "output": [0.5, 0.5]}, {"grad_input": [-0.5, 0.5]}),
)
