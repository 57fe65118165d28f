"""Silu: SiLU, also called Swish."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import ONE, Number, exp_of_difference
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import rounded

SIGNATURE = Signature(
    "Silu",
    """
SiLU, also called Swish (aclnnSilu; Hendrycks and Gimpel, 2016). SiluBackward is its gradient.

    out = self / (1 + exp(-self))

Shapes: `out` has the shape of `self`, rank 0 to 8.

Dtypes: `self` float16, bfloat16, float or double; `out` the same. Computed in double if `self` is double, else in
float; rounded once.

Edge rules: a negative `self`, whose result is small, keeps its relative precision; below -87 (double: -708) the result
is -0. NaN and minus infinity give NaN. The sign is that of `self`, of 0 too. An empty input gives an empty output.

Without a kernel: as above, except that the result is -0 only where `exp(-self)` overflows.
""",
    inputs=(Input("self", "Any floating tensor.", Role.SHAPE),),
    outputs=(Output("out", "SiLU of `self`.", "self"),),
)


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("self"), SIGNATURE.space.shape(call)),)


def reference(self: np.ndarray, *, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """NumPy definition, computed in float64, or for float64 results in long double.

    Args:
        self: floating array.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    wide = np.longdouble if np.float64 in (self.dtype, dtype) else np.float64
    x = self.astype(np.float64).astype(wide)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return rounded(x / (1 + np.exp(np.negative(x))), self.dtype, dtype)


@elementwise(0)
def silu(x: Number) -> Number:
    return x / (ONE + exp_of_difference(-x))


def kernel(call: Call) -> Loop:
    return Loop(SIGNATURE.space, computing_type(call), silu)


def body(b: Body) -> None:
    x = b.load("self")
    b.store("out", x / (b.op("Exp", -x, name="power") + 1.0), "self")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"self": [0.0, math.log(3), -math.log(3), math.inf]},
        {"out": [0.0, math.log(3) * 0.75, -math.log(3) * 0.25, math.inf]},
    ),
)
