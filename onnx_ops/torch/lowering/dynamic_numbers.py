"""Numbers that depend on dynamic sizes or on data: computed as Python does, in float64 or in int64, rounded down.

torch.onnx computes those that are no integers in float32, where math.ceil(0.1 * size) may be another number, and rounds
quotients of negative integers towards 0.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, TypeGuard

import onnx_ir as ir
import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.nodes import Value, double, integer, integers, op
from onnx_ops.torch.base.sizes import Number
from onnx_ops.torch.operators import TABLE, integer_division
from onnx_ops.torch.tracing.certainty import is_certain

DOUBLE, FLOAT, INT64 = ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.INT64
READ = torch.ops.aten._local_scalar_dense.default


def type_numbers(module: GraphModule) -> None:
    """Give the numbers of a graph that are no integers a dtype, that which operators on tensors expect.

    In the place of a SymFloat, a node has a float64 tensor, of which torch.onnx takes dtype and shape. Operators on
    tensors get a float32, unless one of their tensors is a float64.
    """
    casts: dict[Node, Node] = {}
    for node in list(module.graph.nodes):
        value = node.meta.get("val")
        if isinstance(node.target, OpOverload):
            for number in node.all_input_nodes:
                if number.meta.get("val") is not _DOUBLE or _has_float64(node):
                    continue
                if number not in casts:
                    with module.graph.inserting_after(number):
                        casts[number] = module.graph.call_function(narrowed, (number,))
                    casts[number].meta["val"] = torch.empty((), dtype=torch.float32, device="meta")
                node.replace_input_with(number, casts[number])
        elif node.target is operator.floordiv and not _is_certainly_positive(node):
            node.target = floor_divided
        if isinstance(value, torch.SymFloat):
            node.meta["val"] = _DOUBLE


_DOUBLE = torch.empty((), dtype=torch.float64, device="meta")


def _has_float64(node: Node) -> bool:
    values = [node.meta.get("val"), *(given.meta.get("val") for given in node.all_input_nodes)]
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    return any(isinstance(part, torch.Tensor) and part is not _DOUBLE and part.dtype is torch.float64 for part in parts)


def _is_certainly_positive(node: Node) -> bool:
    """Whether neither number of a quotient is negative, for all sizes."""
    numbers = [given.meta["val"] if isinstance(given, Node) else given for given in node.args]
    return all(
        number >= 0
        if isinstance(number, int)
        else isinstance(number, torch.SymInt) and is_certain(number.node.expr >= 0, number.node.shape_env.var_to_range)
        for number in numbers
    )


def narrowed(number: Number) -> Number:
    """A number that is a float32 in a graph."""
    return number


def floor_divided(number: Number, divisor: Number) -> Number:
    """A quotient of numbers that may be negative."""
    return number // divisor


def _is_integer(number: float | Value) -> TypeGuard[int | Value]:
    return isinstance(number, int) or (isinstance(number, ir.Value) and number.dtype is INT64)


def _as_double(number: float | Value) -> Value:
    if isinstance(number, int | float):
        return double(number)
    return number if number.dtype is DOUBLE else op.Cast(number, to=DOUBLE)


def _arithmetic(write: Callable[..., Any]) -> Callable[..., Any]:
    """An operator on two numbers, or sums and products of more, in int64 if all are integers, else in float64."""

    def translated(*numbers: float | Value) -> Any:
        convert: Callable[[Any], Value] = _as_int64 if all(map(_is_integer, numbers)) else _as_double
        return functools.reduce(write, map(convert, numbers))

    return translated


def _bitwise(of_integers: Callable[..., Any], of_conditions: Callable[..., Any]) -> Callable[..., Any]:
    """An operator on the bits of two integers, or on two conditions."""

    def translated(self: int | Value, other: int | Value) -> Value:
        if any(isinstance(given, ir.Value) and given.dtype is ir.DataType.BOOL for given in (self, other)):
            return of_conditions(self, other)
        return of_integers(_as_int64(self), _as_int64(other))

    return translated


def _shifted(factor: Callable[[Value, Value], Value]) -> Callable[..., Any]:
    """A shift of bits as a product with, or a quotient by, a power of 2."""

    def translated(self: int | Value, bits: int | Value) -> Value:
        return factor(_as_int64(self), op.Pow(integer(2), _as_int64(bits)))

    return translated


def _as_int64(number: int | Value) -> Value:
    return integer(number) if isinstance(number, int) else number


def _true_divided(self: float | Value, other: float | Value) -> Value:
    return op.Div(_as_double(self), _as_double(other))


def _power(self: float | Value, exponent: float | Value) -> Value:
    if _is_integer(self) and _is_integer(exponent) and not (isinstance(exponent, int) and exponent < 0):
        return op.Pow(_as_int64(self), _as_int64(exponent))
    return op.Pow(_as_double(self), _as_double(exponent))


def _remainder(self: float | Value, other: float | Value) -> Value:
    """With the sign of the divisor, as the operator Mod of integers has it."""
    if _is_integer(self) and _is_integer(other):
        return integer_division.remainder(self, other)
    self, other = _as_double(self), _as_double(other)
    rest = op.Mod(self, other, fmod=1)
    zero = double(0.0)
    opposite = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(other, zero)))
    return op.Where(opposite, op.Add(rest, other), rest)


def _floor_divided(self: float | Value, other: float | Value) -> Value:
    """Rounded down; the dividend without the remainder is a multiple of the divisor, up to rounding."""
    if _is_integer(self) and _is_integer(other):
        return integer_division.floored(self, other)
    self, other = _as_double(self), _as_double(other)
    return op.Round(op.Div(op.Sub(self, _remainder(self, other)), other))


def _quotient(self: int | Value, other: int | Value) -> Value:
    """Of integers that are not negative; a divisor of 0, as of no rows, would end the process."""
    divisor = _as_int64(other)
    return op.Div(_as_int64(self), divisor if isinstance(other, int) else op.Max(divisor, _as_int64(1)))


def _integer(write: Callable[..., Any]) -> Callable[..., Any]:
    """An integer next to a number."""

    def translated(self: float | Value) -> Value:
        return self if _is_integer(self) else op.Cast(write(_as_double(self)), to=INT64)

    return translated


def _rounded(self: float | Value, digits: int | None = None) -> Value:
    if digits is not None:
        raise CaptureError(
            "round() of a number that depends on a dynamic size or on data, to decimal digits, has no translation to"
            " ONNX; leave the digits out, or round a tensor by torch.round(decimals=)"
        )
    return _integer(op.Round)(self)


def _in_double(write: Callable[..., Any]) -> Callable[..., Any]:
    def translated(self: float | Value) -> Value:
        return write(_as_double(self))

    return translated


def _read(self: Value) -> Value:
    """item() of a tensor: torch.onnx makes a float32 of a float64 too."""
    first = op.Gather(op.Reshape(self, integers([-1])), op.Constant(value_int=0))
    if self.dtype.is_floating_point():
        return op.Cast(first, to=DOUBLE)
    return op.Cast(first, to=ir.DataType.BOOL if self.dtype == ir.DataType.BOOL else INT64)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    READ: _read,
    narrowed: lambda number: op.Cast(number, to=FLOAT),
    floor_divided: _floor_divided,
    operator.floordiv: _quotient,
    operator.truediv: _true_divided,
    operator.pow: _power,
    operator.mod: _remainder,
    builtins.round: _rounded,
    torch.sym_float: _as_double,
    math.ceil: _integer(op.Ceil),
    math.floor: _integer(op.Floor),
    math.trunc: _integer(lambda number: number),
    torch._sym_sqrt: _in_double(op.Sqrt),
    torch._sym_cos: _in_double(op.Cos),
    torch._sym_sin: _in_double(op.Sin),
    torch._sym_tan: _in_double(TABLE.float64_nodes["Tan"]),
    torch._sym_asin: _in_double(TABLE.float64_nodes["Asin"]),
    torch._sym_acos: _in_double(TABLE.float64_nodes["Acos"]),
    torch._sym_atan: _in_double(TABLE.float64_nodes["Atan"]),
    torch._sym_sinh: _in_double(TABLE.float64_nodes["Sinh"]),
    torch._sym_cosh: _in_double(TABLE.float64_nodes["Cosh"]),
    torch._sym_tanh: _in_double(op.Tanh),
    operator.and_: _bitwise(op.BitwiseAnd, op.And),
    operator.or_: _bitwise(op.BitwiseOr, op.Or),
    operator.xor: _bitwise(op.BitwiseXor, op.Xor),
    operator.lshift: _shifted(op.Mul),
    operator.rshift: _shifted(integer_division.floored),
    torch._sym_log2: _in_double(lambda number: op.Div(op.Log(number), double(math.log(2.0)))),
}
"""Of functions of numbers, and of the number in a tensor."""

for _function, _write in (
    (operator.add, op.Add),
    (operator.sub, op.Sub),
    (operator.mul, op.Mul),
    (operator.eq, op.Equal),
    (operator.ne, lambda self, other: op.Not(op.Equal(self, other))),
    (operator.lt, op.Less),
    (operator.le, op.LessOrEqual),
    (operator.gt, op.Greater),
    (operator.ge, op.GreaterOrEqual),
    (torch.sym_max, op.Max),
    (torch.sym_min, op.Min),
):
    TRANSLATIONS[_function] = _arithmetic(_write)
