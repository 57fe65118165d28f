"""int() and float() of dynamic sizes and of numbers in tensors, as in `int(0.7 * x.shape[0])` and `int(index.max())`.

Python's own return a number, that of the example. What else they are called with stays theirs.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

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


NAMES = {"int": _Int, "float": _Float}
METHODS = {
    (torch.SymInt, "__int__"): "int",
    (torch.SymInt, "__index__"): "float",
    (torch.SymFloat, "__int__"): "int",
    (torch.SymFloat, "__float__"): "float",
}
"""What Python's functions call of a dynamic size."""
TYPES = re.compile(r"\b(is|is not|dtype ?=) ?(int|float)\b|\b(to|type|astype)\((int|float)\)")
"""Code for which nothing but Python's types will do."""
READS = {torch.Tensor.__int__: "int", torch.Tensor.__float__: "float"}
"""And of a tensor."""


class Conversions(TorchFunctionMode):
    """A mode in which the modules that are known to call int() or float() of such numbers have these in their place.

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
        for (kind, method), name in METHODS.items():
            noting = self._noting(getattr(kind, method), name)
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
        if func in READS and isinstance(args[0], FakeTensor):
            self._note(sys._getframe(1), READS[func])
        return func(*args, **(kwargs or {}))

    def note_checks(self, error: BaseException) -> None:
        """Note the module of the code that has raised an error, if it asks what is an int or a float."""
        for frame, _ in [*traceback.walk_tb(error.__traceback__)][-1:]:
            if "isinstance" in frame.f_code.co_names:
                for name in NAMES:
                    self._note(frame, name)

    def _noting(self, method: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
        def noted(number: torch.SymInt | torch.SymFloat) -> Any:
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
