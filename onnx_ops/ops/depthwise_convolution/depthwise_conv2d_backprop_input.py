"""DepthwiseConv2DBackpropInput: gradient of a depthwise convolution with respect to its input."""

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
from onnx_ops.loops.memory import LANES, allocate, free, item_size, record_at, setting
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.tiles import correlate
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.depthwise_convolution._boxes import (
    BOX,
    LAYOUT,
    LONGEST,
    Boxes,
    box_count,
    box_of,
    find_planes,
    groups_of_task,
    interleave_filters,
    load_box,
    store_box,
    write_lanes,
    write_windows,
)
from onnx_ops.ops.depthwise_convolution._rules import (
    axes_of,
    check_filter,
    check_filters,
    check_rank,
    check_sizes,
    check_windows,
    window_attributes,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.windows import AXES, LEAD, volume

SIGNATURE = Signature(
    "DepthwiseConv2DBackpropInput",
    """
Gradient of a depthwise convolution, whose channels have filters of their own, with respect to its input (CANN's
operator of this name, with the tensor layout of ONNX's Conv and of PyTorch).

    input_grad[n, c, h, w] = sum of filter[c*M + m, 0, a, b] * padded[n, c*M + m, i, j]  over all m, a, b, i, j
                             with  strides[0]*i = h + pads[0] - dilations[0]*a
                             and   strides[1]*j = w + pads[1] - dilations[1]*b
    padded                 = out_backprop, with zeros on all sides

Shapes: `filter` (C*M, 1, KH, KW), where M >= 1 is the number of filters per channel; `out_backprop` (N, C*M, I, J);
`input_grad` (N, C, H, W) with (C, H, W) = `input_size`. I and J are

    (H + pads - dilations*(filter_size - 1) - 1) / strides + 1

rounded down, where pads is the sum for both ends of the axis. `input_size` has the number of channels and one number
per spatial axis, of which there are 1 to 3.

Dtypes: `filter` and `out_backprop` float16, bfloat16, float or double; `input_grad` has the dtype of `out_backprop`.
Sums are computed in double if an input is double, else in float, in the order of m, for each m from the last a and b to
the first ones, and rounded once; they do not depend on the number of threads.

Edge rules: NaN and infinities propagate as in the formula; an infinite `filter` that meets a zero beside `out_backprop`
gives NaN. A size in which no filter fits is an error, as are a number above 2147483647 in an attribute, and `pads` that
add more than 268435456 elements to a plane with fewer.

Without a kernel: an infinite `filter` also gives NaN in elements that the strides skip. Shapes known only at run time
are not checked.
""",
    inputs=(
        Input("filter", "The filters, (C*M, 1, KH, KW)."),
        Input("out_backprop", "Gradient of the loss with respect to the output, (N, C*M, I, J)."),
    ),
    outputs=(Output("input_grad", "Gradient of the loss with respect to the input, (N, C, H, W).", "out_backprop"),),
    attributes=(
        required_attribute("input_size", OpSchema.AttrType.INTS, "Channels of the input and its spatial sizes."),
        *window_attributes(),
    ),
)


def reference(
    filter: np.ndarray,
    out_backprop: np.ndarray,
    *,
    input_size: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64, for one element of all filters at a time.

    Args:
        filter: floating array (C*M, 1, ...).
        out_backprop: floating array (N, C*M, ...).
        input_size, strides, pads, dilations: as in the schema.
        dtype: dtype of the result instead of out_backprop's.

    Returns:
        Array (N, *input_size).
    """
    channels, *lengths = input_size
    axes = axes_of(filter.shape[LEAD:], strides, pads, dilations)
    samples, filters = out_backprop.shape[:LEAD]
    grad, terms = out_backprop.astype(np.float64), np.zeros((samples, filters, *lengths))
    with np.errstate(invalid="ignore", over="ignore"):
        for element in itertools.product(*(range(axis.size) for axis in axes)):
            met, counts = grad, np.ones((), bool)
            for place, (e, axis, length) in enumerate(zip(element, axes, lengths, strict=True), LEAD):
                at = np.arange(length) + axis.before - axis.dilation * e
                inside = (at >= 0) & (at // axis.stride < grad.shape[place])
                whole = at % axis.stride == 0
                met = np.take(met, np.where(inside, at // axis.stride, 0), axis=place)
                column = (-1,) + (1,) * (grad.ndim - place - 1)
                met, counts = np.where(inside.reshape(column), met, 0.0), counts & whole.reshape(column)
            of_filters: tuple[Any, ...] = (slice(None), 0, *element)
            weights = filter.astype(np.float64)[of_filters].reshape(filters, *[1] * len(axes))
            terms += np.where(counts, weights * met, 0.0)
        out = terms.reshape(samples, channels, filters // channels, *lengths).sum(axis=LEAD)
    return rounded(out, out_backprop.dtype, dtype)


# --- the kernel ------------------------------------------------------------------------------------------------------
#
# The elements of out_backprop that a box of the input contributed to are interleaved, and so are the results. Elements
# of the input that are a stride apart use the same elements of the filters, and are computed together. A task has some
# channels of some samples.

WEIGHTS, GRAD = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
NONE = -(1 << 62)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shape of the output; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    given = attributes.input_size_count
    spatial, channels = given - 1, setting(attributes.input_size, given, 0, 0)
    samples, filters = job.dims[GRAD, 0], job.dims[GRAD, 1]
    if job.rank[WEIGHTS] != LEAD + spatial or job.rank[GRAD] != LEAD + spatial:
        return False
    if job.dims[WEIGHTS, 0] != filters or job.dims[WEIGHTS, 1] != 1:
        return False
    job.output_rank[0], job.output_dims[0, 0] = 1 + given, samples
    for axis in range(given):
        job.output_dims[0, 1 + axis] = setting(attributes.input_size, given, axis, 1)
    for i in range(AXES):
        axis = i - (AXES - spatial)
        is_own = axis >= 0
        layout.length[i] = setting(attributes.input_size, given, axis + 1, 1) if is_own else 1
        layout.count[i] = job.dims[GRAD, LEAD + axis] if is_own else 1
        layout.filter[i] = job.dims[WEIGHTS, LEAD + axis] if is_own else 1
        if layout.filter[i] < 1:
            return False
    if not write_windows(layout, attributes, spatial, True):
        return False
    own = max(filters // channels, 1)
    read = own
    for i in range(AXES - 1, -1, -1):
        stride = layout.stride[i]
        more = layout.dilation[i] * (layout.filter[i] - 1)
        step = min(layout.length[i], max(BOX // read * stride - more, 1))
        if i == AXES - 1:
            step = min(step, LONGEST * stride)
        layout.step[i], layout.reach[i] = step, (step - 1 + more) // stride + 1
        read *= layout.reach[i]
    per_element = own * volume(layout.filter) // LANES + 1
    work = LANES * (1.0 * volume(layout.length) * per_element + 1.0 * own * volume(layout.count))
    return write_lanes(layout, job, samples, channels, filters, channels, work, 0)


PLAN = Layout(write_layout, LAYOUT.itemsize)


@helper
def first_position(layout: Boxes, axis: int, element: int) -> int:
    """First position of a filter, along an axis, that may read an element of the input; may be negative."""
    last = element + layout.before[axis] - layout.dilation[axis] * (layout.filter[axis] - 1)
    return int(ceil_divide(last, layout.stride[axis]))


@helper
def position_count(layout: Boxes, axis: int, element: int, count: int) -> int:
    """Number of positions, from `first_position` on, that may read any of `count` adjacent elements of the input."""
    last = (element + count - 1 + layout.before[axis]) // layout.stride[axis]
    return int(max(last + 1 - first_position(layout, axis, element), 0))


@helper
def position_of(layout: Boxes, axis: int, element: int, k: int) -> int:
    """Position at which element k of a filter reads an element of the input, along an axis; NONE if there is none."""
    at = element + layout.before[axis] - k * layout.dilation[axis]
    stride = layout.stride[axis]
    if stride == 1:  # a division is slow
        return int(at)
    return int(at // stride) if at % stride == 0 else NONE


@helper
def find_terms(
    layout: Boxes,
    own: int,
    begins: Sequence[int],
    reach: Sequence[int],
    z: int,
    y: int,
    x: int,
    of_weights: Array,
    of_grad: Array,
) -> int:
    """Write the products that make up an element of the result: indices into filters and boxes; returns their number.

    Args:
        own: filters per channel.
        begins, reach: first element and size of the boxes of out_backprop.
        z, y, x: the element.
        of_weights, of_grad: receive the indices.
    """
    rows, columns = layout.filter[1], layout.filter[2]
    count = 0
    for m in range(own):
        for a in range(layout.filter[0] - 1, -1, -1):
            layer = position_of(layout, 0, z, a)
            for b in range(rows - 1, -1, -1):
                row = position_of(layout, 1, y, b)
                if layer == NONE or row == NONE:
                    continue
                at = ((m * reach[0] + layer - begins[0]) * reach[1] + row - begins[1]) * reach[2] - begins[2]
                for c in range(columns - 1, -1, -1):  # so that positions increase, as `correlate` is fastest
                    column = position_of(layout, 2, x, c)
                    if column != NONE:
                        of_weights[count] = ((m * layout.filter[0] + a) * rows + b) * columns + c
                        of_grad[count] = at + column
                        count += 1
    return count


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some channels of some samples, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    filters, channels, elements = layout.filters, layout.channels, volume(layout.filter)
    own = filters // channels
    most, step_elements, read = own * elements, volume(layout.step), own * volume(layout.reach)
    memory, planes, targets, of_weights, of_grad, weights, sums, grad = allocate(
        (LANES, np.int64), (LANES, np.int64), (most, np.int64), (most, np.int64),
        (most * LANES, dtype), (step_elements * LANES, dtype), (read * LANES, dtype),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    weights_type, grad_type = kernel.element_type[WEIGHTS], kernel.element_type[GRAD]
    grad_bytes = volume(layout.count) * item_size(grad_type)
    input_bytes = volume(layout.length) * item_size(grad_type)
    lengths, down, across = layout.length, layout.stride[1], layout.stride[2]
    boxes, block = box_count(layout.length, layout.step), number // layout.chunks
    for m in range(own):
        start = m * elements
        interleave_filters(
            planes, layout, block, job.data[WEIGHTS], channels, m, weights_type, elements, weights, start
        )
    first_group, stop = groups_of_task(layout, number)
    for group in range(first_group, stop):
        find_planes(targets, layout, block, group, job.output[0], channels, channels, 0, input_bytes)
        for box in range(boxes):
            (z, y, x), steps = box_of(layout.length, layout.step, box)
            begins = (first_position(layout, 0, z), first_position(layout, 1, y), first_position(layout, 2, x))
            reach = (
                position_count(layout, 0, z, steps[0]),
                position_count(layout, 1, y, steps[1]),
                position_count(layout, 2, x, steps[2]),
            )
            rim = boxes > 1 or group == first_group  # else the zeros are still there
            for m in range(own):
                find_planes(planes, layout, block, group, job.data[GRAD], channels, filters, m, grad_bytes)
                load_box(planes, grad_type, layout.count, begins, reach, grad, m * reach[0] * reach[1] * reach[2], rim)
            for layer in range(steps[0]):
                for i in range(min(down, steps[1])):
                    for j in range(min(across, steps[2])):
                        terms = find_terms(layout, own, begins, reach, z + layer, y + i, x + j, of_weights, of_grad)
                        rows, columns = ceil_divide(steps[1] - i, down), ceil_divide(steps[2] - j, across)
                        place, lower = (layer * steps[1] + i) * steps[2] + j, down * steps[2]
                        given = (weights, grad, of_weights, of_grad, terms)
                        correlate(*given, rows, columns, reach[2], 1, sums, place, lower, across)
            store_box(sums, lengths, (z, y, x), steps, targets, grad_type)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, compute=computing_type(call))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """One element of all filters after the other: a slice of the spread gradient times the element.

    The operator ConvTranspose takes its sizes and the number of channels from attributes, so that it could not serve
    uses that differ in them.
    """
    input_size = b.value_of("input_size")
    weights, grad = b.load("filter"), b.load("out_backprop")
    channels = b.op("Slice", input_size, [0], [1], name="channels")
    own_lengths = b.op("Slice", input_size, [1], [AXES + 1], name="spatial_sizes")
    axes = SpatialAxes(b, own_lengths, AXES)
    given, dilation = axes.setting("strides", 1), axes.setting("dilations", 1)
    before = axes.setting("pads", 0).named("before")
    lengths = axes.sizes(own_lengths, "lengths")
    # Of places that are further apart than the input ends, the first alone meets it; zeros between them take memory.
    end = (before + lengths).named("end")
    stride = b.op("Where", given.less(end), given, end, name="stride")
    sizes = axes.sizes(b.op("Shape", weights, name="filter_size", start=LEAD), "sizes")
    counts = axes.sizes(b.op("Shape", grad, name="grad_size", start=LEAD), "counts")
    samples = b.op("Shape", grad, name="samples", start=0, end=1)
    filters = b.op("Shape", grad, name="filters", start=1, end=LEAD)
    each = (filters / channels).named("filters_of_channel")

    def parts(*sizes_of: Value | list[int], name: str) -> Value:
        return b.op("Concat", *sizes_of, name=name, axis=0)

    # Each axis of space followed by one of size 1, which zeros make as long as the stride.
    planes = (samples * filters).named("planes")
    apart = b.op("Reshape", b.op("Unsqueeze", counts, [1]), [AXES, 1])
    apart = b.op("Concat", apart, b.op("Expand", 1, [AXES, 1]), axis=1)
    apart = parts(planes, b.op("Reshape", apart, [-1]), name="apart")
    gaps = b.op("Concat", b.op("Expand", 0, [AXES, 1]), b.op("Unsqueeze", stride - 1, [1]), name="gaps", axis=1)
    gaps = parts(b.op("Expand", 0, [2 * AXES + 2]), b.op("Reshape", gaps, [-1]), name="pads_of_gaps")
    spread = b.op("Pad", b.op("Reshape", grad, apart, allowzero=1), gaps, name="with_gaps")
    volumes = parts(samples, channels, each, counts * stride, name="volumes")
    spread = b.op("Reshape", spread, volumes, name="spread", allowzero=1)

    more = (dilation * (sizes - 1)).named("more")
    missing = b.op("Max", more - before, 0, name="missing")
    behind = b.op("Max", end - counts * stride, 0, name="behind")
    none = b.constant([0, 0, 0])
    spread = b.op("Pad", spread, parts(none, missing, none, behind, name="rim"), name="with_rim")
    first = (missing + before).named("first")
    strides_of_elements = axes.strides(sizes)
    elements = b.op("ReduceProd", sizes, name="elements", keepdims=1)
    columns = b.op("Reshape", weights, parts(channels, each, elements, [1, 1], name="columns"), allowzero=1)

    def step(element: Value, goes_on: Value, so_far: Value) -> tuple[Value, Value]:
        begins = (first - b.op("Mod", element / strides_of_elements, sizes) * dilation).named("begins")
        seen = b.op("Slice", spread, begins, begins + lengths, [3, 4, 5], name="seen")
        own = b.op("Unsqueeze", b.op("Gather", columns, element, axis=2), [4], name="own")
        return goes_on, (so_far + b.op("ReduceSum", seen * own, [2], keepdims=0)).named("sums")

    whole = parts(samples, channels, lengths, name="whole")
    kinds = {"element": TensorType(TensorProto.INT64, ()), "goes_on": TensorType(TensorProto.BOOL, ())}
    kinds["so_far"] = TensorType(b.compute)
    loop_body = b.subgraph(step, kinds, (kinds["goes_on"], kinds["so_far"]))
    start = b.op("Expand", 0.0, whole, name="start")
    (sums,) = b.several("Loop", b.op("Squeeze", elements), True, start, names=("all_sums",), body=loop_body)
    shape = parts(samples, input_size, name="shape")
    b.store("input_grad", b.op("Reshape", sums, shape, name="gradient", allowzero=1), "out_backprop")


def infer(call: Call) -> tuple[TensorType, ...]:
    channels, *lengths = call.attributes["input_size"] or (0,)
    check_windows(call, len(lengths), "input_size")
    weights, grad = call.shape("filter"), call.shape("out_backprop")
    for name in ("filter", "out_backprop"):
        check_rank(call, name, len(lengths))
    check_filters(call, "out_backprop", channels)
    if weights is not None:
        check_filter(call, weights)
        known = [size if isinstance(size, int) else 1 for size in weights[LEAD:]]
        axes = axes_of(known, *(call.attributes[name] for name in ("strides", "pads", "dilations")))
        check_sizes(call, axes, lengths)
        counts = [own.count(length) for own, length in zip(axes, lengths, strict=True)]
        if any(count < 1 for count in counts):
            raise call.shape_error("filter", f"one that fits into 'input_size', {call.attributes['input_size']}")
        wanted = [n if isinstance(size, int) else None for n, size in zip(counts, weights[LEAD:], strict=True)]
        call.same_shape("out_backprop", (None, weights[0], *wanted), "the places of 'filter' on the input")
    return (TensorType(call.dtype("out_backprop"), (grad[0] if grad is not None else None, channels, *lengths)),)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # One channel with one filter of two by two, which has two places.
        {"filter": [[[[1.0, 2.0], [3.0, 4.0]]]], "out_backprop": [[[[1.0, 10.0]]]]},
        {"input_grad": [[[[1.0, 12.0, 20.0], [3.0, 34.0, 40.0]]]]},
        {"input_size": (1, 2, 3)},
    ),
)
