"""Training in epochs, which can be interrupted and resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from onnx_ops.core.step_format import RUN_METADATA
from onnx_ops.graph.stored import StoredTensor
from onnx_ops.training.checkpoints import open_checkpoint
from onnx_ops.training.errors import StepError
from onnx_ops.training.samples import Samples
from onnx_ops.training.trainer import Trainer


@dataclass
class Run:
    """A training in epochs.

    Attributes:
        trainer: makes the steps.
        samples: the training data.
        seed: of the order of the samples.
        losses: for each finished epoch the mean loss over its samples.
        step: number of steps made in the current epoch.
        total: sum of the losses of the samples of those steps.
    """

    trainer: Trainer
    samples: Samples
    seed: int = 0
    losses: list[float] = field(default_factory=list)
    step: int = 0
    total: float = 0.0
    _order: np.ndarray | None = None

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return len(self.losses)

    def advance(self) -> float:
        """Make one step.

        Returns:
            The loss: the first output that the step reports.

        Raises:
            StepError: what `Trainer.step` refuses; a step whose first output is no single number.
        """
        if self._order is None:
            self._order = self.samples.order(self.seed, self.epoch)
        try:
            reported = self.trainer.step(**self.samples.batch(self._order, self.step))
        except StepError as error:
            raise type(error)(f"step {self.step + 1} of epoch {self.epoch + 1}: {error}") from error
        if not reported:
            raise StepError("the step reports nothing, expected the loss")
        name, value = next(iter(reported.items()))
        if value.size != 1:
            raise StepError(f"the step reports '{name}' of shape {value.shape} first, expected the loss, one number")
        loss = float(value.reshape(()))
        self.total += loss * len(self.samples.chosen(self._order, self.step))
        self.step += 1
        if self.step == self.samples.steps:
            self.losses.append(self.total / (self.samples.count - self.samples.left_out))
            self.step, self.total, self._order = 0, 0.0, None
        return loss

    def save(self, path: Path) -> None:
        """Write a checkpoint with the state and the progress; errors as `Trainer.save`."""
        record = Record(
            self.seed, self.samples.count, self.samples.batch_size, tuple(self.losses), self.step, self.total
        )
        self.trainer.save(path, {RUN_METADATA: json.dumps(asdict(record))})

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume the training that has written a checkpoint.

        Raises:
            StepError: a training with another seed, number of samples or batch size; a state that does not fit the
                step.
        """
        record = checkpoint.record
        for what, before, now in (
            ("seed", record.seed, self.seed),
            ("number of samples", record.samples, self.samples.count),
            ("batch size", record.batch_size, self.samples.batch_size),
        ):
            if before != now:
                raise StepError(f"the {what} is {now}, expected {before}, as in the training that is resumed")
        if not 0 <= record.step < self.samples.steps:
            raise StepError(f"{record.step} steps of an epoch are done, which has {self.samples.steps}")
        self.trainer.load_state_dict(checkpoint.state)
        self.losses, self.step, self.total = list(record.losses), record.step, record.total
        self._order = None


@dataclass(frozen=True)
class Record:
    """The progress of a training, as stored in its checkpoint; fields as in `Run` and `Samples`."""

    seed: int
    samples: int
    batch_size: int
    losses: tuple[float, ...]
    step: int
    total: float


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a training in epochs.

    Attributes:
        state: read from the file when it is loaded; until then the file is open.
        record: the progress.
    """

    state: Mapping[str, StoredTensor]
    record: Record

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Open a checkpoint; errors as `Trainer.load`, and StepError for one without the progress of a training."""
        state, metadata = open_checkpoint(path)
        if RUN_METADATA not in metadata:
            raise StepError(f"{path} is no checkpoint of a training in epochs: its metadata have no '{RUN_METADATA}'")
        try:
            found = json.loads(metadata[RUN_METADATA])
            numbers = {name: int(found[name]) for name in ("seed", "samples", "batch_size", "step")}
            return cls(state, Record(losses=tuple(map(float, found["losses"])), total=float(found["total"]), **numbers))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StepError(f"{path} does not say how far its training has come: {error!r}") from error
