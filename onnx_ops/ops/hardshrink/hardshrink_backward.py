"""HardshrinkBackward: passes the gradient of elements outside of [-lambd, lambd]."""

from __future__ import annotations

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
from onnx_ops.ops.hardshrink._rules import lambd_attribute, threshold_of
from onnx_ops.ops.references import computing_dtype, promoted, rounded

SIGNATURE = Signature(
    "HardshrinkBackward",
    """
Gradient of Hardshrink (aclnnHardshrinkBackward), which keeps the elements outside of the interval `[-lambd, lambd]` and
sets the others to 0: it passes the gradient of the elements that are kept.

    grad_input = grad_output  where self > lambd or self < -lambd
                 0            elsewhere

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float.

Edge rules: at the boundary (`self` equal to `lambd` or `-lambd`) the gradient is 0. `lambd` is a float32 and is not
rounded to the dtype of `self` before the comparison. A `lambd` below 0 counts as 0. NaN in `self` gives 0. A gradient
set to 0 is +0, even if `grad_output` is NaN or infinite. Empty inputs give an empty output.

Without a kernel: the results are the same, except that a gradient of -0 may become +0. Shapes known only at run time
are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of Hardshrink.", Role.SHAPE),
        Input("self", "Input of Hardshrink.", Role.SHAPE),
    ),
    outputs=(
        Output("grad_input", "Gradient with respect to the input of Hardshrink.", promoted_type("grad_output", "self")),
    ),
    attributes=(lambd_attribute(),),
)


def reference(
    grad_output: np.ndarray, self: np.ndarray, *, lambd: float = 0.5, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        lambd: read as a float32.
        dtype: dtype to compute in and of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """
    compute = computing_dtype((grad_output, self), dtype)
    threshold = compute.type(threshold_of(lambd))
    x = self.astype(compute)
    passes = (x > threshold) | (x < -threshold)
    return rounded(np.where(passes, grad_output.astype(compute), compute.type(0)), promoted(grad_output, self), dtype)


@elementwise(0, 1, parameters=(1,))
def pass_outside(grad: Number, x: Number, lambd: Number) -> Number:
    return grad if abs(x) > lambd else ZERO


def body(b: Body) -> None:
    grad, x = b.load("grad_output"), b.load("self")
    lambd = b.attribute("lambd")
    if lambd is None:
        threshold = b.op("Max", b.value_of("lambd"), 0.0, name="threshold")
    else:
        threshold = b.constant(threshold_of(lambd), name="threshold")
    passes = b.op("Abs", x, name="magnitude").greater(threshold).named("passes")
    b.store("grad_input", b.op("Where", passes, grad, 0.0, name="gradient"), "grad_output", "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = SIGNATURE.space.shape(call)
    return (TensorType(SIGNATURE.space.promoted(call), shape),)


def kernel(call: Call) -> Loop:
    lambd = threshold_of(call.attributes["lambd"])
    return Loop(SIGNATURE.space, computing_type(call, light=True), pass_outside, parameters=(lambd,), memory_bound=True)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [1.0, 2.0, 3.0, 4.0], "self": [-1.0, 0.5, 0.75, -0.25]},
        {"grad_input": [1.0, 0.0, 3.0, 0.0]},
        {"lambd": 0.5},
    ),
)
