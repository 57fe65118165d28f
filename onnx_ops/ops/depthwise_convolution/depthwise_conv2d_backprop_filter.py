"""DepthwiseConv2DBackpropFilter: gradient of a convolution of each channel by itself, by its filters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.bodies.spatial import SpatialAxes
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import required_attribute
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.primitives import (
    LANES,
    add_products,
    array_at,
    free,
    helper,
    item_size,
    malloc,
    record_at,
    setting,
    write_numbers,
)
from onnx_ops.loops.records import JOB, KERNEL, NO_MEMORY, OK, REFUSED, attributes_of
from onnx_ops.ops.depthwise_convolution._rules import (
    ABREAST,
    AXES,
    BEFORE,
    BLOCKS,
    BOX,
    CHANNELS,
    CHUNK_GROUPS,
    CHUNKS,
    COUNT,
    DILATION,
    FILTER,
    FILTERS,
    LEAD,
    LENGTH,
    LONGEST,
    REACH,
    SAMPLES,
    STEP,
    STRIDE,
    TABLE,
    TOGETHER_SAMPLES,
    axes_of,
    bring_box,
    check_filters,
    check_rank,
    check_sizes,
    check_windows,
    clear,
    find_planes,
    number,
    product,
    quotient_up,
    reach_of,
    window_attributes,
    write_lanes,
    write_windows,
)
from onnx_ops.ops.references import rounded

SIGNATURE = Signature(
    "DepthwiseConv2DBackpropFilter",
    """
Gradient of a depthwise convolution, whose channels have filters of their own, with respect to the filters (CANN's
operator of this name, with the tensor layout of ONNX's Conv and of PyTorch).

    filter_grad[c*M + m, 0, a, b] = sum of out_backprop[n, c*M + m, i, j] * padded[n, c, h, w]  over all n, i, j
    h                             = strides[0]*i + dilations[0]*a
    w                             = strides[1]*j + dilations[1]*b
    padded                        = input, zero-padded by pads

Shapes: `input` (N, C, H, W); `out_backprop` (N, C*M, I, J), where M >= 1 is the number of filters per channel;
`filter_grad` (C*M, 1, KH, KW) with (KH, KW) = `filter_size`. I and J are

    (H + pads - dilations*(filter_size - 1) - 1) / strides + 1

rounded down, where pads is the sum for both ends of the axis. `filter_size` has one number per spatial axis, 1 to 3.

Dtypes: `input` and `out_backprop` float16, bfloat16, float or double; `filter_grad` has the dtype of `input`. Computed
in double if an input is double; else products are summed in float over a few rows of an image, and these sums in
double. Rounded once. The order of summation is fixed and does not depend on the number of threads.

Edge rules: NaN and infinities propagate as in the formula; an infinite `out_backprop` that meets the padding gives NaN.
Without samples the gradient is 0. A size in which no filter fits is an error, as are a number above 2147483647 in an
attribute, and `pads` that add more than 268435456 elements to a plane with fewer.

Without a kernel: the order of summation is that of the runtime's MatMul. Shapes known only at run time are not checked.
""",
    inputs=(
        Input("input", "Input of the convolution, (N, C, H, W)."),
        Input("out_backprop", "Gradient of the loss with respect to the output, (N, C*M, I, J)."),
    ),
    outputs=(Output("filter_grad", "Gradient of the loss with respect to the filters, (C*M, 1, KH, KW).", "input"),),
    attributes=(
        required_attribute("filter_size", OpSchema.AttrType.INTS, "Size of a filter along each spatial axis."),
        *window_attributes(),
    ),
)


def reference(
    input: np.ndarray,
    out_backprop: np.ndarray,
    *,
    filter_size: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """The definition in NumPy, in float64: one element of all filters after the other.

    Args:
        input: floating array (N, C, ...).
        out_backprop: floating array (N, C*M, ...).
        filter_size, strides, pads, dilations: as in the schema.
        dtype: answer in this dtype instead of input's.

    Returns:
        Array (C*M, 1, *filter_size).
    """
    axes = axes_of(filter_size, strides, pads, dilations)
    channels, filters, counts = input.shape[1], out_backprop.shape[1], out_backprop.shape[LEAD:]
    x = np.pad(input.astype(np.float64), [(0, 0), (0, 0), *((axis.before, axis.after) for axis in axes)])
    x = np.repeat(x, filters // max(channels, 1), axis=1)
    grad = out_backprop.astype(np.float64)
    out = np.zeros((filters, 1, *filter_size))
    for element in itertools.product(*map(range, filter_size)):
        seen = x
        for place, (e, axis, count) in enumerate(zip(element, axes, counts, strict=True), LEAD):
            seen = np.take(seen, e * axis.dilation + axis.stride * np.arange(count), axis=place)
        with np.errstate(invalid="ignore", over="ignore"):
            products = grad * seen
            at: tuple[Any, ...] = (slice(None), 0, *element)
            out[at] = products.sum(axis=(0, *range(LEAD, products.ndim)))
    return rounded(out, input.dtype, dtype)


# --- the kernel ------------------------------------------------------------------------------------------------------
#
# Channels lie side by side in lanes, and where there are few of them, several samples. A box of the places of a filter
# at a time, and what the filters see from there, is brought together in this way; then each element of the filters is a
# sum of products of two rows of lanes. A task has some of the filters, and some of the samples.

INPUT, GRAD = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
TOGETHER = 3
"""Elements of a filter whose sums are taken together."""


@helper
def sums_of_filter(table: Any) -> int:
    """Elements of a filter, rounded up to those that are taken together."""
    return (product(table, FILTER) + TOGETHER - 1) // TOGETHER * TOGETHER


@helper
def write_table(table: Any, attributes: Any, job: Any) -> bool:
    """Fill the table; whether shapes fit each other."""
    spatial = attributes.filter_size_count
    if job.rank[INPUT] != LEAD + spatial or job.rank[GRAD] != LEAD + spatial:
        return False
    samples, channels, filters = job.dims[INPUT, 0], job.dims[INPUT, 1], job.dims[GRAD, 1]
    if job.dims[GRAD, 0] != samples:
        return False
    for i in range(AXES):
        axis = i - (AXES - spatial)
        there = axis >= 0
        table[LENGTH * AXES + i] = job.dims[INPUT, LEAD + axis] if there else 1
        table[COUNT * AXES + i] = job.dims[GRAD, LEAD + axis] if there else 1
        table[FILTER * AXES + i] = setting(attributes.filter_size, spatial, axis, 1) if there else 1
    if not write_windows(table, attributes, spatial):
        return False
    seen = 1
    for i in range(AXES - 1, -1, -1):
        stride, span = table[STRIDE * AXES + i], reach_of(table, i, 1)
        step = min(table[COUNT * AXES + i], max((BOX // seen - span) // stride + 1, 1))
        if i == AXES - 1:
            step = min(step, LONGEST)
        table[STEP * AXES + i], table[REACH * AXES + i] = step, reach_of(table, i, step)
        seen *= table[REACH * AXES + i]
    work = LANES * product(table, LENGTH) + 1.0 * product(table, COUNT) * (sums_of_filter(table) + LANES)
    return write_lanes(table, samples, channels, filters, filters, work)


def plan(kernel_address: int, job_address: int) -> int:
    """Check shapes."""
    kernel, job = record_at(kernel_address, KERNEL), record_at(job_address, JOB)
    memory = malloc(8 * TABLE)
    if memory == 0:
        return NO_MEMORY
    table = array_at(memory, TABLE, np.int64)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    fits = write_table(table, attributes, job)
    if fits:
        spatial = attributes.filter_size_count
        job.output_rank[0] = LEAD + spatial
        job.output_dims[0, 0], job.output_dims[0, 1] = number(table, FILTERS), 1
        for axis in range(spatial):
            job.output_dims[0, LEAD + axis] = table[FILTER * AXES + AXES - spatial + axis]
        job.tasks = number(table, BLOCKS) * number(table, CHUNKS)
        job.scratch_bytes = 8 * (TABLE + job.tasks * sums_of_filter(table) * LANES)
    free(memory)
    return OK if fits else REFUSED


def begin(kernel_address: int, job_address: int) -> None:
    """The table into the scratch memory, after which each task has its sums."""
    kernel, job = record_at(kernel_address, KERNEL), record_at(job_address, JOB)
    write_table(array_at(job.scratch, TABLE, np.int64), record_at(kernel.attributes, ATTRIBUTES), job)


@helper
def start_in_box(table: Any, element: int, height: int, width: int) -> int:
    """Where an element of a filter is that lies at the beginning of a box of this height and width."""
    element = min(element, product(table, FILTER) - 1)
    columns, rows = table[FILTER * AXES + 2], table[FILTER * AXES + 1]
    z = element // (rows * columns) * table[DILATION * AXES]
    y = element // columns % rows * table[DILATION * AXES + 1]
    return int((z * height + y) * width + element % columns * table[DILATION * AXES + 2])


@helper
def add_box(table: Any, totals: Any, valid: int, grad: Any, steps: Any, x: Any, reach: Any, sums: Any) -> None:
    """Add what the places in a box are worth to the totals of the valid lanes."""
    layer = table[STRIDE * AXES] * reach[1] * reach[2]
    row, step = table[STRIDE * AXES + 1] * reach[2], table[STRIDE * AXES + 2]
    for element in range(0, product(table, FILTER), TOGETHER):
        a = start_in_box(table, element, reach[1], reach[2])
        b = start_in_box(table, element + 1, reach[1], reach[2])
        c = start_in_box(table, element + 2, reach[1], reach[2])
        clear(sums, 0, TOGETHER * LANES)
        for z in range(steps[0]):
            before = z * layer
            starts = (a + before, b + before, c + before)
            first = z * steps[1] * steps[2]
            add_products(sums, grad, x, first, starts, steps[1], steps[2], steps[2], row, step)
        for t in range(TOGETHER):
            for lane in range(valid):
                totals[(element + t) * LANES + lane] += sums[t * LANES + lane]


@helper
def work_off(job: Any, number_of_task: int, dtype: Any, size: int) -> None:
    """One task, in a dtype whose numbers have so many bytes."""
    kernel, table = record_at(job.kernel, KERNEL), array_at(job.scratch, TABLE, np.int64)
    count = sums_of_filter(table) * LANES
    totals = array_at(job.scratch + 8 * (TABLE + number_of_task * count), count, np.float64)
    clear(totals, 0, count)
    places, seen = product(table, STEP), product(table, REACH)
    memory = malloc(8 * 2 * LANES + size * LANES * (TOGETHER + places + seen))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    planes, planes_of_grad = array_at(memory, LANES, np.int64), array_at(memory + 8 * LANES, LANES, np.int64)
    at = memory + 8 * 2 * LANES
    sums = array_at(at, TOGETHER * LANES, dtype)
    at += size * TOGETHER * LANES
    grad, x = array_at(at, places * LANES, dtype), array_at(at + size * places * LANES, seen * LANES, dtype)
    input_type, grad_type = kernel.element_type[INPUT], kernel.element_type[GRAD]
    bytes_of_input = product(table, LENGTH) * item_size(input_type)
    bytes_of_grad = product(table, COUNT) * item_size(grad_type)
    lengths = (table[LENGTH * AXES], table[LENGTH * AXES + 1], table[LENGTH * AXES + 2])
    counts = (table[COUNT * AXES], table[COUNT * AXES + 1], table[COUNT * AXES + 2])
    chunks, groups, together = number(table, CHUNKS), number(table, CHUNK_GROUPS), number(table, TOGETHER_SAMPLES)
    block, chunk = number_of_task // chunks, number_of_task % chunks
    several = product(table, STEP) < product(table, COUNT)  # boxes; else the rim is where it was
    for group in range(chunk * groups, min((chunk + 1) * groups, quotient_up(number(table, SAMPLES), together))):
        filters, channels = number(table, FILTERS), number(table, CHANNELS)
        find_planes(planes, table, block, group, job.data[INPUT], filters, channels, 0, bytes_of_input)
        find_planes(planes_of_grad, table, block, group, job.data[GRAD], filters, filters, 0, bytes_of_grad)
        valid = min(together, number(table, SAMPLES) - group * together) * number(table, ABREAST)
        for z in range(0, counts[0], table[STEP * AXES]):
            for y in range(0, counts[1], table[STEP * AXES + 1]):
                for c in range(0, counts[2], table[STEP * AXES + 2]):
                    steps = (
                        min(table[STEP * AXES], counts[0] - z),
                        min(table[STEP * AXES + 1], counts[1] - y),
                        min(table[STEP * AXES + 2], counts[2] - c),
                    )
                    begins = (
                        z * table[STRIDE * AXES] - table[BEFORE * AXES],
                        y * table[STRIDE * AXES + 1] - table[BEFORE * AXES + 1],
                        c * table[STRIDE * AXES + 2] - table[BEFORE * AXES + 2],
                    )
                    reach = (reach_of(table, 0, steps[0]), reach_of(table, 1, steps[1]), reach_of(table, 2, steps[2]))
                    bring_box(planes_of_grad, grad_type, counts, (z, y, c), steps, grad, 0, False)
                    rim = several or group == chunk * groups
                    bring_box(planes, input_type, lengths, begins, reach, x, 0, rim)
                    add_box(table, totals, valid, grad, steps, x, reach, sums)
    free(memory)


def task(job_address: int, number: int) -> None:
    """Some filters of some samples, in float."""
    work_off(record_at(job_address, JOB), number, np.float32, 4)


def task_in_double(job_address: int, number: int) -> None:
    """The same in double."""
    work_off(record_at(job_address, JOB), number, np.float64, 8)


def finish(kernel_address: int, job_address: int) -> None:
    """Add up what the tasks, and the samples in the lanes, are worth."""
    kernel, job = record_at(kernel_address, KERNEL), record_at(job_address, JOB)
    table = array_at(job.scratch, TABLE, np.int64)
    elements, count, chunks = product(table, FILTER), sums_of_filter(table) * LANES, number(table, CHUNKS)
    abreast, together = number(table, ABREAST), number(table, TOGETHER_SAMPLES)
    row_address = malloc(8 * elements)
    if row_address == 0:
        job.failed = NO_MEMORY
        return
    row, element_type = array_at(row_address, elements, np.float64), kernel.output_type[0]
    for f in range(number(table, FILTERS)):
        clear(row, 0, elements)
        for chunk in range(chunks):
            part = f // abreast * chunks + chunk
            totals = array_at(job.scratch + 8 * (TABLE + part * count), count, np.float64)
            for e in range(elements):
                for sample in range(together):
                    row[e] += totals[e * LANES + sample * abreast + f % abreast]
        target = job.output[0] + f * elements * item_size(element_type)
        write_numbers(kernel.write, row_address, element_type, elements, target)
    free(row_address)


def kernel(call: Call) -> Tasks:
    in_double = TensorProto.DOUBLE in (call.dtype("input"), call.dtype("out_backprop"))
    return Tasks(plan, task_in_double if in_double else task, begin, finish)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """One element of all filters after the other: a strided slice of the padded input times the gradient.

    The operator Conv, with the gradient for weights, would take its sizes and the number of channels from attributes,
    so that it could not serve uses that differ in them.
    """
    filter_size = b.value_of("filter_size")
    x, grad = b.load("input"), b.load("out_backprop")
    axes = SpatialAxes(b, filter_size, AXES)
    sizes = axes.sizes(filter_size, "sizes")
    stride, dilation = axes.setting("strides", 1), axes.setting("dilations", 1)
    before, after = axes.setting("pads", 0).named("before"), axes.setting("pads", 0, part=1).named("after")

    def shape_of(value: Value, name: str) -> tuple[Value, Value]:
        """The first two sizes, and the spatial ones."""
        lead = b.op("Shape", value, name=f"{name}_lead", start=0, end=LEAD)
        return lead, axes.sizes(b.op("Shape", value, name=f"{name}_space", start=LEAD), f"{name}_sizes")

    x_lead, lengths = shape_of(x, "input")
    grad_lead, counts = shape_of(grad, "grad")
    samples = b.op("Slice", x_lead, [0], [1], name="samples")
    channels = b.op("Slice", x_lead, [1], [LEAD], name="channels")
    filters = b.op("Slice", grad_lead, [1], [LEAD], name="filters")
    each = (filters / b.op("Max", channels, 1, name="channels_or_one")).named("filters_of_channel")
    of_sample = b.op("ReduceProd", counts, name="of_sample", keepdims=1)
    places = (samples * of_sample).named("places")

    volumes = b.op("Reshape", x, b.op("Concat", x_lead, lengths, axis=0), name="volumes", allowzero=1)
    volumes = b.op("Transpose", volumes, name="channels_first", perm=[1, 0, 2, 3, 4])
    padded = b.op("Pad", volumes, b.op("Concat", [0, 0], before, [0, 0], after, name="pads", axis=0), name="padded")
    shape = b.op("Concat", samples, channels, each, of_sample, axis=0)
    rows = b.op("Transpose", b.op("Reshape", grad, shape, allowzero=1), name="filters_first", perm=[1, 2, 0, 3])
    rows = b.op("Reshape", rows, b.op("Concat", channels, each, places, axis=0), name="grad_rows", allowzero=1)

    ends = ((counts - 1) * stride + 1).named("ends")
    strides_of_elements = axes.strides(sizes)
    column = b.op("Concat", channels, places, [1], name="column", axis=0)

    def step(element: Value, goes_on: Value) -> tuple[Value, Value]:
        begins = (b.op("Mod", element / strides_of_elements, sizes) * dilation).named("begins")
        seen = b.op("Slice", padded, begins, begins + ends, [2, 3, 4], stride, name="seen")
        return goes_on, b.op("MatMul", rows, b.op("Reshape", seen, column, allowzero=1), name="sums")

    kinds = {"element": TensorType(TensorProto.INT64, ()), "goes_on": TensorType(TensorProto.BOOL, ())}
    loop_body = b.subgraph(step, kinds, (kinds["goes_on"], TensorType(b.compute)))
    elements = b.op("ReduceProd", sizes, name="elements", keepdims=1)
    (sums,) = b.several("Loop", b.op("Squeeze", elements), True, names=("sums_of_elements",), body=loop_body)
    # ONNX's reference evaluator does not stack the outputs of the turns, but puts one behind the other.
    by_element = b.op("Reshape", sums, b.op("Concat", elements, filters, axis=0), name="by_element", allowzero=1)
    by_filter = b.op("Transpose", by_element, name="by_filter", perm=[1, 0])
    shape = b.op("Concat", filters, [1], filter_size, name="shape", axis=0)
    b.store("filter_grad", b.op("Reshape", by_filter, shape, name="gradient", allowzero=1), "input")


def infer(call: Call) -> tuple[TensorType, ...]:
    call.check()
    sizes = call.attributes["filter_size"]
    check_windows(call, "filter_size", len(sizes))
    x, grad = call.shape("input"), call.shape("out_backprop")
    for name in ("input", "out_backprop"):
        check_rank(call, name, len(sizes))
    if x is not None:
        axes = axes_of(*(call.attributes[name] for name in ("filter_size", "strides", "pads", "dilations")))
        check_sizes(call, axes, x[LEAD:])
        counts = [own.count(n) if isinstance(n, int) else None for own, n in zip(axes, x[LEAD:], strict=True)]
        for axis, fitting in enumerate(counts, LEAD):
            if fitting is not None and fitting < 1:
                raise call.shape_error("input", f"a size of axis {axis} in which a filter fits")
        call.same_shape("out_backprop", (x[0], None, *counts), "the places of the filters on 'input'")
        check_filters(call, "out_backprop", x[1])
    return (TensorType(call.dtype("input"), (grad[1] if grad is not None else None, 1, *sizes)),)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # One channel with one filter of two by two, which has two places.
        {"input": [[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]], "out_backprop": [[[[1.0, 10.0]]]]},
        {"filter_grad": [[[[21.0, 32.0], [54.0, 65.0]]]]},
        {"filter_size": (2, 2)},
    ),
)
