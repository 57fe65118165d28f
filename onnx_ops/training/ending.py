"""What ends all workers of a training when one of them ends before it should."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

SECONDS_TO_PRINT = 1.0
"""Launchers pass on what processes print, but not what they have not passed on when one of these aborts all."""


def end_all_by_exceptions(communicator: Any) -> None:
    """Let an exception that nothing catches end all workers, after it has been printed.

    Without that the others would wait for this worker for ever. Workers that are no processes have no `Abort`, and
    nothing happens.
    """
    abort = getattr(communicator, "Abort", None)
    if abort is not None and not isinstance(sys.excepthook, _EndingAll):
        sys.excepthook = _EndingAll(sys.excepthook, abort, communicator.rank)


def announce(ending: str) -> None:
    """Print why all workers end, and wait until launchers have passed it on."""
    print(f"onnx_ops: {ending}", file=sys.stderr, flush=True)
    time.sleep(SECONDS_TO_PRINT)


class _EndingAll:
    """An excepthook."""

    def __init__(self, printing: _Hook, abort: Callable[[int], Any], rank: int) -> None:
        self._printing, self._abort, self._rank = printing, abort, rank

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._printing(kind, error, trace)
            announce(f"worker {self._rank} has failed and ends all others")
        finally:
            self._abort(1)


_leaving: list[tuple[Any, Callable[[], None]]] = []
"""Communicators, and what tells the others of each, who may wait in its latest training, that this worker ends."""


def tell_at_exit(communicator: Any, leave: Callable[[], None]) -> None:
    """Call `leave` when this process ends by itself, unless another training of these workers begins before."""
    if hasattr(communicator, "Abort"):
        tell_nobody(communicator)
        _leaving.append((communicator, leave))


def tell_nobody(communicator: Any) -> None:
    """For workers of which one has ended already."""
    _leaving[:] = [entry for entry in _leaving if entry[0] != communicator]


@atexit.register
def _leave() -> None:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_finalized():
        for _, leave in reversed(_leaving):
            leave()
