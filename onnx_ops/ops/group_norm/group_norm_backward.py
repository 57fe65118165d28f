"""GroupNormBackward: gradients of group normalization by its input, weight and bias."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import required_attribute
from onnx_ops.core.signature import Default, Input, Output, OutputType, Signature
from onnx_ops.core.types import Shape, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    address_of,
    allocate,
    free,
    item_size,
    number_at,
    read_numbers,
    record_at,
    write_numbers,
)
from onnx_ops.loops.primitives import Array, Floating, Number, add_any_order, helper, like, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape, same_shape
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elements import deliver, destination, elements
from onnx_ops.ops.group_norm._channels import (
    CHUNK,
    LAYOUT,
    LONGEST,
    MEASURES,
    Channels,
    channels_of_block,
    check_groups,
    measures_of,
    row_of,
    write_channels,
)
from onnx_ops.ops.references import rounded

PARAMETERS = OutputType("The type of `gamma`, or of `grad_out` if it is omitted.", inputs=("grad_out", "gamma"))
SIGNATURE = Signature(
    "GroupNormBackward",
    """
Gradients of group normalization (aclnnGroupNormBackward; Wu and He 2018). A node omits the outputs that its outputMask
leaves out.

    normal     = (input - mean) * rstd
    scaled     = grad_out * gamma
    grad_input = (scaled - mean of scaled - normal * mean of scaled * normal) * rstd
    grad_gamma = sum of grad_out * normal
    grad_beta  = sum of grad_out

The channels of a sample are in `group` groups of adjacent ones. `mean` and `rstd` are those of each group, and the
means are over its elements. The sums are over the samples and the elements of a channel. With one channel in each group
it is the gradient of instance normalization.

Shapes: `grad_out`, `input` and `grad_input` (N, C, ...) of rank 2 to 8, where C is a multiple of `group`; `mean` and
`rstd` (N, group); `gamma`, `grad_gamma` and `grad_beta` (C).

Dtypes: `grad_out` and `input` have one dtype, and so do `mean` and `rstd`; each is float16, bfloat16, float or double,
like that of `gamma`. `grad_input` has the dtype of `grad_out`; `grad_gamma` and `grad_beta` that of `gamma`, or of
`grad_out` if it is omitted. Computed in double if an input is double, else in float, except that sums of more than 2048
elements are in double. Rounded once. The order of summation is fixed and does not depend on the number of threads.

Edge rules: each output may be omitted, but not all of them. NaN and infinities propagate as in the formula. Without
samples, `grad_gamma` and `grad_beta` are 0.

Without a kernel: all sums are in one dtype, in the order of the runtime's ReduceSum. Shapes known only at run time are
not checked.
""",
    inputs=(
        Input("grad_out", "Gradient of the loss with respect to the output of group normalization."),
        Input("input", "Input of group normalization.", like="grad_out"),
        Input("mean", "Mean of `input` over each group of channels of a sample, (N, group)."),
        Input("rstd", "1 / sqrt(variance + eps) of `input` over each group of channels of a sample.", like="mean"),
        Input("gamma", "Scale of each channel, (C).", default=Default(1.0, like="input", axis=1, dtype_of="grad_out")),
    ),
    outputs=(
        Output("grad_input", "Gradient of the loss with respect to `input`.", "grad_out", optional=True),
        Output("grad_gamma", "Gradient of the loss with respect to `gamma`.", PARAMETERS, optional=True),
        Output("grad_beta", "Gradient of the loss with respect to the bias.", PARAMETERS, optional=True),
    ),
    attributes=(required_attribute("group", OpSchema.AttrType.INT, "Number of groups of channels."),),
)


def reference(
    grad_out: np.ndarray,
    input: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    gamma: np.ndarray | None = None,
    *,
    group: int,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64.

    Args:
        grad_out, input: floating arrays of one shape, (N, C, ...).
        mean, rstd: floating arrays (N, group).
        gamma: floating array (C,), or None.
        group: number of groups of channels.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        grad_input, grad_gamma and grad_beta.
    """
    parameter = (input if gamma is None else gamma).dtype
    samples, channels = input.shape[:2]
    places = int(np.prod(input.shape[2:], dtype=np.int64))
    shape = (samples, group, channels // group, places)
    count = max(shape[2] * places, 1)
    x, grad = (array.astype(np.float64).reshape(shape) for array in (input, grad_out))
    average, inverse = (array.astype(np.float64)[..., None, None] for array in (mean, rstd))
    with np.errstate(all="ignore"):
        normal = (x - average) * inverse
        scaled = grad if gamma is None else grad * gamma.astype(np.float64).reshape(group, channels // group, 1)
        slope = (scaled * normal).sum(axis=(2, 3), keepdims=True) / count
        grad_input = (scaled - scaled.sum(axis=(2, 3), keepdims=True) / count - normal * slope) * inverse
        grad_gamma, grad_beta = (grad * normal).sum(axis=(0, 3)), grad.sum(axis=(0, 3))
    return (
        rounded(grad_input.reshape(input.shape), input.dtype, dtype),
        rounded(grad_gamma.reshape(channels), parameter, dtype),
        rounded(grad_beta.reshape(channels), parameter, dtype),
    )


# --- the kernel ------------------------------------------------------------------------------------------------------

GRAD, INPUT, MEAN, RSTD, GAMMA = range(5)
BY_INPUT, BY_GAMMA, BY_BETA = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    layout, groups = record_at(address, LAYOUT), record_at(kernel.attributes, ATTRIBUTES).group
    if not write_channels(layout, job, INPUT, groups) or not same_shape(job, GRAD, INPUT):
        return False
    if job.rank[MEAN] != 2 or not same_shape(job, RSTD, MEAN):
        return False
    if job.dims[MEAN, 0] != job.dims[INPUT, 0] or job.dims[MEAN, 1] != groups:
        return False
    if kernel.element_type[GAMMA] != 0 and (job.rank[GAMMA] != 1 or job.dims[GAMMA, 0] != layout.channels):
        return False
    give_shape(job, BY_INPUT, INPUT)
    for k in range(BY_GAMMA, BY_BETA + 1):
        job.output_rank[k], job.output_dims[k, 0] = 1, layout.channels
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


@helper
def read_scales(job: Job, layout: Channels, scales: Array) -> None:
    """Write gamma of each channel, 1 if it is omitted."""
    kernel = record_at(job.kernel, KERNEL)
    element_type = kernel.element_type[GAMMA]
    if element_type != 0:
        read_numbers(kernel.read, job.data[GAMMA], element_type, layout.channels, address_of(scales))
    else:
        for i in range(layout.channels):
            scales[i] = 1.0


@helper
def measure(
    job: Job, layout: Channels, first: int, end: int, mean: Number, inverse: Number, scales: Array, grad_buffer: Array,
    x_buffer: Array, dtype: Floating,
) -> None:  # fmt: skip
    """Keep the sums of grad_out * normal and of grad_out of channels of a row, and those of scaled gradients."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, several = kernel.element_type[GRAD], channels_of_block(layout)
    size, behind = item_size(element_type), first - first % layout.channels  # the channels of the samples before
    for start in range(first, end, several):
        stop = min(start + several, end)
        kept = measures_of(job, layout, start)
        for k in range((stop - start) * MEASURES):
            kept[k] = 0.0
        for begin in range(0, (stop - start) * layout.places, CHUNK):
            count = min(CHUNK, (stop - start) * layout.places - begin)
            at = (start * layout.places + begin) * size
            grad = elements(kernel, job.data[GRAD] + at, element_type, count, grad_buffer, dtype)
            x = elements(kernel, job.data[INPUT] + at, element_type, count, x_buffer, dtype)
            length = min(layout.places, count)
            for channel in range(stop - start):
                scale, low, own = scales[start - behind + channel], channel * length, channel * MEASURES
                products, grads = like(0, mean), like(0, mean)
                for i in range(low, low + length):
                    products = add_any_order(products, grad[i] * ((x[i] - mean) * inverse))
                    grads = add_any_order(grads, grad[i])
                kept[own] += wide(products)
                kept[own + 1] += wide(grads)
                if scale - scale == 0:
                    kept[own + 2], kept[own + 3] = scale * kept[own], scale * kept[own + 1]
                    continue
                # Sums of infinite terms depend on their signs.
                products, grads, factor = like(0, mean), like(0, mean), like(scale, mean)
                for i in range(low, low + length):
                    scaled = grad[i] * factor
                    products = add_any_order(products, scaled * ((x[i] - mean) * inverse))
                    grads = add_any_order(grads, scaled)
                kept[own + 2] += wide(products)
                kept[own + 3] += wide(grads)


@helper
def differentiate(
    job: Job, layout: Channels, first: int, end: int, mean: Number, inverse: Number, scales: Array, average: Number,
    slope: Number, grad_buffer: Array, x_buffer: Array, result: Array, dtype: Floating,
) -> None:  # fmt: skip
    """Write the gradients of channels of a row."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, several = kernel.element_type[GRAD], channels_of_block(layout)
    size, in_place = item_size(element_type), job.in_place != 0
    behind = first - first % layout.channels  # the channels of the samples before
    for start in range(first, end, several):
        stop = min(start + several, end)
        for begin in range(0, (stop - start) * layout.places, CHUNK):
            count = min(CHUNK, (stop - start) * layout.places - begin)
            at = (start * layout.places + begin) * size
            grad = elements(kernel, job.data[GRAD] + at, element_type, count, grad_buffer, dtype)
            x = elements(kernel, job.data[INPUT] + at, element_type, count, x_buffer, dtype)
            target = job.output[BY_INPUT] + at
            out = destination(target, element_type, count, in_place, result, dtype)
            length = min(layout.places, count)
            for index in range(start, stop):
                scale, low = like(scales[index - behind], mean), (index - start) * length
                for i in range(low, low + length):
                    normal = (x[i] - mean) * inverse
                    out[i] = (grad[i] * scale - average - normal * slope) * inverse
            deliver(kernel, result, count, target, element_type, in_place, dtype)


def prepare(job: Job, number: int, dtype: Floating) -> None:
    """Measure some channels of long rows."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    memory, scales, grads, numbers = allocate((layout.channels, np.float64), (CHUNK, dtype), (CHUNK, dtype))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    read_scales(job, layout, scales)
    begin, end = number * layout.step, layout.rows * layout.per_group
    for index in range(begin, min(begin + layout.step, end)):
        row = row_of(layout, index)
        mean = like(number_at(job.data[MEAN], kernel.element_type[MEAN], row), grads[0])
        inverse = like(number_at(job.data[RSTD], kernel.element_type[MEAN], row), grads[0])
        measure(job, layout, index, index + 1, mean, inverse, scales, grads, numbers, dtype)
    free(memory)


def task(job: Job, number: int, dtype: Floating) -> None:
    """The gradients of some rows, or of some channels of long rows."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    memory, scales, grads, numbers, result = allocate(
        (layout.channels, np.float64), (CHUNK, dtype), (CHUNK, dtype), (CHUNK, dtype)
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    read_scales(job, layout, scales)
    is_long = layout.per_group * layout.places > LONGEST
    own = 1 if is_long else layout.per_group  # channels of a step
    all_steps = layout.rows * layout.per_group // own
    count = wide(layout.per_group * layout.places)
    for step in range(number * layout.step, min((number + 1) * layout.step, all_steps)):
        row = row_of(layout, step * own)
        mean = like(number_at(job.data[MEAN], kernel.element_type[MEAN], row), grads[0])
        inverse = like(number_at(job.data[RSTD], kernel.element_type[MEAN], row), grads[0])
        first = row * layout.per_group
        if not is_long:
            measure(job, layout, first, first + layout.per_group, mean, inverse, scales, grads, numbers, dtype)
        if job.output[BY_INPUT] == 0:
            continue
        average, slope = 0.0, 0.0
        for index in range(first, first + layout.per_group):
            kept = measures_of(job, layout, index)
            slope, average = slope + kept[2], average + kept[3]
        average, slope = average / count, slope / count
        differentiate(
            job, layout, step * own, (step + 1) * own, mean, inverse, scales, like(average, mean), like(slope, mean),
            grads, numbers, result, dtype,
        )  # fmt: skip
    free(memory)


def finish(kernel: Kernel, job: Job) -> None:
    """Add the sums of the samples."""
    layout = record_at(job.scratch, LAYOUT)
    memory, by_gamma, by_beta = allocate((layout.channels, np.float64), (layout.channels, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for channel in range(layout.channels):
        by_gamma[channel], by_beta[channel] = 0.0, 0.0
    for first in range(0, layout.rows * layout.per_group, max(layout.channels, 1)):
        sums = measures_of(job, layout, first)
        for channel in range(layout.channels):
            by_gamma[channel] += sums[channel * MEASURES]
            by_beta[channel] += sums[channel * MEASURES + 1]
    for k in range(BY_GAMMA, BY_BETA + 1):
        if job.output[k] != 0:
            totals = by_gamma if k == BY_GAMMA else by_beta
            write_numbers(kernel.write, address_of(totals), kernel.output_type[k], layout.channels, job.output[k])
    free(memory)


def kernel(call: Call) -> Tasks:
    pairs = (("grad_out", "grad_input"), ("input", "grad_input"))
    return Tasks(PLAN, task, prepare=prepare, finish=finish, compute=computing_type(call), in_place=pairs)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """Of (N, group, C / group, elements of a channel)."""
    x, grad, mean = b.load("input"), b.load("grad_out"), b.load("mean")
    own = b.op("Shape", x, name="own_shape")
    channels = b.op("Shape", x, name="channels", start=1, end=2)
    rows = b.op("Shape", mean, name="rows")
    per_group = (channels / b.op("Shape", mean, name="groups", start=1)).named("per_group")
    places = b.op("ReduceProd", b.op("Shape", x, name="space", start=2), name="places", keepdims=1)
    shape = b.op("Concat", rows, per_group, places, axis=0)
    by_row = b.op("Concat", rows, [1, 1], axis=0)

    def reshaped(value: Value, shape: Value, name: str) -> Value:
        return b.op("Reshape", value, shape, name=name, allowzero=1)

    inverse = reshaped(b.load("rstd"), by_row, "inverse")
    centred = (reshaped(x, shape, "elements") - reshaped(mean, by_row, "means")).named("centred")
    normal = (centred * inverse).named("normal")
    grads = reshaped(grad, shape, "grads")
    if b.wants("grad_input"):
        scaled = grads
        if b.has("gamma"):
            by_channel = b.op("Concat", b.op("Shape", mean, start=1), per_group, [1], name="by_channel", axis=0)
            scaled = (grads * reshaped(b.load("gamma"), by_channel, "scales")).named("scaled")
        count = b.op("Max", per_group * places, 1).cast(b.compute).named("count")

        def average(value: Value, name: str) -> Value:
            return (b.op("ReduceSum", value, [2, 3], name=f"{name}_sum", keepdims=1) / count).named(name)

        projected = (normal * average((scaled * normal).named("products"), "slope")).named("projected")
        result = ((scaled - average(scaled, "average") - projected) * inverse).named("by_input")
        b.store("grad_input", reshaped(result, own, "grad_of_input"), "grad_out")
    parameter = "gamma" if b.has("gamma") else "grad_out"
    for name in ("grad_gamma", "grad_beta"):
        if b.wants(name):
            terms = (grads * normal).named("gamma_terms") if name == "grad_gamma" else grads
            total = b.op("ReduceSum", terms, [0, 3], name=f"{name}_sum", keepdims=0)
            b.store(name, reshaped(total, channels, f"{name}_of_channels"), parameter)


def infer(call: Call) -> tuple[TensorType, ...]:
    rows = check_groups(call, "input")
    call.same_shape("grad_out", call.shape("input"), "the shape of 'input'")
    rows = check_groups(call, "grad_out") if rows is None else rows
    known = next((shape for name in ("input", "grad_out") if (shape := call.shape(name)) is not None), None)
    for name in ("mean", "rstd"):
        call.same_shape(name, rows, "the number of samples and the attribute 'group'")
    call.same_shape("rstd", call.shape("mean"), "the shape of 'mean'")
    channels: Shape | None = None if known is None else (known[1],)
    call.same_shape("gamma", channels, "the number of channels of 'input'")
    channels = call.shape("gamma") if channels is None else channels
    parameters = TensorType(call.dtype("gamma" if call.present("gamma") else "grad_out"), channels)
    return TensorType(call.dtype("grad_out"), known), parameters, parameters


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # A group of two channels, of four elements.
        {
            "grad_out": [[[1.0, 3.0], [2.0, 2.0]]],
            "input": [[[2.0, 6.0], [6.0, 2.0]]],
            "mean": [[4.0]],
            "rstd": [[0.5]],
            "gamma": [2.0, 1.0],
        },
        {
            "grad_input": [[[0.0, 1.0], [-1.0, 0.0]]],
            "grad_gamma": [2.0, 0.0],
            "grad_beta": [4.0, 4.0],
        },
        {"group": 1},
    ),
)
