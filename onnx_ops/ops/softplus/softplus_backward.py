"""SoftplusBackward: gradient of softplus."""

from __future__ import annotations

import math
from typing import Any

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
from onnx_ops.loops.primitives import (
    ONE,
    Number,
    choose,
    exp_excess_parts,
    exp_in_range,
    exp_parts,
    fma,
    inlined,
    wide,
)
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.extremes import EXP_LIMIT
from onnx_ops.ops.mirrored import bounded, gradient
from onnx_ops.ops.references import computing_dtype, promoted, rounded
from onnx_ops.ops.softplus._rules import ATTRIBUTES, is_linear, lost, scale_and_limit

SIGNATURE = Signature(
    "SoftplusBackward",
    """
Gradient of softplus (aclnnSoftplusBackward; Dugas et al., 2001), with `beta` -1 of the logarithm of the logistic
function.

    t = beta * self
    grad_input = grad_output                  where t > threshold
                 grad_output / (1 + exp(-t))  elsewhere

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float. Computed in double if an input is double, else in float; rounded once.

Edge rules: where t is negative the small gradient keeps its relative precision. t is not rounded before its exponential
is taken, but, to float or double, before it is compared. The attributes are float32. An infinite t gives the limit:
`grad_output`, or 0. A derivative below 1e-307 (double: 1e-615) counts as 0, and its product with an infinite gradient
is unspecified. NaN in either input gives NaN. Empty inputs give an empty output.

Without a kernel: as above, except that t is rounded in the exponential too, and that the gradient may be 0 where
`exp(t)` is below the smallest normal number. Shapes known only at run time are not checked; they broadcast as in ONNX
operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of softplus.", Role.SHAPE),
        Input("self", "Input of softplus.", Role.SHAPE),
    ),
    outputs=(
        Output("grad_input", "Gradient with respect to the input of softplus.", promoted_type("grad_output", "self")),
    ),
    attributes=ATTRIBUTES,
)

FAR = 1417.0
"""abs(t) from which the exponential counts as 0 in float64."""
LEAST_NORMAL = 708.0
"""exp(-x) is in the normal range of float64 for x up to here."""


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(SIGNATURE.space.promoted(call), SIGNATURE.space.shape(call)),)


def reference(
    grad_output: np.ndarray,
    self: np.ndarray,
    *,
    beta: float = 1.0,
    threshold: float = 20.0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64, or for float64 results in long double.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        beta, threshold: read as float32.
        dtype: dtype of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """
    result = promoted(grad_output, self)
    kind: type[np.floating[Any]] = np.longdouble if np.float64 in (result, dtype) else np.float64
    scale = kind(np.float32(beta))
    grad, x = (array.astype(np.float64).astype(kind) for array in (grad_output, self))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        t = x * scale
        decay = np.exp(-np.minimum(np.abs(t), kind(FAR)))
        slope = np.where(t < 0, decay, 1) / (1 + decay)
        above = is_linear(self, beta, threshold, computing_dtype((grad_output, self), None))
        return rounded(np.where(above, grad, grad * slope), result, dtype)


@elementwise(0, 1, parameters=(1, 2))
def softplus_backward(grad: Number, x: Number, beta: Number, threshold: Number) -> Number:
    """Of float64."""
    t = x * beta
    error = lost(x, beta, t)
    value, first, second = exp_parts(-bounded(t, FAR))
    value = fma(value, choose(t < 0, error, -error), value)
    decay = (value * first) * second
    side = ONE / (ONE + decay)
    side = fma(side, fma(-side, decay, ONE - side), side)  # rounding error of the quotient
    return choose(t > threshold, grad, gradient(grad, t, value, first, second, side))


@inlined
def softplus_backward_of_any_float(grad: Number, x: Number, beta: Number, threshold: Number) -> Number:
    """In float64, where products of float32 numbers are exact."""
    t = wide(x) * wide(beta)
    decay = exp_in_range(choose(abs(t) < LEAST_NORMAL, -abs(t), -LEAST_NORMAL))
    slope = choose(t < 0, decay, choose(t >= 0, 1.0, t)) / (1.0 + decay)
    return wide(grad) * choose(x * beta > threshold, 1.0, slope)


@elementwise(0, 1, parameters=(1, 2), exact=softplus_backward_of_any_float)
def softplus_backward_of_floats(grad: Number, x: Number, beta: Number, threshold: Number) -> tuple[Number, bool]:
    """In float32, where the decay is a normal number."""
    t = x * beta
    error = fma(x, beta, -t)
    excess, power = exp_excess_parts(-abs(t))
    decay = fma(power, excess, power)
    decay = fma(decay, choose(t < 0, error, -error), decay)
    slope = choose(t < 0, decay, ONE) / (ONE + decay)
    return grad * choose(t > threshold, ONE, slope), not abs(t) < EXP_LIMIT


def kernel(call: Call) -> Loop:
    compute = computing_type(call)
    core = softplus_backward if compute == TensorProto.DOUBLE else softplus_backward_of_floats
    return Loop(SIGNATURE.space, compute, core, parameters=scale_and_limit(call.attributes))


def body(b: Body) -> None:
    grad = b.load("grad_output")
    t = (b.load("self") * b.value_of("beta")).named("t")
    decay = b.op("Exp", -b.op("Abs", t, name="size"), name="decay")
    slope = b.op("Where", t.less(0.0), decay, 1.0, name="above") / (decay + 1.0)
    is_linear = t.greater(b.value_of("threshold"))
    b.store("grad_input", b.op("Where", is_linear, grad, grad * slope, name="gradient"), "grad_output", "self")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [2.0, 4.0, 8.0, 3.0], "self": [0.0, math.log(3), -math.log(3), 21.5]},
        {"grad_input": [1.0, 3.0, 2.0, 3.0]},
    ),
)
