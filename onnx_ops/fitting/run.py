"""Training in epochs, which can be interrupted and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from onnx_ops.core.step_format import RUN_METADATA
from onnx_ops.fitting.data import Data
from onnx_ops.fitting.evaluation import metrics_of
from onnx_ops.fitting.metrics import VALIDATION, Means, Metrics, metric_names
from onnx_ops.fitting.monitoring import Ending, Monitor
from onnx_ops.fitting.samples import Batch
from onnx_ops.fitting.schedules import Schedule
from onnx_ops.graph.stored import StoredTensor
from onnx_ops.training.checkpoints import open_checkpoint
from onnx_ops.training.errors import StepError
from onnx_ops.training.trainer import Trainer, step_of
from onnx_ops.training.trainer_step import Mode, TrainerStep

LOSS = Monitor("")
"""Becomes the loss of a run, whose name depends on the step."""
SETTINGS = {
    "step": "step",
    "seed": "seed",
    "shuffle": "shuffling",
    "samples": "number of samples",
    "batch_size": "batch size",
    "accumulate": "number of batches in a step",
    "schedule": "schedule",
    "schedule_steps": "number of steps of the whole training, over which the schedule goes,",
    "monitor": "monitored metric",
    "mode": "better end of the monitored metric",
}
"""What messages call the settings of a training."""


@dataclass(frozen=True)
class Epoch:
    """A finished epoch.

    Attributes:
        steps: number of steps up to its end, those of earlier epochs among them.
        learning_rate: of its last step, for each parameter group; empty if the step has no learning rate.
        training: means over the samples of what the steps reported, by name.
        validation: the same of the validation data, after the last step.
    """

    steps: int
    learning_rate: tuple[float, ...]
    training: Mapping[str, float]
    validation: Mapping[str, float]

    @property
    def metrics(self) -> Metrics:
        """All metrics by name; those of the validation data begin with "validation."."""
        return dict(self.training) | {VALIDATION + name: value for name, value in self.validation.items()}


DataT_co = TypeVar("DataT_co", bound=Data, covariant=True)


@dataclass
class Run(Generic[DataT_co]):
    """A training in epochs.

    Attributes:
        trainer: makes the steps.
        samples: the training data.
        seed: of the order of the samples.
        step_name: of a trainer with several steps the one that is trained.
        shuffle: whether the samples of each epoch are shuffled.
        accumulate: number of batches in a step.
        schedule: of the learning rates; None to leave them as they are.
        length: number of steps that the schedule spans, if it spans the training.
        rates: the learning rates that the schedule starts from.
        validation: data to evaluate after each epoch.
        validation_mode: as for `Trainer.evaluate`.
        monitor: decides on the best epoch; by default the loss.
        ending: when the training ends.
        history: the finished epochs.
        step: number of steps made in the current epoch.
        means: of the metrics of those steps.
    """

    trainer: Trainer
    samples: DataT_co
    seed: int = 0
    step_name: str = ""
    shuffle: bool = True
    accumulate: int = 1
    schedule: Schedule | None = None
    length: int | None = None
    rates: tuple[float, ...] = ()
    validation: Data | None = None
    validation_mode: Mode = "eval"
    monitor: Monitor = LOSS
    ending: Ending = field(default_factory=Ending)
    history: list[Epoch] = field(default_factory=list)
    step: int = 0
    _batches: Iterator[Batch] | None = None
    _next: Batch | None = None
    _monitored: list[float] = field(default_factory=list)
    """The monitored metric of each finished epoch, when the current one began."""

    def __post_init__(self) -> None:
        self._step = step_of(self.trainer, self.step_name)
        self._names = metric_names(self._step.model)
        self.means = Means(self._names)
        if not self.monitor.metric:
            self.monitor = Monitor(next(iter(self._names), ""), self.monitor.mode)
        if self.schedule is not None and not self.rates:
            self.rates = learning_rates(self._step)

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return len(self.history)

    @property
    def losses(self) -> list[float]:
        """The mean loss of each finished epoch."""
        return [next(iter(epoch.training.values())) for epoch in self.history]

    @property
    def steps(self) -> int | None:
        """Number of steps in an epoch; None if it is not known."""
        known = self.samples.steps
        if known is not None:
            return -(-known // self.accumulate)
        return self.history[0].steps if self.history else None

    @property
    def done(self) -> int:
        """Number of steps made."""
        return (self.history[-1].steps if self.history else 0) + self.step

    @property
    def monitored(self) -> list[float]:
        """The monitored metric of each finished epoch; StepError for one that an epoch does not have."""
        try:
            return [epoch.metrics[self.monitor.metric] for epoch in self.history]
        except KeyError:
            known = ", ".join(f"'{name}'" for name in self.history[-1].metrics)
            raise StepError(f"there is no metric '{self.monitor.metric}' to monitor, expected one of {known}") from None

    @property
    def best(self) -> int | None:
        """The epoch with the best value of the monitored metric, counted from 0; None if there is none."""
        return self.monitor.best(self.monitored)

    @property
    def stopped(self) -> bool:
        """Whether the training has ended for lack of improvement."""
        return self.ending.is_early(self.monitor, self.monitored)

    @property
    def ended(self) -> bool:
        return self.epoch >= self.ending.epochs or self.stopped

    def advance(self) -> float:
        """Make one step, and the validation if it is the last one of its epoch.

        Returns:
            The loss of its last batch: the first output that the step reports.

        Raises:
            StepError: what `Trainer.step` and `Trainer.evaluate` refuse; a step whose first output is no single number;
                data without a batch.
        """
        loss = self._update()
        self.step += 1
        if self._next is None:
            self._end_epoch()
        return loss

    def rehearse(self) -> None:
        """Make a step and evaluate a batch of the validation data, twice: the second time may need more memory.

        The run cannot be continued then.

        Raises:
            StepError: as `advance`.
        """
        for _ in range(2):
            self._batches = None
            self._update()
            if self.validation is not None:
                metrics_of(self._step, self.validation, self.validation_mode, self.epoch, batches=1)

    def _update(self) -> float:
        """Make a step of up to `accumulate` batches; the loss of the last one."""
        if self._batches is None:
            seed = self.seed if self.shuffle else None
            self._batches = self.samples.epoch(seed, self.epoch, self.step * self.accumulate)
            self._next, self._monitored = next(self._batches, None), self.monitored
        if self.schedule is not None:
            schedule = self.schedule if self.length is None else self.schedule.over(self.length)
            self._step.learning_rate = tuple(schedule.rates(self.rates, self.done, self._monitored))
        try:
            for number in range(1, self.accumulate + 1):
                batch, self._next = self._next, next(self._batches, None)
                if batch is None:
                    raise StepError("the data have no batches, expected at least one")
                is_last = number == self.accumulate or self._next is None
                reported = (self._step.step if is_last else self._step.accumulate)(**batch.arrays)
                loss = self.means.add(reported, batch.samples)
                if is_last:
                    break
        except StepError as error:
            raise type(error)(f"step {self.step + 1} of epoch {self.epoch + 1}: {error}") from error
        return loss

    def _end_epoch(self) -> None:
        validation = {}
        if self.validation is not None:
            validation = metrics_of(self._step, self.validation, self.validation_mode, self.epoch)
        self.history.append(Epoch(self.done, learning_rates(self._step), self.means.means, validation))
        self.step, self.means, self._batches = 0, Means(self._names), None

    @property
    def settings(self) -> dict[str, Any]:
        """What a training that resumes this one must have in common with it, by the keys of SETTINGS."""
        return {
            "step": self.step_name,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "samples": self.samples.count,
            "batch_size": self.samples.batch_size,
            "accumulate": self.accumulate,
            "schedule": None if self.schedule is None else json.loads(_json(self.schedule.entry())),
            "schedule_steps": self.length,
            "monitor": self.monitor.metric,
            "mode": self.monitor.mode,
        }

    def save(self, path: Path) -> None:
        """Write a checkpoint with the state and the progress; errors as `Trainer.save`."""
        history = [asdict(epoch) for epoch in self.history]
        means = self.means
        record = Record(self.settings, self.rates, history, self.step, means.totals, means.samples, self.ending)
        self.trainer.save(path, {RUN_METADATA: _json(asdict(record))})

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume the training that has written a checkpoint.

        Raises:
            StepError: a training with other settings; a state that does not fit the step.
        """
        record = checkpoint.record
        for key, now in self.settings.items():
            before = record.settings.get(key)
            if before != now:
                raise StepError(f"the {SETTINGS[key]} is {now}, expected {before}, as in the training that is resumed")
        if self.steps is not None and not 0 <= record.step < self.steps:
            raise StepError(f"{record.step} steps of an epoch are done, which has {self.steps}")
        self.trainer.load_state_dict(checkpoint.state)
        self.rates = record.rates
        self.history, self.step = list(record.epochs), record.step
        self.means, self._batches = Means(self._names, record.totals, record.samples), None


def learning_rates(step: TrainerStep) -> tuple[float, ...]:
    """The learning rates of the parameter groups; none if the step has no such setting."""
    try:
        rate = step.learning_rate
    except StepError:
        return ()
    return rate if isinstance(rate, tuple) else (rate,)


def _json(entry: object) -> str:
    """JSON of an entry whose numbers may be those of NumPy."""

    def number(given: object) -> object:
        if isinstance(given, np.generic):
            return given.item()
        raise TypeError(f"{given!r} cannot be stored in a checkpoint")

    return json.dumps(entry, default=number)


@dataclass(frozen=True)
class Record:
    """The progress of a training, as stored in its checkpoint.

    Attributes:
        settings, rates, step: as of `Run`.
        history: the attributes of its epochs.
        totals, samples: of the metrics in the current epoch, as for `Means`.
        ending: as of `Run`; the default if an earlier version has written the checkpoint.
    """

    settings: dict[str, Any]
    rates: tuple[float, ...]
    history: list[dict[str, Any]]
    step: int
    totals: dict[str, float]
    samples: int
    ending: Ending

    @property
    def epochs(self) -> list[Epoch]:
        return [
            replace(epoch, learning_rate=tuple(epoch.learning_rate)) for epoch in (Epoch(**row) for row in self.history)
        ]

    @property
    def losses(self) -> list[float]:
        """The mean loss of each finished epoch."""
        return [next(iter(epoch.training.values())) for epoch in self.epochs]

    @classmethod
    def parsed(cls, text: str) -> Record:
        """The record in the metadata of a checkpoint; ValueError, TypeError, KeyError or RecursionError for none."""
        found = json.loads(text)
        numbers = {name: int(found[name]) for name in ("step", "samples")}
        totals = {name: float(total) for name, total in found["totals"].items()}
        rates, ending = tuple(map(float, found["rates"])), Ending(**found.get("ending", {}))
        record = cls(found["settings"], rates, found["history"], totals=totals, ending=ending, **numbers)
        if not isinstance(record.settings, dict) or not all(epoch.training for epoch in record.epochs):
            raise TypeError(f"the settings are {record.settings!r} and the history is {record.history!r}")
        return record


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
            return cls(state, Record.parsed(metadata[RUN_METADATA]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StepError(f"{path} does not say how far its training has come: {error!r}") from error
