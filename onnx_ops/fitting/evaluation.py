"""The loss and the other metrics of a data set."""

from __future__ import annotations

import itertools
from typing import Any

from onnx_ops.fitting.data import Data, check_makes_batches, open_data
from onnx_ops.fitting.metrics import Means, Metrics, metric_names
from onnx_ops.fitting.progress import Advance
from onnx_ops.training.errors import StepError
from onnx_ops.training.trainer import Trainer, step_of
from onnx_ops.training.trainer_step import Mode, TrainerStep


def evaluate(
    trainer: Trainer,
    data: Any,
    *,
    batch_size: int | None = None,
    step: str = "",
    cast: bool = False,
    mode: Mode = "eval",
) -> dict[str, float]:
    """The loss and the other metrics of a data set on the current state, which does not change.

    Metrics are the single floating numbers that `Trainer.evaluate` reports, as means over the samples. If the step
    fixes the batch size, the remainder of the data is dropped. With a communicator, each worker evaluates all data.

    Args:
        trainer: has the state.
        data: as for `fit`.
        batch_size: number of samples in a batch; by default that of the step if it is fixed, else 32.
        step: of a trainer with several steps the one that is evaluated.
        cast: whether arrays are converted to the dtypes of the step, as by `fit`.
        mode: "eval" for the loss in evaluation mode, of a step captured with `evaluation=True`; "train" for the loss as
            the step computes it.

    Returns:
        The metrics by name, the loss first.

    Raises:
        StepError: what `Trainer.evaluate` refuses; data that do not fit the step, or have no samples.
        OSError: a file that cannot be read.
    """
    evaluated = step_of(trainer, step)
    check_evaluation(evaluated, mode, "mode")
    opened = open_data(
        data, "the data", evaluated, batch_size=batch_size, batch_dimension=trainer.batch_dimension, cast=cast
    )
    check_makes_batches(opened, "the data", batch_size, cast)
    return metrics_of(evaluated, opened, mode)


def check_evaluation(step: TrainerStep, mode: Mode, option: str) -> None:
    """Raise StepError for what is no mode, and for "eval" of a step without evaluation graph; `option` chooses it."""
    if mode not in ("eval", "train"):
        raise StepError(f"the {option.replace('_', ' ')} is {mode!r}, expected 'eval' or 'train'")
    if mode == "eval" and not step.has_evaluation_graph:
        raise StepError(
            "the step has no evaluation graph: capture it with training_step(..., evaluation=True), or use"
            f" {option}='train' (--{option.replace('_', '-')} train) for the loss as the step computes it"
        )


def metrics_of(
    step: TrainerStep,
    data: Data,
    mode: Mode,
    epoch: int = 0,
    *,
    batches: int | None = None,
    advance: Advance = lambda done, total, what: None,
) -> Metrics:
    """The metrics of the data of an epoch.

    Args:
        step, data, mode: what is evaluated, on which data, and how.
        epoch: of the data, counted from 0.
        batches: at most that many of them; by default all.
        advance: called after each batch.

    Raises:
        StepError: what `TrainerStep.evaluate` refuses; data without a batch.
    """
    means = Means(metric_names(step.model, mode))
    for number, batch in enumerate(itertools.islice(data.epoch(None, epoch), batches), 1):
        try:
            reported = step.evaluate(mode, **batch.arrays)
        except StepError as error:
            raise type(error)(f"batch {number} of the evaluation: {error}") from error
        means.add(reported, batch.samples)
        advance(number, data.steps, "evaluating")
    if not means.samples:
        raise StepError("the data have no batches to evaluate, expected at least one")
    return means.means
