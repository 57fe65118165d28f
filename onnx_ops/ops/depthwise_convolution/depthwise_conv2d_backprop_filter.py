"""DepthwiseConv2DBackpropFilter: gradient of a depthwise convolution with respect to its filters."""

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
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    LANES,
    address_of,
    allocate,
    array_at,
    free,
    item_size,
    record_at,
    setting,
    size_of,
    whole_lines,
    write_numbers,
)
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.tiles import add_products
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.depthwise_convolution._boxes import (
    LAYOUT,
    Boxes,
    box_count,
    box_of,
    clear,
    find_planes,
    groups_of_task,
    load_box,
    seen_by,
    write_lanes,
    write_offsets,
    write_positions,
    write_windows,
)
from onnx_ops.ops.depthwise_convolution._rules import (
    axes_of,
    check_filters,
    check_rank,
    check_sizes,
    check_windows,
    counts_on,
    window_attributes,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.windows import AXES, LEAD, volume

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
    """NumPy definition, computed in float64, for one element of all filters at a time.

    Args:
        input: floating array (N, C, ...).
        out_backprop: floating array (N, C*M, ...).
        filter_size, strides, pads, dilations: as in the schema.
        dtype: dtype of the result instead of input's.

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
# Boxes of out_backprop and the elements of the input that their positions read are interleaved; then each element of a
# filter is a sum of products of two rows of vectors. A task computes sums for some filters and some samples, which
# `finish` adds.

INPUT, GRAD = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
TOGETHER = 3
"""Elements of a filter whose sums are computed together, by `add_products`."""


@helper
def sums_of_filter(layout: Boxes) -> int:
    """Elements of a filter, rounded up to a multiple of TOGETHER."""
    return ceil_divide(volume(layout.filter), TOGETHER) * TOGETHER


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shape of the output; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    spatial = attributes.filter_size_count
    if job.rank[INPUT] != LEAD + spatial or job.rank[GRAD] != LEAD + spatial:
        return False
    samples, channels, filters = job.dims[INPUT, 0], job.dims[INPUT, 1], job.dims[GRAD, 1]
    if job.dims[GRAD, 0] != samples:
        return False
    job.output_rank[0], job.output_dims[0, 0], job.output_dims[0, 1] = LEAD + spatial, filters, 1
    for i in range(AXES):
        axis = i - (AXES - spatial)
        is_own = axis >= 0
        layout.length[i] = job.dims[INPUT, LEAD + axis] if is_own else 1
        layout.count[i] = job.dims[GRAD, LEAD + axis] if is_own else 1
        layout.filter[i] = setting(attributes.filter_size, spatial, axis, 1) if is_own else 1
        if is_own:
            job.output_dims[0, LEAD + axis] = layout.filter[i]
    if not write_windows(layout, attributes, spatial, True):
        return False
    write_positions(layout)
    work = LANES * volume(layout.length) + 1.0 * volume(layout.count) * (sums_of_filter(layout) + LANES)
    sums_bytes = 8 * sums_of_filter(layout) * LANES
    return write_lanes(layout, job, samples, channels, filters, filters, work, sums_bytes)


PLAN = Layout(write_layout, LAYOUT.itemsize)


@helper
def totals_of(job: Job, layout: Boxes, task: int) -> Any:
    """The sums of a task, (sums_of_filter, LANES) in float64, in the scratch memory behind the layout."""
    count = sums_of_filter(layout) * LANES
    return array_at(job.scratch + whole_lines(size_of(LAYOUT)) + 8 * task * count, count, np.float64)


@helper
def add_box(
    layout: Boxes,
    totals: Array,
    valid: int,
    grad: Array,
    steps: Sequence[int],
    x: Array,
    reach: Sequence[int],
    offsets: Array,
    sums: Array,
) -> None:
    """Add the sums of products over a box to the totals of the first `valid` lanes."""
    layer = layout.stride[0] * reach[1] * reach[2]
    row, step = layout.stride[1] * reach[2], layout.stride[2]
    last = volume(layout.filter) - 1
    write_offsets(layout, reach[1], reach[2], offsets)
    for element in range(0, last + 1, TOGETHER):
        a, b, c = offsets[element], offsets[min(element + 1, last)], offsets[min(element + 2, last)]
        clear(sums, 0, TOGETHER * LANES)
        for z in range(steps[0]):
            before = z * layer
            starts = (a + before, b + before, c + before)
            first = z * steps[1] * steps[2]
            add_products(sums, grad, x, first, starts, steps[1], steps[2], steps[2], row, step)
        for t in range(TOGETHER):
            for lane in range(valid):
                totals[(element + t) * LANES + lane] += sums[t * LANES + lane]


def task(job: Job, number: int, dtype: Floating) -> None:
    """Sums for some filters and some samples, in this dtype within a box."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    totals = totals_of(job, layout, number)
    clear(totals, 0, sums_of_filter(layout) * LANES)
    positions, read = volume(layout.step), volume(layout.reach)
    memory, planes, planes_of_grad, offsets, sums, grad, x = allocate(
        (LANES, np.int64),
        (LANES, np.int64),
        (volume(layout.filter), np.int64),
        (TOGETHER * LANES, dtype),
        (positions * LANES, dtype),
        (read * LANES, dtype),
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    input_type, grad_type = kernel.element_type[INPUT], kernel.element_type[GRAD]
    input_bytes = volume(layout.length) * item_size(input_type)
    grad_bytes = volume(layout.count) * item_size(grad_type)
    filters = layout.filters
    boxes, block = box_count(layout.count, layout.step), number // layout.chunks
    first_group, stop = groups_of_task(layout, number)
    for group in range(first_group, stop):
        find_planes(planes, layout, block, group, job.data[INPUT], filters, layout.channels, 0, input_bytes)
        find_planes(planes_of_grad, layout, block, group, job.data[GRAD], filters, filters, 0, grad_bytes)
        valid = min(layout.group, layout.samples - group * layout.group) * layout.block
        for box in range(boxes):
            first, steps = box_of(layout.count, layout.step, box)
            begins, reach = seen_by(layout, first, steps)
            load_box(planes_of_grad, grad_type, layout.count, first, steps, grad, 0, False)
            rim = boxes > 1 or group == first_group  # else the zeros are still there
            load_box(planes, input_type, layout.length, begins, reach, x, 0, rim)
            add_box(layout, totals, valid, grad, steps, x, reach, offsets, sums)
    free(memory)


def finish(kernel: Kernel, job: Job) -> None:
    """Add the sums of the tasks and, of interleaved samples, those of the lanes."""
    layout = record_at(job.scratch, LAYOUT)
    elements, block = volume(layout.filter), layout.block
    memory, row = allocate((elements, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    element_type = kernel.output_type[0]
    for f in range(layout.filters):
        clear(row, 0, elements)
        for chunk in range(layout.chunks):
            totals = totals_of(job, layout, f // block * layout.chunks + chunk)
            for e in range(elements):
                for sample in range(layout.group):
                    row[e] += totals[e * LANES + sample * block + f % block]
        target = job.output[0] + f * elements * item_size(element_type)
        write_numbers(kernel.write, address_of(row), element_type, elements, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, finish=finish, compute=computing_type(call))


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
    sizes = call.attributes["filter_size"]
    check_windows(call, len(sizes), "filter_size")
    x, grad = call.shape("input"), call.shape("out_backprop")
    for name in ("input", "out_backprop"):
        check_rank(call, name, len(sizes))
    if x is not None:
        axes = axes_of(*(call.attributes[name] for name in ("filter_size", "strides", "pads", "dilations")))
        check_sizes(call, axes, x[LEAD:])
        counts = counts_on(call, axes, sizes)
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
