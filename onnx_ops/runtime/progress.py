"""Progress reports while kernels are compiled."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from onnx_ops.runtime.process import STATE

LOGGER = logging.getLogger("onnx_ops")
SILENT_SECONDS = 1.0
REPEATED_SECONDS = 30.0
HINT = "; later processes find them in the cache, and `onnx-ops compile` compiles all of them beforehand"
Advance = Callable[[int, int], None]
"""Takes the number of functions that are done, and their total."""
SHOWN, HINTED, SECONDS = "progress_shown", "progress_hinted", "progress_seconds"


@contextlib.contextmanager
def showing(advance: Advance) -> Iterator[None]:
    """Report progress to a function instead of the log."""
    STATE.shared[SHOWN] = advance
    try:
        yield
    finally:
        del STATE.shared[SHOWN]


def reporter() -> Advance:
    """A function that reports progress: to that of `showing`, else to the log after a second and every 30 seconds.

    The level is WARNING, the lowest one that Python prints without configuration of logging.
    """
    due = time.monotonic() + SILENT_SECONDS

    def advance(done: int, total: int) -> None:
        nonlocal due
        if show := STATE.shared.get(SHOWN):
            show(done, total)
        elif time.monotonic() >= due:
            due = time.monotonic() + REPEATED_SECONDS
            _log(f"{done} of {total} functions are done")

    return advance


def spent(seconds: float) -> None:
    """Add to the seconds of compilation in this process; logs once when they exceed SILENT_SECONDS."""
    before = STATE.shared.get(SECONDS, 0.0)
    STATE.shared[SECONDS] = before + seconds
    if before <= SILENT_SECONDS < before + seconds and SHOWN not in STATE.shared:
        _log("which takes 5 to 10 seconds for an op")


def _log(how_far: str) -> None:
    hint = "" if HINTED in STATE.shared else HINT
    STATE.shared[HINTED] = True
    LOGGER.warning("onnx_ops compiles kernels, %s%s", how_far, hint)
