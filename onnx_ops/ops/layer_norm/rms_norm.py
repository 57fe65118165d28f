"""RmsNorm: normalization by the root mean square."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import allocate, array_at, free, item_size, record_at, size_of, tail, whole_lines
from onnx_ops.loops.primitives import Array, Floating, Number, add_any_order, helper, like, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elements import deliver, destination, elements, read_as
from onnx_ops.ops.layer_norm._rows import (
    LAYOUT,
    check_gamma,
    divide_rows,
    fits_gamma,
    reshaped,
    row_average,
    statistic_shape,
)
from onnx_ops.ops.references import rounded

STATISTIC = OutputType(
    "double if `x` or `gamma` is double, else float.",
    dtypes=(TensorProto.FLOAT, TensorProto.DOUBLE),
    inputs=("x", "gamma"),
)
SIGNATURE = Signature(
    "RmsNorm",
    """
Normalization by the root mean square (Zhang and Sennrich 2019; aclnnRmsNorm).

    rstd = 1 / sqrt(mean of x^2 + epsilon)
    y    = x * rstd * gamma

The mean is over the normalized axes, the last ones of `x`, whose sizes are the shape of `gamma`.

Shapes: `x` and `y` (A1, ..., Ai, R1, ..., Rj) of rank 1 to 8; `gamma` (R1, ..., Rj), j >= 1; `rstd`
(A1, ..., Ai, 1, ..., 1).

Dtypes: `x` and `gamma` each float16, bfloat16, float or double; `y` has the dtype of `x`; `rstd` is double if one of
them is double, else float. Computed in `rstd`'s dtype, but for the sum of squares, in double. Rounded once.

Edge rules: NaN and infinities propagate as in the formula. Where rows have no elements, `rstd` is 1 / sqrt(epsilon).

Without a kernel: the sum of squares is in the dtype of `rstd` too: in float, that of numbers above 1.8e19 overflows,
and `y` is 0. Shapes known only at run time are not checked. If the model does not declare the dtypes of `x` and
`gamma`, they must be float or double for `rstd`.
""",
    inputs=(
        Input("x", "Values to be normalized."),
        Input("gamma", "Scale of each normalized element, (R1, ..., Rj)."),
    ),
    outputs=(
        Output("y", "Normalized and scaled values.", "x"),
        Output("rstd", "1 / sqrt(mean of x^2 + epsilon), (A1, ..., Ai, 1, ..., 1).", STATISTIC, optional=True),
    ),
    attributes=(attribute("epsilon", 1e-6, "Added to the mean of squares."),),
)


def reference(
    x: np.ndarray, gamma: np.ndarray, *, epsilon: float = 1e-6, dtype: npt.DTypeLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64 and in C order, whatever the memory layout of the arrays.

    Args:
        x: floating array (..., *gamma.shape).
        gamma: floating array.
        epsilon: read as a float32.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        y and rstd.
    """
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    values = x.astype(np.float64, order="C")
    with np.errstate(all="ignore"):
        mean = (values * values).sum(axis=axes, keepdims=True) / max(gamma.size, 1)
        inverse = 1 / np.sqrt(mean + np.float64(np.float32(epsilon)))
        y = values * inverse * gamma.astype(np.float64)
    statistic = np.float64 if np.float64 in (x.dtype, gamma.dtype) else np.float32
    return rounded(y, x.dtype, dtype), rounded(inverse, np.dtype(statistic), dtype)


# --- the kernel: one task for some rows ------------------------------------------------------------------------------

X, GAMMA = range(2)
Y, RSTD = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
BATCH = 1 << 11
"""Approximate number of elements that are converted at once."""


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    if not fits_gamma(job, X, GAMMA):
        return False
    layout = record_at(address, LAYOUT)
    first = job.rank[X] - job.rank[GAMMA]
    give_shape(job, Y, X)
    give_shape(job, RSTD, X)
    for axis in range(first, job.rank[X]):
        job.output_dims[RSTD, axis] = 1
    divide_rows(layout, job, X, first)
    job.scratch_bytes = whole_lines(size_of(LAYOUT))
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


@helper
def inverse_of(x: Array, width: int, epsilon: float) -> Any:
    """1 / sqrt(mean of x^2 + epsilon), in double."""
    total = 0.0
    for i in range(width):
        value = wide(x[i])
        total = add_any_order(total, value * value)
    return wide(1) / np.sqrt(total / wide(max(width, 1)) + epsilon)


@helper
def normalize(x: Array, gamma: Array, width: int, inverse: Number, out: Array) -> None:
    for i in range(width):
        out[i] = x[i] * inverse * gamma[i]


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some rows, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    width, element_type, in_place = layout.width, kernel.element_type[X], job.in_place != 0
    epsilon = wide(record_at(kernel.attributes, ATTRIBUTES).epsilon)
    size = item_size(element_type)
    batch = max(BATCH // max(width, 1), 1)
    converted = 0 if size == size_of(dtype) else batch * width
    memory, inverse, gamma, values, result = allocate(
        (1, dtype), (width, dtype), (converted, dtype), (batch * width, dtype)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    read_as(kernel, job.data[GAMMA], kernel.element_type[GAMMA], width, gamma, dtype)
    begin = number * layout.step
    end = min(begin + layout.step, layout.rows)
    for first in range(begin, end, batch):
        count, at = min(batch, end - first), first * width * size
        x = elements(kernel, job.data[X] + at, element_type, count * width, values, dtype)
        out = destination(job.output[Y] + at, element_type, count * width, in_place, result, dtype)
        for k in range(count):
            inverse[0] = like(inverse_of(tail(x, k * width), width, epsilon), inverse[0])
            normalize(tail(x, k * width), gamma, width, inverse[0], tail(out, k * width))
            if job.output[RSTD] != 0:
                array_at(job.output[RSTD], layout.rows, dtype)[first + k] = inverse[0]
        deliver(kernel, result, count * width, job.output[Y] + at, element_type, in_place, dtype)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, compute=computing_type(call), in_place=(("x", "y"),))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """Of the matrix of rows: onnxruntime's reductions over one axis are the fastest."""
    x, gamma = b.load("x"), b.load("gamma")
    shape = b.op("Shape", gamma)
    whole = b.op("Shape", x, name="whole")
    leading = b.op("Sub", b.op("Size", whole, name="rank"), b.op("Size", shape, name="normalized_rank"))
    kept = b.op("Slice", whole, [0], b.op("Reshape", leading, [1], name="first"), name="kept")
    ones = b.op("Div", b.op("Max", shape, 1), b.op("Max", shape, 1), name="ones")
    width, rows = (
        b.op("ReduceProd", sizes, name=name, keepdims=1) for sizes, name in ((shape, "width"), (kept, "count"))
    )
    matrix = reshaped(b, x, b.op("Concat", rows, width, axis=0), "rows")
    count = b.op("Max", width, 1).cast(b.compute).named("elements")
    mean = row_average(b, (matrix * matrix).named("squares"), count, "mean")
    inverse = b.op("Reciprocal", b.op("Sqrt", mean + b.value_of("epsilon"), name="root"), name="inverse")
    scaled = (matrix * inverse).named("normal") * b.op("Reshape", gamma, [-1], name="scales")
    b.store("y", reshaped(b, scaled, whole, "result"), "x")
    b.store("rstd", reshaped(b, inverse, b.op("Concat", kept, ones, axis=0), "statistic"), "x", "gamma")


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = check_gamma(call, "x")
    gamma = call.shape("gamma")
    statistic = None if shape is None or gamma is None else statistic_shape(shape, len(gamma))
    dtypes = {call.dtype("x"), call.dtype("gamma")}
    known: int | None = TensorProto.FLOAT
    if TensorProto.DOUBLE in dtypes:
        known = TensorProto.DOUBLE
    elif None in dtypes:
        known = None
    return TensorType(call.dtype("x"), shape), TensorType(known, statistic)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Mean squares of 3.5 and 51.5. Before onnx 1.23 the parser of its text makes no float attribute of an integer.
        {"x": [[1.0, -2.0, 3.0, 0.0], [14.0, -3.0, 1.0, 0.0]], "gamma": [2.0, 1.0, 1.0, 4.0]},
        {"y": [[0.5, -0.5, 0.75, 0.0], [3.5, -0.375, 0.125, 0.0]], "rstd": [[0.25], [0.125]]},
        {"epsilon": 12.5},
    ),
)
