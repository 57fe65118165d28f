"""The logarithm of the gamma function, and its derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from onnx_ops.ops.gamma_series import BERNOULLI
from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import any_of, branch
from onnx_ops.torch.base.nodes import Value, aclnn, double, op
from onnx_ops.torch.base.table import decomposes, translates
from onnx_ops.torch.operators.polynomials import polynomial

aten = torch.ops.aten


def _cotangent_nodes(x: Value) -> Value:
    """They run in a step with negative numbers only."""

    def computed() -> Sequence[Value]:
        distance = op.Sub(x, op.Round(x))
        # The cosine, of which onnxruntime 1.23 has no double, as a sine.
        cosine = op.Sin(op.Mul(op.Sub(op.Abs(distance), double(0.5)), double(-math.pi)))
        found = op.Div(cosine, op.Sin(op.Mul(distance, double(math.pi))))
        return [op.Where(op.Equal(distance, double(0.0)), double(math.nan), found)]

    (found,) = branch(f"{x.name}_cotangent", any_of(op.Less(x, double(0.0))), computed, lambda: [x])
    return found


@custom_operator(_cotangent_nodes, torch.empty_like)
def cotangent(x: Tensor) -> Tensor:
    """1 / tan(pi * x) of negative float64 numbers, NaN of integers; of others anything."""
    angle = (x - x.round()) * math.pi
    return torch.where(angle == 0, math.nan, angle.cos() / angle.sin())


@translates(aten.lgamma.default)
def _lgamma(self: Value) -> Value:
    return aclnn.Lgamma(self)


@decomposes(aten.mvlgamma.default)
def _mvlgamma(self: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function."""
    terms = [aten.lgamma(self - i / 2) for i in range(p)]
    return sum(terms, p * (p - 1) / 4 * math.log(math.pi) + torch.zeros_like(terms[0]))


@translates(aten.digamma.default)
def _digamma(self: Value) -> Value:
    return aclnn.Digamma(self)


SHIFT, FEWER = 10, 5
"""Terms of zeta functions that are summed; the second number is of float32 results."""


@decomposes(aten.polygamma.default)
def _polygamma(n: int, self: Tensor) -> Tensor:
    """The derivatives of digamma.

    Those for negative numbers follow of digamma(1 - x) - digamma(x) = pi / tan(pi * x). That of pi / tan(pi * x) is a
    polynomial of c = 1 / tan(pi * x), as the derivative of c is -pi * (1 + c * c).
    """
    if n == 0:
        return aten.digamma(self)
    x = self.double()
    shift = FEWER if n <= 2 and self.dtype is not torch.float64 else SHIFT
    sign = (-1) ** n
    found = -sign * math.factorial(n) * _zeta(n + 1, torch.where(x < 0, 1 - x, x), shift)
    coefficients = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(coefficients)][1:]
        coefficients = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    c = cotangent(x)
    derivative = math.pi ** (n + 1) * polynomial(c, [float(each) for each in coefficients])
    reflected = torch.where(c.isnan(), -sign * math.inf, sign * found - derivative)
    found = torch.where(x < 0, reflected, torch.where(x == 0, -sign * math.inf, found))
    return found.to(self.dtype if self.is_floating_point() else torch.get_default_dtype())


def _zeta(s: int, x: Tensor, shift: int) -> Tensor:
    """Hurwitz' zeta function of positive numbers: some terms, and the formula of Euler and Maclaurin for the rest."""
    y = x + shift
    inverse = y.reciprocal()
    rising, coefficients = Fraction(s), []
    for k, b in enumerate(BERNOULLI[:shift], 1):  # s * (s + 1) * ... * (s + 2 * k - 2) * b / (2 * k)!
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
