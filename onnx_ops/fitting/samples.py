"""Samples in columns, and the batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from onnx_ops.core.types import TensorType, shape_text
from onnx_ops.fitting.columns import Column, Table, converted
from onnx_ops.training.arrays import numpy_dtype, tensor_text
from onnx_ops.training.batch_axis import check_dimension
from onnx_ops.training.errors import StepError

USUAL_BATCH_SIZE = 32


class Worker(NamedTuple):
    """One of several workers, each of which takes a part of each batch."""

    rank: int = 0
    workers: int = 1


ALONE = Worker()


class Batch(NamedTuple):
    """A batch.

    Attributes:
        arrays: by name; of several workers those of this worker.
        samples: number of samples, of all workers.
    """

    arrays: dict[str, np.ndarray]
    samples: int


@dataclass(frozen=True)
class Samples:
    """The samples of a training.

    Attributes:
        arrays: by the names of the step's inputs.
        axes: for each input the batch axis of its array; an array without one is passed whole to each step.
        count: number of samples; 1 if all arrays are passed whole.
        batch_size: number of samples in a batch, of all workers.
        fixed: whether the step takes no smaller batch, so that the remainder of each epoch is dropped.
        dtypes: those that arrays are converted to; arrays without an entry are not.
        worker: who takes the batches.
    """

    arrays: Mapping[str, Column]
    axes: Mapping[str, int]
    count: int
    batch_size: int
    fixed: bool
    dtypes: Mapping[str, np.dtype] = field(default_factory=dict)
    worker: Worker = ALONE

    @classmethod
    def of(
        cls,
        table: Table,
        inputs: Mapping[str, TensorType],
        batch_size: int | None = None,
        batch_dimension: str | None = None,
        worker: Worker = ALONE,
    ) -> Samples:
        """Determine the batch axes.

        With `batch_dimension`, the batch axis of an input is the dimension of that name; an array whose input has none
        is passed whole. Without it, the batch axis is the first one if its dimension in the step is symbolic or
        unknown; symbolic ones must have the same name. If that dimension is fixed, the array is passed whole if it has
        that size, else its batch axis is the first one.

        Args:
            table: a column for each of `inputs`.
            inputs: the inputs of the step's batch.
            batch_size: number of samples in a batch, of all workers; by default that of the step if it is fixed, times
                the number of workers, else 32.
            batch_dimension: name of a dimension.
            worker: who takes the batches.

        Raises:
            StepError: an ambiguous batch axis; arrays with different numbers of samples, or none; a batch size that the
                step does not take.
        """
        check_dimension(inputs, batch_dimension)
        arrays = table.columns
        axes = {
            name: axis
            for name, tensor in inputs.items()
            if (axis := _axis(arrays[name].shape, tensor, batch_dimension)) is not None
        }
        for name, tensor in inputs.items():
            if not _fits(arrays[name].shape, tensor, axes.get(name)):
                given = f"{arrays[name].dtype} {shape_text(arrays[name].shape)}"
                raise StepError(f"'{name}' of {table.label} is {given}, expected {tensor_text(tensor)}")
        counts = {arrays[name].shape[axis]: name for name, axis in axes.items()}
        if len(counts) > 1:
            listed = ", ".join(f"{count} of '{name}'" for count, name in counts.items())
            raise StepError(f"the arrays of {table.label} have different numbers of samples: {listed}")
        count = next(iter(counts), 1)
        sizes = {size for name, axis in axes.items() if isinstance(size := (inputs[name].shape or (None,))[axis], int)}
        if len(sizes) > 1:
            raise StepError(f"the step takes {' and '.join(map(str, sorted(sizes)))} samples at a time")
        fixed = next((size * worker.workers for size in sizes), None)
        if fixed is not None and batch_size not in (None, fixed):
            raise StepError(f"the batch size is {batch_size}, expected {fixed}, as the step takes no other")
        size = fixed or batch_size or min(USUAL_BATCH_SIZE, count)
        if count < (1 if fixed is None else fixed):
            raise StepError(f"{table.label} has {count} samples, expected at least {fixed or 1}")
        dtypes = {name: numpy_dtype(tensor) for name, tensor in inputs.items()}
        return cls(arrays, axes, count, size, fixed is not None, dtypes, worker)

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        return self.count // self.batch_size if self.fixed else -(-self.count // self.batch_size)

    @property
    def left_out(self) -> int:
        """Number of samples that each epoch drops, different ones each time."""
        return self.count % self.batch_size if self.fixed else 0

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """A permutation of the samples, a function of seed and epoch."""
        return np.random.default_rng([seed, epoch]).permutation(self.count)

    def epoch(self, seed: int | None, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on, shuffled unless the seed is None."""
        order = np.arange(self.count) if seed is None else self.order(seed, epoch)
        for number in range(start, self.steps):
            yield Batch(self.batch(order, number), len(self.chosen(order, number)))

    def batch(self, order: np.ndarray, number: int) -> dict[str, np.ndarray]:
        """Batch `number`, counted from 0, of an epoch with this order of samples; of several workers its own part."""
        chosen = np.array_split(self.chosen(order, number), self.worker.workers)[self.worker.rank]
        return {
            name: converted(
                name,
                np.asarray(column.take(chosen, self.axes[name]) if name in self.axes else column),
                self.dtypes.get(name, column.dtype),
            )
            for name, column in self.arrays.items()
        }

    def chosen(self, order: np.ndarray, number: int) -> np.ndarray:
        """The indices of the samples in a batch."""
        return order[number * self.batch_size : (number + 1) * self.batch_size]


def _axis(given: tuple[int, ...], tensor: TensorType, batch_dimension: str | None) -> int | None:
    """The batch axis of an array of shape `given`, for an input; None if it is passed whole."""
    shape = tensor.shape
    if batch_dimension is not None:
        return shape.index(batch_dimension) if shape and batch_dimension in shape else None
    if not given or shape == ():
        return None
    first = None if shape is None else shape[0]
    return None if isinstance(first, int) and given[0] == first else 0


def _fits(given: tuple[int, ...], tensor: TensorType, axis: int | None) -> bool:
    """Whether an array of shape `given` has the sizes that an input fixes, apart from its batch axis."""
    if tensor.shape is None:
        return True
    sizes = enumerate(zip(given, tensor.shape, strict=False))
    return len(given) == len(tensor.shape) and all(
        number == axis or not isinstance(wanted, int) or size == wanted for number, (size, wanted) in sizes
    )
