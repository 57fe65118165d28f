"""DepthwiseConv2DBackpropInput: gradient of a convolution of each channel by itself, by its input."""

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
from onnx_ops.core.types import MAX_NUMBER, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.primitives import (
    LANES,
    array_at,
    correlate,
    free,
    helper,
    interleave,
    item_size,
    malloc,
    record_at,
    separate,
    setting,
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
    find_planes,
    number,
    product,
    quotient_up,
    window_attributes,
    write_lanes,
    write_windows,
)
from onnx_ops.ops.references import rounded

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
Sums are computed in double if an input is double, else in float, in the order of m, a and b, and rounded once; they do
not depend on the number of threads.

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
    """The definition in NumPy, in float64: one element of all filters after the other.

    Args:
        filter: floating array (C*M, 1, ...).
        out_backprop: floating array (N, C*M, ...).
        input_size, strides, pads, dilations: as in the schema.
        dtype: answer in this dtype instead of out_backprop's.

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
# Channels lie side by side in lanes, and where there are few of them, several samples. What a box of the input has met
# of the gradient is brought together in this way, and then the sums go back. Elements of the input that meet the same
# elements of the filters, those that are a stride apart, are worked off together. A task has some channels of some
# samples.

WEIGHTS, GRAD = range(2)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
NONE = -(1 << 62)


@helper
def filters_of_channel(table: Any) -> int:
    return number(table, FILTERS) // number(table, CHANNELS)


@helper
def write_table(table: Any, attributes: Any, job: Any) -> bool:
    """Fill the table; whether shapes fit each other."""
    given = attributes.input_size_count
    spatial, channels = given - 1, setting(attributes.input_size, given, 0, 0)
    samples, filters = job.dims[GRAD, 0], job.dims[GRAD, 1]
    if job.rank[WEIGHTS] != LEAD + spatial or job.rank[GRAD] != LEAD + spatial:
        return False
    if job.dims[WEIGHTS, 0] != filters or job.dims[WEIGHTS, 1] != 1:
        return False
    for i in range(AXES):
        axis = i - (AXES - spatial)
        there = axis >= 0
        table[LENGTH * AXES + i] = setting(attributes.input_size, given, axis + 1, 1) if there else 1
        table[COUNT * AXES + i] = job.dims[GRAD, LEAD + axis] if there else 1
        table[FILTER * AXES + i] = job.dims[WEIGHTS, LEAD + axis] if there else 1
        if table[FILTER * AXES + i] < 1:
            return False
    if not write_windows(table, attributes, spatial):
        return False
    own = max(filters // channels, 1)
    seen = own
    for i in range(AXES - 1, -1, -1):
        stride = table[STRIDE * AXES + i]
        more = table[DILATION * AXES + i] * (table[FILTER * AXES + i] - 1)
        step = min(table[LENGTH * AXES + i], max(BOX // seen * stride - more, 1))
        if i == AXES - 1:
            step = min(step, LONGEST * stride)
        table[STEP * AXES + i], table[REACH * AXES + i] = step, (step - 1 + more) // stride + 1
        seen *= table[REACH * AXES + i]
    of_place = own * product(table, FILTER) // LANES + 1
    work = LANES * (1.0 * product(table, LENGTH) * of_place + 1.0 * own * product(table, COUNT))
    return write_lanes(table, samples, channels, filters, channels, work)


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
        given = attributes.input_size_count
        job.output_rank[0] = 1 + given
        job.output_dims[0, 0] = number(table, SAMPLES)
        for axis in range(given):
            job.output_dims[0, 1 + axis] = setting(attributes.input_size, given, axis, 1)
        job.tasks = number(table, BLOCKS) * number(table, CHUNKS)
        job.scratch_bytes = 8 * TABLE
    free(memory)
    return OK if fits else REFUSED


def begin(kernel_address: int, job_address: int) -> None:
    """The table into the scratch memory."""
    kernel, job = record_at(kernel_address, KERNEL), record_at(job_address, JOB)
    write_table(array_at(job.scratch, TABLE, np.int64), record_at(kernel.attributes, ATTRIBUTES), job)


@helper
def first_met(table: Any, axis: int, place: int) -> int:
    """The first element of the gradient, along an axis, that a place of the input may have met; also one before all."""
    last = place + table[BEFORE * AXES + axis] - table[DILATION * AXES + axis] * (table[FILTER * AXES + axis] - 1)
    return int(quotient_up(last, table[STRIDE * AXES + axis]))


@helper
def box_of(table: Any, axis: int, place: int, count: int) -> int:
    """How many elements of the gradient so many places of the input may have met, from `first_met` on."""
    last = (place + count - 1 + table[BEFORE * AXES + axis]) // table[STRIDE * AXES + axis]
    return int(max(last + 1 - first_met(table, axis, place), 0))


@helper
def met(table: Any, axis: int, place: int, element: int) -> int:
    """The element of the gradient that a place of the input has met with an element of the filter; NONE of none."""
    at = place + table[BEFORE * AXES + axis] - element * table[DILATION * AXES + axis]
    stride = table[STRIDE * AXES + axis]
    if stride == 1:  # divisions take their time
        return int(at)
    return int(at // stride) if at % stride == 0 else NONE


@helper
def find_terms(table: Any, begins: Any, reach: Any, z: int, y: int, x: int, of_weights: Any, of_grad: Any) -> int:
    """The elements of filters, and where the gradient is in its boxes, for a place of the input; how many there are."""
    rows, columns = table[FILTER * AXES + 1], table[FILTER * AXES + 2]
    count = 0
    for m in range(filters_of_channel(table)):
        for a in range(table[FILTER * AXES]):
            layer = met(table, 0, z, a)
            for b in range(rows):
                row = met(table, 1, y, b)
                if layer == NONE or row == NONE:
                    continue
                at = ((m * reach[0] + layer - begins[0]) * reach[1] + row - begins[1]) * reach[2] - begins[2]
                for c in range(columns):
                    column = met(table, 2, x, c)
                    if column != NONE:
                        of_weights[count] = ((m * table[FILTER * AXES] + a) * rows + b) * columns + c
                        of_grad[count] = at + column
                        count += 1
    return count


@helper
def work_off(job: Any, number_of_task: int, dtype: Any, size: int) -> None:
    """One task, in a dtype whose numbers have so many bytes."""
    kernel, table = record_at(job.kernel, KERNEL), array_at(job.scratch, TABLE, np.int64)
    own, elements = filters_of_channel(table), product(table, FILTER)
    places, seen = product(table, STEP), product(table, REACH)
    memory = malloc(8 * 2 * (LANES + own * elements) + size * LANES * (own * elements + places + own * seen))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    planes, targets = array_at(memory, LANES, np.int64), array_at(memory + 8 * LANES, LANES, np.int64)
    at = memory + 8 * 2 * LANES
    most = own * elements
    of_weights, of_grad = array_at(at, most, np.int64), array_at(at + 8 * most, most, np.int64)
    at += 8 * 2 * most
    weights = array_at(at, most * LANES, dtype)
    at += size * most * LANES
    sums = array_at(at, places * LANES, dtype)
    grad = array_at(at + size * places * LANES, own * seen * LANES, dtype)

    weights_type, grad_type = kernel.element_type[WEIGHTS], kernel.element_type[GRAD]
    filters, channels, together = number(table, FILTERS), number(table, CHANNELS), number(table, TOGETHER_SAMPLES)
    bytes_of_filter = elements * item_size(weights_type)
    bytes_of_grad = product(table, COUNT) * item_size(grad_type)
    bytes_of_input = product(table, LENGTH) * item_size(grad_type)
    lengths = (table[LENGTH * AXES], table[LENGTH * AXES + 1], table[LENGTH * AXES + 2])
    counts = (table[COUNT * AXES], table[COUNT * AXES + 1], table[COUNT * AXES + 2])
    down, across = table[STRIDE * AXES + 1], table[STRIDE * AXES + 2]
    chunks, groups = number(table, CHUNKS), number(table, CHUNK_GROUPS)
    block, chunk = number_of_task // chunks, number_of_task % chunks
    for m in range(own):
        find_planes(planes, table, block, 0, job.data[WEIGHTS], channels, filters, m, bytes_of_filter)
        for lane in range(number(table, ABREAST), LANES):  # all samples have the filters of the first
            planes[lane] = planes[lane % number(table, ABREAST)]
        interleave(planes, weights_type, 0, elements, weights, m * elements)
    several = places < product(table, LENGTH)  # boxes; else the zeros are where they were
    for group in range(chunk * groups, min((chunk + 1) * groups, quotient_up(number(table, SAMPLES), together))):
        find_planes(targets, table, block, group, job.output[0], channels, channels, 0, bytes_of_input)
        for z in range(0, lengths[0], table[STEP * AXES]):
            for y in range(0, lengths[1], table[STEP * AXES + 1]):
                for x in range(0, lengths[2], table[STEP * AXES + 2]):
                    steps = (
                        min(table[STEP * AXES], lengths[0] - z),
                        min(table[STEP * AXES + 1], lengths[1] - y),
                        min(table[STEP * AXES + 2], lengths[2] - x),
                    )
                    begins = (first_met(table, 0, z), first_met(table, 1, y), first_met(table, 2, x))
                    reach = (
                        box_of(table, 0, z, steps[0]),
                        box_of(table, 1, y, steps[1]),
                        box_of(table, 2, x, steps[2]),
                    )
                    for m in range(own):
                        find_planes(planes, table, block, group, job.data[GRAD], channels, filters, m, bytes_of_grad)
                        start, rim = m * reach[0] * reach[1] * reach[2], several or group == chunk * groups
                        bring_box(planes, grad_type, counts, begins, reach, grad, start, rim)
                    for layer in range(steps[0]):
                        for i in range(min(down, steps[1])):
                            for j in range(min(across, steps[2])):
                                terms = find_terms(table, begins, reach, z + layer, y + i, x + j, of_weights, of_grad)
                                rows, columns = quotient_up(steps[1] - i, down), quotient_up(steps[2] - j, across)
                                place, lower = (layer * steps[1] + i) * steps[2] + j, down * steps[2]
                                given = (weights, grad, of_weights, of_grad, terms)
                                correlate(*given, rows, columns, reach[2], sums, place, lower, across)
                        place, first = layer * steps[1] * steps[2], ((z + layer) * lengths[1] + y) * lengths[2] + x
                        if steps[2] == lengths[2]:  # rows that follow each other in memory
                            separate(sums, place, steps[1] * steps[2], targets, grad_type, first)
                        else:
                            for row in range(steps[1]):
                                at_row, to_row = place + row * steps[2], first + row * lengths[2]
                                separate(sums, at_row, steps[2], targets, grad_type, to_row)
    free(memory)


def task(job_address: int, number: int) -> None:
    """Some channels of some samples, in float."""
    work_off(record_at(job_address, JOB), number, np.float32, 4)


def task_in_double(job_address: int, number: int) -> None:
    """The same in double."""
    work_off(record_at(job_address, JOB), number, np.float64, 8)


def kernel(call: Call) -> Tasks:
    in_double = TensorProto.DOUBLE in (call.dtype("filter"), call.dtype("out_backprop"))
    return Tasks(plan, task_in_double if in_double else task, begin)


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
    call.check()
    channels, *lengths = call.attributes["input_size"] or (0,)
    check_windows(call, "input_size", len(lengths))
    weights, grad = call.shape("filter"), call.shape("out_backprop")
    for name in ("filter", "out_backprop"):
        check_rank(call, name, len(lengths))
    check_filters(call, "out_backprop", channels)
    if weights is not None:
        if not all(1 <= size <= MAX_NUMBER for size in weights[LEAD:] if isinstance(size, int)):
            raise call.shape_error("filter", f"sizes of at least 1, at most {MAX_NUMBER}")
        call.same_shape("filter", (weights[0], 1, *weights[LEAD:]), "one channel in each filter")
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
