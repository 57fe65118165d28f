"""GeluBackwardV2: gradient of GELU, exact or in its tanh approximation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, Signature, promoted_type
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Operand, Value
from onnx_ops.loops.loop import Core, Loop
from onnx_ops.loops.primitives import ONE, Number, exp_parts, fma, inlined
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.mirrored import bounded, bounded_size, gradient, reference_gradient, store_gradient

NONE, TANH = 0, 1
CHOICES = {NONE: "none", TANH: "tanh"}

SIGNATURE = Signature(
    "GeluBackwardV2",
    """
Gradient of GELU (aclnnGeluBackwardV2; Hendrycks and Gimpel, 2016).

    x = self
    grad_input = grad_output * (Phi(x) + x * phi(x))                              approximate 0 (none)
                 grad_output * ((1 + t) / 2 + x * (1 - t**2) / 2 * du(x))         approximate 1 (tanh)
    Phi(x) = (1 + erf(x / sqrt(2))) / 2,    phi(x) = exp(-x**2 / 2) / sqrt(2 * pi)
    t = tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)),    du(x) = sqrt(2 / pi) * (1 + 0.134145 * x**2)

Shapes: `grad_output` and `self` broadcast; `grad_input` has the broadcast shape, rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_input` has the promoted dtype: the common one if they
agree, else double if one is double, else float. Computed in double if an input is double, else in float; rounded once.

Edge rules: the terms do not cancel for negative `self`, whose small gradient keeps its relative precision. An infinite
`self` gives the limit: `grad_output` for infinity, a gradient of 0 for minus infinity (PyTorch: NaN). A derivative
below 2e-76 (double: 1e-615) counts as 0. NaN in either input gives NaN. Empty inputs give an empty output.

Without a kernel: as above, except that the gradient of `self` below -4 loses relative precision with `self**2`, and may
be 0 where `exp(-self**2 / 2)` is below the smallest normal number. Shapes known only at run time are not checked; they
broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the output of GELU.", Role.SHAPE),
        Input("self", "Input of GELU.", Role.SHAPE),
    ),
    outputs=(
        Output("grad_input", "Gradient with respect to the input of GELU.", promoted_type("grad_output", "self")),
    ),
    attributes=(
        attribute("approximate", NONE, "Which GELU: 0 none, with the error function; 1 tanh, its approximation."),
    ),
    choices={"approximate": CHOICES},
)

# The derivative of either GELU at -a, a >= 0, is decay * slope (see ops/mirrored.py).
#
# none: decay = exp(-a*a/2), slope = r(a) - a/sqrt(2*pi), where r(a) = exp(a*a/2) * erfc(a/sqrt(2)) / 2.
# tanh: decay = exp(-v), v = a*(A + B*a*a), slope = side * (1 - w*side), side = 1/(1 + decay), w = a*(A + 3*B*a*a).
#
# r(a) = 1/2 - a*p(a)/q(a), coefficients from the highest power down, all positive: rational interpolation at Chebyshev
# nodes in (a - k)/(a + k), k = 2.8 and 4; the error relative to max(r(a), a/sqrt(2*pi)) is 1e-8 up to a = 19, and 5e-18
# up to a = 54.
P4 = tuple(
    map(
        np.float32,
        (0.005374145228415728, 0.0481395460665226, 0.19765762984752655, 0.4219706654548645, 0.3989424705505371),
    )
)
Q4 = tuple(
    map(
        np.float32,
        (0.010748290456831455, 0.10485504567623138, 0.4789738357067108, 1.2176252603530884, 1.6843867301940918, 1.0),
    )
)
P8 = (
    3.0705770553096095e-07, 9.192463776240382e-06, 0.00013541341855442116, 0.0012738022004487365,
    0.00840063698636635, 0.04036808957408266, 0.14271101605602396, 0.3661332546158932, 0.6531544552220031,
    0.7345528505705389, 0.39894228040143276,
)  # fmt: skip
Q8 = (
    6.141154110619219e-07, 1.8874920757518203e-05, 0.00028588684496763623, 0.0027752191074296778,
    0.019000518443467812, 0.09566976474484365, 0.359586335754905, 1.004691642185427, 2.038020371103356,
    2.8504140930388613, 2.467908013108672, 1.0,
)  # fmt: skip
# 1/sqrt(2*pi), A = 2*sqrt(2/pi) and B = 0.044715*A, each as the sum of two numbers of the computing dtype.
C4, C4_LOW = np.float32(0.3989422917366028), np.float32(-1.1335170135851058e-08)
A4, A4_LOW = np.float32(1.5957691669464111), np.float32(-4.534068054340423e-08)
B4, B4_LOW = np.float32(0.07135481387376785), np.float32(2.3988324659995897e-09)
C8, C8_LOW = 0.3989422804014327, -2.49232720227773e-17
A8, A8_LOW = 1.5957691216057308, -9.96930880911092e-17
B8, B8_LOW = 0.07135481627260025, -6.175149918155315e-19
HALF = np.float32(0.5)
FAR4, FAR8 = np.float32(19), 54.0
"""abs(x) from which the decay, below 2**-251 and 2**-2042, counts as 0."""


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(SIGNATURE.space.promoted(call), SIGNATURE.space.shape(call)),)


def reference(
    grad_output: np.ndarray, self: np.ndarray, *, approximate: int = NONE, dtype: npt.DTypeLike | None = None
) -> np.ndarray:
    """NumPy definition, computed in float64, or for float64 results in long double.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        approximate: 0 none, 1 tanh.
        dtype: dtype of the result instead of the promoted one.

    Returns:
        Array of the broadcast shape.
    """

    def mirrored(size: np.ndarray) -> np.ndarray:
        wide, square = size.dtype.type, size * size
        if approximate == TANH:
            cubic = (wide(B8) + wide(B8_LOW)) * square
            factor = wide(A8) + wide(A8_LOW) + cubic
            decay = np.exp(-size * factor)
            side = 1 / (1 + decay)
            return np.asarray(decay * (side * (1 - size * (factor + 2 * cubic) * side)))
        tail = 0.5 - size * (np.polyval(P8, size) / np.polyval(Q8, size))
        return np.asarray(np.exp(-square / 2) * (tail - size * (wide(C8) + wide(C8_LOW))))

    return reference_gradient(grad_output, self, mirrored, FAR8, dtype)


@elementwise(0, 1)
def exact_of_float(grad: Number, x: Number) -> Number:
    a = bounded(x, FAR4)
    square = a * a
    value, first, second = exp_parts(-HALF * square)
    value = fma(value, -HALF * fma(a, a, -square), value)  # exp of the rounding error of the square
    p = fma(fma(fma(fma(P4[0], a, P4[1]), a, P4[2]), a, P4[3]), a, P4[4])
    q = fma(fma(fma(fma(fma(Q4[0], a, Q4[1]), a, Q4[2]), a, Q4[3]), a, Q4[4]), a, Q4[5])
    slope = fma(-C4, a, fma(-C4_LOW, a, fma(-a, p / q, HALF)))
    return gradient(grad, x, value, first, second, slope)


@elementwise(0, 1)
def exact_of_double(grad: Number, x: Number) -> Number:
    a = bounded(x, FAR8)
    square = a * a
    value, first, second = exp_parts(-0.5 * square)
    value = fma(value, -0.5 * fma(a, a, -square), value)
    p = fma(fma(fma(fma(fma(P8[0], a, P8[1]), a, P8[2]), a, P8[3]), a, P8[4]), a, P8[5])
    p = fma(fma(fma(fma(fma(p, a, P8[6]), a, P8[7]), a, P8[8]), a, P8[9]), a, P8[10])
    q = fma(fma(fma(fma(fma(Q8[0], a, Q8[1]), a, Q8[2]), a, Q8[3]), a, Q8[4]), a, Q8[5])
    q = fma(fma(fma(fma(fma(fma(q, a, Q8[6]), a, Q8[7]), a, Q8[8]), a, Q8[9]), a, Q8[10]), a, Q8[11])
    slope = fma(-C8, a, fma(-C8_LOW, a, fma(-a, p / q, 0.5)))
    return gradient(grad, x, value, first, second, slope)


@inlined
def by_tanh(grad: Number, x: Number, far: Number, a_high: Number, a_low: Number, b_high: Number, b_low: Number) -> Any:
    """The gradient in the tanh approximation, with the rounding error of the exponent v."""
    a = bounded(x, far)
    square = a * a
    cubic = b_high * square
    factor = a_high + cubic
    rest = factor - a_high  # two-sum (Knuth)
    lost = (a_high - (factor - rest)) + (cubic - rest)
    lost = lost + (fma(b_high, square, -cubic) + fma(b_high, fma(a, a, -square), fma(b_low, square, a_low)))
    v = a * factor
    v_lost = fma(a, lost, fma(a, factor, -v))
    value, first, second = exp_parts(-v)
    value = fma(value, -v_lost, value)
    decay = (value * first) * second
    side = ONE / (ONE + decay)
    side = fma(side, fma(-side, decay, ONE - side), side)  # rounding error of the quotient
    w = v + fma(a + a, fma(b_low, square, cubic), v_lost)
    slope = side * fma(-w, side, ONE)
    return gradient(grad, x, value, first, second, slope)


@elementwise(0, 1)
def tanh_of_float(grad: Number, x: Number) -> Number:
    return by_tanh(grad, x, FAR4, A4, A4_LOW, B4, B4_LOW)


@elementwise(0, 1)
def tanh_of_double(grad: Number, x: Number) -> Number:
    return by_tanh(grad, x, FAR8, A8, A8_LOW, B8, B8_LOW)


CORES: dict[tuple[int, int], Core] = {
    (NONE, TensorProto.FLOAT): exact_of_float,
    (NONE, TensorProto.DOUBLE): exact_of_double,
    (TANH, TensorProto.FLOAT): tanh_of_float,
    (TANH, TensorProto.DOUBLE): tanh_of_double,
}


def kernel(call: Call) -> Loop:
    compute = computing_type(call)
    return Loop(SIGNATURE.space, compute, CORES[call.attributes["approximate"], compute])


def _polynomial(coefficients: Sequence[Operand], a: Value) -> Value:
    value = a * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * a + coefficient
    return value


def body(b: Body) -> None:
    """The formulas of the kernel."""
    double = b.compute == TensorProto.DOUBLE
    a = bounded_size(b, FAR8 if double else float(FAR4))
    square = (a * a).named("square")

    def exact() -> Value:
        p, q = (_polynomial(list(map(float, c)), a) for c in ((P8, Q8) if double else (P4, Q4)))
        return b.op("Exp", square * -0.5, name="decay") * ((0.5 - a * (p / q)) - a * C8).named("slope")

    def by_tanh() -> Value:
        cubic = (square * B8).named("cubic")
        decay = b.op("Exp", -(a * (cubic + A8)), name="decay")
        side = (1.0 / (decay + 1.0)).named("side")
        return decay * (side * (1.0 - a * (cubic * 3.0 + A8) * side)).named("slope")

    approximate = b.attribute("approximate")
    if approximate is None:
        is_tanh = b.value_of("approximate").equal(TANH).named("is_tanh")
        mirrored = b.op("Where", is_tanh, by_tanh(), exact(), name="mirrored")
    else:
        mirrored = (by_tanh() if approximate == TANH else exact()).named("mirrored")
    store_gradient(b, mirrored)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": [2.0, 4.0, -6.0], "self": [0.0, math.inf, -math.inf]},
        {"grad_input": [1.0, 4.0, 0.0]},
        {"approximate": NONE},
    ),
)
