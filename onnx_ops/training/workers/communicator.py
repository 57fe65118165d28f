"""What workers need of a communicator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np


class Communicator(Protocol):
    """The methods of mpi4py's communicators that are used.

    Communicators of processes also have `Abort`, which ends all of them.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def Allreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> object:
        """Add up the arrays of all workers; the result has the same bits on each."""

    def Bcast(self, buf: np.ndarray, root: int = 0) -> object:
        """Copy the array of one worker to all others."""


def broadcast(communicator: Communicator, arrays: Iterable[np.ndarray]) -> None:
    """Copy the arrays of worker 0 to all workers."""
    for array in arrays:
        communicator.Bcast(array.reshape(-1).view(np.uint8), 0)
