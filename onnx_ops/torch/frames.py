"""Which line of a model or loss, so outside PyTorch, this package and the standard library, is being run."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

OWN = Path(__file__).parents[1]
TRACING = str(Path(__file__).with_name("tracing.py"))
"""Outside of it is what asked for the capture."""
LIBRARIES = (str(OWN), str(Path(torch.__file__).parent))
STANDARD = sysconfig.get_path("stdlib")
INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def line_now() -> str | None:
    """The innermost line of a model or loss that is being run: its file and number; None within a backward pass."""
    return _first(traceback.walk_stack(None))


def line_of_error(error: BaseException) -> str | None:
    """The innermost line of a model or loss that led to an error."""
    return _first(reversed(list(traceback.walk_tb(error.__traceback__))))


def _first(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Of frames from the innermost on, the first of code that somebody else has written."""
    for frame, number in frames:
        file = frame.f_code.co_filename
        if file == TRACING:
            return None
        of_python = file.startswith(("<", STANDARD)) and not file.startswith(INSTALLED)
        if not of_python and not file.startswith(LIBRARIES):
            return f"{file}, line {number}"
    return None
