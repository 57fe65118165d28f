"""RotaryPositionEmbedding: pairs of features, rotated by angles that depend on their position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import record_at, size_of, tail, whole_lines
from onnx_ops.loops.primitives import Array, Floating, helper
from onnx_ops.loops.records import KERNEL, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import computing_dtype, rounded
from onnx_ops.ops.rotary_position_embedding._pairs import (
    FEATURES,
    INTERLEAVE,
    INTERLEAVE_HALF,
    LAYOUT,
    MODE,
    MODES,
    QUARTER,
    Pairs,
    check_pairs,
    gathered,
    lay_out,
    quarter_turn,
    turn_rows,
)

SIGNATURE = Signature(
    "RotaryPositionEmbedding",
    """
Rotary position embedding (Su et al., RoFormer, 2021, equation 34; aclnnRotaryPositionEmbedding).

    y = x * cos + rotated * sin

`rotated` has (-b, a) where `x` has a pair (a, b). With the features x[..., i], D of them, the pairs are in mode

    0, half:             (x[..., i], x[..., D/2 + i])
    1, interleave:       (x[..., 2i], x[..., 2i + 1])
    2, quarter:          those of mode 0 in each half of the features
    3, interleave-half:  those of mode 1; the result has them where mode 0 has its pairs

In mode 3 `x` is reordered before: x[..., 0::2], then x[..., 1::2].

Shapes: `x` and `y` (..., D) of rank 1 to 8, D a multiple of 2, in mode 2 of 4; `cos` and `sin` have one shape, which
broadcasts to that of `x`, with D features.

Dtypes: `x`, `cos` and `sin` each float16, bfloat16, float or double; `y` has the dtype of `x`. Computed in double if
one of them is double, else in float. Rounded once.

Edge rules: NaN and infinities propagate as in the formula, also where they are multiplied by 0.

Without a kernel: shapes known only at run time are not checked; they broadcast as in ONNX operators, as far as the
result has the shape of `x`.
""",
    inputs=(
        Input("x", "Queries or keys, (..., D)."),
        Input("cos", "Cosines, of a shape that broadcasts to that of `x`."),
        Input("sin", "Sines, of the shape of `cos`."),
    ),
    outputs=(Output("y", "The rotated features, of the shape of `x`.", "x"),),
    attributes=(MODE,),
    choices={"mode": MODES},
)


def reference(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, mode: int = 0, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition.

    Args:
        x: floating array (..., D).
        cos, sin: floating arrays of one shape, which broadcasts to that of x.
        mode: which features make up a pair, as in the schema.
        dtype: dtype of the result instead of x's.

    Returns:
        Array of the shape of x.
    """
    compute = computing_dtype((x, cos, sin), dtype)
    features = gathered(x.astype(compute), mode)
    with np.errstate(all="ignore"):
        y = features * cos.astype(compute) + quarter_turn(features, mode) * sin.astype(compute)
    return rounded(y, x.dtype, dtype)


# --- the kernel: one task for some rows ------------------------------------------------------------------------------

Y = 0
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shape of the output; returns whether the shapes of the inputs fit."""
    mode = record_at(kernel.attributes, ATTRIBUTES).mode
    if not lay_out(record_at(address, LAYOUT), job, mode):
        return False
    give_shape(job, Y, FEATURES)
    job.scratch_bytes = whole_lines(size_of(LAYOUT))
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


# A loop writes to one of the two features of a pair: to more places than that LLVM would not prove that nothing else
# overlaps, and not use vectors.


@helper
def rotate_halves(x: Array, cos: Array, sin: Array, half: int, out: Array) -> None:
    for i in range(half):
        out[i] = x[i] * cos[i] - x[half + i] * sin[i]
    for i in range(half):
        out[half + i] = x[half + i] * cos[half + i] + x[i] * sin[half + i]


@helper
def rotate(x: Array, cos: Array, sin: Array, width: int, mode: int, out: Array) -> None:
    """Rotate the pairs of a row."""
    half = width // 2
    if mode == INTERLEAVE:
        for i in range(half):
            a, b = x[2 * i], x[2 * i + 1]
            out[2 * i] = a * cos[2 * i] - b * sin[2 * i]
            out[2 * i + 1] = b * cos[2 * i + 1] + a * sin[2 * i + 1]
    elif mode == INTERLEAVE_HALF:
        for i in range(half):
            out[i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i]
        for i in range(half):
            out[half + i] = x[2 * i + 1] * cos[half + i] + x[2 * i] * sin[half + i]
    elif mode == QUARTER:
        rotate_halves(x, cos, sin, half // 2, out)
        rotate_halves(tail(x, half), tail(cos, half), tail(sin, half), half // 2, tail(out, half))
    else:
        rotate_halves(x, cos, sin, half, out)


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some rows, computed in this dtype."""
    kernel = record_at(job.kernel, KERNEL)
    turn_rows(job, number, rotate, record_at(kernel.attributes, ATTRIBUTES).mode, dtype)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, compute=computing_type(call), in_place=(("x", "y"),))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    pairs = Pairs(b, "x")
    features = pairs.gathered(b.load("x"))
    turned = (pairs.quarter_turn(features) * b.load("sin")).named("by_sin")
    y = ((features * b.load("cos")).named("by_cos") + turned).named("rotated")
    b.store("y", pairs.reshaped(y, "result"), "x")


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("x"), check_pairs(call, "x")),)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "x": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]],
            "cos": [[1.0, 1.0, 1.0, 1.0], [0.0, 0.5, 0.0, 0.5]],
            "sin": [[0.0, 0.0, 0.0, 0.0], [1.0, 0.5, 1.0, 0.5]],
        },
        {"y": [[1.0, 2.0, 3.0, 4.0], [-7.0, -1.0, 5.0, 7.0]]},
    ),
)
