"""Ends all workers when one of them fails, and tells the others when one ends before they do."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from types import TracebackType

from onnx_ops.training.workers.communicator import Communicator

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

SECONDS_TO_PRINT = 1.0
"""Launchers forward what processes print, but discard what is not yet forwarded when a process aborts all."""


def end_all_by_exceptions(communicator: Communicator) -> None:
    """Set an excepthook that prints an uncaught exception and then ends all workers, which would otherwise wait.

    Does nothing for communicators without `Abort`, whose workers are no processes.
    """
    abort = getattr(communicator, "Abort", None)
    if abort is not None and not isinstance(sys.excepthook, _EndingAll):
        sys.excepthook = _EndingAll(sys.excepthook, abort, communicator.rank)


def announce(ending: str) -> None:
    """Print why all workers end, and wait until launchers have forwarded it."""
    print(f"onnx_ops: {ending}", file=sys.stderr, flush=True)
    time.sleep(SECONDS_TO_PRINT)


class _EndingAll:
    """An excepthook."""

    def __init__(self, printing: _Hook, abort: Callable[[int], object], rank: int) -> None:
        self._printing, self._abort, self._rank = printing, abort, rank

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._printing(kind, error, trace)
            announce(f"worker {self._rank} has failed and ends all others")
        finally:
            self._abort(1)


_leaving: list[tuple[Communicator, Callable[[], None]]] = []
"""For each communicator the function that tells the other workers of its latest training that this one ends."""


def call_at_exit(communicator: Communicator, leave: Callable[[], None]) -> None:
    """Call `leave` when this process exits, in place of an earlier function for the same communicator."""
    if hasattr(communicator, "Abort"):
        forget(communicator)
        _leaving.append((communicator, leave))


def forget(communicator: Communicator) -> None:
    """Tell nobody at exit: a worker of this communicator has ended already, and takes part in no message."""
    _leaving[:] = [entry for entry in _leaving if entry[0] != communicator]


@atexit.register
def _leave() -> None:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_finalized():
        for _, leave in reversed(_leaving):
            leave()
