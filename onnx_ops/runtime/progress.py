"""What whoever waits is told while kernels compile."""

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
"""Takes how many functions are done, and how many there are."""
SHOWN, HINTED, SECONDS = "progress_shown", "progress_hinted", "progress_seconds"


@contextlib.contextmanager
def showing(advance: Advance) -> Iterator[None]:
    """Show progress by a function, in place of the log."""
    STATE.settled[SHOWN] = advance
    try:
        yield
    finally:
        del STATE.settled[SHOWN]


def reporter() -> Advance:
    """A function that logs progress, after a second and then every half a minute.

    As warnings of the logger `onnx_ops`: without any configuration Python prints those to standard error, and nothing
    below them.
    """
    due = time.monotonic() + SILENT_SECONDS

    def advance(done: int, total: int) -> None:
        nonlocal due
        if show := STATE.settled.get(SHOWN):
            show(done, total)
        elif time.monotonic() >= due:
            due = time.monotonic() + REPEATED_SECONDS
            _log(f"{done} of {total} functions are done")

    return advance


def spent(seconds: float) -> None:
    """Log, once, that this process has compiled for more than a second."""
    before = STATE.settled.get(SECONDS, 0.0)
    STATE.settled[SECONDS] = before + seconds
    if before <= SILENT_SECONDS < before + seconds and SHOWN not in STATE.settled:
        _log("which takes 5 to 10 seconds for an op")


def _log(how_far: str) -> None:
    hint = "" if HINTED in STATE.settled else HINT
    STATE.settled[HINTED] = True
    LOGGER.warning("onnx_ops compiles kernels, %s%s", how_far, hint)
