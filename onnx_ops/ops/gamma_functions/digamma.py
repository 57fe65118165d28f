"""Digamma: the derivative of the logarithm of the gamma function."""

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
from onnx_ops.loops.primitives import Number, choose, cos, inlined, log, sin, wide
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import elementwise
from onnx_ops.ops.gamma_functions._reference import digamma as exact_digamma
from onnx_ops.ops.gamma_series import (
    DIGAMMA_TERMS,
    FAR,
    LESS_ONE,
    LESS_ONE_LOW,
    SHIFT,
    asymptotic_digamma,
    down_to_three,
    from_integer,
    horner,
    inverses_of_seven,
)
from onnx_ops.ops.references import function_of_self

SIGNATURE = Signature(
    "Digamma",
    """
The digamma function (aclnnDigamma; Abramowitz and Stegun, 1964, 6.3), the derivative of Lgamma.

    out = gamma'(self) / gamma(self)

Shapes: `out` has the shape of `self`, rank 0 to 8.

Dtypes: `self` float16, bfloat16, float or double; `out` the same. Computed in double, of all dtypes; rounded once.

Edge rules: 0 gives infinity of the other sign; the negative integers, minus infinity and NaN give NaN; infinity gives
infinity. Results near 0, about 1.46, keep their digits; near the zeros between negative integers double results have
an absolute error of some units in the last place of pi / tan(pi * self). An empty input gives an empty output.

Without a kernel: as above, except that double results have an absolute error of up to 2e-14 about 1.46 too.
""",
    inputs=(Input("self", "Any floating tensor.", Role.SHAPE),),
    outputs=(Output("out", "Digamma function of `self`.", "self"),),
)

# A rational function of a in [0, 2] that is digamma(1 + a) / (a - LESS_ONE) at the Chebyshev nodes of the interval, and
# elsewhere within 4e-18 of it.
NUMERATOR = (
    1.2503801375034054,
    2.0079983521060054,
    1.1741604116033721,
    0.31649933632550714,
    0.04049350826567144,
    0.002235289521967761,
    3.9117651665683125e-05,
    4.097361930526724e-08,
)
DENOMINATOR = (
    1.0,
    2.2894571233542136,
    1.9022022748824643,
    0.7470495002328587,
    0.14810832904594673,
    0.014396602345897333,
    0.0006000004112100302,
    7.3778476243478865e-06,
)
TINY = 1e-20
"""abs(x) below which digamma(x) is -1 / x in float64, and terms of the reflection formula may overflow."""
PORTABLE_TERMS = DIGAMMA_TERMS[:8]
"""Enough for an error of 2e-15 from 7 on, which is less than those of the terms of the body."""


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
    return function_of_self(exact_digamma, self, dtype)


@inlined
def of_positive(z: Number) -> Number:
    """Of a float64 that is not negative."""
    small = z < 1.0
    y, product, numerator = down_to_three(z)
    inverse = 1.0 / z
    a = choose(small, z, y - 1.0)
    ratio = horner(a, NUMERATOR) / horner(a, DENOMINATOR)
    near = (a - LESS_ONE - LESS_ONE_LOW) * ratio + choose(small, -inverse, numerator / product)
    return choose(z >= FAR, asymptotic_digamma(log(z), inverse, DIGAMMA_TERMS), near)


@inlined
def of_any(x: Number) -> Number:
    """Of a number that is not positive, or NaN, by the reflection formula."""
    y = wide(x)
    distance = from_integer(y)
    if y > -TINY:
        return -1.0 / y
    if distance == 0:
        return np.nan
    angle = math.pi * distance
    return of_positive(-y) - 1.0 / y - math.pi * cos(angle) / sin(angle)


@elementwise(0, exact=of_any, alone=True)
def digamma(x: Number) -> tuple[Number, bool]:
    return of_positive(wide(x)), not (x > 0)


def kernel(call: Call) -> Loop:
    return Loop(SIGNATURE.space, computing_type(call), digamma)


def body(b: Body) -> None:
    b.widen()
    x = b.load("self")
    z = b.op("Abs", x, name="z")
    near = z.less(FAR).named("near")
    w = b.op("Where", near, z + SHIFT, z, name="w")
    total = b.op("Where", near, inverses_of_seven(z), 0.0, name="total")
    found = asymptotic_digamma(b.op("Log", w), b.op("Reciprocal", w), PORTABLE_TERMS) - total
    distance = (z - b.op("Round", z)).named("distance")
    # The cosine, of which onnxruntime 1.23 has no double, as a sine.
    cosine = b.op("Sin", (b.op("Abs", distance) - 0.5) * -math.pi, name="cosine")
    cotangent = cosine / b.op("Sin", distance * math.pi)
    negative = b.op("Div", -1.0, x, name="negative")
    reflected = found + negative + cotangent * math.pi
    reflected = b.op("Where", b.op("Equal", distance, 0.0), math.nan, reflected, name="reflected")
    found = b.op("Where", x.less(0.0), reflected, found)
    b.store("out", b.op("Where", z.less(TINY), negative, found, name="digamma"), "self")


EULER = 0.5772156649015329

OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"self": [1.0, 2.0, 0.5, -0.5, 0.0]},
        {"out": [-EULER, 1 - EULER, -EULER - math.log(4), 2 - EULER - math.log(4), -math.inf]},
    ),
)
