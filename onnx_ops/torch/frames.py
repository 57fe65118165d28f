"""The line of a model or loss that is running: code outside PyTorch, this package and the standard library."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

OWN = Path(__file__).parents[1]
TRACING = str(Path(__file__).with_name("tracing.py"))
"""Frames outside of this file's are those of the caller of the capture."""
LIBRARIES = (str(OWN), str(Path(torch.__file__).parent))
STANDARD = sysconfig.get_path("stdlib")
INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def line_now() -> str | None:
    """The innermost running line of a model or loss, `<file>, line <number>`; None within a backward pass."""
    return _first(traceback.walk_stack(None))


def line_of_error(error: BaseException) -> str | None:
    """The innermost line of a model or loss in the traceback of an error; None if there is none."""
    return _first(reversed(list(traceback.walk_tb(error.__traceback__))))


def _first(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """The line of the first frame of a model or loss; `frames` has the innermost first."""
    for frame, number in frames:
        file = frame.f_code.co_filename
        if file == TRACING:
            return None
        if not is_library(file):
            return f"{file}, line {number}"
    return None


def is_library(file: str) -> bool:
    """Whether a file of code is part of PyTorch, this package or the standard library."""
    of_python = file.startswith(("<", STANDARD)) and not file.startswith(INSTALLED)
    return of_python or file.startswith(LIBRARIES)
