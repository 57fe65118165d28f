"""HardswishBackwardV2: gradient of hardswish."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature, promoted_type
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import ZERO, Number
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import computing_dtype, promoted, rounded

SIGNATURE = Signature(
    "HardswishBackwardV2",
    """
Gradient of hardswish, self * hardsigmoid(self) (aclnnHardswishBackwardV2; Howard et al., 2019).

    grad_input = 0                               where self <= -3
                 grad_output * (self / 3 + 1/2)  where -3 < self < 3
                 grad_output                     where self >= 3

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float. Computed in double if an input is double, else in float; rounded once.

Edge rules: the terms do not cancel near -3/2, where the small gradient keeps its relative precision. At -3 the gradient
is 0, at 3 that of the output. NaN in `self` gives NaN. A gradient set to 0 is +0, even if `grad_output` is NaN or
infinite. Empty inputs give an empty output.

Without a kernel: the results are the same, except that a gradient of -0 may become +0. Shapes known only at run time
are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of hardswish.", Role.SHAPE),
        Input("self", "Input of hardswish.", Role.SHAPE),
    ),
    outputs=(
        Output("grad_input", "Gradient with respect to the input of hardswish.", promoted_type("grad_output", "self")),
    ),
)
BOUND, ROOT = np.float32(3), np.float32(1.5)
"""From 3 on the gradient passes; at -3/2 it is 0."""
THIRD = 1 / 3


def reference(
    grad_output: np.ndarray,
    self: np.ndarray,
    *,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        dtype: dtype to compute in and of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """
    compute = computing_dtype((grad_output, self), dtype)
    grad, x = np.broadcast_arrays(grad_output.astype(compute), self.astype(compute))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        between = grad * ((x + compute.type(1.5)) / compute.type(3))
    passed = np.where(x >= 3, grad, between)
    return rounded(np.where(x <= -3, compute.type(0), passed), promoted(grad_output, self), dtype)


@elementwise(0, 1, parameters=(1,))
def gradient(grad: Number, x: Number, third: Number) -> Number:
    between = grad * ((x + ROOT) * third)
    passed = grad if x >= BOUND else between
    return ZERO if x <= -BOUND else passed


def body(b: Body) -> None:
    grad, x = b.load("grad_output"), b.load("self")
    between = (grad * ((x + 1.5) / 3.0).named("slope")).named("between")
    passed = b.op("Where", x.greater_or_equal(3.0).named("is_above"), grad, between, name="passed")
    b.store("grad_input", b.op("Where", x.less_or_equal(-3.0), 0.0, passed, name="gradient"), "grad_output", "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(SIGNATURE.space.promoted(call), SIGNATURE.space.shape(call)),)


def kernel(call: Call) -> Loop:
    return Loop(SIGNATURE.space, computing_type(call, light=True), gradient, parameters=(THIRD,), memory_bound=True)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [2.0, 6.0, 1.0, 2.0], "self": [0.0, -2.0, -math.inf, 3.0]},
        {"grad_input": [1.0, -1.0, 0.0, 2.0]},
    ),
)
