"""Convolution: a convolution whose weights need not be constants."""

from __future__ import annotations

from collections.abc import Sequence

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
from onnx_ops.loops.memory import computing_size, record_at, size_of, whole_lines
from onnx_ops.loops.primitives import Floating
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.convolution._blocked import (
    LAYOUT,
    blocks_of,
    image_blocks,
    image_elements,
    image_tasks,
    interleave_image,
    interleave_weights,
    weights_elements,
    write_windows,
)
from onnx_ops.ops.convolution._lines import has_few_products, multiply_lines, split_lines
from onnx_ops.ops.convolution._products import multiply, split_product
from onnx_ops.ops.convolution._rules import (
    axes_of,
    check_attributes,
    check_convolution,
    elements_of,
    window_attributes,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.windows import AXES, LEAD

SIGNATURE = Signature(
    "Convolution",
    """
A convolution (aclnnConvolution that is not transposed), fast also where `weight` is not a constant.

    output[n, o, i, j] = bias[o] + sum of input[n, c, h, w] * weight[o, c, a, b]  over all c, a, b
    h                  = stride[0]*i + dilation[0]*a - padding[0]
    w                  = stride[1]*j + dilation[1]*b - padding[1]

The sum is over elements of `input`: those of windows that lie in the padding are left out. With `groups` the channels
of `input` and `output` are split into so many groups, and each is convolved with its own part of `weight`.

Shapes: `input` (N, C, H, W), `weight` (O, C / groups, A, B), `bias` (O) and `output` (N, O, I, J). I and J are

    (H + 2*padding - dilation*(A - 1) - 1) / stride + 1

rounded down. There are 1 to 3 spatial axes. `O` and `C` are multiples of `groups`.

Dtypes: all have one dtype: float16, bfloat16, float or double. Computed in double if that is double, else in float, and
rounded once. The order of summation is fixed, with the bias last, and does not depend on the number of threads.

Edge rules: NaN and infinities propagate as in the formula. An omitted `bias` is 0. A size in which no window fits is an
error, as are a number above 2147483647 in an attribute, and `padding` that adds more than 268435456 elements to a plane
with fewer.

Without a kernel: the order of summation is that of the runtime's MatMul. Shapes known only at run time are not checked.
""",
    inputs=(
        Input("input", "Input, (N, C, H, W)."),
        Input("weight", "Kernels, (O, C / groups, A, B).", like="input"),
        Input("bias", "Added to each channel, (O).", like="input", default=Default(0.0, like="weight", axis=0)),
    ),
    outputs=(Output("output", "The convolution, (N, O, I, J).", "input"),),
    attributes=tuple(window_attributes()),
)


def reference(
    input: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64, for one element of all kernels at a time.

    Args:
        input: floating array (N, C, ...).
        weight: floating array (O, C / groups, ...).
        bias: floating array (O).
        stride, padding, dilation, groups: as in the schema.
        dtype: dtype of the result instead of input's.

    Returns:
        Array (N, O, ...).
    """
    axes = axes_of(weight.shape[LEAD:], stride, padding, dilation)
    samples, outputs = input.shape[0], weight.shape[0] // groups
    x = input.astype(np.float64).reshape(samples, groups, weight.shape[1], *input.shape[LEAD:])
    own = weight.astype(np.float64).reshape(groups, outputs, *weight.shape[1:])
    counts = [axis.count(length) for axis, length in zip(axes, input.shape[LEAD:], strict=True)]
    out = np.zeros((samples, groups, outputs, *counts))
    for element, windows, met in elements_of(axes, input.shape[LEAD:], counts):
        with np.errstate(invalid="ignore", over="ignore"):
            out[windows] += np.einsum("ngi...,goi->ngo...", x[met], own[element])
    out = out.reshape(samples, groups * outputs, *counts)
    if bias is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            out += bias.astype(np.float64).reshape(-1, *[1] * len(axes))
    return rounded(out, input.dtype, dtype)


# --- the kernel ------------------------------------------------------------------------------------------------------

IMAGE, WEIGHT, BIAS = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shape of the output; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    if not write_windows(layout, record_at(kernel.attributes, ATTRIBUTES), job, IMAGE, WEIGHT):
        return False
    if kernel.element_type[BIAS] != 0 and (job.rank[BIAS] != 1 or job.dims[BIAS, 0] != job.dims[WEIGHT, 0]):
        return False
    rank = job.rank[IMAGE]
    job.output_rank[0] = rank
    job.output_dims[0, 0], job.output_dims[0, 1] = layout.samples, job.dims[WEIGHT, 0]
    for axis in range(LEAD, rank):
        job.output_dims[0, axis] = layout.count[axis - rank + AXES]
    layout.by_lines = int(has_few_products(layout))
    if layout.by_lines:
        split_lines(layout)
        job.scratch_bytes, job.prepare_tasks, job.tasks = size_of(LAYOUT), 0, layout.product_tasks
        return True
    layout.alone = 0
    split_product(layout, layout.outputs, layout.count)
    layout.image_tasks = image_tasks(layout, image_blocks(layout), layout.length)
    layout.weights_tasks = layout.groups * blocks_of(layout.outputs)
    layout.image = job.scratch + whole_lines(size_of(LAYOUT))
    size = computing_size(kernel.element_type[IMAGE])
    image_bytes = size * image_elements(layout)
    layout.weights = layout.image + whole_lines(image_bytes)
    end = layout.weights + size * weights_elements(layout, layout.inputs, layout.outputs)
    job.scratch_bytes = end - job.scratch
    job.prepare_tasks, job.tasks = layout.image_tasks + layout.weights_tasks, layout.product_tasks
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


def prepare(job: Job, number: int, dtype: Floating) -> None:
    """Interleave some planes of the input, or some weights."""
    layout, element_type = record_at(job.scratch, LAYOUT), record_at(job.kernel, KERNEL).element_type[IMAGE]
    if number < layout.image_tasks:
        done = interleave_image(layout, number, job.data[IMAGE], element_type, dtype)
    else:
        number, source = number - layout.image_tasks, job.data[WEIGHT]
        done = interleave_weights(layout, number, False, source, element_type, layout.weights, dtype)
    if not done:
        job.failed = NO_MEMORY


def task(job: Job, number: int, dtype: Floating) -> None:
    layout, kernel = record_at(job.scratch, LAYOUT), record_at(job.kernel, KERNEL)
    element_type, bias = kernel.element_type[IMAGE], job.data[BIAS] if kernel.element_type[BIAS] != 0 else 0
    if layout.by_lines:
        image, weight = job.data[IMAGE], job.data[WEIGHT]
        done = multiply_lines(layout, number, image, weight, bias, job.output[0], element_type, dtype)
    else:
        done = multiply(layout, number, False, bias, job.output[0], element_type, dtype)
    if not done:
        job.failed = NO_MEMORY


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """A product of matrices for one element of all kernels after the other.

    The operator Conv has no float64 kernel in onnxruntime.
    """
    x, weight = b.load("input"), b.load("weight")
    own_lengths = b.op("Shape", x, name="spatial_sizes", start=LEAD)
    axes = SpatialAxes(b, own_lengths, AXES)
    groups = b.op("Reshape", b.value_of("groups"), [1], name="group_count")
    stride, before, dilation = axes.setting("stride", 1), axes.setting("padding", 0), axes.setting("dilation", 1)
    lengths = axes.sizes(own_lengths, "lengths")
    sizes = axes.sizes(b.op("Shape", weight, name="kernel_sizes", start=LEAD), "sizes")
    samples = b.op("Shape", x, name="samples", start=0, end=1)
    inputs = b.op("Shape", weight, name="inputs", start=1, end=LEAD)
    all_outputs = b.op("Shape", weight, name="all_outputs", start=0, end=1)
    outputs = (all_outputs / groups).named("outputs")
    elements = b.op("ReduceProd", sizes, name="elements", keepdims=1)
    strides_of_elements = axes.strides(sizes)
    reach = (dilation * (sizes - 1)).named("reach")
    counts = ((lengths + before + before - reach - 1) / stride + 1).named("counts")

    def parts(*sizes_of: Value | list[int], name: str) -> Value:
        return b.op("Concat", *sizes_of, name=name, axis=0)

    split = parts(samples, groups, inputs, lengths, name="split")
    images = b.op("Transpose", b.op("Reshape", x, split, allowzero=1), name="images", perm=[1, 0, 3, 4, 5, 2])
    by_element = b.op("Reshape", weight, parts(groups, outputs, inputs, elements, name="weights_shape"), allowzero=1)
    by_element = b.op("Transpose", by_element, name="by_element", perm=[0, 2, 1, 3])
    kinds = {"element": TensorType(TensorProto.INT64, ()), "goes_on": TensorType(TensorProto.BOOL, ())}
    none = b.constant([0, 0])

    def add(element: Value, goes_on: Value, so_far: Value) -> tuple[Value, Value]:
        offset = (b.op("Mod", element / strides_of_elements, sizes) * dilation).named("offset")
        low = b.op("Min", b.op("Max", (before - offset + stride - 1) / stride, 0), counts, name="low")
        high = b.op("Min", (lengths - 1 + before - offset + stride) / stride, counts, name="high")
        high = b.op("Max", high, low)
        begin = low * stride + offset - before
        until = b.op("Max", b.op("Min", begin + (high - low - 1) * stride + 1, lengths), 0, name="until")
        met = b.op("Slice", images, begin, until, [2, 3, 4], stride, name="met")
        places = samples * b.op("ReduceProd", high - low, keepdims=1)
        rows = b.op("Reshape", met, parts(groups, places, inputs, name="rows_shape"), name="rows", allowzero=1)
        products = b.op("MatMul", rows, b.op("Gather", by_element, element, axis=3), name="products")
        products = b.op("Reshape", products, parts(groups, samples, high - low, outputs, name="met_shape"), allowzero=1)
        pads = parts(none, low, [0], none, counts - high, [0], name="pads")
        return goes_on, (so_far + b.op("Pad", products, pads, name="moved")).named("sums")

    state = TensorType(b.compute)
    scope = b.subgraph(add, {**kinds, "so_far": state}, (kinds["goes_on"], state))
    start = b.op("Expand", 0.0, parts(groups, samples, counts, outputs, name="whole"), name="start")
    (sums,) = b.several("Loop", b.op("Squeeze", elements), True, start, names=("all_sums",), body=scope)
    sums = b.op("Transpose", sums, name="channels_first", perm=[1, 0, 5, 2, 3, 4])
    if b.has("bias"):
        column = parts(groups, outputs, [1, 1, 1], name="column")
        sums = (sums + b.op("Reshape", b.load("bias"), column, name="biases", allowzero=1)).named("biased")
    own_counts = b.op("Slice", counts, axes.absent, [AXES], name="own_counts")
    shape = parts(samples, all_outputs, own_counts, name="shape")
    b.store("output", b.op("Reshape", sums, shape, name="result", allowzero=1), "input")


def infer(call: Call) -> tuple[TensorType, ...]:
    check_attributes(call)
    shape = check_convolution(call, None)
    weight = call.shape("weight")
    call.same_shape("bias", None if weight is None else weight[:1], "one number per channel of the output")
    return (TensorType(call.dtype("input"), shape),)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # One channel, and a kernel of two by two, which has two places.
        {"input": [[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]], "weight": [[[[1.0, 2.0], [3.0, 4.0]]]], "bias": [1.0]},
        {"output": [[[[38.0, 48.0]]]]},
    ),
)
