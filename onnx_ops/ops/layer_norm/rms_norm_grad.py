"""RmsNormGrad: gradients of normalization by the root mean square, by its input and its scale."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import allocate, free, item_size, number_at, record_at, size_of
from onnx_ops.loops.primitives import Array, Floating, add_any_order, helper, like, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.shapes import give_shape, same_shape
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elements import deliver, destination, elements, read_as
from onnx_ops.ops.layer_norm._rows import (
    GROUP,
    LAYOUT,
    add_tasks,
    check_gamma,
    check_statistic,
    divide_rows,
    fits_gamma,
    is_statistic,
    reshaped,
    row_average,
    row_shapes,
    scratch_of_sums,
    sums_of,
)
from onnx_ops.ops.references import rounded

DGAMMA_TYPE = OutputType(
    "double if `gamma` is double, else float.", dtypes=(TensorProto.FLOAT, TensorProto.DOUBLE), inputs=("gamma",)
)
SIGNATURE = Signature(
    "RmsNormGrad",
    """
Gradients of RmsNorm (aclnnRmsNormGrad).

    normal = x * rstd
    scaled = dy * gamma
    dx     = (scaled - normal * mean of scaled * normal) * rstd
    dgamma = sum of dy * normal

The mean is over the normalized axes, the last ones of `x`, whose sizes are the shape of `gamma`; the sum is over the
others.

Shapes: `dy`, `x` and `dx` (A1, ..., Ai, R1, ..., Rj) of rank 1 to 8; `gamma` and `dgamma` (R1, ..., Rj), j >= 1; `rstd`
(A1, ..., Ai, 1, ..., 1).

Dtypes: `dy` and `x` have one dtype, float16, bfloat16, float or double; `rstd` and `gamma` each one of these. `dx` has
the dtype of `dy`; `dgamma` is double if `gamma` is double, else float. Computed in double if an input is double, else
in float, except that the sum over rows is in float for four rows, and over these sums in double. Rounded once. The
order of summation is fixed and does not depend on the number of threads.

Edge rules: each output may be omitted, but not both. NaN and infinities propagate as in the formula. Without rows,
`dgamma` is 0.

Without a kernel: all sums are in one dtype, in the order of the runtime's ReduceSum. Shapes known only at run time are
not checked. If the model does not declare the dtype of `gamma`, it must be float or double for `dgamma`.
""",
    inputs=(
        Input("dy", "Gradient of the loss with respect to `y` of RmsNorm."),
        Input("x", "Input of RmsNorm.", like="dy"),
        Input("rstd", "1 / sqrt(mean of x^2 + epsilon), (A1, ..., Ai, 1, ..., 1)."),
        Input("gamma", "Scale of each normalized element, (R1, ..., Rj)."),
    ),
    outputs=(
        Output("dx", "Gradient of the loss with respect to `x`.", "dy", optional=True),
        Output("dgamma", "Gradient of the loss with respect to `gamma`.", DGAMMA_TYPE, optional=True),
    ),
)


def reference(
    dy: np.ndarray, x: np.ndarray, rstd: np.ndarray, gamma: np.ndarray, *, dtype: npt.DTypeLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64 and in C order, whatever the memory layout of the arrays.

    Args:
        dy, x: floating arrays of one shape, (..., *gamma.shape).
        rstd: floating array (..., 1, ..., 1).
        gamma: floating array.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        dx and dgamma.
    """
    first = x.ndim - gamma.ndim
    normalized, others = tuple(range(first, x.ndim)), tuple(range(first))
    grad, inverse = dy.astype(np.float64, order="C"), rstd.astype(np.float64)
    with np.errstate(all="ignore"):
        normal = x.astype(np.float64, order="C") * inverse
        scaled = grad * gamma.astype(np.float64)
        slope = (scaled * normal).sum(axis=normalized, keepdims=True) / max(gamma.size, 1)
        dx = (scaled - normal * slope) * inverse
        dgamma = (grad * normal).sum(axis=others)
    kind = np.dtype(np.float64 if gamma.dtype == np.float64 else np.float32)
    return rounded(dx, x.dtype, dtype), rounded(dgamma, kind, dtype)


# --- the kernel: one task for some rows ------------------------------------------------------------------------------

DY, X, RSTD, GAMMA = range(4)
DX, DGAMMA = range(2)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    first = job.rank[X] - job.rank[GAMMA]
    if not fits_gamma(job, X, GAMMA) or not same_shape(job, DY, X) or not is_statistic(job, RSTD, X, first):
        return False
    layout = record_at(address, LAYOUT)
    give_shape(job, DX, X)
    give_shape(job, DGAMMA, GAMMA)
    divide_rows(layout, job, X, first)
    scratch_of_sums(layout, job, 1)
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


# The statistics of GROUP rows: their inverse root mean squares, and slopes, which are averages of the products of
# scaled gradients and normalized elements.


@helper
def add_group(grad: Array, x: Array, gamma: Array, width: int, statistics: Array, by_gamma: Array) -> None:
    """Compute the slopes of GROUP rows, and add their terms to the sums of the task."""
    b, c, d = width, 2 * width, 3 * width
    inverse_a, inverse_b, inverse_c, inverse_d = statistics[0], statistics[1], statistics[2], statistics[3]
    slope_a, slope_b = like(0, inverse_a), like(0, inverse_a)
    slope_c, slope_d = like(0, inverse_a), like(0, inverse_a)
    for i in range(width):
        factor = gamma[i]
        product_a = grad[i] * (x[i] * inverse_a)
        product_b = grad[b + i] * (x[b + i] * inverse_b)
        product_c = grad[c + i] * (x[c + i] * inverse_c)
        product_d = grad[d + i] * (x[d + i] * inverse_d)
        slope_a, slope_b = add_any_order(slope_a, product_a * factor), add_any_order(slope_b, product_b * factor)
        slope_c, slope_d = add_any_order(slope_c, product_c * factor), add_any_order(slope_d, product_d * factor)
        by_gamma[i] += wide((product_a + product_b) + (product_c + product_d))
    count = like(width, inverse_a)
    statistics[4], statistics[5] = slope_a / count, slope_b / count
    statistics[6], statistics[7] = slope_c / count, slope_d / count


@helper
def add_row(
    grad: Array, x: Array, at: int, gamma: Array, width: int, statistics: Array, k: int, by_gamma: Array
) -> None:
    """`add_group` for one row, which begins at index `at`."""
    inverse = statistics[k]
    slope = like(0, inverse)
    for i in range(width):
        product = grad[at + i] * (x[at + i] * inverse)
        slope = add_any_order(slope, product * gamma[i])
        by_gamma[i] += wide(product)
    statistics[GROUP + k] = slope / like(width, inverse)


@helper
def differentiate(
    grad: Array, x: Array, at: int, gamma: Array, width: int, statistics: Array, k: int, out: Array
) -> None:
    """Write the gradient of a row."""
    inverse, slope = statistics[k], statistics[GROUP + k]
    for i in range(width):
        out[i] = (grad[at + i] * gamma[i] - (x[at + i] * inverse) * slope) * inverse


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some rows, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    width, element_type, rstd_type = layout.width, kernel.element_type[DY], kernel.element_type[RSTD]
    size, in_place = item_size(element_type), job.in_place != 0
    converted = 0 if size == size_of(dtype) else GROUP * width
    memory, gamma, statistics, grad_rows, x_rows, result = allocate(
        (width, dtype), (2 * GROUP, dtype), (converted, dtype), (converted, dtype), (width, dtype)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    read_as(kernel, job.data[GAMMA], kernel.element_type[GAMMA], width, gamma, dtype)
    by_gamma = sums_of(job, layout, number, 0, 1)
    for i in range(width):
        by_gamma[i] = 0.0
    begin = number * layout.step
    end = min(begin + layout.step, layout.rows)
    for first in range(begin, end, GROUP):
        count, at = min(GROUP, end - first), first * width * size
        grad = elements(kernel, job.data[DY] + at, element_type, count * width, grad_rows, dtype)
        x = elements(kernel, job.data[X] + at, element_type, count * width, x_rows, dtype)
        for k in range(count):
            statistics[k] = like(number_at(job.data[RSTD], rstd_type, first + k), statistics[0])
        if count == GROUP:
            add_group(grad, x, gamma, width, statistics, by_gamma)
        for k in range(count):
            place = k * width
            if count < GROUP:
                add_row(grad, x, place, gamma, width, statistics, k, by_gamma)
            if job.output[DX] == 0:
                continue
            target = job.output[DX] + at + place * size
            out = destination(target, element_type, width, in_place, result, dtype)
            differentiate(grad, x, place, gamma, width, statistics, k, out)
            deliver(kernel, result, width, target, element_type, in_place, dtype)
    free(memory)


def finish(kernel: Kernel, job: Job) -> None:
    add_tasks(kernel, job, DGAMMA, 1)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, finish=finish, compute=computing_type(call), in_place=(("dy", "dx"), ("x", "dx")))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """Of rows: (A1 * ... * Ai, R1 * ... * Rj)."""
    x, inverse, gamma = b.load("x"), b.load("rstd"), b.load("gamma")
    shape = b.op("Shape", gamma)
    width, matrix, column = row_shapes(b, inverse, shape)
    inverse = reshaped(b, inverse, column, "inverse")
    normal = (reshaped(b, x, matrix, "rows") * inverse).named("normal")
    grads = reshaped(b, b.load("dy"), matrix, "grads")
    if b.wants("dx"):
        scaled = (grads * b.op("Reshape", gamma, [-1], name="scales")).named("scaled")
        count = b.op("Max", width, 1).cast(b.compute).named("count")
        slope = row_average(b, (scaled * normal).named("products"), count, "slope")
        result = ((scaled - (normal * slope).named("projected")) * inverse).named("by_x")
        b.store("dx", reshaped(b, result, b.op("Shape", x), "gradient_of_x"), "dy")
    if b.wants("dgamma"):
        total = b.op("ReduceSum", (grads * normal).named("terms"), [0], name="sums", keepdims=0)
        b.store("dgamma", reshaped(b, total, shape, "gradient_of_gamma"), "gamma")


def infer(call: Call) -> tuple[TensorType, ...]:
    call.same_shape("dy", call.shape("x"), "the shape of 'x'")
    known = check_gamma(call, "x") or check_gamma(call, "dy")
    gamma = call.shape("gamma")
    if known is not None and gamma is not None:
        check_statistic(call, "rstd", known, len(gamma), "x" if call.shape("x") is not None else "dy")
    dtype = call.dtype("gamma")
    if dtype is not None and dtype != TensorProto.DOUBLE:
        dtype = TensorProto.FLOAT
    return TensorType(call.dtype("dy"), known), TensorType(dtype, gamma)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "dy": [[2.0, 4.0, 0.0, 2.0], [0.0, 0.0, 4.0, 0.0]],
            "x": [[2.0, -2.0, 2.0, 6.0], [1.0, 3.0, -1.0, 3.0]],
            "rstd": [[0.5], [1.0]],
            "gamma": [2.0, 1.0, 1.0, 0.5],
        },
        {
            "dx": [[1.625, 2.375, -0.375, -0.625], [1.0, 3.0, 3.0, 3.0]],
            "dgamma": [2.0, -4.0, -4.0, 6.0],
        },
    ),
)
