"""The logarithm of the gamma function, and its derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import any_of, branch
from onnx_ops.torch.base.nodes import Value, double, op
from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.polynomials import in_float64, polynomial, ratio

aten = torch.ops.aten

# Rational functions of a in [0, 2] that are equal to the function at the Chebyshev nodes of the interval, and elsewhere
# within 4e-18 of it: lgamma(1 + a) / (a * (a - 1)), and digamma(1 + a) / (a - ZERO).
LGAMMA = (
    (
        0.5772156649015329,
        1.795879018997928,
        2.1865334418937055,
        1.3226883681228077,
        0.4175253681048576,
        0.06620652414372981,
        0.004630212547046027,
        0.00010318936786846241,
        1.54621296801624e-07,
    ),
    (
        1.0,
        3.5361659629745215,
        5.021257900661251,
        3.6722217552107503,
        1.4771004522959044,
        0.3239769173460576,
        0.03613884447121401,
        0.0017463681006452904,
        2.4701852219090835e-05,
    ),
)
DIGAMMA = (
    (
        1.2503801375034054,
        2.0079983521060054,
        1.1741604116033721,
        0.31649933632550714,
        0.04049350826567144,
        0.002235289521967761,
        3.9117651665683125e-05,
        4.097361930526724e-08,
    ),
    (
        1.0,
        2.2894571233542136,
        1.9022022748824643,
        0.7470495002328587,
        0.14810832904594673,
        0.014396602345897333,
        0.0006000004112100302,
        7.3778476243478865e-06,
    ),
)
ZERO = (0.46163214496836236, -1.5522348162858677e-17)
"""The positive zero of digamma less 1, as the sum of two numbers."""

FAR = 8
"""From here on the asymptotic series are within 1e-17 of the functions."""
TERMS = 10

BERNOULLI = [Fraction(1)]
"""Bernoulli numbers."""
for _m in range(1, 2 * TERMS + 1):
    BERNOULLI.append(-sum((math.comb(_m + 1, k) * BERNOULLI[k] for k in range(_m)), Fraction()) / (_m + 1))
EVEN = [BERNOULLI[2 * k] for k in range(1, TERMS + 1)]


def _from_integer(z: Tensor) -> Tensor:
    """Sines and cosines of pi times this have no error of their argument."""
    return z - z.round()


def _undefined(x: Tensor, found: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, found)


# --- negative numbers -------------------------------------------------------------------------------------------------


def _if_negative(name: str, write: Callable[[Value, Value], Value]) -> Callable[[Value], Value]:
    """The nodes of a function of negative numbers x, written in x and pi * (x - round(x)).

    They run in a step with negative numbers only.
    """

    def written(x: Value) -> Value:
        def computed() -> Sequence[Value]:
            return [write(x, op.Mul(op.Sub(x, op.Round(x)), double(math.pi)))]

        (found,) = branch(f"{x.name}_{name}", any_of(op.Less(x, double(0.0))), computed, lambda: [x])
        return found

    return written


def _log_reflection_nodes(x: Value, angle: Value) -> Value:
    return op.Sub(double(math.log(math.pi)), op.Log(op.Abs(op.Mul(op.Sin(angle), x))))


@custom_operator(_if_negative("log_reflection", _log_reflection_nodes), torch.empty_like)
def log_reflection(x: Tensor) -> Tensor:
    """lgamma(x) + lgamma(-x) of negative float64 numbers; of others anything."""
    return math.log(math.pi) - ((_from_integer(x) * math.pi).sin() * x).abs().log()


def _cotangent_nodes(x: Value, angle: Value) -> Value:
    return op.Where(op.Equal(angle, double(0.0)), double(math.nan), op.Div(op.Cos(angle), op.Sin(angle)))


@custom_operator(_if_negative("cotangent", _cotangent_nodes), torch.empty_like)
def cotangent(x: Tensor) -> Tensor:
    """1 / tan(pi * x) of negative float64 numbers, NaN of integers; of others anything."""
    angle = _from_integer(x) * math.pi
    return torch.where(angle == 0, math.nan, angle.cos() / angle.sin())


# --- the logarithm ----------------------------------------------------------------------------------------------------


@decomposes(aten.lgamma.default)
def _lgamma(self: Tensor) -> Tensor:
    return (_lgamma_of_doubles if self.dtype is torch.float64 else _short_lgamma)(self)


@in_float64
def _lgamma_of_doubles(x: Tensor) -> Tensor:
    z = x.abs()
    found = log_gamma_of_positive(z)
    found = torch.where(x < 0, log_reflection(x) - found, found)
    return _undefined(x, torch.where(z == math.inf, math.inf, found))


SHIFT = 7
"""Of z + SHIFT are the asymptotic series for float32 numbers z; the product of SHIFT of these is a finite float64."""
FEW_TERMS = 8
LARGE = 1e40
"""lgamma of it is infinite in float32."""


@in_float64
def _short_lgamma(x: Tensor) -> Tensor:
    """Of float32 numbers, of which the positive ones have an error of 4e-15 also near the zeros 1 and 2."""
    x = x.clamp(-LARGE, LARGE)
    z = x.abs()
    w, u = z + SHIFT, z * (z + 6)
    product = u * (u + 5) * (u + 8) * (z + 3)  # z * (z + 1) * ... * (z + SHIFT - 1)
    inverse = w.reciprocal()
    series = polynomial(
        inverse * inverse, [float(b / (2 * k * (2 * k - 1))) for k, b in enumerate(EVEN[:FEW_TERMS], 1)]
    )
    found = (w - 0.5) * (w.log() - 1) + (math.log(2 * math.pi) - 1) / 2 + inverse * series - product.log()
    return torch.where(x < 0, log_reflection(x) - found, found)


def log_gamma_of_positive(z: Tensor) -> Tensor:
    """Of float64 numbers."""
    small, y, product = z < 1, z, torch.ones_like(z)
    for _ in range(FAR - 3):
        high = y >= 3
        y = torch.where(high, y - 1, y)
        product = torch.where(high, product * y, product)
    a = torch.where(small, z, y - 1)
    logarithm = torch.where(small, z, product).log()
    near = a * (a - 1) * ratio(a, *LGAMMA) + torch.where(small, -logarithm, logarithm)
    inverse = z.reciprocal()
    series = polynomial(inverse * inverse, [float(b / (2 * k * (2 * k - 1))) for k, b in enumerate(EVEN, 1)])
    far = (z - 0.5) * (z.log() - 1) + (math.log(2 * math.pi) - 1) / 2 + inverse * series
    return torch.where(z >= FAR, far, near)


@decomposes(aten.mvlgamma.default)
def _mvlgamma(self: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function."""
    terms = [aten.lgamma(self - i / 2) for i in range(p)]
    return sum(terms, p * (p - 1) / 4 * math.log(math.pi) + torch.zeros_like(terms[0]))


# --- its derivatives --------------------------------------------------------------------------------------------------


@decomposes(aten.digamma.default)
def _digamma(self: Tensor) -> Tensor:
    return (_digamma_of_doubles if self.dtype is torch.float64 else _short_digamma)(self)


@in_float64
def _digamma_of_doubles(x: Tensor) -> Tensor:
    z = x.abs()
    found = _digamma_of_positive(z)
    inverse = x.reciprocal()
    found = torch.where(x < 0, found - inverse - math.pi * cotangent(x), found)
    return _undefined(x, torch.where(z < 1e-20, -inverse, found))


@in_float64
def _short_digamma(x: Tensor) -> Tensor:
    """Of float32 numbers, of which the positive ones have an error of 4e-15 also near the zero."""
    z = x.abs()
    bounded, w = z.clamp_max(LARGE), z + SHIFT
    u, middle = bounded * (bounded + 6), bounded + 3
    # The sum of 1 / z, 1 / (z + 1), ..., 1 / (z + SHIFT - 1)
    total = 2 * middle * (u * (3 * u + 26) + 40) / (u * (u + 5) * (u + 8)) + middle.reciprocal()
    inverse = w.reciprocal()
    square = inverse * inverse
    series = polynomial(square, [0.0, *(float(b / (2 * k)) for k, b in enumerate(EVEN[:FEW_TERMS], 1))])
    found = w.log() - 0.5 * inverse - series - total
    of_x = x.reciprocal()
    found = torch.where(x < 0, found - of_x - math.pi * cotangent(x), found)
    return torch.where(x == 0, -of_x, found)


def _digamma_of_positive(z: Tensor) -> Tensor:
    small, y, total = z < 1, z, torch.zeros_like(z)
    for _ in range(FAR - 3):
        high = y >= 3
        y = torch.where(high, y - 1, y)
        total = torch.where(high, total + y.reciprocal(), total)
    a, inverse = torch.where(small, z, y - 1), z.reciprocal()
    near = (a - ZERO[0] - ZERO[1]) * ratio(a, *DIGAMMA) + torch.where(small, -inverse, total)
    series = polynomial(inverse * inverse, [0.0, *(float(b / (2 * k)) for k, b in enumerate(EVEN, 1))])
    return torch.where(z >= FAR, z.log() - 0.5 * inverse - series, near)


@decomposes(aten.polygamma.default)
@in_float64
def _polygamma(n: int, x: Tensor) -> Tensor:
    """The derivatives of digamma.

    Those for negative numbers follow of digamma(1 - x) - digamma(x) = pi / tan(pi * x). That of pi / tan(pi * x) is a
    polynomial of c = 1 / tan(pi * x), as the derivative of c is -pi * (1 + c * c).
    """
    if n == 0:
        return aten.digamma(x)
    sign = (-1) ** n
    found = -sign * math.factorial(n) * _zeta(n + 1, torch.where(x < 0, 1 - x, x))
    coefficients = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(coefficients)][1:]
        coefficients = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    c = cotangent(x)
    derivative = math.pi ** (n + 1) * polynomial(c, [float(each) for each in coefficients])
    reflected = torch.where(c.isnan(), -sign * math.inf, sign * found - derivative)
    return _undefined(x, torch.where(x < 0, reflected, torch.where(x == 0, -sign * math.inf, found)))


def _zeta(s: int, x: Tensor) -> Tensor:
    """Hurwitz' zeta function of positive numbers: some terms, and the formula of Euler and Maclaurin for the rest."""
    shift = 10
    y = x + shift
    inverse = y.reciprocal()
    rising, coefficients = Fraction(s), []
    for k, b in enumerate(EVEN[:-1], 1):  # s * (s + 1) * ... * (s + 2 * k - 2) * b / (2 * k)!
        coefficients.append(float(rising * b / math.factorial(2 * k)))
        rising *= (s + 2 * k - 1) * (s + 2 * k)
    series = polynomial(inverse * inverse, coefficients)
    found = (1 / (s - 1) + inverse * (0.5 + inverse * series)) * _power(inverse, s - 1)
    for i in reversed(range(shift)):
        found = found + _power((x + i).reciprocal(), s)
    return found


def _power(x: Tensor, exponent: int) -> Tensor:
    """By products, which round less than a logarithm."""
    if exponent == 1:
        return x
    half = _power(x, exponent // 2)
    return half * half * x if exponent % 2 else half * half
