"""InplaceCos: the cosine of angles in radians."""

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
from onnx_ops.loops import primitives
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import LARGEST_ANGLE, Number, inlined
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import function_of_self

SIGNATURE = Signature(
    "InplaceCos",
    """
The cosine of angles in radians (aclnnCos, aclnnInplaceCos; Cos is the name of an ONNX operator).

    out = cos(self)

Shapes: `out` has the shape of `self`, rank 0 to 8.

Dtypes: `self` float16, bfloat16, float or double; `out` the same. Computed in double, also of angles as large as
the dtype has; rounded once.

Edge rules: results near 0, at odd multiples of pi / 2, keep their digits. Infinity of either sign and NaN give NaN. An
empty input gives an empty output.

Without a kernel: as above, computed in double if `self` is double, else in float; onnxruntime's Cos of float loses
digits of angles beyond some thousands.
""",
    inputs=(Input("self", "Any floating tensor.", Role.SHAPE),),
    outputs=(Output("out", "Cosine of `self`.", "self"),),
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
    return function_of_self(np.cos, self, dtype)


@inlined
def cos_of_far_angle(x: Number, far: Number) -> Number:
    return primitives.cos_of_any_angle(x)


@elementwise(0, parameters=(1,), exact=cos_of_far_angle, alone=True)
def cos(x: Number, far: Number) -> tuple[Number, bool]:
    return primitives.cos(x), abs(x) > far


def kernel(call: Call) -> Loop:
    return Loop(SIGNATURE.space, computing_type(call), cos, parameters=(LARGEST_ANGLE,))


def body(b: Body) -> None:
    b.store("out", b.op("Cos", b.load("self"), name="cosine"), "self")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example({"self": [0.0, math.pi / 6, -math.pi / 3]}, {"out": [1.0, math.sqrt(3) / 2, 0.5]}),
)
