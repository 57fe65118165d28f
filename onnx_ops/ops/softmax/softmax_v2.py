"""SoftmaxV2: exponentials of the elements along an axis, divided by their sum."""

from __future__ import annotations

import math
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
    LANES,
    allocate,
    array_at,
    free,
    item_size,
    read_row,
    record_at,
    write_row,
)
from onnx_ops.loops.primitives import add_any_order, exp_of_difference, like
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.tiles import divide_by_lane, largest, largest_by_lane, subtract_by_lane, sum_by_lane
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import rounded
from onnx_ops.ops.softmax._vectors import (
    LAYOUT,
    axis_attributes,
    check_axis,
    load_vectors,
    store_vectors,
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


def task(job: Job, number: int, dtype: Any) -> None:
    """Some units of work, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    element_type, length = kernel.element_type[0], layout.length
    size = item_size(element_type)
    count, whole = length * (LANES if layout.together == 1 else 1), length - length % LANES
    memory, addresses, numbers, most, total = allocate(
        (LANES, np.int64), (count, dtype), (LANES, dtype), (LANES, dtype)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for i in range(count):
        numbers[i] = like(0, most[0])
    first = number * layout.step
    for unit in range(first, min(first + layout.step, layout.units)):
        if layout.together == 1:
            load_vectors(layout, unit, job.data[0], element_type, addresses, numbers)
            largest_by_lane(numbers, length, most)
            subtract_by_lane(numbers, length, most)
            for i in range(count):
                numbers[i] = exp_of_difference(numbers[i])
            sum_by_lane(numbers, length, total)
            divide_by_lane(numbers, length, total)
            store_vectors(layout, unit, numbers, job.output[0], element_type, addresses)
            continue
        at = unit * length * size
        x, out = numbers, numbers
        if element_type in (FLOAT, DOUBLE):  # the computing dtype
            x, out = array_at(job.data[0] + at, length, dtype), array_at(job.output[0] + at, length, dtype)
        else:
            read_row(job.data[0] + at, element_type, length, numbers)
        greatest, summed = largest(x, 0, whole), like(0, most[0])
        for i in range(whole, length):
            greatest = x[i] if x[i] > greatest else greatest
        for i in range(length):
            numbers[i] = exp_of_difference(x[i] - greatest)
            summed = add_any_order(summed, numbers[i])
        for i in range(length):
            out[i] = numbers[i] / summed
        if element_type not in (FLOAT, DOUBLE):
            write_row(numbers, element_type, length, job.output[0] + at)
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
