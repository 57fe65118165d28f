"""LayerNormBackward: gradients of layer normalization by its input, weight and bias."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import required_attribute
from onnx_ops.core.signature import Default, Input, Output, OutputType, Signature
from onnx_ops.core.types import MAX_RANK, Shape, TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import allocate, free, item_size, number_at, record_at, setting, size_of
from onnx_ops.loops.primitives import Array, Floating, add_any_order, helper, like, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape, same_shape
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elements import deliver, destination, elements, read_as
from onnx_ops.ops.layer_norm._rows import (
    GROUP,
    LAYOUT,
    add_tasks,
    check_statistic,
    divide_rows,
    is_statistic,
    reshaped,
    row_average,
    row_shapes,
    scratch_of_sums,
    sums_of,
)
from onnx_ops.ops.references import rounded

PARAMETERS = OutputType("The type of `weight`, or of `grad_out` if it is omitted.", inputs=("grad_out", "weight"))
SIGNATURE = Signature(
    "LayerNormBackward",
    """
Gradients of layer normalization (aclnnLayerNormBackward; a node omits the outputs that its outputMask leaves out).

    normal      = (input - mean) * rstd
    scaled      = grad_out * weight
    grad_input  = (scaled - mean of scaled - normal * mean of scaled * normal) * rstd
    grad_weight = sum of grad_out * normal
    grad_bias   = sum of grad_out

The means are over the normalized axes, the last ones, whose sizes are `normalized_shape`; the sums are over the others.
ONNX's LayerNormalization has `mean` and `rstd` as its outputs Mean and InvStdDev.

Shapes: `grad_out`, `input` and `grad_input` (A1, ..., Ai, R1, ..., Rj) of rank 1 to 8, where (R1, ..., Rj) is
`normalized_shape`, j >= 1; `mean` and `rstd` (A1, ..., Ai, 1, ..., 1); `weight`, `grad_weight` and `grad_bias`
(R1, ..., Rj).

Dtypes: `grad_out` and `input` have one dtype, and so do `mean` and `rstd`; each is float16, bfloat16, float or double,
like that of `weight`. `grad_input` has the dtype of `grad_out`; `grad_weight` and `grad_bias` that of `weight`, or of
`grad_out` if it is omitted. Computed in double if an input is double, else in float, except that sums over rows are in
float for four rows, and over these sums in double. Rounded once. The order of summation is fixed and does not depend on
the number of threads.

Edge rules: each output may be omitted, but not all of them. NaN and infinities propagate as in the formula. Without
rows, `grad_weight` and `grad_bias` are 0.

Without a kernel: all sums are in one dtype, in the order of the runtime's ReduceSum. Shapes known only at run time are
not checked.
""",
    inputs=(
        Input("grad_out", "Gradient of the loss with respect to the output of layer normalization."),
        Input("input", "Input of layer normalization.", like="grad_out"),
        Input("mean", "Mean of `input` over the normalized axes, (A1, ..., Ai, 1, ..., 1)."),
        Input("rstd", "1 / sqrt(variance + epsilon) of `input` over the normalized axes.", like="mean"),
        Input(
            "weight",
            "Scale of each normalized element, (R1, ..., Rj).",
            default=Default(1.0, shape="normalized_shape", dtype_of="grad_out"),
        ),
    ),
    outputs=(
        Output("grad_input", "Gradient of the loss with respect to `input`.", "grad_out", optional=True),
        Output("grad_weight", "Gradient of the loss with respect to `weight`.", PARAMETERS, optional=True),
        Output("grad_bias", "Gradient of the loss with respect to the bias.", PARAMETERS, optional=True),
    ),
    attributes=(
        required_attribute("normalized_shape", OpSchema.AttrType.INTS, "Sizes of the normalized axes, the last ones."),
    ),
)


def reference(
    grad_out: np.ndarray,
    input: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    normalized_shape: Sequence[int],
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64 and in C order, whatever the memory layout of the arrays.

    Args:
        grad_out, input: floating arrays of one shape, (..., *normalized_shape).
        mean, rstd: floating arrays (..., 1, ..., 1).
        weight: floating array of shape `normalized_shape`, or None.
        normalized_shape: sizes of the last axes.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        grad_input, grad_weight and grad_bias.
    """
    parameter = (input if weight is None else weight).dtype
    first = input.ndim - len(normalized_shape)
    normalized, others = tuple(range(first, input.ndim)), tuple(range(first))
    count = max(math.prod(normalized_shape), 1)
    grad, inverse = grad_out.astype(np.float64, order="C"), rstd.astype(np.float64)
    with np.errstate(all="ignore"):
        normal = (input.astype(np.float64, order="C") - mean.astype(np.float64)) * inverse
        scaled = grad if weight is None else grad * weight.astype(np.float64)
        average = scaled.sum(axis=normalized, keepdims=True) / count
        slope = (scaled * normal).sum(axis=normalized, keepdims=True) / count
        grad_input = (scaled - average - normal * slope) * inverse
        grad_weight, grad_bias = (grad * normal).sum(axis=others), grad.sum(axis=others)
    return (
        rounded(grad_input, input.dtype, dtype),
        rounded(grad_weight, parameter, dtype),
        rounded(grad_bias, parameter, dtype),
    )


# --- the kernel: one task for some rows ------------------------------------------------------------------------------

GRAD, INPUT, MEAN, RSTD, WEIGHT = range(5)
BY_INPUT, BY_WEIGHT, BY_BIAS = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
SUMS = 2
"""Sums of a task: of grad_out * normal, and of grad_out."""


@helper
def fits(kernel: Kernel, job: Job) -> bool:
    """Whether the shapes of the inputs fit."""
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    rank, count = job.rank[INPUT], attributes.normalized_shape_count
    if count < 1 or count > rank or not same_shape(job, GRAD, INPUT):
        return False
    first = rank - count
    if not is_statistic(job, MEAN, INPUT, first) or not same_shape(job, RSTD, MEAN):
        return False
    given = kernel.element_type[WEIGHT] != 0
    if given and job.rank[WEIGHT] != count:
        return False
    for axis in range(first, rank):
        size = job.dims[INPUT, axis]
        if size != setting(attributes.normalized_shape, count, axis - first, 0):
            return False
        if given and job.dims[WEIGHT, axis - first] != size:
            return False
    return True


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    if not fits(kernel, job):
        return False
    layout = record_at(address, LAYOUT)
    rank = job.rank[INPUT]
    first = rank - record_at(kernel.attributes, ATTRIBUTES).normalized_shape_count
    give_shape(job, BY_INPUT, INPUT)
    for k in range(BY_WEIGHT, BY_BIAS + 1):
        job.output_rank[k] = rank - first
        for axis in range(first, rank):
            job.output_dims[k, axis - first] = job.dims[INPUT, axis]
    divide_rows(layout, job, INPUT, first)
    scratch_of_sums(layout, job, SUMS)
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


# The statistics of GROUP rows: their means, inverse deviations, averages (of scaled gradients), and slopes (averages of
# their products with the normalized elements).


@helper
def add_group(
    grad: Array, x: Array, weight: Array, width: int, statistics: Array, by_weight: Array, by_bias: Array
) -> None:
    """Compute the averages and slopes of GROUP rows, and add their terms to the sums of the task."""
    b, c, d = width, 2 * width, 3 * width
    mean_a, mean_b, mean_c, mean_d = statistics[0], statistics[1], statistics[2], statistics[3]
    inverse_a, inverse_b, inverse_c, inverse_d = statistics[4], statistics[5], statistics[6], statistics[7]
    average_a, average_b, average_c, average_d = like(0, mean_a), like(0, mean_a), like(0, mean_a), like(0, mean_a)
    slope_a, slope_b, slope_c, slope_d = like(0, mean_a), like(0, mean_a), like(0, mean_a), like(0, mean_a)
    for i in range(width):
        factor = weight[i]
        grad_a, grad_b, grad_c, grad_d = grad[i], grad[b + i], grad[c + i], grad[d + i]
        product_a = grad_a * ((x[i] - mean_a) * inverse_a)
        product_b = grad_b * ((x[b + i] - mean_b) * inverse_b)
        product_c = grad_c * ((x[c + i] - mean_c) * inverse_c)
        product_d = grad_d * ((x[d + i] - mean_d) * inverse_d)
        average_a, slope_a = add_any_order(average_a, grad_a * factor), add_any_order(slope_a, product_a * factor)
        average_b, slope_b = add_any_order(average_b, grad_b * factor), add_any_order(slope_b, product_b * factor)
        average_c, slope_c = add_any_order(average_c, grad_c * factor), add_any_order(slope_c, product_c * factor)
        average_d, slope_d = add_any_order(average_d, grad_d * factor), add_any_order(slope_d, product_d * factor)
        by_weight[i] += wide((product_a + product_b) + (product_c + product_d))
        by_bias[i] += wide((grad_a + grad_b) + (grad_c + grad_d))
    count = like(width, mean_a)
    statistics[8], statistics[9], statistics[10], statistics[11] = (
        average_a / count, average_b / count, average_c / count, average_d / count,
    )  # fmt: skip
    statistics[12], statistics[13], statistics[14], statistics[15] = (
        slope_a / count, slope_b / count, slope_c / count, slope_d / count,
    )  # fmt: skip


@helper
def add_row(
    grad: Array,
    x: Array,
    at: int,
    weight: Array,
    width: int,
    statistics: Array,
    k: int,
    by_weight: Array,
    by_bias: Array,
) -> None:
    """`add_group` for one row, which begins at index `at`."""
    mean, inverse = statistics[k], statistics[GROUP + k]
    average, slope = like(0, mean), like(0, mean)
    for i in range(width):
        product = grad[at + i] * ((x[at + i] - mean) * inverse)
        average = add_any_order(average, grad[at + i] * weight[i])
        slope = add_any_order(slope, product * weight[i])
        by_weight[i] += wide(product)
        by_bias[i] += wide(grad[at + i])
    count = like(width, mean)
    statistics[2 * GROUP + k], statistics[3 * GROUP + k] = average / count, slope / count


@helper
def differentiate(
    grad: Array, x: Array, at: int, weight: Array, width: int, statistics: Array, k: int, out: Array
) -> None:
    """Write the gradient of a row."""
    mean, inverse = statistics[k], statistics[GROUP + k]
    average, slope = statistics[2 * GROUP + k], statistics[3 * GROUP + k]
    for i in range(width):
        normal = (x[at + i] - mean) * inverse
        out[i] = (grad[at + i] * weight[i] - average - normal * slope) * inverse


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some rows, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    width, element_type, statistics_type = layout.width, kernel.element_type[GRAD], kernel.element_type[MEAN]
    size, weight_type, in_place = item_size(element_type), kernel.element_type[WEIGHT], job.in_place != 0
    converted = 0 if size == size_of(dtype) else GROUP * width
    memory, weight, statistics, grad_rows, x_rows, result = allocate(
        (width, dtype), (4 * GROUP, dtype), (converted, dtype), (converted, dtype), (width, dtype)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    if weight_type != 0:
        read_as(kernel, job.data[WEIGHT], weight_type, width, weight, dtype)
    else:
        for i in range(width):
            weight[i] = like(1, statistics[0])
    by_weight, by_bias = sums_of(job, layout, number, 0, SUMS), sums_of(job, layout, number, 1, SUMS)
    for i in range(width):
        by_weight[i], by_bias[i] = 0.0, 0.0
    begin = number * layout.step
    end = min(begin + layout.step, layout.rows)
    for first in range(begin, end, GROUP):
        count, at = min(GROUP, end - first), first * width * size
        grad = elements(kernel, job.data[GRAD] + at, element_type, count * width, grad_rows, dtype)
        x = elements(kernel, job.data[INPUT] + at, element_type, count * width, x_rows, dtype)
        for k in range(count):
            statistics[k] = like(number_at(job.data[MEAN], statistics_type, first + k), statistics[0])
            statistics[GROUP + k] = like(number_at(job.data[RSTD], statistics_type, first + k), statistics[0])
        if count == GROUP:
            add_group(grad, x, weight, width, statistics, by_weight, by_bias)
        for k in range(count):
            place = k * width
            if count < GROUP:
                add_row(grad, x, place, weight, width, statistics, k, by_weight, by_bias)
            if job.output[BY_INPUT] == 0:
                continue
            target = job.output[BY_INPUT] + at + place * size
            out = destination(target, element_type, width, in_place, result, dtype)
            differentiate(grad, x, place, weight, width, statistics, k, out)
            deliver(kernel, result, width, target, element_type, in_place, dtype)
    free(memory)


def finish(kernel: Kernel, job: Job) -> None:
    add_tasks(kernel, job, BY_WEIGHT, SUMS)


def kernel(call: Call) -> Tasks:
    pairs = (("grad_out", "grad_input"), ("input", "grad_input"))
    return Tasks(PLAN, task, finish=finish, compute=computing_type(call), in_place=pairs)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """Of rows: (A1 * ... * Ai, R1 * ... * Rj)."""
    x, grad, mean = b.load("input"), b.load("grad_out"), b.load("mean")
    shape = b.value_of("normalized_shape")
    width, matrix, column = row_shapes(b, mean, shape)
    inverse = reshaped(b, b.load("rstd"), column, "inverse")
    centred = (reshaped(b, x, matrix, "rows") - reshaped(b, mean, column, "means")).named("centred")
    normal = (centred * inverse).named("normal")
    grads = reshaped(b, grad, matrix, "grads")
    if b.wants("grad_input"):
        scaled = grads
        if b.has("weight"):
            scaled = (grads * b.op("Reshape", b.load("weight"), [-1], name="weights")).named("scaled")
        count = b.op("Max", width, 1).cast(b.compute).named("count")
        slope = row_average(b, (scaled * normal).named("products"), count, "slope")
        average = row_average(b, scaled, count, "average")
        result = ((scaled - average - (normal * slope).named("projected")) * inverse).named("by_input")
        b.store("grad_input", reshaped(b, result, b.op("Shape", x), "grad_of_input"), "grad_out")
    parameter = "weight" if b.has("weight") else "grad_out"
    if b.wants("grad_weight"):
        terms = (grads * normal).named("weight_terms")
        total = b.op("ReduceSum", terms, [0], name="weight_sum", keepdims=0)
        b.store("grad_weight", reshaped(b, total, shape, "grad_of_weight"), parameter)
    if b.wants("grad_bias"):
        total = b.op("ReduceSum", grads, [0], name="bias_sum", keepdims=0)
        b.store("grad_bias", reshaped(b, total, shape, "grad_of_bias"), parameter)


def infer(call: Call) -> tuple[TensorType, ...]:
    normalized: Shape = call.attributes["normalized_shape"]
    if not 1 <= len(normalized) <= MAX_RANK:
        raise call.error(f"attribute 'normalized_shape' is {normalized}, expected sizes of 1 to {MAX_RANK} axes")
    call.check_range("normalized_shape", 0)
    call.same_shape("grad_out", call.shape("input"), "the shape of 'input'")
    known = next((shape for name in ("input", "grad_out") if (shape := call.shape(name)) is not None), None)
    if known is not None:
        first = len(known) - len(normalized)
        leading = known[: max(first, 0)]
        expected = (*leading, *normalized)
        call.same_shape("input", expected, "whose last sizes are the attribute 'normalized_shape'")
        call.same_shape("grad_out", expected, "whose last sizes are the attribute 'normalized_shape'")
        for name in ("mean", "rstd"):
            check_statistic(call, name, known, len(normalized), "input")
    else:
        call.same_shape("rstd", call.shape("mean"), "the shape of 'mean'")
    call.same_shape("weight", normalized, "the attribute 'normalized_shape'")
    parameters = TensorType(call.dtype("weight" if call.present("weight") else "grad_out"), normalized)
    return TensorType(call.dtype("grad_out"), known), parameters, parameters


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "grad_out": [[1.0, 3.0, 2.0, 2.0], [0.0, 4.0, 0.0, 0.0]],
            "input": [[2.0, 6.0, 6.0, 2.0], [1.0, 3.0, 1.0, 3.0]],
            "mean": [[4.0], [2.0]],
            "rstd": [[0.5], [1.0]],
            "weight": [2.0, 1.0, 1.0, 2.0],
        },
        {
            "grad_input": [[-0.5, 0.25, -0.25, 0.5], [0.0, 2.0, 0.0, -2.0]],
            "grad_weight": [-1.0, 7.0, 2.0, -2.0],
            "grad_bias": [1.0, 7.0, 2.0, 2.0],
        },
        {"normalized_shape": (4,)},
    ),
)
