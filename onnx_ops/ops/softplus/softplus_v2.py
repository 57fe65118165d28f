"""SoftplusV2: softplus, a smooth ReLU."""

from __future__ import annotations

import math
from typing import Any

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
from onnx_ops.loops.primitives import (
    Number,
    choose,
    exp_of_difference,
    softplus_for_float32,
    softplus_of_nonpositive,
    wide,
)
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.references import computing_dtype, rounded
from onnx_ops.ops.softplus._rules import ATTRIBUTES, is_linear, lost, scale_and_limit

SIGNATURE = Signature(
    "SoftplusV2",
    """
Softplus (aclnnSoftplus; Dugas et al., 2001), a smooth ReLU. SoftplusBackward is its gradient. It has the name of the
operator of CANN's graphs, as ONNX has an operator Softplus, without the attributes.

    t = beta * self
    out = self                    where t > threshold
          log(1 + exp(t)) / beta  elsewhere

With `beta` -1 it is the logarithm of the logistic function, `-log(1 + exp(-self))`.

Shapes: `out` has the shape of `self`, rank 0 to 8.

Dtypes: `self` float16, bfloat16, float or double; `out` the same. Computed in double if `self` is double, else in
float; rounded once.

Edge rules: where t is negative the result, which is close to `exp(t) / beta`, keeps its relative precision, in double
where `exp(t)` is a normal number: t is not rounded before its exponential is taken, but, to float or double, before it
is compared. The attributes are float32. NaN gives NaN. An infinite t above the threshold gives `self`, minus infinity
gives 0. With `beta` 0 the result is infinity. An empty input gives an empty output.

Without a kernel: as above, except that t is rounded in the exponential too, and that the result may be 0 where `exp(t)`
is below the smallest normal number.
""",
    inputs=(Input("self", "Any floating tensor.", Role.SHAPE),),
    outputs=(Output("out", "Softplus of `self`.", "self"),),
    attributes=ATTRIBUTES,
)

LINEAR = 1e-8
"""1 - exp(-y) is y to seven digits for y up to here."""


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("self"), SIGNATURE.space.shape(call)),)


def reference(
    self: np.ndarray, *, beta: float = 1.0, threshold: float = 20.0, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition, computed in float64, or for float64 results in long double.

    Args:
        self: floating array.
        beta, threshold: read as float32.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    kind: type[np.floating[Any]] = np.longdouble if np.float64 in (self.dtype, dtype) else np.float64
    scale = kind(np.float32(beta))
    x = self.astype(np.float64).astype(kind)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        t = x * scale
        curved = (np.maximum(t, 0) + np.log1p(np.exp(-np.abs(t)))) / scale
    above = is_linear(self, beta, threshold, computing_dtype((self,), None))
    return rounded(np.where(above, x, curved), self.dtype, dtype)


@elementwise(0, parameters=(1, 2))
def softplus_of_floats(x: Number, beta: Number, threshold: Number) -> Number:
    """In float64, where products of float32 numbers are exact."""
    t = wide(x) * wide(beta)
    curved = (choose(t > 0, t, 0.0) + softplus_for_float32(-abs(t))) / wide(beta)
    return choose(x * beta > threshold, wide(x), curved)


@elementwise(0, parameters=(1, 2))
def softplus(x: Number, beta: Number, threshold: Number) -> Number:
    """Of float64; the derivative of log(1 + exp(t)) is 1 - 1/(1 + exp(t))."""
    t = x * beta
    error = lost(x, beta, t)
    value = softplus_of_nonpositive(-abs(t))
    slope = choose(value < LINEAR, value, 1.0 - exp_of_difference(-value))
    curved = choose(t > 0, t, 0.0) + (value + choose(t > 0, error - error * slope, error * slope))
    return choose(t > threshold, x, curved / beta)


def kernel(call: Call) -> Loop:
    compute = computing_type(call)
    core = softplus if compute == TensorProto.DOUBLE else softplus_of_floats
    return Loop(SIGNATURE.space, compute, core, parameters=scale_and_limit(call.attributes))


def body(b: Body) -> None:
    x, beta = b.load("self"), b.value_of("beta")
    t = (x * beta).named("t")
    power = b.op("Exp", -b.op("Abs", t, name="size"), name="power")
    # log1p(power), as log(u) * power / (u - 1) for u = 1 + power as rounded (Kahan).
    rounded_sum = (power + 1.0).named("rounded_sum")
    ratio = b.op("Log", rounded_sum, name="logarithm") / (rounded_sum - 1.0)
    is_small = b.op("Equal", rounded_sum, 1.0, name="is_small")
    logarithm = b.op("Where", is_small, power, power * ratio, name="log1p")
    curved = (b.op("Relu", t, name="linear") + logarithm) / beta
    b.store("out", b.op("Where", t.greater(b.value_of("threshold")), x, curved, name="softplus"), "self")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"self": [0.0, math.log(3), -math.log(3), 21.5]},
        {"out": [math.log(2), math.log(4), math.log(4 / 3), 21.5]},
    ),
)
