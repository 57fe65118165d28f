"""What workers exchange amid a step, and how the values of all become one."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from onnx_ops.core.types import TensorType
from onnx_ops.training.ending import tell_nobody
from onnx_ops.training.step import StepError, numpy_dtype
from onnx_ops.training.values import Tensor
from onnx_ops.training.workers import LEAVES, Communicator, WorkerError, check_marks, listed

FAILED = -1
"""What a worker gives in place of the number of its samples when its part of a step has failed; LEAVES if it ends."""
ALIGNMENT = 64
"""In bytes: of tensors, so that vector instructions take them."""


class Combined(enum.Enum):
    """What becomes of the values that workers have."""

    MEAN = enum.auto()
    """The mean over the workers, weighted by their samples."""
    GRADIENT_SUM = enum.auto()
    """Of sums of gradients: that over all samples. Each worker has gradients by the mean loss of its own samples, so
    each gets the sum as it is with such gradients: the workers' sums, weighted by their samples, by its own samples."""
    TOTAL = enum.auto()
    """The sum over the workers."""
    ROWS = enum.auto()
    """Those of all workers, a row each; 0 for one that has no sample."""


WEIGHTED = (Combined.MEAN, Combined.GRADIENT_SUM)


@dataclass(frozen=True)
class Exchanged:
    """A value that workers exchange.

    Attributes:
        own: its name where a worker makes it.
        of_all: the name of what comes of it.
        tensor: the type of `own`, of a known shape.
        combined: what comes of it.
    """

    own: str
    of_all: str
    tensor: TensorType
    combined: Combined

    def type_of_all(self, workers: int | str) -> TensorType:
        """The type of what comes of it; the number of workers may be the name of a dimension."""
        shape = self.tensor.shape or ()
        return TensorType(self.tensor.dtype, (workers, *shape) if self.combined is Combined.ROWS else shape)


@dataclass(frozen=True)
class _Place:
    """Where a value is in the messages, if its tensors are elsewhere."""

    own: np.ndarray
    sent: slice
    of_all: np.ndarray
    received: slice


class Exchange:
    """One message of a step, an Allreduce: values of all workers, combined.

    All of them lie in one array; those of other dtypes are converted. Means are taken in float64 if any of them is
    float64, else in float32; a message with other values is float64, for these are few and their sums matter to many.

    Args:
        communicator: of the workers.
        values: what is exchanged.

    Attributes:
        own: where this worker's values are written, by their names.
        of_all: where what comes of them is.
        bytes: the size of the message.
    """

    def __init__(self, communicator: Communicator, values: Sequence[Exchanged]) -> None:
        self._communicator = communicator
        means = all(value.combined is Combined.MEAN for value in values)
        double = not means or any(value.tensor.dtype == TensorProto.DOUBLE for value in values)
        dtype = np.dtype(np.float64 if double else np.float32)
        begin = end = _aligned(2 * communicator.size, dtype)
        places = []
        for value in sorted(values, key=lambda value: value.combined not in WEIGHTED):
            place = slice(end, end + math.prod(_shape(value.type_of_all(communicator.size))))
            end = _aligned(place.stop, dtype)
            places.append((value, place))
        self._weighted = slice(begin, max((p.stop for v, p in places if v.combined in WEIGHTED), default=begin))
        self._sent, self._received = (Tensor.holding(np.zeros(end, dtype), _ELEMENTS[dtype]) for _ in range(2))
        self.bytes = end * dtype.itemsize
        self.own: dict[str, Tensor] = {}
        self.of_all: dict[str, Tensor] = {}
        self._converted: list[_Place] = []
        self._gradient_sums: list[slice] = []
        for value, place in places:
            self._lay(value, place)

    def _lay(self, value: Exchanged, place: slice) -> None:
        """Make the tensors of a value; those of means are in the messages, if they have their dtype."""
        of_all, sent = value.type_of_all(self._communicator.size), place
        dtype = numpy_dtype(value.tensor)
        if value.combined is Combined.MEAN and dtype == self._sent.array.dtype:
            self.own[value.own] = self._sent.part(place, _shape(value.tensor))
            self.of_all[value.of_all] = self._received.part(place, _shape(of_all))
            return
        if value.combined is Combined.ROWS:
            count = math.prod(_shape(value.tensor))
            sent = slice(first := place.start + count * self._communicator.rank, first + count)
        self.own[value.own], self.of_all[value.of_all] = (
            Tensor.holding(np.zeros(_shape(tensor), dtype), tensor.dtype or 0) for tensor in (value.tensor, of_all)
        )
        self._converted.append(_Place(self.own[value.own].array, sent, self.of_all[value.of_all].array, place))
        if value.combined is Combined.GRADIENT_SUM:
            self._gradient_sums.append(place)

    def __call__(self, samples: int, mark: int, failure: Exception | None) -> None:
        """Combine what is in `own` into `of_all`.

        Args:
            samples: how many `own` is of; what is in it does not count if there are none.
            mark: of what all workers need to have alike.
            failure: why this worker has nothing to give, if it should.

        Raises:
            WorkerError: another worker has failed or ended; marks that differ. `failure`, if there is one.
            StepError: no worker has a sample; a sum that its dtype does not hold.
        """
        rank = self._communicator.rank
        if failure is None and samples:
            for place in self._converted:
                self._sent.array[place.sent] = place.own.reshape(-1)
            self._sent.array[self._weighted] *= samples
        else:
            self._sent.array[...] = 0
        counts, marks = self._told(samples if failure is None else FAILED, mark)
        left = np.flatnonzero(counts == LEAVES)
        if left.size:
            tell_nobody(self._communicator)
            raise WorkerError(f"worker {listed(left)} has ended, while worker {rank} makes a step") from failure
        if failure is not None:
            raise failure
        failed = np.flatnonzero(counts == FAILED)
        if failed.size:
            raise WorkerError(f"worker {listed(failed)} has failed in this step, and says why; the state is as before")
        check_marks(marks, "the state that was loaded, the steps that were made, the seed or the settings")
        total = int(counts.sum(dtype=np.float64))
        if not total:
            raise StepError("no worker has a sample for this step")
        self._combine(samples, total)

    def leave(self) -> None:
        """Tell the others, should they wait, that they need not; all who end now tell it each other."""
        self._sent.array[...] = 0
        self._told(LEAVES, 0)

    def _combine(self, samples: int, total: int) -> None:
        """Make of sums over the workers what is wanted."""
        received = self._received.array
        for sums in self._gradient_sums:
            received[sums] *= total / samples if samples else 0.0
        received[self._weighted] /= total
        for place in self._converted:
            values = received[place.received]
            if place.of_all.dtype.kind == "i" and values.size and values.max() > np.iinfo(place.of_all.dtype).max:
                raise StepError(f"all workers count {values.max():.0f} elements, more than {place.of_all.dtype} holds")
            place.of_all[...] = values.reshape(place.of_all.shape)

    def _told(self, count: int, mark: int) -> tuple[np.ndarray, np.ndarray]:
        """Send the message with this worker's count and mark, and return those of all."""
        workers, rank = self._communicator.size, self._communicator.rank
        sent, received = self._sent.array, self._received.array
        sent[: 2 * workers] = 0
        sent[rank], sent[workers + rank] = count, mark
        self._communicator.Allreduce(sent, received)
        return received[:workers].copy(), received[workers : 2 * workers].copy()


_ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


def _shape(tensor: TensorType) -> tuple[Any, ...]:
    return tensor.shape or ()


def _aligned(count: int, dtype: np.dtype) -> int:
    """The first place from there on that is aligned."""
    per_line = ALIGNMENT // dtype.itemsize
    return -(-count // per_line) * per_line
