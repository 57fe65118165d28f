"""Tensors made of dynamic sizes, and of tensors of one element, of which PyTorch's functions make numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.types import py_sym_types
from torch.utils._sympy.functions import FloatTrueDiv, FloorDiv, IntTrueDiv, ToFloat

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.nodes import op
from onnx_ops.torch.base.sizes import Number, Size
from onnx_ops.torch.base.table import replaces


@custom_operator(
    lambda tensor, axis: op.Squeeze(op.Shape(tensor, start=axis, end=axis + 1)),
    lambda tensor, axis: torch.empty((), dtype=torch.int64),
)
def measured_size(tensor: Tensor, axis: int) -> Tensor:
    """A size of a tensor as an int64 scalar, in a graph computed from the tensor.

    PyTorch's passes compute a size from others to which it is equal: where a condition says so, the condition itself
    would compare the others with themselves.
    """
    return torch.tensor(tensor.shape[axis])


@replaces(torch.tensor)
def tensor(data: object, *, dtype: torch.dtype | None = None, requires_grad: bool = False, **options: Any) -> Tensor:
    """As torch.tensor; of dynamic sizes and tensors of one element too."""
    kinds = _kinds(data)
    if kinds is None:
        return torch.tensor(data, dtype=dtype, requires_grad=requires_grad, **options)
    return _filled(data, dtype or functools.reduce(torch.promote_types, kinds)).requires_grad_(requires_grad)


@replaces(torch.as_tensor, torch.asarray)
def _as_tensor(data: object, *args: Any, **options: Any) -> Tensor:
    if _kinds(data) is None:
        return torch.as_tensor(data, *args, **options)
    return tensor(data, dtype=args[0] if args else options.get("dtype"))


@replaces(torch.Tensor.new_tensor)
def _new_tensor(self: Tensor, data: object, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    if _kinds(data) is None:
        return self.new_tensor(data, dtype=dtype, **options)
    return tensor(data, dtype=dtype or self.dtype, requires_grad=options.get("requires_grad", False))


def holds_traced_numbers(data: object) -> bool:
    """Whether numbers in nested lists are dynamic sizes, or tensors whose values a trace does not have."""
    return _kinds(data) is not None


def _kinds(data: object) -> list[torch.dtype] | None:
    """The dtypes of the numbers in nested lists; None if all are Python's, or one is no number."""
    leaves = list(_leaves(data))
    if isinstance(data, Tensor) or not any(isinstance(leaf, (FakeTensor, *py_sym_types)) for leaf in leaves):
        return None
    if not all(type(leaf) in DTYPES or (isinstance(leaf, Tensor) and leaf.numel() == 1) for leaf in leaves):
        return None
    kinds = [leaf.dtype if isinstance(leaf, Tensor) else DTYPES[type(leaf)] for leaf in leaves]
    return [kind or torch.get_default_dtype() for kind in kinds]


DTYPES = {
    bool: torch.bool,
    torch.SymBool: torch.bool,
    int: torch.int64,
    torch.SymInt: torch.int64,
    float: None,
    torch.SymFloat: None,
}
"""The dtype that PyTorch gives a tensor of a number; None for the default one."""


def _leaves(data: object) -> Iterator[object]:
    if isinstance(data, list | tuple):
        for part in data:
            yield from _leaves(part)
    else:
        yield data


def _filled(data: object, dtype: torch.dtype) -> Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_filled(part, dtype) for part in data])
    if isinstance(data, Tensor):
        return data.detach().reshape(()).to(dtype)
    return torch.full((), data, dtype=dtype)


@replaces(torch.Tensor.nbytes.__get__)
def _nbytes(self: Tensor) -> Size:
    return self.numel() * self.element_size()


@replaces(torch.arange)
def _arange(*bounds: Number, **options: Any) -> Any:
    """As torch.arange; of fractions of dynamic sizes too, whose number of elements is an expression of integers."""
    named = [options.get(name) for name in ("start", "end", "step")]
    given = [*bounds, *(bound for bound in named if bound is not None)]
    start, end, step = given if len(given) == 3 else [*given, 1] if len(given) == 2 else [0, *given, 1]
    dtype = options.get("dtype") or torch.get_default_dtype()
    if not any(isinstance(bound, torch.SymFloat) for bound in given) or not dtype.is_floating_point:
        return NotImplemented
    count = _rounded_up(start, end, step)
    if count is None:
        return NotImplemented
    values = start + step * torch.arange(count, dtype=torch.float64)
    return values.to(dtype).requires_grad_(options.get("requires_grad", False))


DENOMINATOR = 2**20
"""The largest one of numbers whose products with sizes are exact in float64, or too far from an integer to be it."""


def _rounded_up(start: Number, end: Number, step: Number) -> Size | None:
    """ceil((end - start) / step) as a quotient of integers; None where float64 numbers may round to another one.

    In PyTorch's expression the terms of sizes are apart, so that it is equal to no other size.
    """
    known = next(bound.node.shape_env for bound in (start, end, step) if isinstance(bound, torch.SymFloat))
    first, last, by = map(_exact, (start, end, step))
    if first is None or last is None or by is None or not by.is_number or not by:
        return None
    count = sympy.expand((last - first) / by)
    if not count.is_polynomial(*count.free_symbols):
        return None
    whole = math.lcm(*(int(factor.q) for factor in count.as_coefficients_dict().values()))
    rounded = -FloorDiv(-count * whole, whole)
    found: Size = known.create_symintnode(rounded, hint=int(rounded.xreplace(known.backed_var_to_val)))
    return found


def _exact(number: Number) -> sympy.Expr | None:
    """A number as an expression of sizes that float64 computes without rounding up to an integer."""
    expression = number.node.expr if isinstance(number, torch.SymInt | torch.SymFloat) else sympy.sympify(number)
    expression = expression.replace(IntTrueDiv, lambda part, whole: part / whole)
    expression = expression.replace(FloatTrueDiv, lambda part, whole: part / whole).replace(ToFloat, lambda size: size)
    expression = expression.xreplace({each: sympy.Rational(each) for each in expression.atoms(sympy.Float)})
    exact = all(each.q <= DENOMINATOR for each in expression.atoms(sympy.Rational))
    return expression if exact else None


@replaces(torch.linspace)
def linspace(
    start: Tensor | Number, end: Tensor | Number, steps: Size, *, dtype: torch.dtype | None = None, **options: Any
) -> Tensor:
    if not is_symbolic(steps):
        return torch.linspace(start, end, steps, dtype=dtype, **options)
    dtype = dtype or torch.get_default_dtype()
    wide = dtype if dtype.is_floating_point and dtype.itemsize >= 4 else torch.float64
    first, last = (_detached(bound, wide) for bound in (start, end))
    places = torch.arange(steps)
    step = (last - first) / torch.full((), steps - 1, dtype=wide).clamp(min=1.0)
    # As PyTorch, from both ends, so that the last element is `end`.
    from_end = last - (steps - 1 - places).to(wide) * step
    values = torch.where((2 * places < steps) | (steps == 1), first + places.to(wide) * step, from_end)
    return values.to(dtype).requires_grad_(options.get("requires_grad", False))


@replaces(torch.logspace)
def _logspace(start: Tensor | Number, end: Tensor | Number, steps: Size, base: float = 10.0, **options: Any) -> Tensor:
    if not is_symbolic(steps):
        return torch.logspace(start, end, steps, base, **options)
    dtype = options.get("dtype") or torch.get_default_dtype()
    powers = linspace(start, end, steps, dtype=torch.float64)
    return torch.pow(float(base), powers).to(dtype).requires_grad_(options.get("requires_grad", False))


def _detached(bound: Tensor | Number, dtype: torch.dtype) -> Tensor:
    return bound.detach().to(dtype) if isinstance(bound, Tensor) else torch.full((), bound, dtype=dtype)


@replaces(torch.tril_indices)
def _tril_indices(row: Size, col: Size, offset: int = 0, *, dtype: torch.dtype = torch.int64, **options: Any) -> Tensor:
    if not is_symbolic(row) and not is_symbolic(col):
        return torch.tril_indices(row, col, offset, dtype=dtype, **options)
    return torch.ones(row, col, dtype=torch.bool).tril(offset).nonzero().T.to(dtype)


@replaces(torch.triu_indices)
def triu_indices(row: Size, col: Size, offset: int = 0, *, dtype: torch.dtype = torch.int64, **options: Any) -> Tensor:
    if not is_symbolic(row) and not is_symbolic(col):
        return torch.triu_indices(row, col, offset, dtype=dtype, **options)
    return torch.ones(row, col, dtype=torch.bool).triu(offset).nonzero().T.to(dtype)
