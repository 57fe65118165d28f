"""Iterables of batches as the data of a training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from onnx_ops.core.types import TensorType
from onnx_ops.fitting.samples import Batch
from onnx_ops.training.batch_axis import counted_axis
from onnx_ops.training.errors import StepError


class Stream:
    """Batches that an iterable makes, in its own order.

    Args:
        data: an iterable of batches, mappings of names to arrays or to what NumPy converts to arrays, such as tensors
            of PyTorch; or a function that returns the iterable of an epoch, counted from 0. Of an iterable with a
            method `set_epoch`, that is called before each epoch.
        label: of the data in messages.
        inputs: the inputs of the step's batch.
        batch_dimension: name of the dimension whose size is the number of samples.

    Attributes:
        count: None: the number of samples is not known.
        steps: number of batches in an epoch; None if it is not known.

    Raises:
        StepError: what is neither; an ambiguous batch axis.
    """

    def __init__(self, data: Any, label: str, inputs: Mapping[str, TensorType], batch_dimension: str | None) -> None:
        if not isinstance(data, Iterable) and not callable(data):
            raise StepError(
                f"{label} are a {type(data).__name__}, expected arrays by name, a path, a data set, an iterable of"
                " batches, or a function that returns the iterable of an epoch"
            )
        self._iterable = data if isinstance(data, Iterable) else None
        self._of_epoch: Callable[[int], Iterable[Any]] | None = None if isinstance(data, Iterable) else data
        self._label, self._counted = label, counted_axis(inputs, batch_dimension)
        self._is_used = False
        self.count: int | None = None
        self.batch_size: int | None = None
        self.left_out = 0
        self.steps: int | None = len(data) if isinstance(data, Sized) else None

    def epoch(self, seed: int | None, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; those before are made and dropped.

        Raises:
            StepError: an iterator, which can be iterated over once, in a second epoch; what is no batch.
        """
        if self._of_epoch is not None:
            found = self._of_epoch(epoch)
            if not isinstance(found, Iterable):
                raise StepError(
                    f"{self._label} are a function that returned a {type(found).__name__}, expected the iterable of an"
                    " epoch"
                )
        else:
            assert self._iterable is not None
            found = self._iterable
            if self._is_used and iter(found) is found:
                raise StepError(
                    f"{self._label} are an iterator, which ends with the first epoch; pass an iterable that can be"
                    " iterated over again, such as a list, or a function that returns the iterable of an epoch"
                )
            self._is_used = True
            if (set_epoch := getattr(found, "set_epoch", None)) is not None:
                set_epoch(epoch)
        return (self._batch(batch) for batch in itertools.islice(found, start, None))

    def _batch(self, batch: object) -> Batch:
        if not isinstance(batch, Mapping):
            raise StepError(
                f"a batch of {self._label} is a {type(batch).__name__}, expected a mapping of names to arrays"
            )
        arrays = {name: _array(value) for name, value in batch.items()}
        if self._counted is None:
            return Batch(arrays, 1)
        name, axis = self._counted
        array = arrays.get(name)
        if not isinstance(array, np.ndarray) or array.ndim <= axis:
            return Batch(arrays, 1)  # which the step refuses
        return Batch(arrays, array.shape[axis])


def _array(value: object) -> Any:
    """What NumPy converts to an array, such as a tensor of PyTorch, as one; anything else as it is."""
    return np.asarray(value) if hasattr(value, "__array__") and not isinstance(value, np.ndarray) else value
