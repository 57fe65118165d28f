"""Hardshrink: keeps elements outside of [-lambd, lambd]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.loops.primitives import ZERO, Number
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.hardshrink._rules import lambd_attribute, threshold_of
from onnx_ops.ops.references import computing_dtype, rounded

SIGNATURE = Signature(
    "Hardshrink",
    """
Hardshrink keeps the elements outside of the interval `[-lambd, lambd]` and sets the others to 0. HardshrinkBackward is
its gradient.

    out = 0     where |self| <= lambd
          self  elsewhere

Shapes: `out` has the shape of `self`, rank 0 to 8.

Dtypes: `self` float16, bfloat16, float or double; `out` the same.

Edge rules: at the boundary (`self` equal to `lambd` or `-lambd`) the result is 0. `lambd` is a float32 and is not
rounded to the dtype of `self` before the comparison. A `lambd` below 0 counts as 0; if it is NaN, all elements are
kept. NaN in `self` is kept. Elements set to 0 are +0. An empty input gives an empty output.

Without a kernel: the results are the same.
""",
    inputs=(Input("self", "Any floating tensor.", Role.SHAPE),),
    outputs=(Output("out", "`self`, with small elements set to 0.", "self"),),
    attributes=(lambd_attribute(),),
)


def reference(self: np.ndarray, *, lambd: float = 0.5, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """NumPy definition.

    Args:
        self: floating array.
        lambd: read as a float32.
        dtype: dtype to compute in and of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    compute = computing_dtype((self,), dtype)
    x = self.astype(compute)
    return rounded(np.where(np.abs(x) <= compute.type(threshold_of(lambd)), compute.type(0), x), self.dtype, dtype)


@elementwise(0, parameters=(1,))
def keep_outside(x: Number, lambd: Number) -> Number:
    return ZERO if abs(x) <= lambd else x


def body(b: Body) -> None:
    x, lambd = b.load("self"), b.attribute("lambd")
    if lambd is None:
        threshold = b.op("Max", b.value_of("lambd"), 0.0, name="threshold")
    else:
        threshold = b.constant(threshold_of(lambd), name="threshold")
    is_small = b.op("Abs", x, name="magnitude").less_or_equal(threshold).named("is_small")
    b.store("out", b.op("Where", is_small, 0.0, x, name="kept"), "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("self"), SIGNATURE.space.shape(call)),)


def kernel(call: Call) -> Loop:
    lambd = threshold_of(call.attributes["lambd"])
    return Loop(SIGNATURE.space, computing_type(call, light=True), keep_outside, parameters=(lambd,), memory_bound=True)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example({"self": [-1.0, 0.5, 0.75, -0.25]}, {"out": [-1.0, 0.0, 0.75, 0.0]}, {"lambd": 0.5}),
)
