"""The messages between the parts of a step: one Allreduce each, which combines values of all workers."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnx_ops.core.types import TensorType
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import Tensor
from onnx_ops.training.errors import StepError, WorkerError
from onnx_ops.training.workers.agreement import LEFT, check_equal, listed
from onnx_ops.training.workers.communicator import Communicator
from onnx_ops.training.workers.ending import forget

FAILED = -1
"""What a worker sends in place of its number of samples when its part of a step has failed; LEFT if it ends."""
ALIGNMENT = 64
"""Of tensors in the message, in bytes: that of AVX-512 vectors and of cache lines."""


class Combined(enum.Enum):
    """How the values v_k of workers k are combined; n_k is the number of samples of worker k, n their sum."""

    MEAN = enum.auto()
    """sum(n_k v_k) / n."""
    GRADIENT_SUM = enum.auto()
    """sum(n_k v_k) / n_k on worker k. The values are sums over samples of gradients of the loss. The loss of each
    worker is the mean over its own samples: n_k times its sum is that of the sum loss, and divided by n_k the total has
    the scale of worker k's other gradients."""
    TOTAL = enum.auto()
    """sum(v_k)."""
    ROWS = enum.auto()
    """The values stacked along a new first axis, by rank; 0 for a worker without samples."""


WEIGHTED = (Combined.MEAN, Combined.GRADIENT_SUM)


@dataclass(frozen=True)
class Exchanged:
    """A value that workers exchange.

    Attributes:
        own: name of the worker's own value.
        of_all: name of the combined value.
        tensor: type of the own value, of a known shape.
        combined: how the values are combined.
    """

    own: str
    of_all: str
    tensor: TensorType
    combined: Combined

    def type_of_all(self, workers: int | str) -> TensorType:
        """The type of the combined value; `workers` is the number of workers or the name of a dimension."""
        shape = self.tensor.shape or ()
        return TensorType(self.tensor.dtype, (workers, *shape) if self.combined is Combined.ROWS else shape)


@dataclass(frozen=True)
class _Copied:
    """A value whose tensors are copied into the message and out of it, and its elements there."""

    own: np.ndarray
    sent: slice
    of_all: np.ndarray
    received: slice


class Exchange:
    """One message of a step, an Allreduce of one array with all values.

    The array starts with the number of samples, the checksum and the number of batches of each worker. It is float32 if
    all values are means of dtypes other than float64, else float64: statistics of batch norm are few, and all samples
    depend on them.

    Args:
        communicator: of the workers.
        values: the values to exchange.

    Attributes:
        own: tensors that this worker's values are written to, by name.
        of_all: tensors of the combined values, by name.
        bytes: size of the message.
    """

    def __init__(self, communicator: Communicator, values: Sequence[Exchanged]) -> None:
        self._communicator = communicator
        means = all(value.combined is Combined.MEAN for value in values)
        double = not means or any(value.tensor.dtype == TensorProto.DOUBLE for value in values)
        dtype = np.dtype(np.float64 if double else np.float32)
        begin = end = _aligned(3 * communicator.size, dtype)
        elements = []
        for value in sorted(values, key=lambda value: value.combined not in WEIGHTED):
            own = slice(end, end + math.prod(_shape(value.type_of_all(communicator.size))))
            end = _aligned(own.stop, dtype)
            elements.append((value, own))
        self._weighted = slice(begin, max((e.stop for v, e in elements if v.combined in WEIGHTED), default=begin))
        self._sent, self._received = (Tensor.holding(np.zeros(end, dtype), _ELEMENTS[dtype]) for _ in range(2))
        self.bytes = end * dtype.itemsize
        self.own: dict[str, Tensor] = {}
        self.of_all: dict[str, Tensor] = {}
        self._copied: list[_Copied] = []
        self._gradient_sums: list[slice] = []
        for value, own in elements:
            self._allocate(value, own)

    def _allocate(self, value: Exchanged, elements: slice) -> None:
        """Make the tensors of a value. Those of means of the message's dtype are views of the message."""
        of_all, sent = value.type_of_all(self._communicator.size), elements
        dtype = numpy_dtype(value.tensor)
        if value.combined is Combined.MEAN and dtype == self._sent.array.dtype:
            self.own[value.own] = self._sent.part(elements, _shape(value.tensor))
            self.of_all[value.of_all] = self._received.part(elements, _shape(of_all))
            return
        if value.combined is Combined.ROWS:
            count = math.prod(_shape(value.tensor))
            sent = slice(first := elements.start + count * self._communicator.rank, first + count)
        self.own[value.own], self.of_all[value.of_all] = (Tensor.zeros(tensor) for tensor in (value.tensor, of_all))
        self._copied.append(_Copied(self.own[value.own].array, sent, self.of_all[value.of_all].array, elements))
        if value.combined is Combined.GRADIENT_SUM:
            self._gradient_sums.append(elements)

    def __call__(self, samples: int, checksum: int, failure: Exception | None, batches: int = 0) -> int:
        """Combine the values of all workers.

        Args:
            samples: this worker's number of samples; without any, `own` is ignored.
            checksum: of what must be equal on all workers.
            failure: the exception of this worker's part of the step, if it has failed.
            batches: number of batches that the samples are of.

        Returns:
            The largest number of batches of a worker.

        Raises:
            WorkerError: another worker has failed or ended; checksums that differ. `failure`, if there is one.
            StepError: no worker has a sample; a sum that overflows its dtype.
        """
        rank = self._communicator.rank
        if failure is None and samples:
            for value in self._copied:
                self._sent.array[value.sent] = value.own.reshape(-1)
            self._sent.array[self._weighted] *= samples
        else:
            self._sent.array[...] = 0
        counts, checksums, numbers = self._exchanged(samples if failure is None else FAILED, checksum, batches)
        left = np.flatnonzero(counts == LEFT)
        if left.size:
            forget(self._communicator)
            raise WorkerError(f"worker {listed(left)} has ended, while worker {rank} makes a step") from failure
        if failure is not None:
            raise failure
        failed = np.flatnonzero(counts == FAILED)
        if failed.size:
            raise WorkerError(f"worker {listed(failed)} has failed in this step, and says why; the state is as before")
        check_equal(checksums, "the state that was loaded, the steps that were made, the seed or the settings")
        total = int(counts.sum(dtype=np.float64))
        if not total:
            raise StepError("no worker has a sample for this step")
        self._combine(samples, total)
        return int(numbers.max())

    def leave(self) -> None:
        """Tell workers that wait in this exchange that this one ends. All that end take part in the message."""
        self._sent.array[...] = 0
        self._exchanged(LEFT, 0, 0)

    def _combine(self, samples: int, total: int) -> None:
        """Compute the combined values from the sums over the workers."""
        received = self._received.array
        for sums in self._gradient_sums:
            received[sums] *= total / samples if samples else 0.0
        received[self._weighted] /= total
        for value in self._copied:
            values = received[value.received]
            if value.of_all.dtype.kind == "i" and values.size and values.max() > np.iinfo(value.of_all.dtype).max:
                raise StepError(f"all workers count {values.max():.0f} elements, more than {value.of_all.dtype} holds")
            value.of_all[...] = values.reshape(value.of_all.shape)

    def _exchanged(self, *own: int) -> np.ndarray:
        """Do the Allreduce with this worker's count, checksum and number of batches: those of all workers, by rank."""
        workers, rank = self._communicator.size, self._communicator.rank
        sent, received = self._sent.array, self._received.array
        sent[: len(own) * workers] = 0
        sent[rank : len(own) * workers : workers] = own
        self._communicator.Allreduce(sent, received)
        return received[: len(own) * workers].reshape(len(own), workers).copy()


_ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


def _shape(tensor: TensorType) -> tuple[int, ...]:
    """The shape of a tensor whose dimensions are all known."""
    return tuple(dim for dim in tensor.shape or () if isinstance(dim, int))


def _aligned(count: int, dtype: np.dtype) -> int:
    """The first aligned offset, in elements, from `count` on."""
    per_line = ALIGNMENT // dtype.itemsize
    return -(-count // per_line) * per_line
