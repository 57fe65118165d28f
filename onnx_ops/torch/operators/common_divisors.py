"""The greatest common divisor and the least common multiple of integers, by Euclid's algorithm as a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import op
from onnx_ops.torch.base.table import replaces

INT64 = ir.DataType.INT64
STEPS = 100
"""More than Euclid's algorithm needs for integers of 64 bits (Lamé)."""


def _integer(value: int) -> Any:
    return op.Constant(value=ir.tensor(np.int64(value)))


def _nodes(self: Any, other: Any) -> Any:
    def step(_: Any, divisor: Any, rest: Any) -> list[Any]:
        zero = _integer(0)
        ended = op.Equal(rest, zero)
        remainder = op.Mod(divisor, op.Where(ended, _integer(1), rest))
        left = op.ReduceSum(op.Cast(op.Not(op.Equal(remainder, zero)), to=INT64), keepdims=0)
        return [op.Greater(left, zero), op.Where(ended, divisor, rest), op.Where(ended, zero, remainder)]

    # The first of two steps makes the divisor of a number and 0, for which there is no other one.
    states = [(op.Abs(self), INT64), (op.Abs(other), INT64)]
    divisor, rest = loop("euclid", _integer(STEPS), states, step, conditional=True)
    return op.Where(op.Equal(rest, _integer(0)), divisor, rest)


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
