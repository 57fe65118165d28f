"""SiluBackward: gradient of SiLU."""

from __future__ import annotations

import math

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
from onnx_ops.loops.primitives import ONE, Number, choose, exp_excess_parts, exp_parts, fma
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.extremes import EXP_LIMIT
from onnx_ops.ops.mirrored import bounded, bounded_size, gradient, reference_gradient, store_gradient

SIGNATURE = Signature(
    "SiluBackward",
    """
Gradient of SiLU, also called Swish (aclnnSiluBackward; Hendrycks and Gimpel, 2016).

    x = self
    grad_input = grad_output * s * (1 + x * (1 - s)),    s = 1 / (1 + exp(-x))

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float. Computed in double if an input is double, else in float; rounded once.

Edge rules: the terms do not cancel for negative `self`, whose small gradient keeps its relative precision. An infinite
`self` gives the limit: `grad_output` for infinity, a gradient of 0 for minus infinity (PyTorch: NaN). A derivative
below 5e-74 (double: 1e-612) counts as 0. NaN in either input gives NaN. Empty inputs give an empty output.

Without a kernel: as above, except that the gradient may be 0 where `exp(self)` is below the smallest normal number.
Shapes known only at run time are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of SiLU.", Role.SHAPE),
        Input("self", "Input of SiLU.", Role.SHAPE),
    ),
    outputs=(
        Output("grad_input", "Gradient with respect to the input of SiLU.", promoted_type("grad_output", "self")),
    ),
)

# The derivative at -a, a >= 0, is decay * slope (see ops/mirrored.py): decay = exp(-a), slope = side * (1 - a*side),
# side = 1/(1 + decay).
FAR4, FAR8 = 175.0, 1417.0
"""abs(x) from which the decay counts as 0."""


def far_of(compute: int) -> float:
    """The bound on abs(x) in a computing dtype."""
    return FAR8 if compute == TensorProto.DOUBLE else FAR4


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(SIGNATURE.space.promoted(call), SIGNATURE.space.shape(call)),)


def reference(grad_output: np.ndarray, self: np.ndarray, *, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """NumPy definition, computed in float64, or for float64 results in long double.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        dtype: dtype of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """

    def mirrored(size: np.ndarray) -> np.ndarray:
        decay = np.exp(-size)
        side = 1 / (1 + decay)
        return np.asarray(decay * side * (1 - size * side))

    return reference_gradient(grad_output, self, mirrored, FAR8, dtype)


@elementwise(0, 1, parameters=(1,))
def silu_backward(grad: Number, x: Number, far: Number) -> Number:
    a = bounded(x, far)
    value, first, second = exp_parts(-a)
    decay = (value * first) * second
    side = ONE / (ONE + decay)
    side = fma(side, fma(-side, decay, ONE - side), side)  # rounding error of the quotient
    return gradient(grad, x, value, first, second, side * fma(-a, side, ONE))


@elementwise(0, 1, parameters=(1,), exact=silu_backward)
def silu_backward_of_floats(grad: Number, x: Number, far: Number) -> tuple[Number, bool]:
    """`silu_backward` in float32, where the decay is a normal number."""
    a = abs(x)
    excess, power = exp_excess_parts(-a)
    decay = fma(power, excess, power)
    side = ONE / (ONE + decay)
    mirrored = decay * (side * fma(-a, side, ONE))
    return grad * choose(x < 0, mirrored, ONE - mirrored), not a < EXP_LIMIT


def kernel(call: Call) -> Loop:
    compute = computing_type(call)
    core = silu_backward if compute == TensorProto.DOUBLE else silu_backward_of_floats
    return Loop(SIGNATURE.space, compute, core, parameters=(far_of(compute),))


def body(b: Body) -> None:
    """The formulas of the kernel."""
    a = bounded_size(b, far_of(b.compute))
    decay = b.op("Exp", -a, name="decay")
    side = (1.0 / (decay + 1.0)).named("side")
    store_gradient(b, (decay * (side * (1.0 - a * side)).named("slope")).named("mirrored"))


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example({"grad_output": [2.0, 4.0, -6.0], "self": [0.0, math.inf, -math.inf]}, {"grad_input": [1.0, 4.0, 0.0]}),
)
