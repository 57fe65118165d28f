"""Workers that train together: how they reach each other, and what they need to have alike."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from onnx_ops.core.errors import Error
from onnx_ops.training.ending import tell_nobody

LEAVES = -2
"""What a worker that ends gives in place of what it should."""
MARKS = 2**24
"""A float32 tells as many whole numbers from 0 on apart."""


class Communicator(Protocol):
    """What is asked of a communicator; those of mpi4py have it. Workers that are processes have `Abort` too, which
    ends all of them.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def Allreduce(self, sendbuf: Any, recvbuf: Any) -> Any:
        """Add up the arrays of all workers, into an array that has the same bits on each."""

    def Bcast(self, buf: Any, root: int = 0) -> Any:
        """Copy the array of one worker to all others."""


class WorkerError(Error, RuntimeError):
    """Workers cannot go on together: one has failed, or they differ in what they train or with what settings."""


def mark_of(parts: Iterable[bytes]) -> int:
    """A number from 0 to MARKS that tells contents apart."""
    mark = 0
    for content in parts:
        mark = zlib.crc32(content, mark)
    return mark % MARKS


def check_agreement(communicator: Communicator, mark: int, what: str) -> None:
    """Refuse, on all workers, marks that are not the same on all, or one that leaves before training."""
    marks = _exchanged_marks(communicator, mark)
    left = np.flatnonzero(marks == LEAVES)
    if left.size:
        tell_nobody(communicator)
        rank = communicator.rank
        raise WorkerError(f"worker {listed(left)} has ended without a trainer, while worker {rank} makes one")
    check_marks(marks, what)


def leave_before_training(communicator: Communicator) -> None:
    """Tell workers that make a trainer that this one does not; all who end without one tell it each other."""
    _exchanged_marks(communicator, LEAVES)


def _exchanged_marks(communicator: Communicator, mark: int) -> np.ndarray:
    """The marks of all workers."""
    marks = np.zeros(communicator.size, np.float32)
    marks[communicator.rank] = mark
    received = np.empty_like(marks)
    communicator.Allreduce(marks, received)
    return received


def check_marks(marks: np.ndarray, what: str) -> None:
    differing = [worker for worker, mark in enumerate(marks) if mark != marks[0]]
    if differing:
        raise WorkerError(f"worker {listed(differing)} differs from worker 0 in {what}, expected the same on all")


def listed(workers: Iterable[int]) -> str:
    """How messages name workers."""
    return ", ".join(map(str, workers))


def broadcast(communicator: Communicator, arrays: Iterable[np.ndarray]) -> None:
    """Give all workers what is in the arrays of worker 0."""
    for array in arrays:
        communicator.Bcast(array.reshape(-1).view(np.uint8), 0)
