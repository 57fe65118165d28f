"""SoftmaxBackward: gradient of softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import DOUBLE, FLOAT, allocate, array_at, free, item_size, record_at
from onnx_ops.loops.primitives import add_any_order, like
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.shapes import same_shape
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import rounded
from onnx_ops.ops.softmax._vectors import (
    LAYOUT,
    axis_attributes,
    check_axis,
    place_of,
    read_rows,
    write_rows,
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


def task(job: Job, number: int, dtype: Any) -> None:
    """Some units of work, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    element_type, length, inner = kernel.element_type[GRAD], layout.length, layout.inner
    size, computes_as_stored = item_size(element_type), element_type in (FLOAT, DOUBLE)
    count = 0 if computes_as_stored else length * layout.width
    memory, grad, weight, gradient, total = allocate(
        (count, dtype), (count, dtype), (count, dtype), (layout.width, dtype)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    nought = like(0, total[0])
    first = number * layout.step
    for unit in range(first, min(first + layout.step, layout.units)):
        start, rows, columns = place_of(layout, unit)
        source, weights = job.data[GRAD] + start * size, job.data[OUTPUT] + start * size
        target = job.output[0] + start * size
        # Not in one array: compilers compute element by element where two may be the same.
        g, out, result, row = grad, weight, gradient, columns
        if computes_as_stored:
            row, span = inner, (rows - 1) * inner + columns
            g, out, result = (
                array_at(source, span, dtype),
                array_at(weights, span, dtype),
                array_at(target, span, dtype),
            )
        else:
            read_rows(source, element_type, rows, columns, inner, grad)
            read_rows(weights, element_type, rows, columns, inner, weight)
        if inner == 1:
            for at in range(0, columns, length):
                summed = nought
                for i in range(at, at + length):
                    summed = add_any_order(summed, g[i] * out[i])
                for i in range(at, at + length):
                    result[i] = out[i] * (g[i] - summed)
        else:
            for c in range(columns):
                total[c] = nought
            for at in range(0, length * row, row):
                for c in range(columns):
                    total[c] += g[at + c] * out[at + c]
            for at in range(0, length * row, row):
                for c in range(columns):
                    result[at + c] = out[at + c] * (g[at + c] - total[c])
        if not computes_as_stored:
            write_rows(gradient, element_type, rows, columns, inner, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, compute=computing_type(call))


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
