"""Texts of numbers that have no values in a trace, as of a loss that is printed or logged."""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import logging
import math
import re
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from unittest import mock

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from onnx_ops.torch.tracing.frames import calling_frame

METHODS = (
    *((torch.SymInt, name) for name in ("__int__", "__index__")),
    *((torch.SymFloat, name) for name in ("__int__", "__float__")),
)
"""What % calls of a number that it formats."""
FIRST = 10**18
"""The first of the placeholders for integers in texts, too large to be a key, size or index."""
PLACES = re.compile(rf"<number (\d+) of the data>|{FIRST // 10**6}(\d{{6}})")


@contextlib.contextmanager
def symbolic_texts() -> Iterator[None]:
    """A context in which numbers without values have texts.

    Most are those of messages that are not shown. They may be keys of modules too, as `experts[f"expert_{i}"]`, and are
    then read: that the numbers are those of the example is a condition.
    """
    texts, modules = _Texts(), torch.nn.ModuleDict
    item = modules.__getitem__
    patched: list[tuple[type, str, Callable[..., Any]]] = [
        (modules, "__getitem__", lambda modules, key: item(modules, texts.read(key))),
        (torch.SymInt, "__format__", lambda number, spec: texts.of_integer(number, spec)),
        (torch.SymFloat, "__format__", lambda number, spec: str(number)),
        *((kind, name, texts.converting(getattr(kind, name))) for kind, name in METHODS),
    ]
    with contextlib.ExitStack() as stack:
        for kind, name, method in patched:
            stack.enter_context(mock.patch.object(kind, name, method))
        yield


class _Texts:
    """The numbers that texts have placeholders for."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[sympy.Expr, str], torch.SymInt | torch.SymFloat] = {}

    def of_integer(self, number: torch.SymInt, spec: str) -> str:
        return f"<number {self._place(number, spec)} of the data>" if free_unbacked_symbols(number) else str(number)

    def converting(self, method: Callable[[Any], int | float]) -> Callable[[Any], int | float]:
        """A conversion to a number, which returns a placeholder to a text that is formatted with %."""

        def converted(number: torch.SymInt | torch.SymFloat) -> int | float:
            if not formats_text(calling_frame()):
                return method(number)
            return math.nan if method.__name__ == "__float__" else FIRST + self._place(number)

        return converted

    def read(self, key: str) -> str:
        """A key with the numbers of the example in place of placeholders."""
        return PLACES.sub(lambda found: self._of_example(int(found[1] or found[2])), key)

    def _place(self, number: torch.SymInt | torch.SymFloat, spec: str = "") -> int:
        """Its place among the numbers of texts, which is the same for the same expression."""
        key = number.node.expr, spec
        self._numbers.setdefault(key, number)
        return list(self._numbers).index(key)

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
