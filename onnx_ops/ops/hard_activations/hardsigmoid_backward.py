"""HardsigmoidBackward: gradient of hardsigmoid."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature, promoted_type
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import ZERO, Number, fma
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import computing_dtype, promoted, rounded

SIGNATURE = Signature(
    "HardsigmoidBackward",
    """
Gradient of hardsigmoid (aclnnHardsigmoidBackward; Howard et al., 2019). Hardsigmoid is self / 6 + 1/2, clipped to
[0, 1].

    grad_input = grad_output / 6  where -3 < self < 3
                 0                elsewhere

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float. Computed in double if an input is double, else in float; rounded once.

Edge rules: at the boundary (`self` equal to -3 or 3) the gradient is 0. NaN in `self` gives 0. A gradient set to 0 is
+0, even if `grad_output` is NaN or infinite. Empty inputs give an empty output.

Without a kernel: the results are the same, except that a gradient of -0 may become +0. Shapes known only at run time
are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of hardsigmoid.", Role.SHAPE),
        Input("self", "Input of hardsigmoid.", Role.SHAPE),
    ),
    outputs=(
        Output(
            "grad_input", "Gradient with respect to the input of hardsigmoid.", promoted_type("grad_output", "self")
        ),
    ),
)
BOUND = np.float32(3)

# A sixth in two parts, the first one rounded down to float32 (4) or float64 (8). As both are positive, an infinite
# gradient stays infinite.
HIGH4, LOW4 = (2**26 // 6) / 2**26, 2 / 3 / 2**26
HIGH8, LOW8 = (2**55 // 6) / 2**55, 1 / 3 / 2**55


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
    with np.errstate(under="ignore"):
        inside = grad_output.astype(compute) / compute.type(6)
    is_inside = np.abs(self.astype(compute)) < 3
    return rounded(np.where(is_inside, inside, compute.type(0)), promoted(grad_output, self), dtype)


@elementwise(0, 1, parameters=(1, 2))
def divide_inside(grad: Number, x: Number, high: Number, low: Number) -> Number:
    """high + low: a sixth."""
    inside = fma(grad, high, grad * low)
    return inside if abs(x) < BOUND else ZERO


def body(b: Body) -> None:
    is_inside = b.op("Abs", b.load("self"), name="size").less(3.0).named("is_inside")
    inside = (b.load("grad_output") / 6.0).named("inside")
    b.store("grad_input", b.op("Where", is_inside, inside, 0.0, name="gradient"), "grad_output", "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(SIGNATURE.space.promoted(call), SIGNATURE.space.shape(call)),)


def kernel(call: Call) -> Loop:
    compute = computing_type(call, light=True)
    sixth = (HIGH8, LOW8) if compute == TensorProto.DOUBLE else (HIGH4, LOW4)
    return Loop(SIGNATURE.space, compute, divide_inside, parameters=sixth, memory_bound=True)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [6.0, 3.0, 1.0, 1.0], "self": [0.0, -2.0, 3.0, -math.inf]},
        {"grad_input": [1.0, 0.5, 0.0, 0.0]},
    ),
)
