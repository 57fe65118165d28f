"""Numbers that Python reads from tensors, and sizes that depend on data, as symbols of a trace.

A trace has no data. A number that code reads, as in `bool(tensor)` and `int(index.max())`, and a size that depends on
data, as that of `nonzero`, are symbols of PyTorch's ShapeEnv. With their values in the example, the trace goes the way
of the example where code branches on them. PyTorch keeps the conditions under which other data go the same way, which
become outputs of the graph.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import sympy
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import RuntimeAssert, ShapeEnv, free_unbacked_symbols
from torch.overrides import TorchFunctionMode
from torch.types import py_sym_types
from torch.utils._pytree import PyTree
from torch.utils._sympy.functions import FloorDiv, IntTrueDiv, Mod, PythonMod
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import TensorReferenceAnalysis

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.table import TABLE
from onnx_ops.torch.operators.numpy_arrays import recorded_arrays
from onnx_ops.torch.operators.sizes_as_data import measured_size
from onnx_ops.torch.tracing.certainty import linear
from onnx_ops.torch.tracing.constants import depends_on_data
from onnx_ops.torch.tracing.effects import Storages, storages, written_storages
from onnx_ops.torch.tracing.example_numbers import ExampleNumbers
from onnx_ops.torch.tracing.frames import Line, line_now, line_of_stack
from onnx_ops.torch.tracing.modes import OperatorMode, leaves_of
from onnx_ops.torch.tracing.size_tensors import SizeTensors
from onnx_ops.training.conditions import Condition, Number

aten = torch.ops.aten

READ = aten._local_scalar_dense.default
"""The operator that returns the number in a tensor."""

SLICE = aten.slice.Tensor
"""The operator whose result has a size that depends on data where its ends are read from data."""

CHECK = aten._linalg_check_errors.default
"""The operator that raises an error if a matrix could not be factorized: if its info, a tensor, is not 0."""

REQUIRES_NUMBER = "guard_float"
"""PyTorch's function by which code gets a floating number itself."""

KINDS = {torch.SymBool: "bool", torch.SymInt: "int", torch.SymFloat: "float"}

Numbers = list[int | float | bool]


def _sources(result: PyTree) -> list[Callable[[], Any]]:
    """What makes tensors of the numbers in a result, in the order of `_numbers`."""
    return [
        source
        for leaf in leaves_of(result)
        for source in (
            [functools.partial(measured_size, leaf, axis) for axis in range(leaf.dim())]
            if isinstance(leaf, torch.Tensor)
            else [functools.partial(torch.full, (), leaf)]
        )
    ]


@dataclass
class Example:
    """What operators return in the example where it depends on data: a number, or the sizes of tensors.

    Attributes:
        of_calls: for an operator and a line that runs it the numbers of each call, in their order.
    """

    of_calls: dict[tuple[OpOverload, Line | None], list[Numbers]] = field(default_factory=dict)

    def text_at(self, line: Line) -> str | None:
        """The numbers of the last call at a line, for messages; None if there is none."""
        calls = [calls[-1] for (_, own), calls in self.of_calls.items() if own == line]
        return ", ".join(map(str, calls[-1])) if calls else None


class Recording(OperatorMode):
    """A mode that records in a run with data what operators return that depends on data.

    Args:
        inputs: the tensors whose values a trace does not have.
    """

    def __init__(self, inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.example = Example()
        self._data = storages(inputs)
        self._context = contextlib.ExitStack()

    def __enter__(self) -> Any:
        self._context.enter_context(recorded_arrays(self._depends))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.close()
        super().__exit__(*error)

    def _depends(self, tensor: torch.Tensor) -> bool:
        return not self._data.keys().isdisjoint(storages([tensor]))

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = storages(leaves_of((args, kwargs or {})))
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags or not self._data.keys().isdisjoint(given):
            self._data |= storages(leaves_of(result))
        if depends_on_data(func):
            self.example.of_calls.setdefault((func, line_now()), []).append(_numbers(result))
        return result


def _to_list(tensor: torch.Tensor) -> Any:
    return [_to_list(tensor.select(0, i)) for i in range(tensor.shape[0])] if tensor.dim() else tensor.item()


def _to_bool(tensor: torch.Tensor) -> bool:
    """As Tensor.__bool__, whose condition on a number would be that it is the example's."""
    return bool((tensor if tensor.dtype is torch.bool else tensor != 0).item())


def _to_text(tensor: torch.Tensor, spec: str = "") -> str:
    """As Tensor.__format__."""
    if tensor.dim() or not isinstance(tensor, FakeTensor) or tensor.constant is not None:
        return torch.Tensor.__format__(tensor, spec)
    return format(tensor.item(), spec)


READS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.tolist: _to_list,
    torch.Tensor.__bool__: _to_bool,
    torch.Tensor.__format__: _to_text,
}


class _SingleReads(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return READS.get(func, func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def single_reads() -> Iterator[None]:
    """Functions of tensors that return numbers read them one by one, by operators; the numbers may be keys."""
    with (
        _SingleReads(),
        mock.patch.object(FakeTensor, "tolist", _to_list),
        mock.patch.object(torch.SymInt, "__hash__", _hash),
    ):
        yield


_hash_of_size = torch.SymInt.__hash__


def _hash(number: torch.SymInt) -> int:
    """Of a number that is read from data, that of its value, which is then a condition; a dynamic size has none.

    Nor has one that depends on data: einops goes without its cache for sizes that have none.
    """
    read = free_unbacked_symbols(number) - number.node.shape_env.size_like
    return hash(int(number)) if read else _hash_of_size(number)


def _numbers(result: PyTree) -> list[Any]:
    """The numbers in a result: itself, or the sizes of its tensors."""
    leaves = leaves_of(result)
    return [n for leaf in leaves for n in (leaf.shape if isinstance(leaf, torch.Tensor) else [leaf])]


@dataclass(frozen=True)
class _Reading:
    """A number that a trace reads from data: () int64 or float64, of the kind, and its value in the example."""

    tensor: torch.Tensor
    kind: str
    value: int | float | bool | None


class ExampleRequired(BaseException):
    """A trace without an example comes to numbers or sizes that depend on data; no `except` of a model catches it."""


class DataDependence(OperatorMode):
    """A mode that gives numbers and sizes that depend on data their values in an example.

    Args:
        shapes: the symbols of the trace.
        example: the values; with None, ExampleRequired is raised where they are needed.
        followed: tensors on whose elements, or on what is computed from these alone, code may branch; where it branches
            on others, PyTorch raises its error.
        seed: of the random numbers. Code may not branch on these alone: a step that is refused would draw the same
            ones again.

    Attributes:
        random: the lines that read numbers that depend on the seed alone, and the symbols of these numbers.
    """

    def __init__(
        self,
        shapes: ShapeEnv,
        example: Example | None,
        followed: Iterable[torch.Tensor],
        seed: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self._shapes, self._example = shapes, example
        self._followed = storages(followed)
        self._random = storages([seed])
        self._free: Storages = {}
        """What depends on no input."""
        self.random: set[Line | sympy.Symbol | None] = set()
        self._calls: Counter[tuple[OpOverload, Line | None]] = Counter()
        self._readings: dict[sympy.Symbol, _Reading] = {}
        self._names: dict[sympy.Symbol, str] = {}
        self._offsets: set[sympy.Symbol] = set()
        self._of_sizes = SizeTensors()
        self._of_example = ExampleNumbers(shapes)
        self._read_from: dict[int, tuple[torch.Tensor, int, Any]] = {}
        """The tensors whose numbers were read, by their ids, with their versions and numbers."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is CHECK:
            return self._check(args[0], f"the info of {args[1]}")
        if func in TABLE.requirements:
            TABLE.requirements[func](*args, **(kwargs or {}))
        if func in TABLE.checks and (info := TABLE.checks[func](*args, **(kwargs or {}))) is not None:
            self._check(*info)
        if func is READ and (size := self._of_sizes.number(args[0])) is not None:
            return size
        result = self._read_before(args[0]) if func is READ else None
        if result is None:
            result = func(*args, **(kwargs or {}))
            self._of_sizes.note(func, args, kwargs or {}, result)
            self._of_example.note(func, args, kwargs or {}, result)
        given = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, FakeTensor)]
        tracked = self._random or self._followed
        changed = storages(leaves_of(result)) | written_storages(func, args, kwargs or {}) if tracked else {}
        random = bool(self._random) and self._is_random(given, changed)
        follows = bool(self._followed) and self._follows(func, given, changed) and not random
        if depends_on_data(func):
            numbers = _numbers(result)
            place = func, line_now()
            if random:
                symbols = (free_unbacked_symbols(number) for number in numbers if isinstance(number, py_sym_types))
                self.random.update([place[1]], *symbols)
            if follows and self._example is None:
                raise ExampleRequired
            known = self._example.of_calls.get(place, []) if follows and self._example else []
            call, self._calls[place] = self._calls[place], self._calls[place] + 1
            values: Sequence[int | float | bool | None] = [None] * len(numbers)
            if call < len(known) and len(known[call]) == len(numbers):
                values = known[call]
            elif func is READ and follows:
                values = [self._of_example.number(args[0])]
            sources = [lambda: args[0]] if func is READ else _sources(result)
            for number, value, source in zip(numbers, values, sources, strict=True):
                if isinstance(number, py_sym_types):
                    self._read(number, value, source)
            if func is READ:
                self._read_from[id(args[0])] = args[0], args[0]._version, result
        elif func is SLICE:
            for size, source in zip(result.shape, _sources(result), strict=True):
                if isinstance(size, torch.SymInt):
                    self._read(size, None, source)
            self._offsets |= free_unbacked_symbols(result.storage_offset())
        return result

    def _read_before(self, tensor: torch.Tensor) -> Any:
        """The number in a tensor if it has been read since the tensor was written to: PyTorch takes no second bool."""
        _, version, number = self._read_from.get(id(tensor), (None, None, None))
        return number if version == tensor._version else None

    def _check(self, info: torch.Tensor, name: str) -> None:
        """Make it a condition that all numbers in a tensor are 0, as those that say that an operator succeeds."""
        worst = torch.cat([info.flatten(), info.new_zeros(1)]).max()  # of an empty batch too
        number = worst.item()
        if isinstance(number, torch.SymInt):
            self._read(number, 0, lambda: worst)
            self._names[number.node.expr] = name
        torch._check(number == 0)

    def _is_random(self, given: list[FakeTensor], changed: Storages) -> bool:
        """Whether a call depends on the seed and constants alone; its results, also in place, then do too."""
        sources = storages(tensor for tensor in given if tensor.constant is None).keys() - self._free.keys()
        random = bool(sources) and sources <= self._random.keys()
        for key in changed:
            self._random.pop(key, None)
            self._free.pop(key, None)
        if random:
            self._random |= changed
        elif not sources:
            self._free |= changed
        return random

    def _follows(self, func: OpOverload, given: list[FakeTensor], changed: Storages) -> bool:
        """Whether a call depends on followed tensors and constants alone; its results, also in place, then do too."""
        random = torch.Tag.nondeterministic_seeded in func.tags
        follows = not random and storages(given).keys() <= self._followed.keys()
        if follows:
            self._followed |= changed
        else:
            for key in changed:
                self._followed.pop(key, None)
        return follows

    def _read(
        self,
        number: torch.SymInt | torch.SymFloat | torch.SymBool,
        value: int | float | bool | None,
        source: Callable[[], torch.Tensor],
    ) -> None:
        """Enter a symbol that is new, with its value; `source` returns a tensor of the number."""
        expr = number.node.expr
        symbol = expr.lhs if isinstance(number, torch.SymBool) and isinstance(expr, sympy.Eq) else expr
        if not isinstance(symbol, sympy.Symbol) or symbol in self._readings or not free_unbacked_symbols(number):
            return
        kind = KINDS[type(number)]
        copied = aten._to_copy.default(source(), dtype=torch.float64 if kind == "float" else torch.int64)
        self._readings[symbol] = _Reading(aten.view.default(copied, []), kind, value)
        if value is not None:
            self._shapes.set_real_tensor_prop_unbacked_vals(symbol, int(value) if kind == "bool" else value)

    def conditions(self, sizes: Iterable[torch.SymInt]) -> Conditions | None:
        """The conditions of the trace; None if there is none.

        Args:
            sizes: the dynamic sizes of inputs, each a symbol or, as that of 2 * Dim("N"), a linear function of one.

        Raises:
            CaptureError: a condition that a graph cannot compute.
        """
        found = {ra.expr: ra for asserts in self._shapes.deferred_runtime_asserts.values() for ra in asserts}
        # That an offset in memory, which graphs do not have, is not negative, is no condition on data.
        offsets = self._offsets - self._readings.keys()  # without numbers of the data that are offsets too
        found = {expr: ra for expr, ra in found.items() if not expr.free_symbols or expr.free_symbols - offsets}
        if not found:
            return None
        for assertion in found.values():
            self._refuse_exact_value(assertion)
        values = {symbol: reading.tensor for symbol, reading in self._readings.items()}
        read = {symbol for expr in found for symbol in expr.free_symbols}
        for size in sizes:
            expr = size.node.expr
            for symbol in expr.free_symbols & read - values.keys():
                if (coefficients := linear(expr, symbol)) is not None:
                    factor, offset = coefficients
                    values[symbol] = torch.full((), (size - offset) // factor, dtype=torch.int64)
        holds = [_computed(assertion, values) for assertion in found.values()]
        places = {symbol: place for place, symbol in enumerate(symbol for symbol in values if symbol in read)}
        records = tuple(self._condition(assertion, places) for assertion in found.values())
        numbers = [values[symbol].double() for symbol in places]
        return Conditions(records, torch.stack(holds), torch.stack(numbers))

    def _refuse_exact_value(self, assertion: RuntimeAssert) -> None:
        """Refuse a condition that a floating number is that of the example, as code outside of PyTorch requires it.

        Whole numbers may be flags.
        """
        expr = assertion.expr
        if not isinstance(expr, sympy.Eq) or not expr.rhs.is_number or float(expr.rhs).is_integer():
            return
        if all(frame.name != REQUIRES_NUMBER for frame in assertion.stack.summary()):  # a comparison
            return
        reading = self._readings.get(expr.lhs)
        if reading is not None and reading.kind == "float":
            line = line_of_stack(assertion.stack.summary())
            raise CaptureError(
                f"the step would be valid for the example alone: {'code' if line is None else line} requires the number"
                f" {float(expr.rhs)} that it reads from a tensor, to compute outside of PyTorch with it. Write it with"
                " PyTorch's operators, or compute it before the step and pass it in as an argument"
            )

    def _condition(self, assertion: RuntimeAssert, places: Mapping[sympy.Symbol, int]) -> Condition:
        line = line_of_stack(assertion.stack.summary())
        numbers, names = [], {}
        for symbol in sorted(assertion.expr.free_symbols, key=places.__getitem__):
            reading = self._readings.get(symbol)
            kind = "int" if reading is None else reading.kind
            value = self._shapes.backed_var_to_val.get(symbol) if reading is None else reading.value
            numbers.append(Number(places[symbol], kind, "" if value is None else str(value)))
            names[symbol] = sympy.Symbol(
                f"number {len(numbers)}" if len(assertion.expr.free_symbols) > 1 else "a number"
            )
            if symbol in self._names:
                names[symbol] = sympy.Symbol(self._names[symbol])
        own = [number.kind for number in numbers]
        expected = "" if own == ["bool"] else str(assertion.expr.xreplace(names))
        where = "the backward pass" if line is None else line.short
        return Condition(where, "" if line is None else line.code, tuple(numbers), expected)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a trace.

    Attributes:
        records: for the metadata of the step.
        holds: (n,) bool, which of them hold.
        numbers: (k,) float64, the numbers that they depend on.
    """

    records: tuple[Condition, ...]
    holds: torch.Tensor
    numbers: torch.Tensor


class _Analysis(TensorReferenceAnalysis):
    """Expressions of symbols as operators on tensors; constants are tensors of a factory that a trace records."""

    @staticmethod
    def constant(c: sympy.Number | sympy.logic.boolalg.BooleanAtom, dtype: torch.dtype) -> torch.Tensor:
        number = bool(c) if dtype is torch.bool else int(c) if dtype is torch.int64 else float(c)
        return torch.full((), number, dtype=dtype)

    @staticmethod
    def floordiv(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.div(x, _divisor(y), rounding_mode="floor")

    @staticmethod
    def python_mod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.remainder(x, _divisor(y))

    @staticmethod
    def mod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of sizes, which are not negative."""
        return torch.remainder(x, _divisor(y))

    @staticmethod
    def int_truediv(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Python's quotient, as sizes are below 2**53."""
        return x.double() / _divisor(y).double()


def _divisor(number: torch.Tensor) -> torch.Tensor:
    """A number to divide by: 1 in place of 0, for which the condition does not hold."""
    return torch.where(number == 0, 1, number)


def _computed(assertion: RuntimeAssert, values: Mapping[sympy.Symbol, torch.Tensor]) -> torch.Tensor:
    divisors = {division.args[1] for division in assertion.expr.atoms(FloorDiv, IntTrueDiv, Mod, PythonMod)}
    expressions = [assertion.expr, *(sympy.Ne(divisor, 0) for divisor in divisors if divisor.free_symbols)]
    try:
        holds: list[torch.Tensor] = [
            sympy_interp(_Analysis, dict(values), expression, index_dtype=torch.int64) for expression in expressions
        ]
    except (NotImplementedError, AttributeError, KeyError) as error:  # a function or a symbol that it does not know
        line = line_of_stack(assertion.stack.summary())
        raise CaptureError(
            f"the step is valid only where {assertion.expr}, which depends on data"
            f"{'' if line is None else f' at {line}'}, and which a graph cannot check"
        ) from error
    return functools.reduce(torch.logical_and, holds)
