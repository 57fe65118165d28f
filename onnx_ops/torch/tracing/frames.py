"""The line of a model or loss that is running: code outside PyTorch, this package and the standard library.

Nor is it a line of NumPy and SciPy, which compute with the numbers that they are given.
"""

from __future__ import annotations

import dataclasses
import functools
import linecache
import sys
import sysconfig
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir
import onnxscript
import torch

OWN = Path(__file__).parents[2]
SYMBOLS = tuple(str(Path(torch.__file__).parent / part) for part in ("__init__.py", "fx/experimental/"))
"""Where PyTorch evaluates conditions on dynamic sizes."""
OPERATORS = (
    str(OWN / "torch" / "operators"),
    *(str(Path(torch.__file__).parent / part) for part in ("_refs", "_decomp", "_prims", "_meta_registrations.py")),
)
"""Where operators are computed by others, and their shapes."""
LAYERS = str(Path(torch.__file__).parent / "nn")
"""Where layers and losses call operators, after checks of sizes."""
TRACES = Path(__file__).parent
TRACING = str(TRACES / "trace.py")
"""Frames outside of this file's are those of the caller of the capture."""
LIBRARIES = (str(OWN), *(str(Path(package.__file__).parent) for package in (torch, onnx_ir, onnxscript)))
STANDARD = sysconfig.get_path("stdlib")
INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
NUMERICAL = tuple(
    f"{folder}/{name}/" for folder in {*INSTALLED, str(Path(np.__file__).parents[1])} for name in ("numpy", "scipy")
)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of code.

    Attributes:
        caller: the innermost line outside an installed package whose line this is, such as einops; None if unknown.
    """

    file: str
    number: int
    caller: Line | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        own = f"{self.file}, line {self.number}"
        return own if self.caller is None else f"{own}, called at {self.caller}"

    @property
    def short(self) -> str:
        """The line with the path of its file as in an import, without that of a folder of this machine."""
        folders = [folder for folder in sys.path if folder and self.file.startswith(f"{folder.rstrip('/')}/")]
        folder = max(folders, key=len, default=str(Path(self.file).parent))
        return f"{Path(self.file).relative_to(folder).as_posix()}, line {self.number}"

    @property
    def code(self) -> str:
        """Its text; empty if the file is not available."""
        return linecache.getline(self.file, self.number).strip()


def line_now() -> Line | None:
    """The innermost running line of a model or loss; None within a backward pass."""
    frame = sys._getframe(1)  # numbers of lines take time to compute: only the one that is returned
    while (file := frame.f_code.co_filename) != TRACING and not _is_of_model(file) and frame.f_back is not None:
        frame = frame.f_back
    return _first([(file, frame.f_lineno)])


def warn(message: str) -> None:
    """Warn at the line that calls the capture."""
    frame, level = sys._getframe(1), 2
    while is_library(frame.f_code.co_filename) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def calling_frame() -> types.FrameType:
    """The innermost running frame of code outside this folder, whose functions replace others in a trace."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(str(TRACES)) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_called_by_model() -> bool:
    """Whether a dynamic size is evaluated by code of a model or loss, not by that of PyTorch."""
    return not is_library(_evaluating_file())


def is_called_by_operator() -> bool:
    """Whether a dynamic size is evaluated by Python code of an operator."""
    return _evaluating_file().startswith(OPERATORS)


def is_called_by_layer() -> bool:
    """Whether a dynamic size is evaluated by code of a layer or loss of PyTorch."""
    return _evaluating_file().startswith(LAYERS)


def _evaluating_file() -> str:
    frame = sys._getframe(2)
    while (file := frame.f_code.co_filename).startswith((*SYMBOLS, str(TRACES))) and frame.f_back is not None:
        frame = frame.f_back
    return file


def line_of_error(error: BaseException) -> Line | None:
    """The innermost line of a model or loss in the traceback of an error; None if there is none."""
    frames = reversed(list(traceback.walk_tb(error.__traceback__)))
    return _first((frame.f_code.co_filename, number) for frame, number in frames)


def raised_by_library(error: BaseException) -> bool:
    """Whether the innermost frame of an error is that of a library."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(files) and is_library(files[-1])


def line_of_stack(stack: traceback.StackSummary) -> Line | None:
    """The innermost line of a model or loss in a stack that was recorded; None if there is none."""
    return _first((frame.filename, frame.lineno or 0) for frame in reversed(stack))


def _first(places: Iterable[tuple[str, int]]) -> Line | None:
    """The first line of a model or loss; `places` has files and numbers of lines, the innermost first."""
    lines = _lines(places)
    if (first := next(lines, None)) is None or (package := _package(first.file)) is None:
        return first
    return dataclasses.replace(first, caller=next((line for line in lines if _package(line.file) != package), None))


def _lines(places: Iterable[tuple[str, int]]) -> Iterator[Line]:
    """The lines of models and losses."""
    for file, number in places:
        if file == TRACING:
            return
        if _is_of_model(file):
            yield Line(file, number)


@functools.cache
def _package(file: str) -> str | None:
    """The folder of the installed package that a file is of; None if it is of none."""
    for folder in INSTALLED:
        if file.startswith(f"{folder}/"):
            return f"{folder}/{file.removeprefix(f'{folder}/').split('/')[0]}"
    return None


def _is_of_model(file: str) -> bool:
    return not is_library(file) and not file.startswith(NUMERICAL)


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file of code is part of PyTorch, its exporter, this package or the standard library."""
    of_python = file.startswith(("<", STANDARD)) and not file.startswith(INSTALLED)
    return of_python or file.startswith(LIBRARIES)


def is_object_of_user(value: object) -> bool:
    """Whether a value is an instance of a class of neither an installed package nor the standard library."""
    if isinstance(value, type | types.ModuleType | types.FunctionType | torch.Tensor) or not hasattr(value, "__dict__"):
        return False
    return is_class_of_user(type(value))


def is_class_of_user(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", "") or ""
    return kind.__module__ != "builtins" and not is_library(file) and not file.startswith(INSTALLED)
