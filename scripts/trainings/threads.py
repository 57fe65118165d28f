"""Workers that are threads of one process, for machines without MPI, and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")
PATIENCE = 60
"""In seconds: how long a thread waits for the others before it takes them for lost."""


class _Meeting:
    """Where threads leave what they have for each other."""

    def __init__(self, size: int) -> None:
        self.left: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=PATIENCE)


class ThreadCommunicator:
    """A communicator of threads; sums are added up in the order of the ranks.

    Attributes:
        rank, size: as of communicators of mpi4py.
        messages: how many sums were taken.
    """

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, len(meeting.left)
        self.messages = 0

    @classmethod
    def alone(cls) -> ThreadCommunicator:
        """That of a single worker."""
        return cls(_Meeting(1), 0)

    def Allreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        self.messages += 1
        recvbuf[...] = sum(self._exchanged(sendbuf)[1:], self._meeting.left[0])
        self._meeting.barrier.wait()

    def Bcast(self, buf: np.ndarray, root: int = 0) -> None:
        buf[...] = self._exchanged(buf)[root]
        self._meeting.barrier.wait()

    def _exchanged(self, array: np.ndarray) -> list[np.ndarray]:
        self._meeting.left[self.rank] = array.copy()
        self._meeting.barrier.wait()
        return self._meeting.left


def together(size: int, work: Callable[[ThreadCommunicator], Result]) -> list[Result]:
    """What the work of each of so many threads returns; the first exception is raised."""
    meeting = _Meeting(size)

    def one(rank: int) -> Result:
        try:
            return work(ThreadCommunicator(meeting, rank))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
        errors = [error for future in futures if (error := future.exception())]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
