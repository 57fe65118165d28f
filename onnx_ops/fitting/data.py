"""The data of a training or an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from onnx_ops.fitting.samples import ALONE, Batch, Samples, Worker
from onnx_ops.fitting.sources import open_table
from onnx_ops.fitting.streams import Stream
from onnx_ops.fitting.whole import whole_number
from onnx_ops.training.errors import StepError
from onnx_ops.training.trainer_step import TrainerStep


class Data(Protocol):
    """The batches of each epoch: `Samples` or `Stream`."""

    @property
    def count(self) -> int | None:
        """Number of samples; None if it is not known."""

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a batch; None if it is not known."""

    @property
    def steps(self) -> int | None:
        """Number of batches in an epoch; None if it is not known."""

    @property
    def left_out(self) -> int:
        """Number of samples that each epoch drops."""

    def epoch(self, seed: int | None, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, counted from 0, from number `start` on."""


def open_data(
    data: Any,
    label: str,
    step: TrainerStep,
    *,
    batch_size: int | None = None,
    batch_dimension: str | None = None,
    cast: bool = False,
    worker: Worker = ALONE,
) -> Data:
    """The data that `fit` takes.

    Args:
        data: as for `fit`.
        label: of the data in messages, unless they are a file.
        step: whose inputs they are.
        batch_size: of data that are no iterable; by default that of the step if it is fixed, else 32.
        batch_dimension: name of the batch dimension, if any.
        cast: whether the arrays of data that are no iterable are converted.
        worker: who takes the batches.

    Raises:
        OSError, StepError: as `fit`.
    """
    if batch_size is not None:
        batch_size = whole_number("the batch size", batch_size, 1)
    table = open_table(data, label, step.batch_inputs, cast=cast)
    if table is not None:
        return Samples.of(table, step.batch_inputs, batch_size, batch_dimension, worker)
    stream = Stream(data, label, step.batch_inputs, batch_dimension)
    if worker.workers > 1:
        raise StepError(f"{label} are an iterable, of which workers cannot take parts: pass arrays or a path")
    return stream


def check_makes_batches(data: Data, label: str, batch_size: int | None, cast: bool) -> None:
    """Raise StepError for options of the batches of an iterable, which makes its own."""
    for name, given in (("batch_size", batch_size), ("cast", cast or None)):
        if isinstance(data, Stream) and given is not None:
            raise StepError(f"{name} is {given}, but {label} are an iterable, which makes its own batches")
