"""MaxPool2dWithIndices: the maximum of each window, and where it is."""

from __future__ import annotations

import itertools
import math
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
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    DOUBLE,
    FLOAT,
    address_of,
    allocate,
    array_at,
    free,
    item_size,
    read_numbers,
    record_at,
    size_of,
    write_numbers,
)
from onnx_ops.loops.primitives import Array, Number, ceil_divide, choose, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import volume
from onnx_ops.ops.max_pool._rules import (
    LAYOUT,
    Window,
    Windows,
    check_rank,
    pooled_shape,
    window_attributes,
    window_count,
    windows_of,
    write_windows,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.windows import AXES

SIGNATURE = Signature(
    "MaxPool2dWithIndices",
    """
Max pooling (aclnnMaxPool2dWithIndices): the maximum of each window and its index in the plane, for
MaxPool2dWithIndicesBackward.

    out[n, c, i, j]     = max of self[n, c, h, w] over the window (i, j)
    indices[n, c, i, j] = h*W + w of that element
    h                   = stride[0]*i - padding[0] + dilation[0]*a  for a from 0 to kernel_size[0] - 1, inside self

Shapes: `self` (N, C, H, W) or (C, H, W); `out` and `indices` the same except for the spatial sizes, which are

    (H + 2*padding - dilation*(kernel_size - 1) - 1) / stride + 1

rounded down, or up with `ceil_mode` 1, where the last window has to begin before the end of `self`. `kernel_size` has
one number per spatial axis, 1 to 3.

Dtypes: `self` float16, bfloat16, float or double, and `out` the same; `indices` int64.

Edge rules: of equal maxima the first one counts. A NaN is greater than any number, and the last one in the window
counts. Padding is never the maximum. A `padding` of more than half of the window, a size without windows, and a window
without elements are errors, as are a number above 2147483647 in an attribute, and `padding` that adds more than
268435456 elements to a plane with fewer.

Without a kernel: the results are the same. Shapes known only at run time are not checked.
""",
    inputs=(Input("self", "Input, with one or two axes before the spatial ones."),),
    outputs=(
        Output("out", "The maximum of each window.", "self"),
        Output("indices", "The index of the maximum in its plane.", OutputType("int64.", dtypes=(TensorProto.INT64,))),
    ),
    attributes=(
        required_attribute("kernel_size", OpSchema.AttrType.INTS, "Size of a window along each spatial axis."),
        *window_attributes(),
    ),
)


def reference(
    self: np.ndarray,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil_mode: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The definition in NumPy: one element of all windows after the other.

    Args:
        self: floating array of one or two axes before the spatial ones.
        kernel_size, stride, padding, dilation, ceil_mode: as in the schema.
        dtype: of the maxima, instead of self's.

    Returns:
        The maxima and their places, int64.
    """
    spatial, x = len(kernel_size), self.astype(np.float64)
    given = (kernel_size, stride or kernel_size, padding or (0,) * spatial, dilation or (1,) * spatial)
    windows = [Window(*values) for values in zip(*given, strict=True)]
    lead, sizes = self.shape[: self.ndim - spatial], self.shape[self.ndim - spatial :]
    counts = [window_count(size, *w, ceil_mode) for size, w in zip(sizes, windows, strict=True)]
    best = np.full((*lead, *counts), -np.inf)
    indices = np.full((*lead, *counts), -1, np.int64)
    met = (w.met(size, count) for w, size, count in zip(windows, sizes, counts, strict=True))
    for element in itertools.product(*met):
        places = np.ix_(
            *(
                np.arange(n) * w.stride - w.padding + e * w.dilation
                for n, w, e in zip(counts, windows, element, strict=True)
            )
        )
        inside = math.prod((p >= 0) & (p < size) for p, size in zip(places, sizes, strict=True)).astype(bool)
        clipped = [np.clip(p, 0, size - 1) for p, size in zip(places, sizes, strict=True)]
        where: tuple[Any, ...] = (..., *clipped)
        value = x[where]
        wins = inside & ((value > best) | np.isnan(value) | (indices < 0))
        best = np.where(wins, value, best)
        indices = np.where(wins, np.ravel_multi_index(tuple(clipped), sizes), indices)
    return rounded(best, self.dtype, dtype), indices


# --- the kernel: one task for some planes ----------------------------------------------------------------------------

SELF, OUT, INDEX = 0, 0, 1
ATTRIBUTES = attributes_of(SIGNATURE.schema)
WORK = 16384
"""Numbers that a task looks at, unless a plane has more."""


@helper
def product(sizes: Sequence[int]) -> int:
    """Product over the spatial axes."""
    return int(sizes[0] * sizes[1] * sizes[2])


@helper
def planes_per_task(layout: Windows) -> int:
    work = float(product(layout.size))
    looked_at = 1.0
    for i in range(AXES):  # in float64, for windows may be much larger than the input
        looked_at *= float(layout.count[i]) * float(layout.kernel[i])
    return int(max(WORK / (work + looked_at), 1.0))


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shape of the input fits."""
    layout = record_at(address, LAYOUT)
    lead = write_windows(layout, record_at(kernel.attributes, ATTRIBUTES), job, SELF)
    if lead < 0:
        return False
    for k in range(2):
        job.output_rank[k] = job.rank[SELF]
        for axis in range(job.rank[SELF]):
            size = job.dims[SELF, axis]
            job.output_dims[k, axis] = size if axis < lead else layout.count[AXES - job.rank[SELF] + axis]
    layout.planes = volume(job, SELF, 0, lead)
    job.tasks = ceil_divide(layout.planes, planes_per_task(layout))
    job.scratch_bytes = size_of(LAYOUT)
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


@helper
def steps_before(begin: int, dilation: int) -> int:
    """How many elements of a window lie before the input."""
    return 0 if begin >= 0 else (dilation - 1 - begin) // dilation


@helper
def steps_within(begin: int, kernel: int, dilation: int, size: int) -> int:
    """How many elements of a window lie before the end of the input."""
    return kernel if begin + dilation * (kernel - 1) < size else (size - 1 - begin) // dilation + 1


@helper
def pool(x: Array, layout: Windows, out: Array, at: Array, least: Number) -> None:
    """One plane. What is greater is chosen, not branched to: that would be guessed wrong every other time."""
    size, counts, kernel, stride = layout.size, layout.count, layout.kernel, layout.stride
    padding, dilation = layout.padding, layout.dilation
    depth, height, width = size[0], size[1], size[2]
    layers, rows, columns = counts[0], counts[1], counts[2]
    z_kernel, y_kernel, x_kernel = kernel[0], kernel[1], kernel[2]
    z_dilation, y_dilation, x_dilation = dilation[0], dilation[1], dilation[2]
    x_stride, x_padding = stride[2], padding[2]
    for i in range(layers):
        z_begin = i * stride[0] - padding[0]
        z_first = steps_before(z_begin, z_dilation)
        z_last = steps_within(z_begin, z_kernel, z_dilation, depth)
        for j in range(rows):
            y_begin = j * stride[1] - padding[1]
            y_first = steps_before(y_begin, y_dilation)
            y_last = steps_within(y_begin, y_kernel, y_dilation, height)
            for o in range(columns):
                x_begin = o * x_stride - x_padding
                x_first = steps_before(x_begin, x_dilation)
                x_last = steps_within(x_begin, x_kernel, x_dilation, width)
                line = ((z_begin + z_first * z_dilation) * height + y_begin + y_first * y_dilation) * width + x_begin
                best, best_at = least, line + x_first * x_dilation
                for a in range(z_first, z_last):
                    for b in range(y_first, y_last):
                        line = ((z_begin + a * z_dilation) * height + y_begin + b * y_dilation) * width + x_begin
                        for c in range(x_first, x_last):
                            place = line + c * x_dilation
                            value = x[place]
                            wins = (value > best) | (value != value)
                            best = choose(wins, value, best)
                            best_at = choose(wins, place, best_at)
                window = (i * rows + j) * columns + o
                out[window] = best
                at[window] = best_at


def task(job: Job, number: int) -> None:
    """Some planes; those of 16 bits in float64."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, size = kernel.element_type[SELF], item_size(kernel.element_type[SELF])
    layout = record_at(job.scratch, LAYOUT)
    plane, windows, step = product(layout.size), product(layout.count), planes_per_task(layout)
    memory, x, out = allocate((plane, np.float64), (windows, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for p in range(number * step, min((number + 1) * step, layout.planes)):
        source, target = job.data[SELF] + p * plane * size, job.output[OUT] + p * windows * size
        at = array_at(job.output[INDEX] + 8 * p * windows, windows, np.int64)
        if element_type == FLOAT:
            least = np.float32(-np.inf)
            pool(array_at(source, plane, np.float32), layout, array_at(target, windows, np.float32), at, least)
        elif element_type == DOUBLE:
            pool(array_at(source, plane, np.float64), layout, array_at(target, windows, np.float64), at, -np.inf)
        else:
            read_numbers(kernel.read, source, element_type, plane, address_of(x))
            pool(x, layout, out, at, -np.inf)
            write_numbers(kernel.write, address_of(out), element_type, windows, target)
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task)


# --- the function body -----------------------------------------------------------------------------------------------

MOMENT = TensorType(TensorProto.INT64, ())
FLAG = TensorType(TensorProto.BOOL, ())
END = 2**31


def body(b: Body) -> None:
    """One element of all windows after the other, by strided slices of the padded input.

    The operator MaxPool takes its sizes from attributes, so that it could not serve uses that differ in them; and it
    passes over NaN and a window of -inf.
    """
    x, kernel_size = b.load("self"), b.value_of("kernel_size")
    shape, axes = b.op("Shape", x, name="shape"), SpatialAxes(b, kernel_size, AXES)
    lead = (b.op("Shape", shape, name="rank") - axes.count).named("lead")
    lead_sizes = b.op("Slice", shape, [0], lead, name="lead_sizes")
    kernel = axes.sizes(kernel_size, "kernel")
    sizes = axes.sizes(b.op("Slice", shape, lead, [END], name="spatial_sizes"), "sizes")
    stride = axes.setting("stride", 1, default=kernel_size)
    padding, dilation = axes.setting("padding", 0), axes.setting("dilation", 1)
    reach = (dilation * (kernel - 1) + 1).named("reach")
    span = (sizes + padding * 2 - reach).named("span")
    most = ((span + (stride - 1) * b.value_of("ceil_mode")) / stride + 1).named("most")
    begins_beyond = ((most - 1) * stride).greater_or_equal(sizes + padding).named("begins_beyond")
    counts = (most - begins_beyond.cast(TensorProto.INT64)).named("counts")
    last = ((counts - 1) * stride).named("last")
    missing = b.op("Max", last + reach - (sizes + padding), 0, name="missing")

    planes = b.op("ReduceProd", lead_sizes, name="planes", keepdims=1)
    pads = b.op("Concat", [0], padding, [0], missing, name="pads", axis=0)

    def padded(values: Value, value: Value, name: str) -> Value:
        return b.op("Pad", values, pads, value, name=name)

    least = b.constant(-math.inf, name="least")
    rows = b.op("Reshape", x, b.op("Concat", planes, sizes, axis=0), name="rows", allowzero=1)
    elements = padded(rows, least, "elements")
    plane = b.op("ReduceProd", sizes, name="plane", keepdims=0)
    in_plane = b.op("Reshape", b.op("Range", 0, plane, 1), b.op("Concat", [1], sizes, axis=0), name="in_plane")
    places = padded(in_plane, b.constant(-1), "places")

    ends = (last + 1).named("ends")
    strides_of_elements = axes.strides(kernel)

    def step(element: Value, goes_on: Value, best: Value, at: Value) -> tuple[Value, Value, Value]:
        begins = (b.op("Mod", element / strides_of_elements, kernel) * dilation).named("begins")
        values, own = (
            b.op("Slice", of, begins, begins + ends, [1, 2, 3], stride, name=name)
            for of, name in ((elements, "values"), (places, "own_places"))
        )
        is_greater = values.greater(best) | b.op("IsNaN", values) | at.less(0)
        wins = (is_greater & own.greater_or_equal(0)).named("wins")
        return goes_on, b.op("Where", wins, values, best, name="best"), b.op("Where", wins, own, at, name="at")

    rows_shape = b.op("Concat", planes, counts, name="rows_shape", axis=0)
    start, nowhere = b.op("Expand", least, rows_shape, name="start"), b.op("Expand", -1, rows_shape, name="nowhere")
    kinds = {
        "element": MOMENT,
        "goes_on": FLAG,
        "best_so_far": TensorType(b.compute),
        "at_so_far": TensorType(TensorProto.INT64),
    }
    loop_body = b.subgraph(step, kinds, tuple(kinds.values())[1:])
    number = b.op("ReduceProd", kernel, name="number", keepdims=0)
    best, at = b.several("Loop", number, True, start, nowhere, names=("greatest", "greatest_at"), body=loop_body)
    own_counts = b.op("Slice", counts, axes.absent, [AXES], name="own_counts")
    out_shape = b.op("Concat", lead_sizes, own_counts, name="out_shape", axis=0)
    b.store("out", b.op("Reshape", best, out_shape, name="maxima", allowzero=1), "self")
    b.give("indices", b.op("Reshape", at, out_shape, name="indices_of_maxima", allowzero=1))


def infer(call: Call) -> tuple[TensorType, ...]:
    windows = windows_of(call)
    if not windows:
        raise call.error(f"attribute 'kernel_size' is (), expected 1 to {AXES} numbers")
    check_rank(call, "self")
    shape = pooled_shape(call, windows)
    return TensorType(call.dtype("self"), shape), TensorType(TensorProto.INT64, shape)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Windows of two by two, one apart; the first and the second have their maximum in common.
        {"self": [[[0.0, 9.0, 0.0], [0.0, 0.0, 5.0], [7.0, 0.0, 0.0]]]},
        {"out": [[[9.0, 9.0], [7.0, 5.0]]], "indices": [[[1, 1], [6, 5]]]},
        {"kernel_size": (2, 2), "stride": (1, 1)},
    ),
)
