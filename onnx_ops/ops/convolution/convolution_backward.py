"""ConvolutionBackward: gradients of a convolution with respect to its input, its weight and its bias."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.bodies.spatial import SpatialAxes
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    FLOAT,
    address_of,
    allocate,
    computing_size,
    floats_at,
    free,
    item_size,
    read_numbers,
    record_at,
    size_of,
    whole_lines,
    write_numbers,
)
from onnx_ops.loops.primitives import Floating, add_any_order, helper, total_of, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.convolution._blocked import (
    LAYOUT,
    Blocks,
    blocks_of,
    image_blocks,
    image_elements,
    image_tasks,
    interleave_image,
    interleave_weights,
    interleave_windows,
    weights_elements,
    windows_elements,
    write_windows,
)
from onnx_ops.ops.convolution._input_gradient_lines import (
    multiply_quotients,
    order_weights,
    split_input_lines,
    weights_of_phase,
)
from onnx_ops.ops.convolution._products import multiply, split_product
from onnx_ops.ops.convolution._rules import (
    axes_of,
    check_attributes,
    check_convolution,
    elements_of,
    window_attributes,
)
from onnx_ops.ops.convolution._weight_gradient import add_weight_gradient, split_weight_gradient
from onnx_ops.ops.convolution._weight_gradient_lines import (
    add_lines,
    split_weight_lines,
    sums_elements,
    write_weight_lines,
)
from onnx_ops.ops.references import rounded
from onnx_ops.ops.windows import AXES, LEAD, volume

SIGNATURE = Signature(
    "ConvolutionBackward",
    """
Gradients of a convolution (aclnnConvolutionBackward; a node omits the outputs that its outputMask leaves out).

    grad_input[n, c, h, w]  = sum of grad_output[n, o, i, j] * weight[o, c, a, b]  over all o, i, j, a, b
    grad_weight[o, c, a, b] = sum of grad_output[n, o, i, j] * input[n, c, h, w]   over all n, i, j
    grad_bias[o]            = sum of grad_output[n, o, i, j]                       over all n, i, j
    h                       = stride[0]*i + dilation[0]*a - padding[0]
    w                       = stride[1]*j + dilation[1]*b - padding[1]

The sums are over elements of `input`: those of windows that lie in the padding are left out. With `groups` the channels
of `input` and `grad_output` are split into so many groups, and each is convolved with its own part of `weight`.

Shapes: `input` (N, C, H, W), `weight` (O, C / groups, A, B) and `grad_output` (N, O, I, J); `grad_input` and
`grad_weight` have the shapes of `input` and `weight`, `grad_bias` is (O). I and J are

    (H + 2*padding - dilation*(A - 1) - 1) / stride + 1

rounded down. There are 1 to 3 spatial axes. `O` and `C` are multiples of `groups`.

Dtypes: all inputs and outputs have one dtype: float16, bfloat16, float or double. Computed in double if that is double,
else in float, and rounded once. The order of summation is fixed and does not depend on the number of threads.

Edge rules: each output may be omitted, but not all of them. NaN and infinities propagate as in the formula. A
size in which no window fits is an error, as are a
number above 2147483647 in an attribute, and `padding` that adds more than 268435456 elements to a plane with fewer.

Without a kernel: the order of summation is that of the runtime's MatMul. Shapes known only at run time are not checked.
""",
    inputs=(
        Input("grad_output", "Gradient of the loss with respect to the output of the convolution, (N, O, I, J)."),
        Input("input", "Input of the convolution, (N, C, H, W).", like="grad_output"),
        Input("weight", "Kernels, (O, C / groups, A, B).", like="grad_output"),
    ),
    outputs=(
        Output("grad_input", "Gradient of the loss with respect to `input`.", "grad_output", optional=True),
        Output("grad_weight", "Gradient of the loss with respect to `weight`.", "grad_output", optional=True),
        Output("grad_bias", "Gradient of the loss with respect to the bias, (O).", "grad_output", optional=True),
    ),
    attributes=tuple(window_attributes()),
)


def reference(
    grad_output: np.ndarray,
    input: np.ndarray,
    weight: np.ndarray,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64, for one element of all kernels at a time.

    Args:
        grad_output: floating array (N, O, ...).
        input: floating array (N, C, ...).
        weight: floating array (O, C / groups, ...).
        stride, padding, dilation, groups: as in the schema.
        dtype: dtype of the results instead of grad_output's.

    Returns:
        grad_input, grad_weight and grad_bias.
    """
    axes = axes_of(weight.shape[LEAD:], stride, padding, dilation)
    samples, counts = input.shape[0], grad_output.shape[LEAD:]
    inputs, outputs = weight.shape[1], weight.shape[0] // groups
    x = input.astype(np.float64).reshape(samples, groups, inputs, *input.shape[LEAD:])
    grad = grad_output.astype(np.float64).reshape(samples, groups, outputs, *counts)
    own = weight.astype(np.float64).reshape(groups, outputs, *weight.shape[1:])
    grad_x, grad_own = np.zeros_like(x), np.zeros_like(own)
    for element, windows, met in elements_of(axes, input.shape[LEAD:], counts):
        seen, given = x[met], grad[windows]
        with np.errstate(invalid="ignore", over="ignore"):
            grad_x[met] += np.einsum("ngo...,goi->ngi...", given, own[element])
            rows = (a.reshape(*a.shape[:3], math.prod(a.shape[3:])) for a in (given, seen))
            grad_own[element] = np.einsum("ngop,ngip->goi", *rows)
    with np.errstate(invalid="ignore", over="ignore"):
        grad_bias = grad_output.astype(np.float64).sum(axis=(0, *range(LEAD, grad_output.ndim)))
    return (
        rounded(grad_x.reshape(input.shape), grad_output.dtype, dtype),
        rounded(grad_own.reshape(weight.shape), grad_output.dtype, dtype),
        rounded(grad_bias, grad_output.dtype, dtype),
    )


# --- the kernel ------------------------------------------------------------------------------------------------------

GRAD, IMAGE, WEIGHT = range(3)
BY_INPUT, BY_WEIGHT, BY_BIAS = range(3)
PART = 2048
"""Elements of a plane whose sum is added to that of a channel."""
ATTRIBUTES = attributes_of(SIGNATURE.schema)


@helper
def quotients_at(address: int) -> Blocks:
    """The layout of the convolution by quotients, behind the layout at an address."""
    return record_at(address + size_of(LAYOUT), LAYOUT)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    rank = job.rank[IMAGE]
    if not write_windows(layout, attributes, job, IMAGE, WEIGHT) or job.rank[GRAD] != rank:
        return False
    if job.dims[GRAD, 0] != layout.samples or job.dims[GRAD, 1] != layout.groups * layout.outputs:
        return False
    for axis in range(LEAD, rank):
        if job.dims[GRAD, axis] != layout.count[axis - LEAD + AXES - (rank - LEAD)]:
            return False
    job.output_rank[BY_INPUT], job.output_rank[BY_WEIGHT], job.output_rank[BY_BIAS] = rank, rank, 1
    for axis in range(rank):
        job.output_dims[BY_INPUT, axis] = job.dims[IMAGE, axis]
        job.output_dims[BY_WEIGHT, axis] = job.dims[WEIGHT, axis]
    job.output_dims[BY_BIAS, 0] = job.dims[WEIGHT, 0]

    layout.alone, layout.infinite, layout.image_tasks, layout.windows_tasks, layout.weights_tasks = 0, 0, 0, 0, 0
    layout.product_tasks, layout.weight_tasks, layout.bias_tasks = 0, 0, 0
    size = computing_size(kernel.element_type[GRAD])
    at = job.scratch + whole_lines(2 * size_of(LAYOUT))
    layout.windows = at
    quotients = quotients_at(address)
    layout.by_input_lines = int(kernel.output_type[BY_INPUT] != 0 and split_input_lines(layout, quotients))
    layout.by_weight_lines = int(kernel.output_type[BY_WEIGHT] != 0 and split_weight_lines(layout))
    input_by_tiles = kernel.output_type[BY_INPUT] != 0 and layout.by_input_lines == 0
    weight_by_tiles = kernel.output_type[BY_WEIGHT] != 0 and layout.by_weight_lines == 0
    if input_by_tiles or weight_by_tiles:
        layout.windows_tasks = image_tasks(layout, blocks_of(layout.outputs), layout.count)
        at += whole_lines(size * windows_elements(layout))
    layout.weights = at
    if layout.by_input_lines:
        layout.product_tasks = quotients.product_tasks
        layout.weights_tasks = layout.groups * layout.stride[0] * layout.stride[1]
        at += whole_lines(size * layout.weights_tasks * weights_of_phase(quotients))
    elif input_by_tiles:
        split_product(layout, layout.inputs, layout.length)
        layout.weights_tasks = layout.groups * blocks_of(layout.inputs)
        at += whole_lines(size * weights_elements(layout, layout.outputs, layout.inputs))
    layout.image = layout.sums = at
    if layout.by_weight_lines:
        layout.image_tasks, layout.weight_tasks = layout.groups * layout.chunks, layout.groups * layout.outputs
        at += size * sums_elements(layout)
    elif weight_by_tiles:
        split_weight_gradient(layout)
        layout.image_tasks = image_tasks(layout, image_blocks(layout), layout.length)
        at += size * image_elements(layout)
    if kernel.output_type[BY_BIAS] != 0:
        layout.bias_tasks = layout.groups * layout.outputs
    job.scratch_bytes = at - job.scratch
    job.prepare_tasks = layout.windows_tasks + layout.weights_tasks + layout.image_tasks
    job.tasks = layout.product_tasks + layout.weight_tasks + layout.bias_tasks
    return True


PLAN = Layout(write_layout, 2 * LAYOUT.itemsize)


def prepare(job: Job, number: int, dtype: Floating) -> None:
    """Interleave some planes of a tensor."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    element_type, done = kernel.element_type[GRAD], False
    if number < layout.windows_tasks:
        done = interleave_windows(layout, number, job.data[GRAD], element_type, dtype)
    elif number < layout.windows_tasks + layout.weights_tasks:
        number -= layout.windows_tasks
        source, target = job.data[WEIGHT], layout.weights
        if layout.by_input_lines:
            quotients = quotients_at(job.scratch)
            done = order_weights(layout, quotients, number, source, element_type, dtype)
        else:
            done = interleave_weights(layout, number, True, source, element_type, target, dtype)
    else:
        number -= layout.windows_tasks + layout.weights_tasks
        if layout.by_weight_lines:
            done = add_lines(layout, number, job.data[GRAD], job.data[IMAGE], element_type, dtype)
        else:
            done = interleave_image(layout, number, job.data[IMAGE], element_type, dtype)
    if not done:
        job.failed = NO_MEMORY


@helper
def add_bias_gradient(job: Job, layout: Blocks, channel: int) -> None:
    """Sum the gradients of a channel of the output in float64; those of float64 pairwise in each part of a plane."""
    kernel = record_at(job.kernel, KERNEL)
    element_type, places, size = kernel.element_type[GRAD], volume(layout.count), item_size(kernel.element_type[GRAD])
    total = 0.0
    memory, numbers, result = allocate((PART, np.float64), (1, np.float64))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    for sample in range(layout.samples):
        plane = job.data[GRAD] + (sample * layout.groups * layout.outputs + channel) * places * size
        for first in range(0, places, PART):
            count = min(PART, places - first)
            if element_type == FLOAT:
                grads, part = floats_at(plane + first * size, count), 0.0
                for i in range(count):
                    part = add_any_order(part, wide(grads[i]))
                total += part
            else:
                read_numbers(kernel.read, plane + first * size, element_type, count, address_of(numbers))
                total += total_of(numbers, 0, count)
    result[0] = total
    target = job.output[BY_BIAS] + channel * size
    write_numbers(kernel.write, address_of(result), element_type, 1, target)
    free(memory)


def task(job: Job, number: int, dtype: Floating) -> None:
    """A task of one of the gradients."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    element_type = kernel.element_type[GRAD]
    if number < layout.product_tasks:
        target = job.output[BY_INPUT]
        if layout.by_input_lines:
            quotients, grad, weight = quotients_at(job.scratch), job.data[GRAD], job.data[WEIGHT]
            done = multiply_quotients(layout, quotients, number, grad, weight, target, element_type, dtype)
        else:
            done = multiply(layout, number, True, 0, target, element_type, dtype)
        if not done:
            job.failed = NO_MEMORY
        return
    number -= layout.product_tasks
    if number < layout.weight_tasks:
        if layout.by_weight_lines:
            done = write_weight_lines(layout, number, job.output[BY_WEIGHT], element_type, dtype)
        else:
            done = add_weight_gradient(layout, number, job.output[BY_WEIGHT], element_type, dtype)
        if not done:
            job.failed = NO_MEMORY
        return
    add_bias_gradient(job, layout, number - layout.weight_tasks)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    """Products of matrices for one element of all kernels after the other.

    The operators Conv and ConvTranspose have no float64 kernels in onnxruntime.
    """
    x, grad, weight = b.load("input"), b.load("grad_output"), b.load("weight")
    own_lengths = b.op("Shape", x, name="spatial_sizes", start=LEAD)
    axes = SpatialAxes(b, own_lengths, AXES)
    groups = b.value_of("groups") if b.attribute("groups") is None else b.constant(b.attribute("groups"))
    groups = b.op("Reshape", groups, [1], name="group_count")
    given, before, dilation = axes.setting("stride", 1), axes.setting("padding", 0), axes.setting("dilation", 1)
    lengths = axes.sizes(own_lengths, "lengths")
    counts = axes.sizes(b.op("Shape", grad, name="window_counts", start=LEAD), "counts")
    own_sizes = b.op("Shape", weight, name="kernel_sizes", start=LEAD)
    sizes = axes.sizes(own_sizes, "sizes")
    samples = b.op("Shape", x, name="samples", start=0, end=1)
    inputs = b.op("Shape", weight, name="inputs", start=1, end=LEAD)
    # Of windows that are further apart than the padded input is long, there is one; zeros between them take memory.
    end = (lengths + before + before).named("end")
    stride = b.op("Where", given.less(end), given, b.op("Max", end, 1), name="stride")
    all_outputs = b.op("Shape", weight, name="all_outputs", start=0, end=1)
    outputs = (all_outputs / groups).named("outputs")
    elements = b.op("ReduceProd", sizes, name="elements", keepdims=1)
    strides_of_elements = axes.strides(sizes)

    def parts(*sizes_of: Value | list[int], name: str) -> Value:
        return b.op("Concat", *sizes_of, name=name, axis=0)

    def channels_last(value: Value, channels: Value, spatial: Value, name: str) -> Value:
        """(groups, samples, *spatial, channels of a group)."""
        split = b.op("Reshape", value, parts(samples, groups, channels, spatial, name=f"{name}_split"), allowzero=1)
        return b.op("Transpose", split, name=name, perm=[1, 0, 3, 4, 5, 2])

    def rows_of(value: Value, sizes_of: Value, channels: Value, name: str) -> Value:
        """(groups, all places, channels) of (groups, samples, *sizes_of, channels)."""
        places = samples * b.op("ReduceProd", sizes_of, name=f"{name}_of_sample", keepdims=1)
        shape = parts(groups, places, channels, name=f"{name}_shape")
        return b.op("Reshape", value, shape, name=name, allowzero=1)

    if b.wants("grad_bias"):
        of_sample = b.op("ReduceProd", counts, name="windows_of_sample", keepdims=1)
        rows = b.op("Reshape", grad, parts(samples, all_outputs, of_sample, name="bias_rows_shape"), allowzero=1)
        b.store("grad_bias", b.op("ReduceSum", rows, [0, 2], name="sums_of_bias", keepdims=0), "grad_output")
    grads = channels_last(grad, outputs, counts, "grads")
    kinds = {"element": TensorType(TensorProto.INT64, ()), "goes_on": TensorType(TensorProto.BOOL, ())}

    def offset(element: Value) -> Value:
        """Of an element of a kernel from the first one."""
        return (b.op("Mod", element / strides_of_elements, sizes) * dilation).named("offset")

    if b.wants("grad_input"):
        by_element = b.op("Reshape", weight, parts(groups, outputs, inputs, elements, name="by_element"), allowzero=1)
        rows = rows_of(grads, counts, outputs, "grad_rows")
        # The last gap is one of channels, and groups and samples are one axis: onnxruntime 1.23 cannot read constant
        # pads of more than 7 axes in a Loop, as it takes constants of 128 bytes for external data.
        widths = parts([1, 1], inputs, name="widths")
        apart = b.op("Concat", b.op("Unsqueeze", counts, [1]), b.op("Unsqueeze", widths, [1]), axis=1)
        apart = parts(groups * samples, b.op("Reshape", apart, [-1]), name="apart")
        gaps = b.op("Unsqueeze", ((stride - 1) * widths).named("widths_of_gaps"), [1])
        gaps = b.op("Reshape", b.op("Concat", b.op("Expand", 0, [AXES, 1]), gaps, axis=1), [-1], name="gaps")
        gaps = parts([0] * 8, gaps, name="pads_of_gaps")
        spread_shape = parts(groups, samples, counts * stride, inputs, name="spread_shape")
        none = b.constant([0, 0])
        whole = parts(groups, samples, lengths, inputs, name="whole")

        def add(element: Value, goes_on: Value, so_far: Value) -> tuple[Value, Value]:
            products = b.op("MatMul", rows, b.op("Gather", by_element, element, axis=3), name="products")
            products = b.op("Pad", b.op("Reshape", products, apart, allowzero=1), gaps, name="with_gaps")
            spread = b.op("Reshape", products, spread_shape, name="spread", allowzero=1)
            first = offset(element)
            behind = b.op("Max", before + lengths - first - counts * stride, 0, name="behind")
            pads = parts(none, first, [0], none, behind, [0], name="pads")
            met = b.op(
                "Slice", b.op("Pad", spread, pads, name="moved"), before, before + lengths, [2, 3, 4], name="met"
            )
            return goes_on, (so_far + met).named("sums")

        state = TensorType(b.compute)
        scope = b.subgraph(add, {**kinds, "so_far": state}, (kinds["goes_on"], state))
        start = b.op("Expand", 0.0, whole, name="start")
        (sums,) = b.several("Loop", b.op("Squeeze", elements), True, start, names=("input_sums",), body=scope)
        sums = b.op("Transpose", sums, name="channels_first", perm=[1, 0, 5, 2, 3, 4])
        b.store("grad_input", b.op("Reshape", sums, b.op("Shape", x), name="by_input", allowzero=1), "grad_output")
    if b.wants("grad_weight"):
        images = channels_last(x, inputs, lengths, "images")
        nothing_met = b.op("Expand", 0.0, parts(groups, [1], inputs, name="row_of_inputs"), name="nothing_met")
        nothing_given = b.op("Expand", 0.0, parts(groups, [1], outputs, name="row_of_outputs"), name="nothing_given")

        def multiply_element(element: Value, goes_on: Value) -> tuple[Value, Value]:
            first = offset(element)
            low = b.op("Max", (before - first + given - 1) / given, 0, name="low")
            high = b.op("Min", (lengths - 1 + before - first + given) / given, counts, name="high")
            high = b.op("Max", high, low)
            begin = low * given + first - before
            until = b.op("Min", begin + (high - low - 1) * given + 1, lengths, name="until")
            met = b.op("Slice", images, begin, b.op("Max", until, 0), [2, 3, 4], given, name="met")
            windows = b.op("Slice", grads, low, high, [2, 3, 4], name="windows")
            # A row of zeros, as a product of empty matrices may not be 0.
            met = b.op("Concat", rows_of(met, high - low, inputs, "rows_met"), nothing_met, axis=1)
            windows = b.op("Concat", rows_of(windows, high - low, outputs, "rows_given"), nothing_given, axis=1)
            return goes_on, b.op("MatMul", b.op("Transpose", windows, perm=[0, 2, 1]), met, name="products")

        scope = b.subgraph(multiply_element, kinds, (kinds["goes_on"], TensorType(b.compute)))
        (sums,) = b.several("Loop", b.op("Squeeze", elements), True, names=("weight_sums",), body=scope)
        # ONNX's reference evaluator does not stack the outputs of the turns, but puts one behind the other.
        shape = parts(elements, groups, outputs, inputs, name="sums_shape")
        sums = b.op("Transpose", b.op("Reshape", sums, shape, allowzero=1), name="elements_last", perm=[1, 2, 3, 0])
        b.store(
            "grad_weight", b.op("Reshape", sums, b.op("Shape", weight), name="by_weight", allowzero=1), "grad_output"
        )


def infer(call: Call) -> tuple[TensorType, ...]:
    check_attributes(call)
    expected = check_convolution(call, "grad_output")
    call.same_shape("grad_output", expected, "the shape of the output of the convolution")
    weight, dtype = call.shape("weight"), call.dtype("grad_output")
    return (
        TensorType(dtype, call.shape("input")),
        TensorType(dtype, weight),
        TensorType(dtype, None if weight is None else (weight[0],)),
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # One channel, and a kernel of two by two, which has two places.
        {
            "grad_output": [[[[1.0, 10.0]]]],
            "input": [[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]],
            "weight": [[[[1.0, 2.0], [3.0, 4.0]]]],
        },
        {
            "grad_input": [[[[1.0, 12.0, 20.0], [3.0, 34.0, 40.0]]]],
            "grad_weight": [[[[21.0, 32.0], [54.0, 65.0]]]],
            "grad_bias": [11.0],
        },
    ),
)
