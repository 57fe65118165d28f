"""InplaceLog: the natural logarithm."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import Number, inlined, log, log_float32, log_float32_normal
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import function_of_self

SIGNATURE = Signature(
    "InplaceLog",
    """
The natural logarithm (aclnnLog, aclnnInplaceLog; Log is the name of an ONNX operator).

    out = log(self)

Shapes: `out` has the shape of `self`, rank 0 to 8.

Dtypes: `self` float16, bfloat16, float or double; `out` the same. Computed in double if `self` is double, else
in float, to within 0.9 units in the last place of that dtype.

Edge rules: 0, of either sign, gives minus infinity; a negative `self` and NaN give NaN; infinity gives infinity. An
empty input gives an empty output.

Without a kernel: as above, in float to within 4 units in the last place.
""",
    inputs=(Input("self", "Any floating tensor.", Role.SHAPE),),
    outputs=(Output("out", "Natural logarithm of `self`.", "self"),),
)

LEAST_NORMAL = np.float32(2.0**-126)


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
    return function_of_self(np.log, self, dtype)


@elementwise(0)
def log_of_doubles(x: Number) -> Number:
    return log(x)


@inlined
def log_of_any_float(x: Number) -> Number:
    return log_float32(x)


@elementwise(0, exact=log_of_any_float)
def log_of_floats(x: Number) -> tuple[Number, bool]:
    return log_float32_normal(x), not (x >= LEAST_NORMAL and x < np.inf)


def kernel(call: Call) -> Loop:
    compute = computing_type(call)
    return Loop(SIGNATURE.space, compute, log_of_doubles if compute == TensorProto.DOUBLE else log_of_floats)


def body(b: Body) -> None:
    b.store("out", b.op("Log", b.load("self"), name="logarithm"), "self")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"self": [1.0, math.e, 8.0, 0.0]},
        {"out": [0.0, 1.0, 3 * math.log(2), -math.inf]},
    ),
)
