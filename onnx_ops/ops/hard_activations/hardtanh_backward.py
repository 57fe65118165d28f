"""HardtanhBackward: passes the gradient of elements between two bounds, such as 0 and 6 for ReLU6."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, Signature, promoted_type
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import ZERO, Number
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import computing_dtype, promoted, rounded

SIGNATURE = Signature(
    "HardtanhBackward",
    """
Gradient of hardtanh (aclnnHardtanhBackward), which clips to an interval: the gradient of elements inside passes. With
`min` 0 and `max` 6 it is the gradient of ReLU6.

    grad_input = grad_output  where min < self < max
                 0            elsewhere

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float.

Edge rules: at the boundary (`self` equal to `min` or `max`) the gradient is 0. The bounds are float32 and are not
rounded to the dtype of `self` before the comparison. NaN in `self` or as a bound gives 0. A gradient set to 0 is +0,
even if `grad_output` is NaN or infinite. Empty inputs give an empty output.

Without a kernel: the results are the same, except that a gradient of -0 may become +0. Shapes known only at run time
are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of hardtanh.", Role.SHAPE),
        Input("self", "Input of hardtanh, or its output.", Role.SHAPE),
    ),
    outputs=(
        Output("grad_input", "Gradient with respect to the input of hardtanh.", promoted_type("grad_output", "self")),
    ),
    attributes=(
        attribute("min", -1.0, "The gradient passes where `self` is above it."),
        attribute("max", 1.0, "The gradient passes where `self` is below it."),
    ),
)


def reference(
    grad_output: np.ndarray,
    self: np.ndarray,
    *,
    min: float = -1.0,
    max: float = 1.0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        min, max: read as float32.
        dtype: dtype to compute in and of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """
    compute = computing_dtype((grad_output, self), dtype)
    x, low, high = self.astype(compute), compute.type(np.float32(min)), compute.type(np.float32(max))
    inside = (x > low) & (x < high)
    return rounded(np.where(inside, grad_output.astype(compute), compute.type(0)), promoted(grad_output, self), dtype)


@elementwise(0, 1, parameters=(1, 2))
def pass_inside(grad: Number, x: Number, low: Number, high: Number) -> Number:
    return grad if (x > low) & (x < high) else ZERO


def body(b: Body) -> None:
    grad, x = b.load("grad_output"), b.load("self")
    inside = (x.greater(b.value_of("min")) & x.less(b.value_of("max"))).named("inside")
    b.store("grad_input", b.op("Where", inside, grad, 0.0, name="gradient"), "grad_output", "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(SIGNATURE.space.promoted(call), SIGNATURE.space.shape(call)),)


def kernel(call: Call) -> Loop:
    bounds = float(np.float32(call.attributes["min"])), float(np.float32(call.attributes["max"]))
    return Loop(SIGNATURE.space, computing_type(call, light=True), pass_inside, parameters=bounds, memory_bound=True)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [1.0, 2.0, 3.0, 4.0], "self": [-1.0, -0.5, 3.0, 5.5]},
        {"grad_input": [0.0, 0.0, 3.0, 0.0]},
        {"min": -0.5, "max": 5.5},  # not integers, of which the parser of onnx makes no floats before 1.23
    ),
)
