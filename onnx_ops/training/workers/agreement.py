"""Checks that workers agree, in what they train and in whether they still train."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from onnx_ops.training.errors import WorkerError
from onnx_ops.training.workers.communicator import Communicator
from onnx_ops.training.workers.ending import forget

LEFT = -2
"""What a worker that ends sends in place of a checksum or of its number of samples."""
CHECKSUMS = 2**24
"""Checksums are less than this: float32 represents the integers below it exactly."""


def checksum(contents: Iterable[bytes | memoryview]) -> int:
    """CRC-32 of the contents, modulo CHECKSUMS."""
    crc = 0
    for content in contents:
        crc = zlib.crc32(content, crc)
    return crc % CHECKSUMS


def check_agreement(communicator: Communicator, own: int, what: str, doing: str = "makes a trainer") -> None:
    """Compare a checksum over all workers.

    Args:
        communicator: of the workers.
        own: the checksum of this one.
        what: the checksum is of, for messages.
        doing: what this worker does, for messages.

    Raises:
        WorkerError: on all workers: checksums that differ; a worker that has called `leave` instead.
    """
    checksums = _exchanged(communicator, own)
    left = np.flatnonzero(checksums == LEFT)
    if left.size:
        forget(communicator)
        rank = communicator.rank
        raise WorkerError(f"worker {listed(left)} has ended, while worker {rank} {doing}")
    check_equal(checksums, what)


def leave(communicator: Communicator) -> None:
    """Tell workers that wait in `check_agreement` that this one ends. All that end there take part in the message."""
    _exchanged(communicator, LEFT)


def _exchanged(communicator: Communicator, own: int) -> np.ndarray:
    """The numbers of all workers, by rank."""
    sent = np.zeros(communicator.size, np.float32)
    sent[communicator.rank] = own
    received = np.empty_like(sent)
    communicator.Allreduce(sent, received)
    return received


def check_equal(checksums: np.ndarray, what: str) -> None:
    """Raise WorkerError if the checksums of workers, by rank, differ."""
    differing = [worker for worker, own in enumerate(checksums) if own != checksums[0]]
    if differing:
        raise WorkerError(f"worker {listed(differing)} differs from worker 0 in {what}, expected the same on all")


def listed(workers: Iterable[int]) -> str:
    """Ranks in messages."""
    return ", ".join(map(str, workers))
