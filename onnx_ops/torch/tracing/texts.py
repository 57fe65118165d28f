"""Texts of numbers and tensors that have no values in a trace, as of a loss that is printed or logged."""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import logging
import math
import re
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.overrides import TorchFunctionMode
from torch.types import py_sym_types

from onnx_ops.torch.tracing.frames import calling_frame

METHODS = (
    *((torch.SymInt, name) for name in ("__int__", "__index__")),
    *((torch.SymFloat, name) for name in ("__int__", "__float__")),
)
"""What % calls of a number that it formats."""
OF_TENSORS = torch.Tensor.__format__, torch.Tensor.__int__, torch.Tensor.__float__
FIRST = 10**18
"""The first of the integers that stand for numbers in a text, at which no key, size or index is found by accident."""
PLACES = re.compile(rf"<number (\d+) of the data>|{FIRST // 10**6}(\d{{6}})")


class Texts(TorchFunctionMode):
    """A mode in which tensors and numbers without values have texts.

    Most are those of messages that are not shown. They may be keys of modules too, as `experts[f"expert_{i}"]`, and are
    then read: that the numbers are those of the example is a condition.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[tuple[sympy.Expr, str], torch.SymInt | torch.SymFloat] = {}
        self._context = contextlib.ExitStack()

    def __enter__(self) -> Any:
        modules = torch.nn.ModuleDict
        item = modules.__getitem__
        patched: list[tuple[type, str, Callable[..., Any]]] = [
            (modules, "__getitem__", lambda modules, key: item(modules, self._read(key))),
            (torch.SymInt, "__format__", lambda number, spec: self._formatted(number, spec)),
            (torch.SymFloat, "__format__", lambda number, spec: str(number)),
            *((kind, name, self._converting(getattr(kind, name))) for kind, name in METHODS),
        ]
        for kind, name, method in patched:
            self._context.enter_context(mock.patch.object(kind, name, method))
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
        if func in OF_TENSORS and isinstance(args[0], FakeTensor) and args[0].constant is None and not args[0].dim():
            if func is torch.Tensor.__format__:
                return format(args[0].item(), *args[1:])
            if formats_text(calling_frame()) and isinstance(number := args[0].item(), py_sym_types):
                return self._number(number, func.__name__)
        return func(*args, **(kwargs or {}))

    def _formatted(self, number: torch.SymInt, spec: str) -> str:
        return f"<number {self._place(number, spec)} of the data>" if free_unbacked_symbols(number) else str(number)

    def _converting(self, method: Callable[[Any], int | float]) -> Callable[[Any], int | float]:
        def converted(number: torch.SymInt | torch.SymFloat) -> int | float:
            return self._number(number, method.__name__) if formats_text(calling_frame()) else method(number)

        return converted

    def _number(self, number: torch.SymInt | torch.SymFloat, method: str) -> int | float:
        """What stands for a number without a value in a text that is formatted with %."""
        return math.nan if method == "__float__" else FIRST + self._place(number)

    def _place(self, number: torch.SymInt | torch.SymFloat, spec: str = "") -> int:
        """Its place among the numbers of texts, which is the same for the same expression."""
        key = number.node.expr, spec
        self._numbers.setdefault(key, number)
        return list(self._numbers).index(key)

    def _read(self, key: str) -> str:
        return PLACES.sub(lambda found: self._of_example(int(found[1] or found[2])), key)

    def _of_example(self, place: int) -> str:
        (_, spec), number = list(self._numbers.items())[place]
        return format(int(number), spec)


def formats_text(frame: FrameType) -> bool:
    """Whether a frame formats a text with %, as in `"%.3f" % loss.item()`; its place in the source tells."""
    if frame.f_code.co_filename == logging.__file__:
        return True
    first, last, start, end = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if first is None:
        return False
    lines = [line.encode() for line in linecache.getlines(frame.f_code.co_filename)[first - 1 : last]]
    if not lines:
        return False
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        operator = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return False
    if not isinstance(operator, ast.BinOp) or not isinstance(operator.op, ast.Mod):
        return False
    is_text = isinstance(operator.left, ast.JoinedStr) or (
        isinstance(operator.left, ast.Constant) and isinstance(operator.left.value, str)
    )
    return is_text or isinstance(operator.right, ast.Tuple)
