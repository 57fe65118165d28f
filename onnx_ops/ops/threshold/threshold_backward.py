"""ThresholdBackward: passes the gradient of elements above a threshold, such as 0 for ReLU."""

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
    "ThresholdBackward",
    """
Gradient of thresholding (aclnnThresholdBackward), which replaces elements not above a threshold by a constant. With
`threshold` 0 it is the gradient of ReLU, for its input or its output as `self`.

    grad_input = 0            where self <= threshold
                 grad_output  elsewhere

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float.

Edge rules: at the boundary (`self` equal to `threshold`) the gradient is 0. `threshold` is a float32 and is not rounded
to the dtype of `self` before the comparison. NaN in `self` passes the gradient. A gradient set to 0 is +0, even if
`grad_output` is NaN or infinite. Empty inputs give an empty output.

Without a kernel: the results are the same, except that a gradient of -0 may become +0. Shapes known only at run time
are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of thresholding.", Role.SHAPE),
        Input("self", "Input of thresholding, or output of ReLU.", Role.SHAPE),
    ),
    outputs=(
        Output(
            "grad_input", "Gradient with respect to the input of thresholding.", promoted_type("grad_output", "self")
        ),
    ),
    attributes=(attribute("threshold", 0.0, "The gradient passes where `self` is above it."),),
)


def reference(
    grad_output: np.ndarray, self: np.ndarray, *, threshold: float = 0.0, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        threshold: read as a float32.
        dtype: dtype to compute in and of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """
    compute = computing_dtype((grad_output, self), dtype)
    stops = self.astype(compute) <= compute.type(np.float32(threshold))
    return rounded(np.where(stops, compute.type(0), grad_output.astype(compute)), promoted(grad_output, self), dtype)


@elementwise(0, 1, parameters=(1,))
def pass_above(grad: Number, x: Number, threshold: Number) -> Number:
    return ZERO if x <= threshold else grad


def body(b: Body) -> None:
    grad, x = b.load("grad_output"), b.load("self")
    stops = x.less_or_equal(b.value_of("threshold")).named("stops")
    b.store("grad_input", b.op("Where", stops, 0.0, grad, name="gradient"), "grad_output", "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = SIGNATURE.space.shape(call)
    return (TensorType(SIGNATURE.space.promoted(call), shape),)


def kernel(call: Call) -> Loop:
    threshold = float(np.float32(call.attributes["threshold"]))
    return Loop(
        SIGNATURE.space, computing_type(call, light=True), pass_above, parameters=(threshold,), memory_bound=True
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [1.0, 2.0, 3.0, 4.0], "self": [-1.0, 0.5, 0.75, 0.0]},
        {"grad_input": [0.0, 0.0, 3.0, 0.0]},
        {"threshold": 0.5},
    ),
)
