"""MaxPool2dWithIndicesBackward: each gradient goes to the element that was the maximum of its window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    FLOAT,
    address_of,
    allocate,
    array_at,
    free,
    item_size,
    malloc,
    read_floats,
    read_numbers,
    record_at,
    size_of,
    write_floats,
    write_numbers,
)
from onnx_ops.loops.primitives import ZERO, Array, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape, same_shape, same_sizes, volume
from onnx_ops.ops.max_pool._rules import (
    LAYOUT,
    PLANAR,
    check_rank,
    pooled_shape,
    spatial_rank,
    window_attributes,
    windows_of,
    write_windows,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.windows import AXES

INDICES = (TensorProto.INT64, TensorProto.INT32)

SIGNATURE = Signature(
    "MaxPool2dWithIndicesBackward",
    """
Gradient of max pooling with respect to its input (aclnnMaxPool2dWithIndicesBackward). The gradient of each window goes
to the element that `indices` names, its maximum; where windows overlap, an element gets the sum.

    out[n, c, h, w] = sum of grad_output[n, c, i, j] over all windows (i, j) with indices[n, c, i, j] = h*W + w

Indices count either elements of the plane (H, W), as those of MaxPool2dWithIndices and PyTorch do, or elements of the
whole tensor, `n*C*H*W + c*H*W + h*W + w`, as those of ONNX's MaxPool do.

Shapes: `self` (N, C, H, W) or (C, H, W), and `out` the same; `grad_output` and `indices` the same except for the
spatial sizes, which are numbers of windows. `kernel_size` has one number per spatial axis, 1 to 3; without it there are
two axes. If it is given, sizes are checked against it; `stride`, `padding`, `dilation` and `ceil_mode` serve this check
only. So the op also serves other pools whose maxima have indices, such as adaptive ones (those over three axes after
two of them are merged).

Dtypes: `grad_output` and `self` float16, bfloat16, float or double; `out` has the dtype of `self`; `indices` int64 or
int32. The values of `self` are not read. Sums are computed in the order of the windows, in double if `grad_output` or
`self` is double, else in float, and rounded once.

Edge rules: an element that is no maximum gets 0. An index outside the plane of its window is an error, as are
attributes that MaxPool2dWithIndices rejects. NaN and infinities propagate to the elements that `indices` names.

Without a kernel: values are not checked; an index outside its plane makes all of that plane NaN. Shapes known only at
run time are not checked.
""",
    inputs=(
        Input("grad_output", "Gradient of the loss with respect to the output of the pooling."),
        Input("self", "Input of the pooling."),
        Input("indices", "The index of each maximum.", dtypes=INDICES),
    ),
    outputs=(Output("out", "Gradient of the loss with respect to the input of the pooling.", "self"),),
    attributes=(
        attribute("kernel_size", (), "Size of a window along each spatial axis."),
        *window_attributes(),
    ),
)


def reference(
    grad_output: np.ndarray,
    self: np.ndarray,
    indices: np.ndarray,
    *,
    kernel_size: Sequence[int] = (),
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil_mode: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """The definition in NumPy, in float64.

    Args:
        grad_output: floating array, one number for each window.
        self: array of the shape of the input.
        indices: whole numbers of grad_output's shape, in the plane or in the whole tensor.
        kernel_size: tells by its length how many spatial axes there are, two if it is empty.
        stride, padding, dilation, ceil_mode: not used.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    spatial = len(kernel_size) or PLANAR
    plane = math.prod(self.shape[self.ndim - spatial :])
    planes = math.prod(self.shape[: self.ndim - spatial])
    windows = math.prod(grad_output.shape[grad_output.ndim - spatial :])
    out = np.zeros((planes, plane))
    places, own = indices.reshape(planes, windows).astype(np.int64), np.arange(planes)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        grad = grad_output.reshape(planes, windows).astype(np.float64)
        np.add.at(out, (own, np.where(places >= plane, places - own * plane, places)), grad)
    return rounded(out.reshape(self.shape), self.dtype, dtype)


# --- the kernel: one task for some planes ----------------------------------------------------------------------------

GRAD, SELF, INDEX = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
INT64 = int(TensorProto.INT64)
WORK = 8192
"""Numbers that a task reads and writes, unless a plane has more."""
NEXT = 64
"""Indices that are looked at together."""


@helper
def spatial_axes(attributes: Any) -> int:
    return attributes.kernel_size_count if attributes.kernel_size_count > 0 else PLANAR


@helper
def planes_per_task(work: int) -> int:
    return max(WORK // max(work, 1), 1)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes."""
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    rank = job.rank[SELF]
    lead = rank - spatial_axes(attributes)
    if (lead != 1 and lead != 2) or job.rank[GRAD] != rank:
        return REFUSED
    if not same_sizes(job, GRAD, SELF, lead) or not same_shape(job, INDEX, GRAD):
        return REFUSED
    if attributes.kernel_size_count > 0:
        memory = malloc(size_of(LAYOUT))
        if memory == 0:
            return NO_MEMORY
        layout = record_at(memory, LAYOUT)
        fits = write_windows(layout, attributes, job, SELF) == lead
        for axis in range(lead, rank):
            fits = fits and job.dims[GRAD, axis] == layout.count[AXES - rank + axis]
        free(memory)
        if not fits:
            return REFUSED
    give_shape(job, 0, SELF)
    planes, plane, windows = volume(job, SELF, 0, lead), volume(job, SELF, lead, rank), volume(job, GRAD, lead, rank)
    step = planes_per_task(plane + windows)
    job.tasks = (planes + step - 1) // step
    return OK


@helper
def added(sums: Array, numbers: Array, indices: Array, first: int, planes: int, plane: int, windows: int) -> bool:
    """Set sums to those of the numbers at the places that the indices of some planes tell; whether all are in them.

    The first plane begins at `first` of the whole tensor. Where the next indices all lie in [0, plane), none is looked
    at by itself; there are few of them, so that those after them come from memory in the meantime.
    """
    at_once = max(NEXT // max(windows, 1), 1)
    for begin in range(0, planes, at_once):
        end = min(begin + at_once, planes)
        for i in range(begin * plane, end * plane):
            sums[i] = ZERO
        for start in range(begin * windows, end * windows, NEXT):
            stop = min(start + NEXT, end * windows)
            lowest, highest = plane, -1
            for i in range(start, stop):
                lowest, highest = min(lowest, int(indices[i])), max(highest, int(indices[i]))
            fits = lowest >= 0 and highest < plane
            for p in range(begin, end):
                before = p * plane
                for i in range(max(start, p * windows), min(stop, (p + 1) * windows)):
                    at = int(indices[i])
                    if not fits:
                        if at >= plane:
                            at -= first + before
                        if at < 0 or at >= plane:
                            return False
                    sums[before + at] += numbers[i]
    return True


@helper
def added_by_type(
    sums: Array, numbers: Array, index_type: int, at: int, first: int, planes: int, plane: int, windows: int
) -> bool:
    """The same with the indices at an address."""
    count = planes * windows
    if index_type == INT64:
        return added(sums, numbers, array_at(at, count, np.int64), first, planes, plane, windows)
    return added(sums, numbers, array_at(at, count, np.int32), first, planes, plane, windows)


def task(job: Job, number: int) -> None:
    """Some planes. In float and double the sums are taken in the result itself; 16-bit ones are in float before."""
    kernel = record_at(job.kernel, KERNEL)
    rank = job.rank[SELF]
    lead = rank - spatial_axes(record_at(kernel.attributes, ATTRIBUTES))
    plane, windows = volume(job, SELF, lead, rank), volume(job, GRAD, lead, rank)
    grad_type, out_type, index_type = kernel.element_type[GRAD], kernel.output_type[0], kernel.element_type[INDEX]
    step = planes_per_task(plane + windows)
    first = number * step
    planes = min(step, volume(job, SELF, 0, lead) - first)
    elements, count = planes * plane, planes * windows
    memory, own_sums, own_numbers = allocate((elements, np.float64), (count, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    source = job.data[GRAD] + first * windows * item_size(grad_type)
    target = job.output[0] + first * plane * item_size(out_type)
    indices_at = job.data[INDEX] + first * windows * (8 if index_type == INT64 else 4)
    if grad_type == DOUBLE or out_type == DOUBLE:
        numbers_at = source if grad_type == DOUBLE else address_of(own_numbers)
        sums_at = target if out_type == DOUBLE else address_of(own_sums)
        if grad_type != DOUBLE:
            read_numbers(kernel.read, source, grad_type, count, numbers_at)
        sums, numbers = array_at(sums_at, elements, np.float64), array_at(numbers_at, count, np.float64)
        fits = added_by_type(sums, numbers, index_type, indices_at, first * plane, planes, plane, windows)
        if out_type != DOUBLE:
            write_numbers(kernel.write, sums_at, out_type, elements, target)
    else:
        numbers_at = source if grad_type == FLOAT else address_of(own_numbers)
        sums_at = target if out_type == FLOAT else address_of(own_sums)
        if grad_type != FLOAT:
            read_floats(source, grad_type, count, numbers_at)
        short_sums, short_numbers = array_at(sums_at, elements, np.float32), array_at(numbers_at, count, np.float32)
        fits = added_by_type(short_sums, short_numbers, index_type, indices_at, first * plane, planes, plane, windows)
        if out_type != FLOAT:
            write_floats(sums_at, out_type, elements, target)
    if not fits:
        job.failed = REFUSED
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """Planes are rows; what indices outside their plane would get goes into one more column, which is cut off."""
    b.widen()
    shape = b.op("Shape", b.inputs["self"], name="shape")
    windows_shape = b.op("Shape", b.inputs["grad_output"], name="windows_shape")
    given = b.op("Size", b.value_of("kernel_size"), name="axes_given")
    spatial = b.op("Where", given.equal(0), PLANAR, given, name="spatial")
    lead = b.op("Reshape", b.op("Size", shape, name="rank") - spatial, [1], name="lead")
    planes, plane = (
        b.op("ReduceProd", b.op("Slice", shape, *span, name=f"{name}_sizes"), name=name, keepdims=1)
        for name, span in (("planes", ([0], lead)), ("plane", (lead, [2**31])))
    )
    windows = b.op("ReduceProd", b.op("Slice", windows_shape, lead, [2**31]), name="windows", keepdims=1)
    rows = b.op("Concat", planes, windows, name="rows", axis=0)
    grad = b.op("Reshape", b.load("grad_output"), rows, name="grad_rows", allowzero=1)
    indices = b.op("Reshape", b.load_as("indices", TensorProto.INT64), rows, name="indices_rows", allowzero=1)
    row = b.op("Range", 0, b.op("Squeeze", planes, [0]), 1, name="row")
    begins = b.op("Unsqueeze", (row * plane).named("begin"), [1], name="begins")
    places = b.op("Where", indices.less(plane), indices, (indices - begins).named("within"), name="places")
    fits = (places.greater_or_equal(0) & places.less(plane)).named("fits")
    misfits = b.op("ReduceSum", (~fits).cast(TensorProto.INT64), [1], name="misfits", keepdims=1)
    start = b.op("Where", misfits.equal(0), 0.0, np.nan, name="start")
    begun = b.op("Expand", start, b.op("Concat", planes, plane + 1, axis=0), name="begun")
    own = b.op("Where", fits, places, plane, name="own_places")
    total = b.op("ScatterElements", begun, own, grad, name="sums_and_one", axis=1, reduction="add")
    sums = b.op("Slice", total, [0], plane, [1], name="sums")
    b.store("out", b.op("Reshape", sums, shape, name="gradient", allowzero=1), "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    windows = windows_of(call)
    shape, spatial = call.shape("self"), spatial_rank(call)
    for name in ("self", "grad_output", "indices"):
        check_rank(call, name)
    if windows:
        call.same_shape("grad_output", pooled_shape(call, windows), "the windows of 'self'")
    elif shape is not None:
        call.same_shape("grad_output", (*shape[: len(shape) - spatial], *[None] * spatial), "planes as in 'self'")
    call.same_shape("indices", call.shape("grad_output"), "the shape of 'grad_output'")
    return (TensorType(call.dtype("self"), shape),)


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    x, indices = np.asarray(arrays[SELF]), np.asarray(arrays[INDEX])
    lead = x.ndim - spatial_rank(call)
    plane = math.prod(x.shape[lead:])
    begins = plane * np.arange(math.prod(x.shape[:lead])).reshape(x.shape[:lead] + (1,) * (x.ndim - lead))
    within = np.where(indices >= plane, indices - begins, indices)
    for place in np.argwhere((within < 0) | (within >= plane)):
        index, begin = indices[tuple(place)], begins[tuple(place[:lead])].item()
        where = ", ".join(map(str, place.tolist()))
        other = f", or in [{begin}, {begin + plane})" if begin else ""
        raise call.error(f"input 'indices' has {index} at ({where}), expected a place in [0, {plane}){other}")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Windows of two by two, one apart; the first and the second have their maximum in common.
        {
            "grad_output": [[[1.0, 2.0], [4.0, 8.0]]],
            "self": [[[0.0, 9.0, 0.0], [0.0, 0.0, 5.0], [7.0, 0.0, 0.0]]],
            "indices": [[[1, 1], [6, 5]]],
        },
        {"out": [[[0.0, 3.0, 0.0], [0.0, 0.0, 8.0], [4.0, 0.0, 0.0]]]},
        {"kernel_size": (2, 2), "stride": (1, 1)},
    ),
    check_values=check_values,
    body_opset=16,  # ScatterElements adds up from opset 16 on
)
