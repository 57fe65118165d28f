"""Workers that train together: what they tell each other, and what ends them when one of them fails."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from onnx import TensorProto

from onnx_ops.core.types import TensorType
from onnx_ops.training.ending import tell_at_exit, tell_nobody
from onnx_ops.training.step import numpy_dtype
from onnx_ops.training.values import Tensor

MARKS = 2**24
"""A float32 tells as many whole numbers from 0 on apart."""
FAILED, LEAVES = -1, -2
"""What a worker gives in place of the number of its samples when its part of a step has failed, or when it ends."""
ALIGNMENT = 64
"""In bytes: of tensors, so that vector instructions take them."""


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


class WorkerError(RuntimeError):
    """Workers cannot go on together: one has failed, or they differ in what they train or with what settings."""


def mark_of(parts: Iterable[bytes]) -> int:
    """A number from 0 to MARKS that tells contents apart."""
    mark = 0
    for content in parts:
        mark = zlib.crc32(content, mark)
    return mark % MARKS


def check_agreement(communicator: Communicator, mark: int, what: str) -> None:
    """Refuse, on all workers, marks that are not the same on all."""
    marks = np.zeros(communicator.size, np.float32)
    marks[communicator.rank] = mark
    received = np.empty_like(marks)
    communicator.Allreduce(marks, received)
    check_marks(received, what)


def check_marks(marks: np.ndarray, what: str) -> None:
    differing = [worker for worker, mark in enumerate(marks) if mark != marks[0]]
    if differing:
        raise WorkerError(f"worker {_listed(differing)} differs from worker 0 in {what}, expected the same on all")


def _listed(workers: Iterable[int]) -> str:
    return ", ".join(map(str, workers))


def broadcast(communicator: Communicator, arrays: Iterable[np.ndarray]) -> None:
    """Give all workers what is in the arrays of worker 0."""
    for array in arrays:
        communicator.Bcast(array.reshape(-1).view(np.uint8), 0)


class Averages:
    """Tensors of which workers take averages, weighted by their samples, in one message a step.

    All of them lie in one array, float64 if any of them is, else float32; those of other dtypes are converted.

    Args:
        communicator: of the workers.
        types: what the averages are of, by name; their shapes are known.

    Attributes:
        own: where this worker's values are written.
        shared: where the averages are.
        bytes: the size of the message.
    """

    def __init__(self, communicator: Communicator, types: Mapping[str, TensorType]) -> None:
        self._communicator = communicator
        double = any(tensor.dtype == TensorProto.DOUBLE for tensor in types.values())
        dtype = np.dtype(np.float64 if double else np.float32)
        places, end = {}, _aligned(2 * communicator.size, dtype)
        for name, tensor in types.items():
            shape: tuple[Any, ...] = tensor.shape or ()
            places[name] = slice(end, end + math.prod(shape))
            end = _aligned(places[name].stop, dtype)
        self._sent, self._received = (Tensor.holding(np.zeros(end, dtype), _ELEMENTS[dtype]) for _ in range(2))
        self.bytes = end * dtype.itemsize
        self.own = {name: self._tensor(self._sent, places[name], tensor) for name, tensor in types.items()}
        self.shared = {name: self._tensor(self._received, places[name], tensor) for name, tensor in types.items()}
        self._converted = [
            (self.own[name].array, self.shared[name].array, place)
            for name, place in places.items()
            if self.own[name].array.dtype != dtype
        ]
        tell_at_exit(communicator, self._leave)

    def exchange(self, samples: int, mark: int, failure: Exception | None) -> int:
        """Average what is in `own` into `shared`.

        Args:
            samples: how many `own` is of; what is in it does not count if there are none.
            mark: of what all workers need to have alike.
            failure: why this worker has nothing to give, if it should.

        Returns:
            How many samples all workers have.

        Raises:
            WorkerError: another worker has failed or ended; marks that differ. `failure`, if there is one.
        """
        rank = self._communicator.rank
        if failure is None and samples:
            for own, _, place in self._converted:
                self._sent.array[place] = own.reshape(-1)
            self._sent.array[...] *= samples
        else:
            self._sent.array[...] = 0
        counts, marks = self._told(samples if failure is None else FAILED, mark)
        left = np.flatnonzero(counts == LEAVES)
        if left.size:
            tell_nobody(self._communicator)
            raise WorkerError(f"worker {_listed(left)} has ended, while worker {rank} makes a step") from failure
        if failure is not None:
            raise failure
        failed = np.flatnonzero(counts == FAILED)
        if failed.size:
            raise WorkerError(f"worker {_listed(failed)} has failed in this step, and says why; the state is as before")
        check_marks(marks, "the state that was loaded, or in the seed or the settings")
        total = int(counts.sum(dtype=np.float64))
        received = self._received.array
        if total:
            received /= total
        for _, shared, place in self._converted:
            shared[...] = received[place].reshape(shared.shape)
        return total

    def _leave(self) -> None:
        """Tell the others, should they wait, that they need not; all who end now tell it each other."""
        self._sent.array[...] = 0
        self._told(LEAVES, 0)

    def _told(self, count: int, mark: int) -> tuple[np.ndarray, np.ndarray]:
        """Send the message with this worker's count and mark, and return those of all."""
        workers, rank = self._communicator.size, self._communicator.rank
        sent, received = self._sent.array, self._received.array
        sent[: 2 * workers] = 0
        sent[rank], sent[workers + rank] = count, mark
        self._communicator.Allreduce(sent, received)
        return received[:workers].copy(), received[workers : 2 * workers].copy()

    def _tensor(self, whole: Tensor, place: slice, tensor: TensorType) -> Tensor:
        shape: tuple[Any, ...] = tensor.shape or ()
        dtype = numpy_dtype(tensor)
        if dtype == whole.array.dtype:
            return whole.part(place, shape)
        return Tensor.holding(np.zeros(shape, dtype), tensor.dtype or 0)


_ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


def _aligned(count: int, dtype: np.dtype) -> int:
    """The first place from there on that is aligned."""
    per_line = ALIGNMENT // dtype.itemsize
    return -(-count // per_line) * per_line
