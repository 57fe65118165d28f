"""Threads of one process as workers, for machines without MPI and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")
TIMEOUT = 60
"""Seconds that a thread waits for the others."""


class _Buffers:
    """Memory that the threads share: one array per rank."""

    def __init__(self, size: int) -> None:
        self.arrays = [np.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)


class ThreadCommunicator:
    """A communicator of threads; sums are computed in the order of the ranks.

    Attributes:
        rank, size: as of communicators of mpi4py.
        messages: number of calls of Allreduce.
    """

    def __init__(self, buffers: _Buffers, rank: int) -> None:
        self._buffers, self.rank, self.size = buffers, rank, len(buffers.arrays)
        self.messages = 0

    @classmethod
    def alone(cls) -> ThreadCommunicator:
        """The communicator of a single worker."""
        return cls(_Buffers(1), 0)

    def Allreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        self.messages += 1
        first, *others = self._gathered(sendbuf)
        recvbuf[...] = sum(others, first)
        self._buffers.barrier.wait()

    def Bcast(self, buf: np.ndarray, root: int = 0) -> None:
        buf[...] = self._gathered(buf)[root]
        self._buffers.barrier.wait()

    def _gathered(self, array: np.ndarray) -> list[np.ndarray]:
        self._buffers.arrays[self.rank] = array.copy()
        self._buffers.barrier.wait()
        return self._buffers.arrays


def together(size: int, work: Callable[[ThreadCommunicator], Result]) -> list[Result]:
    """Run `work` in `size` threads.

    Returns:
        The results, by rank.

    Raises:
        The first exception of a thread; the others are cancelled.
    """
    buffers = _Buffers(size)

    def run(rank: int) -> Result:
        try:
            return work(ThreadCommunicator(buffers, rank))
        except BaseException:
            buffers.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        errors = [error for future in futures if (error := future.exception())]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
