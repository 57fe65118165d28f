"""int() and float() of dynamic sizes and of numbers in tensors, as in `int(0.7 * x.shape[0])` and `int(index.max())`.

And range() of dynamic sizes where it is an index, as in `x[range(len(x)), labels]`. Python's own return numbers, those
of the example. What else they are called with stays theirs.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.tracing.certainty import is_certain
from onnx_ops.torch.tracing.frames import is_library
from onnx_ops.torch.tracing.mathematics import SIZES


class _Kind(type):
    """The metaclass of a replacement of int or float, of which symbolic numbers are instances too."""

    origin: type
    symbol: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.origin, cls.symbol))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.origin)

    def __eq__(cls, other: object) -> bool:
        return other in (cls.origin, cls.symbol) or other is cls

    def __hash__(cls) -> int:
        return hash(cls.origin)

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if len(args) != 1 or options or not isinstance(args[0], (*SIZES, FakeTensor)):
            return cls.origin(*args, **options)
        number = args[0].item() if isinstance(args[0], torch.Tensor) else args[0]
        if not isinstance(number, SIZES):
            return cls.origin(bool(number) if isinstance(number, torch.SymBool) else number)
        return _whole(number) if cls.origin is int else torch.sym_float(number)


def _whole(number: torch.SymInt | torch.SymFloat) -> Size:
    """Rounded towards 0; down, which conditions on sizes can be solved for, if it is certainly not negative."""
    if isinstance(number, torch.SymInt):
        return number
    positive = is_certain(number.node.expr >= 0, number.node.shape_env.from_one())
    return math.floor(number) if positive else math.trunc(number)


class _Int(int, metaclass=_Kind):
    origin, symbol = int, torch.SymInt


class _Float(float, metaclass=_Kind):
    origin, symbol = float, torch.SymFloat


_range = range  # by a name of its own, which is not replaced in this module


class SymbolicRange:
    """A range between dynamic sizes; for all but an index of a tensor that of the numbers in the example."""

    def __init__(self, *ends: Size) -> None:
        self._ends = ends
        self.start, self.stop, self.step = (0, ends[0], 1) if len(ends) == 1 else (*ends, 1)[:3]

    def tensor(self) -> torch.Tensor:
        """The numbers in it."""
        return torch.arange(*self._ends)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call any other function; without this method PyTorch iterates over an index before a mode sees it."""
        return func(*_of_example(args), **_of_example(kwargs or {}))

    def _of_example(self) -> range:
        return _range(*self._ends)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of_example())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._of_example())

    def __len__(self) -> int:
        return len(self._of_example())

    def __contains__(self, number: object) -> bool:
        return number in self._of_example()

    def __getitem__(self, place: Any) -> Any:
        return self._of_example()[place]

    def __eq__(self, other: object) -> bool:
        return self._of_example() == other

    def __hash__(self) -> int:
        return hash(self._of_example())


class _RangeKind(_Kind):
    """The metaclass of the replacement of range."""

    def __call__(cls, *args: Any) -> Any:
        is_symbolic = any(isinstance(number, torch.SymInt) for number in args)
        return SymbolicRange(*args) if is_symbolic and len(args) <= 3 else _range(*args)


class _Range(metaclass=_RangeKind):
    origin, symbol = range, SymbolicRange


NAMES = {"int": _Int, "float": _Float, "range": _Range}
METHODS = {
    (torch.SymInt, "__int__"): ("int",),
    (torch.SymInt, "__index__"): ("float", "range"),
    (torch.SymFloat, "__int__"): ("int",),
    (torch.SymFloat, "__float__"): ("float",),
}
"""What Python's functions call of a dynamic size."""
OF_RANGES = {torch.Tensor.__getitem__: 1, torch.Tensor.__setitem__: 1, torch.tensor: 0, torch.as_tensor: 0}
"""Functions that take ranges, with the place of that argument."""
TYPES = re.compile(r"\b(is|is not|dtype ?=) ?(int|float|range)\b|\b(to|type|astype)\((int|float)\)")
"""Code for which nothing but Python's types will do."""
NUMBERS: dict[Any, type] = {torch.Tensor.__int__: int, torch.Tensor.__float__: float}
"""And of a tensor."""


class Conversions(TorchFunctionMode):
    """A mode in which the modules that are known to call these functions of such numbers have others in their place.

    Attributes:
        modules: their names; one that calls Python's own while the mode is entered is known from the next time on, as
            is one that `note_checks` finds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.modules: list[dict[str, Any]] = []
        self._context = contextlib.ExitStack()

    def __enter__(self) -> Any:
        for names in self.modules:
            for name in NAMES.keys() - names.keys():
                names[name] = NAMES[name]
                self._context.callback(names.pop, name)
        for (kind, method), functions in METHODS.items():
            noting = self._noting(getattr(kind, method), functions)
            self._context.enter_context(mock.patch.object(kind, method, noting))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.close()
        super().__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in NUMBERS and isinstance(args[0], FakeTensor):
            self._note(sys._getframe(1), NUMBERS[func].__name__)
            return NUMBERS[func](args[0].item())
        place = OF_RANGES.get(func)
        if place is not None and len(args) > place:
            args = (*args[:place], _of_tensors(args[place]), *args[place + 1 :])
        return func(*args, **(kwargs or {}))

    def note_checks(self, error: BaseException) -> None:
        """Note the module of the code that has raised an error, if it asks what is an int or a float."""
        for frame, _ in [*traceback.walk_tb(error.__traceback__)][-1:]:
            if "isinstance" in frame.f_code.co_names:
                for name in NAMES:
                    self._note(frame, name)

    def _noting(self, method: Callable[[Any], Any], functions: Sequence[str]) -> Callable[[Any], Any]:
        def noted(number: torch.SymInt | torch.SymFloat) -> Any:
            for name in functions:
                self._note(sys._getframe(1), name)
            return method(number)

        return noted

    def _note(self, frame: FrameType, name: str) -> None:
        """Note the module of the code that is running, if it calls Python's function of that name."""
        code, names = frame.f_code, frame.f_globals
        if name not in code.co_names or name in names or is_library(code.co_filename):
            return
        if not any(map(TYPES.search, linecache.getlines(code.co_filename))):
            self.modules.append(names)


def _of_tensors(index: Any) -> Any:
    """An index whose ranges between dynamic sizes are tensors."""
    if isinstance(index, tuple):
        return tuple(map(_of_tensors, index))
    return index.tensor() if isinstance(index, SymbolicRange) else index


def _of_example(arguments: Any) -> Any:
    """Arguments with the numbers of the example in place of ranges between dynamic sizes."""
    return tree_map_only(SymbolicRange, list, arguments)
