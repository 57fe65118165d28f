"""Numbers among the arguments of operators.

torch.onnx would round Python numbers to float32 also for float64 tensors, and takes numbers that depend on a dynamic
size for Python numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript.function_libs.torch_lib.ops import core
from onnxscript.values import TracedOnnxFunction
from torch import Tensor

from onnx_ops.torch.base.nodes import Value, double, number, op
from onnx_ops.torch.base.sizes import Number
from onnx_ops.torch.base.table import decomposed_by_pytorch, decomposes, translates
from onnx_ops.torch.operators import integer_division

aten = torch.ops.aten

decomposed_by_pytorch(aten.addcdiv.default, aten.addcmul.default, only=torch.float64)


def _exactly(translate: TracedOnnxFunction | Callable[..., Any]) -> Callable[..., Any]:
    """A translation of torch.onnx, which casts Python numbers to the dtype that it needs, given them as float64."""
    function = getattr(translate, "func", translate)  # a TracedOnnxFunction, or a plain function

    def exact(value: Any) -> Any:
        return double(value) if isinstance(value, float) else value

    def translated(*args: Any, **kwargs: Any) -> Any:
        return function(*map(exact, args), **{name: exact(value) for name, value in kwargs.items()})

    return translated


for _operator, _translation in (
    (aten.fill.Scalar, core.aten_fill),
    (aten.full_like.default, core.aten_full_like),
    (aten.lerp.Scalar, core.aten_lerp),
    (aten.linspace.default, core.aten_linspace),
    (aten.new_full.default, core.aten_new_full),
    (aten.pow.Scalar, core.aten_pow_scalar),
    (aten.scalar_tensor.default, core.aten_scalar_tensor),
    (torch.ops.prims.scalar_tensor.default, core.aten_scalar_tensor),
):
    translates(_operator)(_exactly(_translation))


@translates(aten.clamp.default)
def _clamp(x: Value, min: float | Value | None = None, max: float | Value | None = None) -> Value:
    """With both bounds, as onnxruntime takes the largest finite number for one that is missing."""

    def bound(given: float | Value | None, missing: float) -> Value | None:
        if given is None:
            return number(missing, x) if x.dtype.is_floating_point() else None
        return number(given, x) if isinstance(given, int | float) else op.CastLike(given, x)

    return op.Clip(x, bound(min, -math.inf), bound(max, math.inf))


@translates(aten.clamp_min.default)
def _clamp_min(x: Value, min: float | Value) -> Value:
    return _clamp(x, min=min)


@translates(aten.clamp_max.default)
def _clamp_max(x: Value, max: float | Value) -> Value:
    return _clamp(x, max=max)


@translates(aten.clamp_min.Tensor)
def _clamp_min_tensor(x: Value, min: Value) -> Value:
    return op.Max(x, min)


@translates(aten.clamp_max.Tensor)
def _clamp_max_tensor(x: Value, max: Value) -> Value:
    return op.Min(x, max)


def _scaled(translate: TracedOnnxFunction) -> Callable[..., Any]:
    """A sum or difference whose second term has a factor, and whose first one may be a number."""

    def translated(self: float | Value, other: float | Value, alpha: float = 1.0) -> Value:
        self = number(self, other) if isinstance(self, int | float) else self
        # torch.onnx omits a factor of 1 only if it is a Python number.
        return translate.func(self, other, alpha=double(alpha) if isinstance(alpha, float) and alpha != 1 else alpha)

    return translated


translates(aten.add.Tensor)(_scaled(core.aten_add))
translates(aten.sub.Tensor)(_scaled(core.aten_sub))


@translates(aten.mul.Tensor)
def _product(self: float | Value, other: float | Value) -> Value:
    """Also of a number and a tensor, in this order."""
    return core.aten_mul.func(*((other, self) if isinstance(self, int | float) else (self, other)))


@translates(aten.full.default)
def _full(size: Sequence[int | Value], fill_value: float | Value, dtype: int = -1, **kwargs: Any) -> Value:
    """Without a dtype a Python number is a float32."""
    return (core.aten_full.func if dtype == -1 else _exactly(core.aten_full))(size, fill_value, dtype=dtype)


@decomposes(aten.arange.default)
def _arange_to(end: float, **options: Any) -> Any:
    return _arange(0, end, **options) if isinstance(end, float) else NotImplemented


@decomposes(aten.arange.start)
def _arange_from(start: float, end: float, **options: Any) -> Any:
    return _arange(start, end, **options) if isinstance(start, float) or isinstance(end, float) else NotImplemented


@decomposes(aten.arange.start_step)
def _arange(start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **others: Any) -> Any:
    """PyTorch counts and multiplies in float64; torch.onnx in float32, which may even give one number more.

    Whole numbers of both kinds, as in arange(0.0, len(x)), are counted as integers.
    """
    numbers = start, end, step
    has_floats = any(isinstance(number, float) for number in numbers)
    if dtype is None:
        dtype = torch.get_default_dtype() if has_floats else torch.int64
    is_symbolic = any(isinstance(number, torch.SymInt | torch.SymFloat) for number in numbers)
    if is_symbolic and has_floats:
        whole = [int(n) if isinstance(n, float) and n.is_integer() else n for n in numbers]
        if all(isinstance(n, int | torch.SymInt) for n in whole):
            return torch.arange(*whole, dtype=torch.int64).to(dtype)
    if is_symbolic or not dtype.is_floating_point:
        return NotImplemented
    places = torch.arange(math.ceil((end - start) / step), dtype=torch.int64)
    return (places.to(torch.float64) * step + start).to(dtype)


def _of_number(of_python: TracedOnnxFunction, of_tensors: TracedOnnxFunction) -> Callable[..., Any]:
    """An operator of a tensor and a number, which the graph computes if it depends on a dynamic size."""

    def translated(self: Value, other: complex | Value, *args: Any) -> Value:
        if isinstance(other, bool | int | float | complex):
            return of_python.func(self, other, *args)
        return of_tensors(self, op.CastLike(other, self), *args)

    return translated


def _first_value(*given: float | Value) -> Value:
    """The first that is no number."""
    return next(each for each in given if not isinstance(each, int | float))


def _values(self: float | Value, other: float | Value) -> tuple[Value, Value]:
    """Two numbers as values of the graph of one dtype, that of a tensor."""
    if isinstance(self, int | float):
        like = _first_value(self, other)
        first = number(self, like)
        first.dtype = like.dtype
        return first, like
    return self, number(other, self) if isinstance(other, int | float) else op.CastLike(other, self)


@translates(aten.floor_divide.default)
def _floor_divide(self: float | Value, other: float | Value) -> Value:
    """Of floating numbers as PyTorch: 1 // 0.1 is 9, as 0.1 is a little more; torch.onnx rounds the quotient first."""
    if not _first_value(self, other).dtype.is_floating_point():
        return integer_division.floored(self, other)
    self, other = _values(self, other)
    zero, half, one = (number(value, self) for value in (0.0, 0.5, 1.0))
    rest = op.Mod(self, other, fmod=1)
    opposite = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(other, zero)))
    near = op.Div(op.Sub(self, rest), other)
    near = op.Where(opposite, op.Sub(near, one), near)
    whole, quotient = op.Floor(near), op.Div(self, other)
    whole = op.Where(op.Greater(op.Sub(near, whole), half), op.Add(whole, one), whole)
    whole = op.Where(op.Equal(near, zero), op.Mul(quotient, zero), whole)  # with the sign of the quotient
    return op.Where(op.Equal(other, zero), quotient, whole)


@translates(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _divide(self: Value, other: float | Value, *, rounding_mode: str | None = None) -> Value:
    """Of integers in their own dtype; torch.onnx divides them as float32."""
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    if rounding_mode == "trunc" and not self.dtype.is_floating_point():
        return integer_division.truncated(self, other)
    other = number(other, self) if isinstance(other, int | float) else other
    return core.aten_div_mode.func(self, other, rounding_mode=rounding_mode)


@translates(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(self: float | Value, other: float | Value) -> Value:
    """Of floating numbers, with the sign of the divisor: exact, where torch.onnx subtracts a rounded multiple of it."""
    if not _first_value(self, other).dtype.is_floating_point():
        return integer_division.remainder(self, other)
    self, other = _values(self, other)
    rest = op.Mod(self, other, fmod=1)
    zero = number(0.0, self)
    opposite = op.Not(op.Equal(op.Less(rest, zero), op.Less(other, zero)))
    return op.Where(op.And(opposite, op.Not(op.Equal(rest, zero))), op.Add(rest, other), rest)


@translates(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(self: Value, other: float | Value) -> Value:
    if not self.dtype.is_floating_point():
        return integer_division.remainder_of_truncated(self, other)
    return op.Mod(*_values(self, other), fmod=1)


for _operator, _of_python, _of_tensors in (
    (aten.add.Scalar, core.aten_add_scalar, core.aten_add),
    (aten.mul.Scalar, core.aten_mul_scalar, core.aten_mul),
    (aten.sub.Scalar, core.aten_sub_scalar, core.aten_sub),
):
    translates(_operator)(_of_number(_of_python, _of_tensors))


@decomposes(aten.searchsorted.Scalar)
def _place_of_number(sorted_sequence: Tensor, self: Number, **options: Any) -> Tensor:
    """The place of a number, as of a tensor without dimensions."""
    return torch.searchsorted(sorted_sequence, torch.full((), self, dtype=sorted_sequence.dtype), **options)


@decomposes(aten.bucketize.Scalar)
def _bucket_of_number(self: Number, boundaries: Tensor, **options: Any) -> Tensor:
    return torch.bucketize(torch.full((), self, dtype=boundaries.dtype), boundaries, **options)
