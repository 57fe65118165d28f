"""Functions of Python's module math, of NumPy and of numbers, of dynamic sizes: not of the numbers in the example."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Proxy
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import IntTrueDiv
from torch.utils._sympy.reference import PythonReferenceAnalysis

from onnx_ops.torch.base.sizes import Number, Size
from onnx_ops.torch.tracing.frames import is_library
from onnx_ops.torch.tracing.importers import Importers

SIZES = torch.SymInt, torch.SymFloat
"""The types of numbers that depend on dynamic sizes."""


@contextlib.contextmanager
def symbolic_mathematics() -> Iterator[None]:
    """A context in which these functions take dynamic sizes, in modules too that have imported them by name."""
    with contextlib.ExitStack() as stack:
        for kind in SIZES:
            for name in NUMPY:  # numpy.sqrt calls a method of that name
                stack.enter_context(mock.patch.object(kind, name, FUNCTIONS[name], create=True))
            stack.enter_context(mock.patch.object(kind, "__divmod__", _divmod, create=True))
        stack.enter_context(mock.patch.object(torch.SymFloat, "__floordiv__", _floor_divided))
        for name in DIVISIONS:
            stack.enter_context(mock.patch.object(torch.SymInt, name, _of_a_divisor(getattr(torch.SymInt, name), name)))
        stack.enter_context(mock.patch.object(torch.SymInt, "__truediv__", _by_whole(torch.SymInt.__truediv__)))
        for module, importers in ((math, _IMPORTERS), (np, _IMPORTERS_OF_NUMPY)):
            own = {name: _of_sizes(getattr(module, name), FUNCTIONS[name]) for name in importers.names}
            stack.enter_context(importers.replaced(own))
        yield


@contextlib.contextmanager
def quotients_of_nodes() -> Iterator[None]:
    """A context in which PyTorch writes conditions with quotients of sizes, also rounded ones, into a graph."""
    with mock.patch.multiple(
        PythonReferenceAnalysis,
        int_truediv=staticmethod(operator.truediv),
        floor_to_int=staticmethod(_of_node(math.floor)),
        ceil_to_int=staticmethod(_of_node(math.ceil)),
        trunc_to_int=staticmethod(_of_node(math.trunc)),
    ):
        yield


def _of_node(function: Callable[[Any], int]) -> Callable[[Any, torch.dtype], Any]:
    """A function of a number, or of a Proxy, which has no methods for functions of the module math."""

    def called(number: Any, dtype: torch.dtype) -> Any:
        if isinstance(number, Proxy):
            return number.tracer.create_proxy("call_function", function, (number,), {})
        return function(number)

    return called


def _of_sizes(function: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        numbers = [arg.item() if isinstance(arg, FakeTensor) else arg for arg in args]
        return symbolic(*numbers) if any(isinstance(n, SIZES) for n in numbers) else function(*args, **options)

    return called


def _square_root(size: torch.SymInt | torch.SymFloat) -> Number:
    """Of a ratio of sizes in which the dynamic ones cancel out it is a number, which all functions of PyTorch take."""
    ratio = sympy.cancel(size.node.expr.replace(IntTrueDiv, lambda part, whole: part / whole))
    return math.sqrt(ratio) if ratio.is_number else torch._sym_sqrt(size)


def _logarithm(size: Number, base: Number = math.e) -> Number:
    return torch._sym_log2(size) / (torch._sym_log2(base) if isinstance(base, SIZES) else math.log2(base))


def _power(base: Number, exponent: Number) -> Number:
    return torch.sym_float(base) ** torch.sym_float(exponent)


def _combinations(size: torch.SymInt, chosen: int) -> Size:
    return _permutations(size, chosen) // math.factorial(chosen)


def _permutations(size: torch.SymInt, chosen: int) -> Size:
    """The product of as many factors as a number says."""
    return functools.reduce(operator.mul, (size - i for i in range(chosen)), 1)


def _by_operator(operator: Callable[..., Any], dtype: torch.dtype = torch.float64) -> Callable[..., Number]:
    """By an operator of PyTorch on tensors of these numbers."""
    return lambda *numbers: operator(*(torch.tensor(number, dtype=dtype) for number in numbers)).item()


def _of_all(operator: Callable[..., Any]) -> Callable[..., Size]:
    """Of any number of integers."""
    return lambda *sizes: functools.reduce(_by_operator(operator, torch.int64), sizes)


def _cube_root(x: torch.Tensor) -> torch.Tensor:
    return x.abs().pow(1 / 3).copysign(x)


def _gamma(x: torch.Tensor) -> torch.Tensor:
    sign = torch.where(x < 0, 1 - 2 * x.floor().remainder(2), 1.0)
    return sign * x.lgamma().exp()


def _divmod(size: Number, divisor: Number) -> tuple[Number, Number]:
    return size // divisor, size % divisor


def _of_a_divisor(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Of a divisor in a model or loss that is read from data: that it is not 0, as Python requires, is a condition."""

    def divided(size: torch.SymInt, other: Number) -> Any:
        divisor = size if name.startswith("__r") else other
        is_read = isinstance(divisor, torch.SymInt) and free_unbacked_symbols(divisor)
        if is_read and not is_library(sys._getframe(1).f_code.co_filename):
            torch._check(divisor != 0)
        return method(size, other)

    return divided


def _by_whole(method: Callable[..., Any]) -> Callable[..., Any]:
    """Division also by a float that is an integer, as len(x) / (16 * 16 / 4): conditions on its quotient are solved."""

    def divided(size: torch.SymInt, divisor: Number) -> Any:
        is_whole = isinstance(divisor, float) and divisor.is_integer() and divisor > 0
        return method(size, int(divisor) if is_whole else divisor)

    return divided


def _floor_divided(number: torch.SymFloat, divisor: Number) -> Any:
    """Python's: PyTorch rounds the quotient down, which may have been rounded up to an integer before."""
    return torch.sym_float(round((number - number % divisor) / divisor))


PREDICATES = "isnan", "isinf", "isfinite"
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sqrt": _square_root,
    "log": _logarithm,
    "log2": torch._sym_log2,
    "log10": lambda size: _logarithm(size, 10.0),
    "log1p": lambda size: _logarithm(size + 1),
    "exp2": lambda size: 2.0 ** torch.sym_float(size),
    "expm1": _by_operator(torch.expm1),
    "exp": lambda size: math.e ** torch.sym_float(size),
    "pow": _power,
    "cos": torch._sym_cos,
    "sin": torch._sym_sin,
    "tan": torch._sym_tan,
    "asin": torch._sym_asin,
    "acos": torch._sym_acos,
    "atan": torch._sym_atan,
    "sinh": torch._sym_sinh,
    "cosh": torch._sym_cosh,
    "tanh": torch._sym_tanh,
    "asinh": _by_operator(torch.asinh),
    "acosh": _by_operator(torch.acosh),
    "atanh": _by_operator(torch.atanh),
    "atan2": _by_operator(torch.atan2),
    "degrees": lambda size: size * (180.0 / math.pi),
    "radians": lambda size: size * (math.pi / 180.0),
    "hypot": lambda *sides: torch._sym_sqrt(sum(torch.sym_float(side) ** 2 for side in sides)),
    "cbrt": _by_operator(_cube_root),
    "erf": _by_operator(torch.erf),
    "erfc": _by_operator(torch.erfc),
    "gamma": _by_operator(_gamma),
    "lgamma": _by_operator(torch.lgamma),
    "fabs": _by_operator(torch.abs),
    "fmod": _by_operator(torch.fmod),
    "copysign": _by_operator(torch.copysign),
    "ldexp": lambda size, exponent: size * 2.0 ** torch.sym_float(exponent),
    **{name: _by_operator(getattr(torch, name)) for name in PREDICATES},
    "gcd": _of_all(torch.gcd),
    "lcm": _of_all(torch.lcm),
    "isqrt": lambda size: math.floor(torch._sym_sqrt(size)),
    "comb": _combinations,
    "perm": _permutations,
}

_IMPORTERS = Importers({name: getattr(math, name) for name in FUNCTIONS})
_IMPORTERS_OF_NUMPY = Importers({name: getattr(np, name) for name in PREDICATES})
DIVISIONS = "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__"
NUMPY = (
    *("sqrt", "cbrt", "log", "log2", "log10", "log1p", "exp", "exp2", "expm1", "fabs"),
    *("cos", "sin", "tan", "cosh", "sinh", "tanh", "degrees", "radians"),
)
