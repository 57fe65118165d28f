"""RotaryPositionEmbeddingGrad: gradients of rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.bodies.broadcasting import sum_to_input
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import (
    address_of,
    allocate,
    free,
    item_size,
    record_at,
    size_of,
    tail,
    whole_lines,
    write_numbers,
)
from onnx_ops.loops.primitives import Array, Floating, ceil_divide, helper, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape, same_shape
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import computing_dtype, rounded, sum_to
from onnx_ops.ops.rotary_position_embedding._pairs import (
    COS,
    FEATURES,
    INTERLEAVE,
    INTERLEAVE_HALF,
    LAYOUT,
    MODE,
    MODES,
    QUARTER,
    SIN,
    Pairs,
    Rows,
    check_pairs,
    gathered,
    lay_out,
    quarter_turn,
    rows_of,
    scattered,
    turn_rows,
)

SIGNATURE = Signature(
    "RotaryPositionEmbeddingGrad",
    """
Gradients of RotaryPositionEmbedding (aclnnRotaryPositionEmbeddingGrad).

    dx   = dy * cos + turned
    dcos = sum of dy * x
    dsin = sum of dy * rotated

`turned` has (b, -a) where dy * sin has a pair (a, b); `rotated` has (-b, a) where `x` has a pair (a, b). The pairs are
those of RotaryPositionEmbedding in the same `mode`. In mode 3 `x` is reordered before, as there, and `dx` is reordered
back. The sums are over the axes along which `cos` and `sin` are broadcast.

Shapes: `dy`, `x` and `dx` (..., D) of rank 1 to 8, D a multiple of 2, in mode 2 of 4; `cos`, `sin`, `dcos` and `dsin`
have one shape, which broadcasts to that of `dy`, with D features.

Dtypes: `dy` and `x` have one dtype, float16, bfloat16, float or double; `cos` and `sin` each one of these. `dx` has the
dtype of `dy`, `dcos` that of `cos` and `dsin` that of `sin`. Computed in double if an input is double, else in float;
sums in double. Rounded once. The order of summation is fixed and does not depend on the number of threads.

Edge rules: `dcos` and `dsin` may be omitted, and need `x`. NaN and infinities propagate as in the formula, also where
they are multiplied by 0. Sums of nothing are 0.

Without a kernel: sums are in float unless an input is double, in the order of the runtime's ReduceSum. Shapes known
only at run time are not checked; they broadcast as in ONNX operators, as far as `dx` has the shape of `dy`.
""",
    inputs=(
        Input("dy", "Gradient of the loss with respect to `y` of RotaryPositionEmbedding, (..., D)."),
        Input("cos", "Cosines, of a shape that broadcasts to that of `dy`."),
        Input("sin", "Sines, of the shape of `cos`."),
        Input(
            "x",
            "Input of RotaryPositionEmbedding, for `dcos` and `dsin`.",
            like="dy",
            default=Default(0.0, like="dy"),
        ),
    ),
    outputs=(
        Output("dx", "Gradient of the loss with respect to `x`.", "dy"),
        Output("dcos", "Gradient of the loss with respect to `cos`.", "cos", optional=True, requires="x"),
        Output("dsin", "Gradient of the loss with respect to `sin`.", "sin", optional=True, requires="x"),
    ),
    attributes=(MODE,),
    choices={"mode": MODES},
)


def reference(
    dy: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    x: np.ndarray | None = None,
    *,
    mode: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """NumPy definition.

    Args:
        dy: floating array (..., D).
        cos, sin: floating arrays of one shape, which broadcasts to that of dy.
        x: floating array of the shape of dy, or None.
        mode: which features make up a pair, as in the schema.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        dx, dcos and dsin; the latter are None without x.
    """
    compute = computing_dtype((dy, cos, sin, x), dtype)
    grad = dy.astype(compute)
    with np.errstate(all="ignore"):
        turned = quarter_turn(grad * sin.astype(compute), mode, clockwise=True)
        dx = rounded(scattered(grad * cos.astype(compute) + turned, mode), dy.dtype, dtype)
        if x is None:
            return dx, None, None
        features, terms = gathered(x.astype(np.float64), mode), dy.astype(np.float64)
        dcos = sum_to(terms * features, cos.shape)
        dsin = sum_to(terms * quarter_turn(features, mode), sin.shape)
    return dx, rounded(dcos, cos.dtype, dtype), rounded(dsin, sin.dtype, dtype)


# --- the kernel: one task for some rows, and before these one for the sums of some rows of cosines --------------------

X = 3
DX, DCOS, DSIN = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the inputs fit."""
    layout, mode = record_at(address, LAYOUT), record_at(kernel.attributes, ATTRIBUTES).mode
    given, summed = kernel.element_type[X] != 0, kernel.output_type[DCOS] != 0 or kernel.output_type[DSIN] != 0
    if not lay_out(layout, job, mode) or (summed and not given):
        return False
    if given and not same_shape(job, X, FEATURES):
        return False
    give_shape(job, DX, FEATURES)
    give_shape(job, DCOS, COS)
    give_shape(job, DSIN, SIN)
    job.prepare_tasks = ceil_divide(layout.angles, layout.angle_step) if summed and layout.width > 0 else 0
    job.scratch_bytes = whole_lines(size_of(LAYOUT))
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


@helper
def turn_halves_back(grad: Array, cos: Array, sin: Array, half: int, out: Array) -> None:
    for i in range(half):
        out[i] = grad[i] * cos[i] + grad[half + i] * sin[half + i]
    for i in range(half):
        out[half + i] = grad[half + i] * cos[half + i] - grad[i] * sin[i]


@helper
def turn_back(grad: Array, cos: Array, sin: Array, width: int, mode: int, out: Array) -> None:
    """Rotate the pairs of a row by the opposite angles."""
    half = width // 2
    if mode == INTERLEAVE:
        for i in range(half):
            a, b = grad[2 * i], grad[2 * i + 1]
            out[2 * i] = a * cos[2 * i] + b * sin[2 * i + 1]
            out[2 * i + 1] = b * cos[2 * i + 1] - a * sin[2 * i]
    elif mode == INTERLEAVE_HALF:
        for i in range(half):
            a, b = grad[i], grad[half + i]
            out[2 * i] = a * cos[i] + b * sin[half + i]
            out[2 * i + 1] = b * cos[half + i] - a * sin[i]
    elif mode == QUARTER:
        turn_halves_back(grad, cos, sin, half // 2, out)
        turn_halves_back(tail(grad, half), tail(cos, half), tail(sin, half), half // 2, tail(out, half))
    else:
        turn_halves_back(grad, cos, sin, half, out)


@helper
def add_halves(grad: Array, x: Array, half: int, by_sin: Array) -> None:
    for i in range(half):
        by_sin[i] -= wide(grad[i]) * wide(x[half + i])
    for i in range(half):
        by_sin[half + i] += wide(grad[half + i]) * wide(x[i])


@helper
def add_row(grad: Array, x: Array, width: int, mode: int, by_cos: Array, by_sin: Array) -> None:
    """Add the terms of a row to the gradients of its cosines and sines."""
    half = width // 2
    if mode == INTERLEAVE_HALF:
        for i in range(half):
            a, b = wide(x[2 * i]), wide(x[2 * i + 1])
            by_cos[i] += wide(grad[i]) * a
            by_cos[half + i] += wide(grad[half + i]) * b
            by_sin[i] -= wide(grad[i]) * b
            by_sin[half + i] += wide(grad[half + i]) * a
        return
    for i in range(width):
        by_cos[i] += wide(grad[i]) * wide(x[i])
    if mode == INTERLEAVE:
        for i in range(half):
            by_sin[2 * i] -= wide(grad[2 * i]) * wide(x[2 * i + 1])
            by_sin[2 * i + 1] += wide(grad[2 * i + 1]) * wide(x[2 * i])
    elif mode == QUARTER:
        add_halves(grad, x, half // 2, by_sin)
        add_halves(tail(grad, half), tail(x, half), half // 2, tail(by_sin, half))
    else:
        add_halves(grad, x, half, by_sin)


@helper
def first_row(layout: Rows, angle: int, strides: Array) -> int:
    """The first row that a row of cosines belongs to; writes the number of rows from one index of an axis to the next.

    It is 0 for axes along which the cosines are not broadcast.
    """
    row, stride = 0, 1
    for k in range(layout.axes):
        axis = layout.axes - 1 - k
        strides[axis] = stride
        if layout.stride[axis] != 0:
            row += angle % layout.size[axis] * stride
            angle //= layout.size[axis]
            strides[axis] = 0
        stride *= layout.size[axis]
    return row


@helper
def next_row(layout: Rows, row: int, index: Array, strides: Sequence[int]) -> int:
    """The next row that has the same cosines."""
    for k in range(layout.axes):
        axis = layout.axes - 1 - k
        if strides[axis] == 0:
            continue
        index[axis] += 1
        row += strides[axis]
        if index[axis] < layout.size[axis]:
            break
        row -= strides[axis] * layout.size[axis]
        index[axis] = 0
    return row


@helper
def write_sums(kernel: Kernel, job: Job, k: int, angle: int, width: int, sums: Array) -> None:
    """Write a row of sums to output k, if that is wanted."""
    kind = kernel.output_type[k]
    if kind != 0:
        write_numbers(kernel.write, address_of(sums), kind, width, job.output[k] + angle * width * item_size(kind))


def prepare(job: Job, number: int, dtype: Floating) -> None:
    """The gradients of some rows of cosines and sines, from elements in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    width, mode = layout.width, record_at(kernel.attributes, ATTRIBUTES).mode
    places, sums, row_in = (MAX_RANK, np.int64), (width, np.float64), (width, dtype)
    memory, index, strides, by_cos, by_sin, grads, features = allocate(places, places, sums, sums, row_in, row_in)
    if memory == 0:
        job.failed = NO_MEMORY
        return
    begin = number * layout.angle_step
    for angle in range(begin, min(begin + layout.angle_step, layout.angles)):
        row = first_row(layout, angle, strides)
        for axis in range(layout.axes):
            index[axis] = 0
        for i in range(width):
            by_cos[i], by_sin[i] = 0.0, 0.0
        for _ in range(layout.rows // layout.angles):
            grad = rows_of(kernel, job, FEATURES, row, 1, width, grads, dtype)
            x = rows_of(kernel, job, X, row, 1, width, features, dtype)
            add_row(grad, x, width, mode, by_cos, by_sin)
            row = next_row(layout, row, index, strides)
        write_sums(kernel, job, DCOS, angle, width, by_cos)
        write_sums(kernel, job, DSIN, angle, width, by_sin)
    free(memory)


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some rows, computed in this dtype."""
    kernel = record_at(job.kernel, KERNEL)
    turn_rows(job, number, turn_back, record_at(kernel.attributes, ATTRIBUTES).mode, dtype)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call), in_place=(("dy", "dx"), ("x", "dx")))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    pairs, grad = Pairs(b, "dy"), b.load("dy")
    turned = pairs.quarter_turn((grad * b.load("sin")).named("by_sin"), clockwise=True)
    result = pairs.scattered(((grad * b.load("cos")).named("by_cos") + turned).named("turned_back"))
    b.store("dx", pairs.reshaped(result, "gradient_of_x"), "dy")
    if b.wants("dcos") or b.wants("dsin"):
        features = pairs.gathered(b.load("x"))
        b.store("dcos", sum_to_input(b, (grad * features).named("terms_of_cos"), "cos"), "cos")
        turned = (grad * pairs.quarter_turn(features)).named("terms_of_sin")
        b.store("dsin", sum_to_input(b, turned, "sin"), "sin")


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = check_pairs(call, "dy")
    if call.present("x"):
        call.same_shape("x", shape, "the shape of 'dy'")
    return (
        TensorType(call.dtype("dy"), shape),
        TensorType(call.dtype("cos"), call.shape("cos")),
        TensorType(call.dtype("sin"), call.shape("sin")),
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "dy": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]],
            "cos": [0.0, 0.5, 0.0, 0.5],
            "sin": [1.0, 0.5, 1.0, 0.5],
            "x": [[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 1.0, 0.0]],
        },
        {
            "dx": [[3.0, 3.0, -1.0, 1.0], [7.0, 7.0, -5.0, 1.0]],
            "dcos": [1.0, 6.0, 13.0, 4.0],
            "dsin": [-7.0, -2.0, 3.0, 8.0],
        },
    ),
)
