"""SoftmaxV2: exponentials of the elements along an axis, divided by their sum."""

from __future__ import annotations

import math

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
    LANES,
    allocate,
    array_at,
    free,
    interleave,
    item_size,
    record_at,
    separate,
)
from onnx_ops.loops.primitives import Floating, add_any_order, exp_of_difference, like
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.tiles import divide_by_lane, largest, largest_by_lane, subtract_by_lane, sum_by_lane
from onnx_ops.ops.axes import axis_attributes, check_axis
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import rounded
from onnx_ops.ops.softmax._vectors import (
    LAYOUT,
    find_vectors,
    place_of,
    read_rows,
    write_rows,
    write_vectors,
)

SIGNATURE = Signature(
    "SoftmaxV2",
    """
Softmax along an axis (aclnnSoftmax, CANN's operator SoftmaxV2).

    out = exp(self - max) / sum of exp(self - max)

where the maximum and the sum are over the axis `dim`.

Shapes: `self` and `out` have the same shape, of rank 1 to 8.

Dtypes: float16, bfloat16, float or double; `out` has the dtype of `self`. Computed in double if that is double, else in
float, and rounded once. The order of summation is fixed and does not depend on the number of threads.

Edge rules: an element whose exponential is below exp(-87) (double: exp(-708)) counts as 0: so `out` has next to no
subnormal numbers, with which products of matrices take many times as long. Plus infinity or NaN along the axis makes
all elements along it NaN, as does nothing but minus infinity; minus infinity beside finite numbers gives 0. Empty
inputs give an empty output.

Without a kernel: small elements do not count as 0. The order of summation is that of the runtime's ReduceSum. Shapes
known only at run time are not checked.
""",
    inputs=(Input("self", "The input."),),
    outputs=(Output("out", "The softmax.", "self"),),
    attributes=tuple(axis_attributes()),
)


def reference(self: np.ndarray, *, dim: int = -1, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """NumPy definition, computed in float64.

    Args:
        self: floating array.
        dim: the axis.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of the same shape.
    """
    x = self.astype(np.float64)
    with np.errstate(all="ignore"):
        terms = np.exp(x - x.max(axis=dim, keepdims=True, initial=-np.inf))
        return rounded(terms / terms.sum(axis=dim, keepdims=True), self.dtype, dtype)


SHORT = 63
"""Length up to which it is faster to interleave vectors than to compute sums and maxima within them."""


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shape of the output; returns whether there is such an axis."""
    return write_vectors(address, job, SHORT)


PLAN = Layout(write_layout, LAYOUT.itemsize)


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some units of work, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    element_type, length, width, inner = kernel.element_type[0], layout.length, layout.width, layout.inner
    size, computes_as_stored = item_size(element_type), element_type in (FLOAT, DOUBLE)
    lanes = inner == 1 and length <= SHORT
    count, whole = length * width, length - length % LANES
    memory, addresses, read, written, most, total = allocate(
        (LANES, np.int64),
        (0 if computes_as_stored and not lanes else count, dtype),
        (0 if computes_as_stored or lanes else count, dtype),
        (width, dtype),
        (width, dtype),
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    first = number * layout.step
    for unit in range(first, min(first + layout.step, layout.units)):
        if lanes:
            find_vectors(layout, unit, job.data[0], size, addresses)
            interleave(addresses, element_type, 0, length, read, 0)
            largest_by_lane(read, length, most)
            subtract_by_lane(read, length, most)
            for i in range(count):
                read[i] = exp_of_difference(read[i])
            sum_by_lane(read, length, total)
            divide_by_lane(read, length, total)
            find_vectors(layout, unit, job.output[0], size, addresses)
            separate(read, 0, length, addresses, element_type, 0)
            continue
        start, rows, columns = place_of(layout, unit)
        source, target = job.data[0] + start * size, job.output[0] + start * size
        # Not in one array: compilers compute element by element where two may be the same.
        x, out, row = read, written, columns
        if computes_as_stored:
            row, span = inner, (rows - 1) * inner + columns
            x, out = array_at(source, span, dtype), array_at(target, span, dtype)
        else:
            read_rows(source, element_type, rows, columns, inner, read)
        if inner == 1:
            for at in range(0, columns, length):
                greatest, summed = largest(x, at, whole), like(0, most[0])
                for i in range(at + whole, at + length):
                    greatest = x[i] if x[i] > greatest else greatest
                for i in range(at, at + length):
                    out[i] = exp_of_difference(x[i] - greatest)
                    summed = add_any_order(summed, out[i])
                for i in range(at, at + length):
                    out[i] = out[i] / summed
        else:
            for c in range(columns):
                most[c], total[c] = like(-math.inf, most[0]), like(0, most[0])
            for at in range(0, length * row, row):
                for c in range(columns):
                    most[c] = x[at + c] if x[at + c] > most[c] else most[c]
            for at in range(0, length * row, row):
                for c in range(columns):
                    out[at + c] = exp_of_difference(x[at + c] - most[c])
                    total[c] += out[at + c]
            for at in range(0, length * row, row):
                for c in range(columns):
                    out[at + c] = out[at + c] / total[c]
        if not computes_as_stored:
            write_rows(written, element_type, rows, columns, inner, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, compute=computing_type(call))


def body(b: Body) -> None:
    x, axes = b.load("self"), b.op("Reshape", b.value_of("dim"), [1], name="axes")
    terms = b.op("Exp", x - b.op("ReduceMax", x, axes, name="most", keepdims=1), name="terms")
    b.store("out", (terms / b.op("ReduceSum", terms, axes, name="total", keepdims=1)).named("weights"), "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("self"), check_axis(call, "self")),)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example({"self": [[0.0, 0.0], [-math.inf, 5.0]]}, {"out": [[0.5, 0.5], [0.0, 1.0]]}),
    body_opset=18,  # the first with ReduceMax over axes that are an input
)
