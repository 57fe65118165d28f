"""Training on data for some epochs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ops.fitting.data import Data, check_makes_batches, open_data
from onnx_ops.fitting.evaluation import check_evaluation
from onnx_ops.fitting.logs import Logs, check_log_names, row_of
from onnx_ops.fitting.metrics import VALIDATION, metric_names
from onnx_ops.fitting.monitoring import Ending, Monitor
from onnx_ops.fitting.monitoring import Mode as MonitorMode
from onnx_ops.fitting.progress import Advance, progress_bar
from onnx_ops.fitting.run import Checkpoint, Epoch, Record, Run, learning_rates
from onnx_ops.fitting.samples import ALONE, Worker
from onnx_ops.fitting.schedules import ReduceLROnPlateau, Schedule, schedule_of
from onnx_ops.fitting.whole import whole_number
from onnx_ops.graph.staging import is_replaceable, reserved
from onnx_ops.training.errors import StepError
from onnx_ops.training.learning_rates import rates_of_groups
from onnx_ops.training.trainer import Trainer, step_of
from onnx_ops.training.trainer_step import Mode, TrainerStep

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Options:
    """How a training is made; what is None is that of the training that is resumed, else the default of `fit`.

    Attributes: as the arguments of `fit`.
    """

    epochs: int | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    step: str = ""
    seed: int | None = None
    shuffle: bool | None = None
    cast: bool = False
    learning_rate: float | Sequence[float] | None = None
    schedule: Schedule | None = None
    validation_mode: Mode = "eval"
    monitor: str | None = None
    mode: MonitorMode | None = None
    patience: int | None = None
    min_delta: float | None = None


def fit(
    trainer: Trainer,
    data: Any,
    *,
    validation: Any = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    accumulate: int | None = None,
    step: str = "",
    seed: int | None = None,
    shuffle: bool | None = None,
    cast: bool = False,
    learning_rate: float | Sequence[float] | None = None,
    schedule: Schedule | None = None,
    validation_mode: Mode = "eval",
    monitor: str | None = None,
    mode: MonitorMode | None = None,
    patience: int | None = None,
    min_delta: float | None = None,
    checkpoint: PathLike | None = None,
    best: PathLike | None = None,
    resume: bool = False,
    logs: Sequence[PathLike] = (),
    tensorboard: PathLike | None = None,
    progress: bool = True,
) -> list[Epoch]:
    """Train for some epochs.

    The data are one of:

    - arrays by name, an array for each of `Trainer.batch_inputs`, also memory-mapped ones;
    - the path of an .npz file, of a safetensors file, of a Parquet file, or of a folder of .npy files, of Parquet files
      or of a data set that `datasets.Dataset.save_to_disk` has written. All but .npz files may be larger than memory;
    - a `datasets.Dataset`;
    - an iterable of batches, which are mappings of names to arrays (or tensors), or a function that returns the
      iterable of an epoch, counted from 0.

    The first axis of each array is the batch axis, or the one that has the trainer's `batch_dimension`; an array of
    exactly the shape of its input is passed whole to each step. The samples are shuffled in each epoch, by seed and
    number of the epoch; iterables have their own order. If the step fixes the batch size, the remainder of each epoch
    is dropped.

    Metrics are the single floating numbers that the step reports, the loss first, as means over the samples; those of
    the validation data are named `validation.<name>`.

    With a communicator all workers pass the same data, of each batch of which they take a part, and each evaluates all
    validation data. Only worker 0 writes files. `accumulate` and iterables are then refused.

    A training that is resumed from its checkpoint gives the same bits as an uninterrupted one, if iterables make the
    same batches again. Settings that are not given are those of the first one. Those that are given must be the same,
    except for `epochs`, `learning_rate`, `patience` and `min_delta`.

    Args:
        trainer: makes the steps.
        data: to train on.
        validation: data to evaluate after each epoch.
        epochs: total number, including those before a checkpoint that is resumed; by default 1.
        batch_size: number of samples in a batch, of all workers; by default that of the step if it is fixed, else 32.
        accumulate: number of batches in a step, as by `Trainer.accumulate`; by default 1.
        step: of a trainer with several steps the one that is trained.
        seed: of the order of the samples; by default 0.
        shuffle: whether samples are shuffled; by default they are.
        cast: whether arrays are converted to the dtypes of the step: floating numbers and integers among themselves,
            and integers to floating numbers.
        learning_rate: from now on; with a schedule the one that it starts from. By default that of the trainer.
        schedule: of the learning rate, such as `onnx_ops.CosineAnnealingLR()`; by default it does not change.
        validation_mode: "eval" for the loss in evaluation mode, of a step captured with `evaluation=True`; "train" for
            the loss as the step computes it.
        monitor: the metric that decides on the best epoch; by default the loss, that of the validation data if any.
        mode: whether the "min" or "max" of that metric is best; by default "min".
        patience: number of epochs without an improvement of that metric after which the training stops.
        min_delta: how much better a metric must be to be an improvement for `patience`; by default 0.
        checkpoint: a safetensors file that is written after each epoch.
        best: a safetensors file that is written after each epoch that is the best so far.
        resume: whether to resume from `checkpoint`, if that file exists.
        logs: files .csv or .jsonl, to which the metrics of each epoch are written.
        tensorboard: a folder for the same as an event file of TensorBoard.
        progress: whether to print the metrics of each epoch, and to show a progress bar on a terminal.

    Returns:
        The finished epochs, with those before a checkpoint that is resumed.

    Raises:
        StepError: what `Trainer.step` and `Trainer.evaluate` refuse, after which the trainer has the state before that
            batch; data, options or a checkpoint that do not fit the step or each other; a checkpoint that exists,
            unless it is resumed.
        OSError: a file that cannot be read or written.
    """
    if not isinstance(trainer, Trainer):
        raise StepError(f"the trainer is a {type(trainer).__name__}, expected an onnx_ops.Trainer")
    options = Options(
        epochs,
        batch_size,
        accumulate,
        step,
        seed,
        shuffle,
        cast,
        learning_rate,
        schedule,
        validation_mode,
        monitor,
        mode,
        patience,
        min_delta,
    )
    files = Files.of(checkpoint, best, logs, tensorboard, read=(data, validation))
    is_shown = progress and _leads(trainer)

    def show(run: Run[Data]) -> None:
        if is_shown:
            print(epoch_text(run), flush=True)

    with files.reserved() if _leads(trainer) else contextlib.nullcontext():
        run = prepared(trainer, data, validation, options, files.resumed(resume))
        with progress_bar(is_shown) as advance:
            complete(run, files, advance=advance, after=show)
    return list(run.history)


@dataclass(frozen=True)
class Files:
    """The files of a training; attributes as the arguments of `fit`."""

    checkpoint: Path | None = None
    best: Path | None = None
    logs: tuple[Path, ...] = ()
    tensorboard: Path | None = None

    @classmethod
    def of(
        cls,
        checkpoint: PathLike | None,
        best: PathLike | None,
        logs: Iterable[PathLike],
        tensorboard: PathLike | None,
        others: Iterable[Path | None] = (),
        read: Iterable[Any] = (),
    ) -> Files:
        """The files of these paths, checked before the first epoch.

        Args:
            checkpoint, best, logs, tensorboard: as of `fit`.
            others: further files that are written.
            read: data and files that are read; what is no path is ignored.

        Raises:
            StepError: folders that do not exist; logs of other formats; a file that is written twice, or read too.
        """
        files = cls(
            None if checkpoint is None else Path(checkpoint),
            None if best is None else Path(best),
            tuple(map(Path, logs)),
            None if tensorboard is None else Path(tensorboard),
        )
        check_log_names(files.logs)
        uses = {Path(path).resolve(): "read" for path in read if isinstance(path, str | os.PathLike)}
        for path in filter(None, (files.checkpoint, files.best, *files.logs, *others)):
            if not path.parent.is_dir():
                raise StepError(f"there is no folder {path.parent}")
            if path.resolve() in uses:
                raise StepError(f"{path} is to be written, but it is also {uses[path.resolve()]}: name another file")
            uses[path.resolve()] = "written with something else"
        for path in filter(None, (files.checkpoint, files.best)):
            if not is_replaceable(path):
                raise StepError(f"cannot write {path}: it is no regular file")
        return files

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """A context in which no other process writes the checkpoints; OSError if another one does."""
        with contextlib.ExitStack() as stack:
            for path in filter(None, (self.checkpoint, self.best)):
                stack.enter_context(reserved(path))
            yield

    def resumed(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to resume from, if it exists; errors as `Checkpoint.read`, and StepError for one that may not.

        That is one that exists, and is not to be resumed.
        """
        if resume and self.checkpoint is None:
            raise StepError("a training is resumed from its checkpoint, and there is no path of one")
        if self.checkpoint is None or not self.checkpoint.exists():
            return None
        if not resume:
            raise StepError(
                f"{self.checkpoint} exists already: use resume=True (--resume) to continue, or another file to start a"
                " new training"
            )
        return Checkpoint.read(self.checkpoint)


def prepared(
    trainer: Trainer, data: Any, validation: Any, options: Options, checkpoint: Checkpoint | None = None
) -> Run[Data]:
    """A new training, or one that is resumed from a checkpoint.

    Raises:
        OSError, StepError: as `fit`.
    """
    step = step_of(trainer, options.step)
    if checkpoint is not None:
        options = _with_settings(options, checkpoint.record)
    accumulate = 1 if options.accumulate is None else options.accumulate
    accumulate = whole_number("the number of batches in a step", accumulate, 1)
    communicator = trainer.communicator
    if accumulate > 1 and communicator is not None:
        raise StepError("several batches in a step are not counted over workers: use a larger batch size instead")
    worker = ALONE if communicator is None else Worker(communicator.rank, communicator.size)
    sizes: dict[str, Any] = {"batch_dimension": trainer.batch_dimension, "cast": options.cast}
    training = open_data(data, "the data", step, batch_size=options.batch_size, worker=worker, **sizes)
    check_makes_batches(training, "the data", options.batch_size, options.cast)
    evaluated = None
    if validation is not None:
        check_evaluation(step, options.validation_mode, "validation_mode")
        share = training.batch_size and max(training.batch_size // worker.workers, 1)
        evaluated = open_data(validation, "the validation data", step, batch_size=share, **sizes)
    run = Run(
        trainer,
        training,
        whole_number("the seed", 0 if options.seed is None else options.seed, 0),
        options.step,
        options.shuffle is not False,
        accumulate,
        validation=evaluated,
        validation_mode=options.validation_mode,
        monitor=_monitor(step, options, evaluated is not None),
        ending=_ending(options, Ending() if checkpoint is None else checkpoint.record.ending),
    )
    if options.schedule is not None:
        _set_schedule(run, step, options.schedule)
    if checkpoint is not None:
        run.resume(checkpoint)
    if options.learning_rate is not None:
        step.learning_rate = options.learning_rate
        if run.schedule is not None:
            run.rates = tuple(map(float, rates_of_groups(options.learning_rate, len(run.rates))))
    return run


def _with_settings(options: Options, record: Record) -> Options:
    """The options, with those of the training that is resumed in place of None."""
    before = record.settings
    defaults = {
        name: before[name]
        for name in ("batch_size", "accumulate", "seed", "shuffle", "monitor", "mode")
        if getattr(options, name) is None and before.get(name) is not None
    }
    if options.schedule is None and before.get("schedule") is not None:
        defaults["schedule"] = schedule_of(before["schedule"])
    return dataclasses.replace(options, **defaults)


def _ending(options: Options, default: Ending) -> Ending:
    """The ending that the options name; StepError for one that is not possible."""
    given = {name: getattr(options, name) for name in ("epochs", "patience", "min_delta")}
    return dataclasses.replace(default, **{name: value for name, value in given.items() if value is not None})


def _monitor(step: TrainerStep, options: Options, validated: bool) -> Monitor:
    """The metric that the options name, else the loss; StepError for a metric that the step does not report."""
    training = metric_names(step.model)
    validation: list[str] = []
    if validated:
        validation = metric_names(step.model, options.validation_mode)
    known = [*training, *(VALIDATION + name for name in validation)]
    default = next((VALIDATION + name for name in validation), next(iter(training), ""))
    metric = default if options.monitor is None else options.monitor
    if options.monitor is not None and metric not in known:
        raise StepError(f"there is no metric '{metric}' to monitor, expected one of {', '.join(map(repr, known))}")
    mode = "min" if options.mode is None else options.mode
    if mode not in ("min", "max"):
        raise StepError(f"the mode is {mode!r}, expected 'min' or 'max'")
    if isinstance(options.schedule, ReduceLROnPlateau) and options.schedule.mode != mode:
        raise StepError(f"ReduceLROnPlateau has mode={options.schedule.mode!r}, but '{metric}' has mode={mode!r}")
    return Monitor(metric, mode)


def _set_schedule(run: Run[Data], step: TrainerStep, schedule: Schedule) -> None:
    """Let a run have a schedule; StepError for what is none, or spans a number of steps that is not known."""
    if not isinstance(schedule, Schedule):
        raise StepError(f"the schedule is {schedule!r}, expected one such as onnx_ops.CosineAnnealingLR()")
    run.rates = learning_rates(step)
    if not run.rates:
        raise StepError(f"the step has no learning rate, which {type(schedule).__name__} could change")
    if schedule.needs_length:
        if run.steps is None:
            raise StepError(
                f"{type(schedule).__name__} goes over the whole training, whose number of steps is not known, as"
                " the data have no len(): pass the schedule its length"
            )
        run.length = run.ending.epochs * run.steps
    run.schedule = schedule


def complete(
    run: Run[Data],
    files: Files,
    *,
    interrupted: Callable[[], bool] = lambda: False,
    advance: Advance = lambda done, total, what: None,
    after: Callable[[Run[Data]], None] = lambda run: None,
) -> None:
    """Train to the end, and write checkpoints and logs.

    Args:
        run: the training.
        files: what to write.
        interrupted: whether to end after the current step.
        advance: called after each step.
        after: called after each epoch.
    """
    if not _leads(run.trainer):
        files = Files()
    epochs = run.ending.epochs
    with Logs(files.logs, files.tensorboard, run.history) as logs:
        while not run.ended and not interrupted():
            loss = run.advance()
            done = run.epoch * (run.steps or 0) + run.step
            text = f"epoch {min(run.epoch + 1, epochs)} of {epochs}: loss {loss:.4g}"
            advance(done, None if run.steps is None else epochs * run.steps, text)
            if run.step == 0:
                if files.best is not None and run.best == run.epoch - 1:
                    run.save(files.best)
                if files.checkpoint is not None:
                    run.save(files.checkpoint)
                logs.add(run.epoch, run.history[-1])
                after(run)
        if files.checkpoint is not None and (run.step or not files.checkpoint.exists()):
            run.save(files.checkpoint)


def epoch_text(run: Run[Data]) -> str:
    """The last epoch in one line."""
    row = row_of(run.epoch, run.history[-1])
    shown = {name: value for name, value in row.items() if name not in ("epoch", "steps")}
    if run.schedule is None:
        shown = {name: value for name, value in shown.items() if name in run.history[-1].metrics}
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in shown.items())
    return f"epoch {run.epoch} of {run.ending.epochs}: {metrics}"


def _leads(trainer: Trainer) -> bool:
    """Whether this worker writes files and shows the progress."""
    return trainer.communicator is None or trainer.communicator.rank == 0
