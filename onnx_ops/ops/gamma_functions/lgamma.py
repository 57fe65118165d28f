"""Lgamma: the logarithm of the gamma function."""

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
from onnx_ops.loops.primitives import Number, choose, inlined, log, sin, wide
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.gamma_functions._reference import log_gamma
from onnx_ops.ops.gamma_series import (
    FAR,
    SHIFT,
    down_to_three,
    from_integer,
    horner,
    product_of_seven,
    stirling,
)
from onnx_ops.ops.references import function_of_self

SIGNATURE = Signature(
    "Lgamma",
    """
The logarithm of the absolute value of the gamma function (aclnnLgamma; Abramowitz and Stegun, 1964, 6.1). Digamma is
its derivative.

    out = log(abs(gamma(self)))

Shapes: `out` has the shape of `self`, rank 0 to 8.

Dtypes: `self` float16, bfloat16, float or double; `out` the same. Computed in double, of all dtypes; rounded once.

Edge rules: 0, the negative integers and infinity of either sign give infinity; NaN gives NaN. Results near 0, about 1
and 2, keep their digits; near the zeros between negative integers double results have an absolute error of some units
in the last place of log(gamma(-self)). An empty input gives an empty output.

Without a kernel: as above, except that double results have an absolute error of up to 2e-14 about 1 and 2 too.
""",
    inputs=(Input("self", "Any floating tensor.", Role.SHAPE),),
    outputs=(Output("out", "Logarithm of the gamma function of `self`.", "self"),),
)

# A rational function of a in [0, 2] that is lgamma(1 + a) / (a * (a - 1)) at the Chebyshev nodes of the interval, and
# elsewhere within 4e-18 of it.
NUMERATOR = (
    0.5772156649015329,
    1.795879018997928,
    2.1865334418937055,
    1.3226883681228077,
    0.4175253681048576,
    0.06620652414372981,
    0.004630212547046027,
    0.00010318936786846241,
    1.54621296801624e-07,
)
DENOMINATOR = (
    1.0,
    3.5361659629745215,
    5.021257900661251,
    3.6722217552107503,
    1.4771004522959044,
    0.3239769173460576,
    0.03613884447121401,
    0.0017463681006452904,
    2.4701852219090835e-05,
)
LOG_PI = math.log(math.pi)
LOWEST = -(2.0**53)
"""All smaller numbers are integers, of which the function is infinite."""
TINY = 1e-20
"""lgamma of abs(x) below it is -log(abs(x)) to 64 bits."""


def infer(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.dtype("self"), SIGNATURE.space.shape(call)),)


def reference(self: np.ndarray, *, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """NumPy definition, computed in long double.

    Args:
        self: floating array.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    return function_of_self(log_gamma, self, dtype)


@inlined
def of_positive(z: Number) -> Number:
    """Of a float64 that is not negative."""
    small, far = z < 1.0, z >= FAR
    y, product, _ = down_to_three(z)
    logarithm = log(choose(small | far, z, product))
    a = choose(small, z, y - 1.0)
    ratio = horner(a, NUMERATOR) / horner(a, DENOMINATOR)
    near = a * (a - 1.0) * ratio + choose(small, -logarithm, logarithm)
    return choose(far, stirling(z, logarithm, 1.0 / z), near)


@inlined
def of_any(x: Number) -> Number:
    """Of a negative number or NaN, by the reflection formula."""
    y = choose(x < LOWEST, LOWEST, wide(x))
    if abs(y) < TINY:
        return -log(-y)
    return LOG_PI - log(abs(sin(math.pi * from_integer(y)))) - log(-y) - of_positive(-y)


@elementwise(0, exact=of_any, alone=True)
def lgamma(x: Number) -> tuple[Number, bool]:
    return of_positive(wide(x)), not (x >= 0)


def kernel(call: Call) -> Loop:
    return Loop(SIGNATURE.space, computing_type(call), lgamma)


def body(b: Body) -> None:
    b.widen()
    x = b.load("self")
    bounded = b.op("Max", x, LOWEST, name="bounded")
    z = b.op("Abs", bounded, name="z")
    near = z.less(FAR).named("near")
    w = b.op("Where", near, z + SHIFT, z, name="w")
    product = b.op("Where", near, product_of_seven(z), 1.0, name="product")
    found = stirling(w, b.op("Log", w), b.op("Reciprocal", w)) - b.op("Log", product)
    found = b.op("Where", b.op("Equal", (z - 1.0) * (z - 2.0), 0.0), 0.0, found, name="found")
    distance = bounded - b.op("Round", bounded)
    sine = b.op("Abs", b.op("Sin", distance * math.pi), name="sine")
    reflected = LOG_PI - b.op("Log", sine) - b.op("Log", z) - found
    b.store("out", b.op("Where", x.less(-TINY), reflected, found, name="log_gamma"), "self")


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"self": [1.0, 0.5, 6.0, -0.5, 0.0]},
        {"out": [0.0, math.log(math.pi) / 2, math.log(120), math.log(2) + math.log(math.pi) / 2, math.inf]},
    ),
)
