"""Quotients and remainders of integers.

onnxruntime's Div and Mod end the process for a divisor of 0, and for the smallest integer and -1: they get neither
divisor here. For a divisor of 0 PyTorch raises an error, and the step is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.torch.base.nodes import Value, op
from onnx_ops.torch.base.sizes import Number
from onnx_ops.torch.base.table import checks

aten = torch.ops.aten

INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64
Compute = Callable[[Any, Any], Any]


def _of_integers(compute: Compute) -> Compute:
    """Of integers or values of the graph, at least one of these: in int32 or int64, as Div takes no shorter ones."""

    def computed(self: int | Value, other: int | Value) -> Value:
        kind = next(given.dtype for given in (self, other) if not isinstance(given, int))
        wide = INT32 if kind == INT32 or kind.bitwidth < 32 else INT64

        def widened(value: int | Value) -> Value:
            if isinstance(value, int):
                return op.Constant(value=ir.tensor(value, dtype=wide))
            return value if value.dtype == wide else op.Cast(value, to=wide)

        self, divisor = widened(self), widened(other)
        if not isinstance(other, int) or other in (0, -1):
            zero, one, negative = map(widened, (0, 1, -1))
            negates = op.Equal(divisor, negative)
            self = op.Mul(self, op.Where(negates, negative, one))
            divisor = op.Where(op.Or(negates, op.Equal(divisor, zero)), one, divisor)
        found = compute(self, divisor)
        return found if wide == kind else op.Cast(found, to=kind)

    return computed


@_of_integers
def truncated(self: int | Value, other: int | Value) -> Value:
    """A quotient rounded towards 0."""
    return op.Div(self, other)


@_of_integers
def floored(self: int | Value, other: int | Value) -> Value:
    """A quotient rounded down."""
    quotient, zero = op.Div(self, other), op.CastLike(0, self)
    rest = op.Sub(self, op.Mul(quotient, other))
    below = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(other, zero)))
    return op.Sub(quotient, op.CastLike(below, quotient))


@_of_integers
def remainder(self: int | Value, other: int | Value) -> Value:
    """What a quotient rounded down leaves, with the sign of the divisor."""
    return op.Mod(self, other)


@_of_integers
def remainder_of_truncated(self: int | Value, other: int | Value) -> Value:
    """What a quotient rounded towards 0 leaves, with the sign of the dividend."""
    return op.Sub(self, op.Mul(op.Div(self, other), other))


DIVISIONS = {
    aten.div: ("Tensor_mode", "Scalar_mode"),
    aten.div_: ("Tensor_mode", "Scalar_mode"),
    aten.floor_divide: ("default", "Scalar"),
    aten.floor_divide_: ("Tensor", "Scalar"),
    aten.fmod: ("Tensor", "Scalar"),
    aten.fmod_: ("Tensor", "Scalar"),
    aten.remainder: ("Tensor", "Scalar", "Scalar_Tensor"),
    aten.remainder_: ("Tensor", "Scalar"),
}


@checks(*(getattr(operator, overload) for operator, overloads in DIVISIONS.items() for overload in overloads))
def _zeros(
    self: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None = "floor"
) -> tuple[Tensor, str] | None:
    """How many divisors of integers are 0, if the result has elements; None if it is certain that none is."""
    given = [each for each in (self, other) if isinstance(each, Tensor)]
    whole = all(not tensor.is_floating_point() and not tensor.is_complex() for tensor in given)
    if rounding_mode is None or not whole or any(isinstance(each, float | torch.SymFloat) for each in (self, other)):
        return None
    if not isinstance(other, Tensor):
        if statically_known_true(other != 0):
            return None
        other = torch.full((), other, dtype=torch.int64)
    zeros = (other == 0).sum()
    for tensor in given:
        if not statically_known_true(tensor.numel() > 0):
            zeros = torch.where(torch.full((), tensor.numel()) > 0, zeros, 0)
    return zeros, "the number of divisors that are 0"
