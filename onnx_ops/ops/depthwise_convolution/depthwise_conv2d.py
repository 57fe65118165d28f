"""DepthwiseConv2D: a convolution whose channels have filters of their own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.bodies.spatial import SpatialAxes
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import LANES, allocate, free, item_size, record_at, tail
from onnx_ops.loops.primitives import Floating
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.tiles import correlate
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.depthwise_convolution._boxes import (
    LAYOUT,
    box_count,
    box_of,
    find_planes,
    groups_of_task,
    interleave_filters,
    load_box,
    seen_by,
    store_box,
    write_lanes,
    write_offsets,
    write_positions,
    write_windows,
)
from onnx_ops.ops.depthwise_convolution._rules import (
    axes_of,
    check_filter,
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
    "DepthwiseConv2D",
    """
A depthwise convolution, whose channels have filters of their own (CANN's operator of this name, with the tensor layout
of ONNX's Conv and of PyTorch), fast also where the filters are not constants.

    output[n, c*M + m, i, j] = bias[c*M + m] + sum of filter[c*M + m, 0, a, b] * padded[n, c, h, w]  over all a, b
    h                        = strides[0]*i + dilations[0]*a
    w                        = strides[1]*j + dilations[1]*b
    padded                   = input, zero-padded by pads

Shapes: `input` (N, C, H, W); `filter` (C*M, 1, KH, KW), where M >= 1 is the number of filters per channel; `bias`
(C*M); `output` (N, C*M, I, J). I and J are

    (H + pads - dilations*(filter_size - 1) - 1) / strides + 1

rounded down, where pads is the sum for both ends of the axis. There are 1 to 3 spatial axes.

Dtypes: `input`, `filter` and `bias` float16, bfloat16, float or double; `output` has the dtype of `input`. Sums are
computed in double if an input is double, else in float, in the order of a and b, then the bias, and rounded once; they
do not depend on the number of threads.

Edge rules: NaN and infinities propagate as in the formula; an infinite `filter` that meets the padding gives NaN. An
omitted `bias` is 0. A size in which no filter fits is an error, as are a number above 2147483647 in an attribute, and
`pads` that add more than 268435456 elements to a plane with fewer.

Without a kernel: the results are the same. Shapes known only at run time are not checked.
""",
    inputs=(
        Input("input", "Input, (N, C, H, W)."),
        Input("filter", "The filters, (C*M, 1, KH, KW)."),
        Input("bias", "Added to the output of each filter, (C*M).", default=Default(0.0, like="filter", axis=0)),
    ),
    outputs=(Output("output", "The convolution, (N, C*M, I, J).", "input"),),
    attributes=tuple(window_attributes()),
)


def reference(
    input: np.ndarray,
    filter: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64, for one element of all filters at a time.

    Args:
        input: floating array (N, C, ...).
        filter: floating array (C*M, 1, ...).
        bias: floating array (C*M).
        strides, pads, dilations: as in the schema.
        dtype: dtype of the result instead of input's.

    Returns:
        Array (N, C*M, ...).
    """
    axes = axes_of(filter.shape[LEAD:], strides, pads, dilations)
    samples, channels, filters = *input.shape[:LEAD], filter.shape[0]
    x = np.pad(input.astype(np.float64), [(0, 0), (0, 0), *((axis.before, axis.after) for axis in axes)])
    x = np.repeat(x, filters // max(channels, 1), axis=1)
    counts = [axis.count(length) for axis, length in zip(axes, input.shape[LEAD:], strict=True)]
    out = np.zeros((samples, filters, *counts))
    column = (filters, *[1] * len(axes))
    for element in itertools.product(*map(range, filter.shape[LEAD:])):
        seen = x
        for place, (e, axis, count) in enumerate(zip(element, axes, counts, strict=True), LEAD):
            seen = np.take(seen, e * axis.dilation + axis.stride * np.arange(count), axis=place)
        at: tuple[Any, ...] = (slice(None), 0, *element)
        with np.errstate(invalid="ignore", over="ignore"):
            out += filter.astype(np.float64)[at].reshape(column) * seen
    if bias is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            out += bias.astype(np.float64).reshape(column)
    return rounded(out, input.dtype, dtype)


# --- the kernel ------------------------------------------------------------------------------------------------------
#
# The elements of the input that a box of positions reads are interleaved, and so are the results. A task has some
# filters and some samples.

INPUT, WEIGHTS, BIAS = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shape of the output; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    rank = job.rank[INPUT]
    if not LEAD < rank <= LEAD + AXES or job.rank[WEIGHTS] != rank or job.dims[WEIGHTS, 1] != 1:
        return False
    samples, channels, filters = job.dims[INPUT, 0], job.dims[INPUT, 1], job.dims[WEIGHTS, 0]
    if kernel.element_type[BIAS] != 0 and (job.rank[BIAS] != 1 or job.dims[BIAS, 0] != filters):
        return False
    attributes, spatial = record_at(kernel.attributes, ATTRIBUTES), rank - LEAD
    for i in range(AXES):
        axis = i - (AXES - spatial)
        is_own = axis >= 0
        layout.length[i] = job.dims[INPUT, LEAD + axis] if is_own else 1
        layout.filter[i] = job.dims[WEIGHTS, LEAD + axis] if is_own else 1
        if layout.filter[i] < 1:
            return False
    if not write_windows(layout, attributes, spatial, False):
        return False
    job.output_rank[0], job.output_dims[0, 0], job.output_dims[0, 1] = rank, samples, filters
    for axis in range(spatial):
        job.output_dims[0, LEAD + axis] = layout.count[AXES - spatial + axis]
    write_positions(layout)
    per_position = volume(layout.filter) // LANES + 1
    work = LANES * (1.0 * volume(layout.length) + 1.0 * volume(layout.count) * per_position)
    return write_lanes(layout, job, samples, channels, filters, filters, work, 0)


PLAN = Layout(write_layout, LAYOUT.itemsize)


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some filters and some samples, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    filters, elements, positions = layout.filters, volume(layout.filter), volume(layout.step)
    memory, planes, targets, of_weights, of_x, weights, bias, sums, x = allocate(
        (LANES, np.int64), (LANES, np.int64), (elements, np.int64), (elements, np.int64),
        (elements * LANES, dtype), (LANES, dtype), (positions * LANES, dtype), (volume(layout.reach) * LANES, dtype),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    input_type, has_bias = kernel.element_type[INPUT], kernel.element_type[BIAS] != 0
    input_bytes = volume(layout.length) * item_size(input_type)
    output_bytes = volume(layout.count) * item_size(input_type)
    counts, stride = layout.count, layout.stride
    boxes, block = box_count(counts, layout.step), number // layout.chunks
    weights_type = kernel.element_type[WEIGHTS]
    interleave_filters(planes, layout, block, job.data[WEIGHTS], filters, 0, weights_type, elements, weights, 0)
    if has_bias:
        interleave_filters(planes, layout, block, job.data[BIAS], filters, 0, kernel.element_type[BIAS], 1, bias, 0)
    for element in range(elements):
        of_weights[element] = element
    first_group, stop = groups_of_task(layout, number)
    for group in range(first_group, stop):
        find_planes(planes, layout, block, group, job.data[INPUT], filters, layout.channels, 0, input_bytes)
        find_planes(targets, layout, block, group, job.output[0], filters, filters, 0, output_bytes)
        for box in range(boxes):
            first, steps = box_of(counts, layout.step, box)
            begins, reach = seen_by(layout, first, steps)
            rim = boxes > 1 or group == first_group  # else the zeros are still there
            load_box(planes, input_type, layout.length, begins, reach, x, 0, rim)
            write_offsets(layout, reach[1], reach[2], of_x)
            down = stride[1] * reach[2]
            for layer in range(steps[0]):
                seen = tail(x, layer * stride[0] * reach[1] * reach[2] * LANES)
                given = (weights, seen, of_weights, of_x, elements)
                place = layer * steps[1] * steps[2]
                correlate(*given, steps[1], steps[2], down, stride[2], sums, place, steps[2], 1)
            if has_bias:
                for position in range(steps[0] * steps[1] * steps[2]):
                    for lane in range(LANES):
                        sums[position * LANES + lane] += bias[lane]
            store_box(sums, counts, first, steps, targets, input_type)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, compute=computing_type(call))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """One element of all filters after the other: a strided slice of the padded input times the element.

    The operator Conv has no float64 kernel in onnxruntime, and takes its groups from an attribute, so that it could not
    serve uses with other numbers of channels.
    """
    x, weights = b.load("input"), b.load("filter")
    lead = b.op("Shape", x, name="lead", start=0, end=LEAD)
    own_lengths = b.op("Shape", x, name="spatial_sizes", start=LEAD)
    axes = SpatialAxes(b, own_lengths, AXES)
    stride, dilation = axes.setting("strides", 1), axes.setting("dilations", 1)
    before, after = axes.setting("pads", 0).named("before"), axes.setting("pads", 0, part=1).named("after")
    lengths = axes.sizes(own_lengths, "lengths")
    sizes = axes.sizes(b.op("Shape", weights, name="filter_sizes", start=LEAD), "sizes")
    samples = b.op("Slice", lead, [0], [1], name="samples")
    channels = b.op("Slice", lead, [1], [LEAD], name="channels")
    filters = b.op("Shape", weights, name="filters", start=0, end=1)
    each = (filters / b.op("Max", channels, 1, name="channels_or_one")).named("filters_of_channel")
    counts = ((lengths + before + after - dilation * (sizes - 1) - 1) / stride + 1).named("counts")
    ends = ((counts - 1) * stride + 1).named("ends")
    elements = b.op("ReduceProd", sizes, name="elements", keepdims=1)
    strides_of_elements = axes.strides(sizes)

    def parts(*sizes_of: Value | list[int], name: str) -> Value:
        return b.op("Concat", *sizes_of, name=name, axis=0)

    def by_filter(value: Value, last: Value, name: str) -> Value:
        """Numbers of each filter, (C, M, `last`, 1, 1)."""
        return b.op("Reshape", value, parts(channels, each, last, [1, 1], name=f"{name}_shape"), name=name, allowzero=1)

    volumes = b.op("Reshape", x, parts(samples, channels, [1], lengths, name="volumes_shape"), allowzero=1)
    padded = b.op("Pad", volumes, parts([0, 0, 0], before, [0, 0, 0], after, name="pads_of_all"), name="padded")
    columns = by_filter(weights, elements, "columns")

    def step(element: Value, goes_on: Value, so_far: Value) -> tuple[Value, Value]:
        begins = (b.op("Mod", element / strides_of_elements, sizes) * dilation).named("begins")
        seen = b.op("Slice", padded, begins, begins + ends, [3, 4, 5], stride, name="seen")
        own = b.op("Unsqueeze", b.op("Gather", columns, element, axis=2), [2], name="own")
        return goes_on, (so_far + seen * own).named("sums")

    whole = parts(samples, channels, each, counts, name="whole")
    kinds = {"element": TensorType(TensorProto.INT64, ()), "goes_on": TensorType(TensorProto.BOOL, ())}
    kinds["so_far"] = TensorType(b.compute)
    loop_body = b.subgraph(step, kinds, (kinds["goes_on"], kinds["so_far"]))
    start = b.op("Expand", 0.0, whole, name="start")
    (sums,) = b.several("Loop", b.op("Squeeze", elements), True, start, names=("all_sums",), body=loop_body)
    if b.has("bias"):
        sums = (sums + by_filter(b.load("bias"), b.constant([1]), "biases")).named("biased")
    own_counts = b.op("Slice", counts, axes.absent, [AXES], name="own_counts")
    shape = parts(samples, filters, own_counts, name="shape")
    b.store("output", b.op("Reshape", sums, shape, name="result", allowzero=1), "input")


def infer(call: Call) -> tuple[TensorType, ...]:
    x, weights = call.shape("input"), call.shape("filter")
    known = next((name for name in ("input", "filter") if call.shape(name) is not None), None)
    rank = None if known is None else len(call.shape(known) or ()) - LEAD
    if rank is not None and known is not None and not 1 <= rank <= AXES:
        raise call.shape_error(known, f"{LEAD + 1} to {LEAD + AXES} dimensions")
    check_windows(call, rank)
    if rank is None:
        return (TensorType(call.dtype("input")),)
    for name in ("input", "filter"):
        check_rank(call, name, rank)
    if weights is None:
        return (TensorType(call.dtype("input"), (x[0] if x is not None else None, None, *[None] * rank)),)
    check_filter(call, weights)
    call.same_shape("bias", (weights[0],), "one number per filter")
    if x is None:
        return (TensorType(call.dtype("input"), (None, weights[0], *[None] * rank)),)
    check_filters(call, "filter", x[1], axis=0)
    known_sizes = [size if isinstance(size, int) else 1 for size in weights[LEAD:]]
    axes = axes_of(known_sizes, *(call.attributes[name] for name in ("strides", "pads", "dilations")))
    check_sizes(call, axes, x[LEAD:])
    return (TensorType(call.dtype("input"), (x[0], weights[0], *counts_on(call, axes, weights[LEAD:]))),)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # One channel with one filter of two by two, which has two places.
        {"input": [[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]], "filter": [[[[1.0, 2.0], [3.0, 4.0]]]], "bias": [1.0]},
        {"output": [[[[38.0, 48.0]]]]},
    ),
)
