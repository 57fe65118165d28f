"""DropoutBackward: passes the gradient of the elements that dropout has kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import ZERO, Number
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import computing_dtype, rounded

SIGNATURE = Signature(
    "DropoutBackward",
    """
Gradient of dropout with respect to its input (aclnnDropoutBackward).

    grad_input = grad_output * scale  where mask
                 0                    elsewhere

With the p of DropoutV3, `scale` is 1 / (1 - p).

Shapes: `grad_output` of rank 0 to 8; `mask` broadcasts to it, and `grad_input` has its shape.

Dtypes: `grad_output` float16, bfloat16, float or double, `grad_input` the same; `mask` bool.

Edge rules: where `mask` is false the result is +0, even if `grad_output` is NaN or infinite. `scale` is a float32. An
empty `grad_output` gives an empty `grad_input`.

Without a kernel: the results are the same. Shapes known only at run time are not checked; they broadcast as in ONNX
operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of dropout.", Role.SHAPE),
        Input("mask", "Mask of dropout.", Role.INTO, dtypes=(TensorProto.BOOL,)),
    ),
    outputs=(Output("grad_input", "Gradient with respect to the input of dropout.", "grad_output"),),
    attributes=(attribute("scale", 2.0, "Factor of the elements that dropout has kept."),),
)


def reference(
    grad_output: np.ndarray, mask: np.ndarray, *, scale: float = 2.0, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition.

    Args:
        grad_output: floating array.
        mask: bool, broadcasts to grad_output.
        scale: read as a float32.
        dtype: dtype to compute in and of the result instead of grad_output's.

    Returns:
        Array of grad_output's shape.
    """
    compute = computing_dtype((grad_output,), dtype)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        scaled = grad_output.astype(compute) * compute.type(np.float32(scale))
    return rounded(np.where(mask, scaled, compute.type(0)), grad_output.dtype, dtype)


@elementwise(0, 1, parameters=(1,))
def scale_kept(grad: Number, mask: Number, scale: Number) -> Number:
    return grad * scale if mask > ZERO else ZERO


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("grad_output"), SIGNATURE.space.shape(call)),)


def kernel(call: Call) -> Loop:
    return Loop(
        SIGNATURE.space, computing_type(call, "mask"), scale_kept, parameters=(float(call.attributes["scale"]),)
    )


def body(b: Body) -> None:
    scaled = (b.load("grad_output") * b.value_of("scale")).named("scaled")
    b.store("grad_input", b.op("Where", b.inputs["mask"], scaled, 0.0, name="gradient"), "grad_output")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [1.0, 2.0, 3.0, 4.0], "mask": [False, True, True, False]},
        {"grad_input": [0.0, 5.0, 7.5, 0.0]},
        {"scale": 2.5},
    ),
)
