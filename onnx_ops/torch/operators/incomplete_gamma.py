"""The regularized incomplete gamma functions, as in the distribution function of a gamma distribution."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.ops.gamma_series import FAR, LOG_GAMMA_TERMS
from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import Value, double, integer, op
from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.polynomials import in_float64, polynomial

aten = torch.ops.aten

STEPS = 1_000_000
"""The largest number of terms; for x near a they are about 8 * sqrt(a)."""
EPSILON = 2.0**-53


def _expansion_nodes(a: Value, x: Value) -> Value:
    one, two = double(1), double(2)
    near = op.Less(x, op.Add(a, one))
    of_series, of_fraction = op.Where(near, x, double(0)), op.Where(near, op.Add(a, one), x)
    ones = op.Add(op.Mul(a, double(0)), one)
    b = op.Sub(op.Add(of_fraction, one), a)
    d = op.Reciprocal(b)

    def step(i: Value, term: Value, total: Value, b: Value, c: Value, d: Value, fraction: Value) -> tuple[Value, ...]:
        n = op.Add(op.Cast(i, to=ir.DataType.DOUBLE), one)
        term = op.Mul(term, op.Div(of_series, op.Add(a, n)))
        total = op.Add(total, term)
        numerator = op.Mul(n, op.Sub(a, n))
        b = op.Add(b, two)
        d = op.Reciprocal(op.Add(op.Mul(numerator, d), b))
        c = op.Add(b, op.Div(numerator, c))
        factor = op.Mul(c, d)
        change = op.Max(op.Div(term, total), op.Abs(op.Sub(factor, one)))
        largest = op.ReduceMax(op.Concat(op.Reshape(change, op.Constant(value_ints=[-1])), _zero(), axis=0), keepdims=0)
        goes_on = op.Greater(largest, double(2 * EPSILON))
        return goes_on, term, total, b, c, d, op.Mul(fraction, factor)

    states = [(value, ir.DataType.DOUBLE) for value in (ones, ones, b, op.Mul(ones, double(1e300)), d, d)]
    _, total, *_, fraction = loop(f"{x.name}_incomplete_gamma", integer(STEPS), states, step, conditional=True)
    return op.Where(near, total, fraction)


def _zero() -> Value:
    return op.Unsqueeze(double(0), op.Constant(value_ints=[0]))


@custom_operator(_expansion_nodes, lambda a, x: torch.empty_like(x))
def expansion(a: Tensor, x: Tensor) -> Tensor:
    """Of float64 numbers of a shape, the series for x < a + 1, and Lentz's continued fraction for others.

    Times x**a * exp(-x) / gamma(a + 1) it is the lower function of the former, and the upper one of the latter divided
    by a (Abramowitz and Stegun 6.5.29 and 6.5.31).
    """
    near = x < a + 1
    of_series, of_fraction = torch.where(near, x, 0.0), torch.where(near, a + 1, x)
    term = total = torch.ones_like(x)
    b = of_fraction + 1 - a
    c, d = torch.full_like(x, 1e300), 1 / b
    fraction = d
    for n in range(1, STEPS + 1):
        term = term * (of_series / (a + n))
        total = total + term
        numerator = n * (a - n)
        b = b + 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        fraction = fraction * (c * d)
        if not (torch.maximum(term / total, (c * d - 1).abs()) > 2 * EPSILON).any():
            break
    return torch.where(near, total, fraction)


def _regularized(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper function, with errors below 1e-13 for a up to 1e6."""
    inside = (a >= 0) & (x >= 0) & (a < math.inf) & (x < math.inf) & ((a > 0) | (x > 0))
    shape, bound = torch.where(inside, a, 1.0), torch.where(inside, x, 1.0)
    relative = (bound - shape) / shape
    inverse = shape.reciprocal()
    stirling = inverse * polynomial(inverse * inverse, list(LOG_GAMMA_TERMS))
    far = shape * (relative.log1p() - relative) - (2 * math.pi * shape).log() / 2 - stirling
    near = torch.xlogy(shape, bound) - bound - aten.lgamma(shape + 1)
    product = torch.where(shape >= FAR, far, near).exp() * expansion(shape, bound)
    is_lower = bound < shape + 1
    found = torch.where(is_lower, product, shape * product)
    beyond = torch.where(x == math.inf, 1.0, 0.0).masked_fill(
        ~((a >= 0) & (x >= 0) & ((a < math.inf) ^ (x < math.inf))), math.nan
    )
    lower = torch.where(inside, torch.where(is_lower, found, 1 - found), beyond)
    return lower, torch.where(inside, torch.where(is_lower, 1 - found, found), 1 - beyond)


_lower = in_float64(lambda a, x: _regularized(a, x)[0])
_upper = in_float64(lambda a, x: _regularized(a, x)[1])


def _promoted(self: Tensor, other: Tensor) -> list[Tensor]:
    dtype = torch.result_type(self, other)
    return list(torch.broadcast_tensors(self, other.to(dtype)))


@decomposes(aten.igamma.default)
def _igamma(self: Tensor, other: Tensor) -> Tensor:
    return _lower(*_promoted(self, other))


@decomposes(aten.igammac.default)
def _igammac(self: Tensor, other: Tensor) -> Tensor:
    return _upper(*_promoted(self, other))
