"""The greatest common divisor and the least common multiple of integers, by Euclid's algorithm as a loop."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import Value, integer, op
from onnx_ops.torch.base.table import replaces

INT64 = ir.DataType.INT64
STEPS = 100
"""More than Euclid's algorithm needs for integers of 64 bits (Lamé)."""


def _nodes(self: Value, other: Value) -> Value:
    def step(_: Value, divisor: Value, rest: Value) -> list[Value]:
        zero = integer(0)
        ended = op.Equal(rest, zero)
        remainder = op.Mod(divisor, op.Where(ended, integer(1), rest))
        left = op.ReduceSum(op.Cast(op.Not(op.Equal(remainder, zero)), to=INT64), keepdims=0)
        return [op.Greater(left, zero), op.Where(ended, divisor, rest), op.Where(ended, zero, remainder)]

    # The first of two steps makes the divisor of a number and 0, for which there is no other one.
    states = [(op.Abs(self), INT64), (op.Abs(other), INT64)]
    divisor, rest = loop("euclid", integer(STEPS), states, step, conditional=True)
    return op.Where(op.Equal(rest, integer(0)), divisor, rest)


def _fake(self: Tensor, other: Tensor) -> Tensor:
    return torch.empty_like(self)


@custom_operator(_nodes, _fake)
def common_divisor(self: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisors of int64 of one shape."""
    return torch.gcd(self, other)


@replaces(torch.gcd, Tensor.gcd)
def _gcd(input: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(input, other)
    found = common_divisor(*torch.broadcast_tensors(input.to(torch.int64), other.to(torch.int64)))
    return found.to(dtype)


@replaces(torch.lcm, Tensor.lcm)
def _lcm(input: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(input, other)
    computing = torch.promote_types(dtype, torch.int32)  # as C computes with shorter ones
    first, second = input.to(computing), other.to(computing)
    divisor = _gcd(first, second)
    none = divisor == 0
    return torch.where(none, 0, first // torch.where(none, 1, divisor) * second).abs().to(dtype)


@replaces(torch.gcd_, Tensor.gcd_)
def _gcd_(self: Tensor, other: Tensor) -> Tensor:
    return self.copy_(_gcd(self, other))


@replaces(torch.lcm_, Tensor.lcm_)
def _lcm_(self: Tensor, other: Tensor) -> Tensor:
    return self.copy_(_lcm(self, other))
