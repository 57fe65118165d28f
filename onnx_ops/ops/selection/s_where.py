"""SWhere: elements of one of two tensors, by a condition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature, promoted_type
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType, promote
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import ZERO, Number
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import computing_dtype, promoted, rounded

SIGNATURE = Signature(
    "SWhere",
    """
Selects elements of two tensors by a condition (aclnnSWhere), as ONNX's Where does. A kernel without branches, which
takes the same time for any condition.

    out = self   where condition
          other  elsewhere

Shapes: `condition`, `self` and `other` broadcast; `out` has the broadcast shape, rank 0 to 8.

Dtypes: `condition` bool; `self` and `other` each float16, bfloat16, float or double; `out` has the promoted dtype: the
common one if they agree, else double if one is double, else float.

Edge rules: elements are copied: NaN, infinities and -0 too. Those that are not selected have no effect. Empty inputs
give an empty output.

Without a kernel: the results are the same, except that an element of -0 may become +0. Shapes known only at run time
are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("condition", "Which elements are those of `self`.", Role.SHAPE, dtypes=(TensorProto.BOOL,)),
        Input("self", "Elements where `condition` is true.", Role.SHAPE),
        Input("other", "Elements where `condition` is false.", Role.SHAPE),
    ),
    outputs=(Output("out", "The selected elements.", promoted_type("self", "other")),),
)


def reference(
    condition: np.ndarray, self: np.ndarray, other: np.ndarray, *, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition.

    Args:
        condition: bool array.
        self, other: floating arrays; the three shapes broadcast.
        dtype: dtype of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """
    compute = computing_dtype((self, other), dtype)
    return rounded(np.where(condition, self.astype(compute), other.astype(compute)), promoted(self, other), dtype)


@elementwise(0, 1, 2)
def select(condition: Number, own: Number, other: Number) -> Number:
    return own if condition > ZERO else other


def body(b: Body) -> None:
    selected = b.op("Where", b.inputs["condition"], b.load("self"), b.load("other"), name="selected")
    b.store("out", selected, "self", "other")


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = SIGNATURE.space.shape(call)
    return (TensorType(promote((call.dtype("self"), call.dtype("other"))), shape),)


def kernel(call: Call) -> Loop:
    return Loop(SIGNATURE.space, computing_type(call, "condition", light=True), select, memory_bound=True)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"condition": [True, False, True], "self": [1.0, 2.0, 3.0], "other": [-1.0, -2.0, -3.0]},
        {"out": [1.0, -2.0, 3.0]},
    ),
)
