"""Parts of the commands that train: signals, options as schedules, and the plot of the losses."""

from __future__ import annotations

import dataclasses
import importlib.util
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import BinaryIO

from onnx_ops.cli.choices import Better, ScheduleName
from onnx_ops.fitting.data import Data
from onnx_ops.fitting.metrics import VALIDATION
from onnx_ops.fitting.run import Run
from onnx_ops.fitting.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    Schedule,
    SequentialLR,
)
from onnx_ops.training.errors import StepError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def schedule_named(
    name: ScheduleName | None,
    warm_up: int,
    factor: float | None,
    patience: int | None,
    rate: float | None,
    mode: Better,
) -> Schedule | None:
    """The schedule of the command line's options.

    Args:
        name: of the schedule; None for that of a checkpoint that is resumed, or none.
        warm_up: number of steps in which the learning rate rises linearly from a small part of it.
        factor: end of the linear schedule, or of each reduction of the one for plateaus.
        patience: of the schedule for plateaus.
        rate: the learning rate; the highest one of the schedule of one cycle.
        mode: of the monitored metric.

    Raises:
        StepError: options that do not fit each other.
    """
    if factor is not None and name not in (ScheduleName.LINEAR, ScheduleName.PLATEAU):
        raise StepError("--factor is that of the schedules linear and plateau")
    if patience is not None and name is not ScheduleName.PLATEAU:
        raise StepError("--schedule-patience is that of the schedule plateau")
    if warm_up and name in (ScheduleName.ONE_CYCLE, ScheduleName.PLATEAU):
        raise StepError(f"--warm-up is not possible with the schedule {name}")
    schedule: Schedule
    match name:
        case ScheduleName.ONE_CYCLE:
            if rate is None:
                raise StepError("the schedule one-cycle needs --learning-rate, its highest one")
            return OneCycleLR(rate)
        case ScheduleName.PLATEAU:
            usual = ReduceLROnPlateau(mode.value)
            return dataclasses.replace(
                usual,
                factor=usual.factor if factor is None else factor,
                patience=usual.patience if patience is None else patience,
            )
        case ScheduleName.LINEAR:
            schedule = LinearLR(1.0, 0.0 if factor is None else factor, None)
        case ScheduleName.COSINE:
            schedule = CosineAnnealingLR()
        case _ if warm_up or name is ScheduleName.CONSTANT:
            schedule = ConstantLR(1.0)
        case _:
            return None
    rising = LinearLR(1 / (warm_up + 1), 1.0, warm_up) if warm_up else None
    return schedule if rising is None else SequentialLR((rising, schedule), (warm_up,))


class Stopping:
    """A context in which the first SIGINT or SIGTERM is recorded instead of ending the process.

    Attributes:
        signal: number of the received signal, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Stopping:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self.__exit__()


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def plot_losses(path: Path, run: Run[Data], step: str) -> None:
    """Plot the losses of training and validation as a PNG; OSError for a file that cannot be written."""
    name = next(iter(run.history[0].training), "loss") if run.history else "loss"
    validation = [epoch.metrics[VALIDATION + name] for epoch in run.history if VALIDATION + name in epoch.metrics]
    curves = {"training": run.losses} | ({"validation": validation} if validation else {})
    best = f"best {run.monitor.metric}"
    plot_curves(path, f"Training of {step}", name, curves, {} if run.best is None else {best: run.best + 1})


def plot_curves(
    path: Path | BinaryIO,
    title: str,
    quantity: str,
    curves: Mapping[str, Sequence[float]],
    marked: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Plot a quantity of each epoch, several curves with a legend.

    Args:
        path: a PNG.
        title: of the plot.
        quantity: what the curves show, means over the samples.
        curves: by name, a value for each epoch.
        marked: epochs by name, counted from 1.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    epochs = max(map(len, curves.values()), default=0)
    for label, values in curves.items():
        axes.plot(range(1, len(values) + 1), values, marker="o" if epochs < 30 else None, markersize=4, label=label)
    for label, epoch in marked.items():
        axes.axvline(epoch, color="gray", linestyle="--", linewidth=1, zorder=1, label=f"{label}: epoch {epoch}")
    axes.set_xlim(0.5, epochs + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_title(title, parse_math=False)
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{quantity} (mean over the samples)", parse_math=False)
    for text in axes.legend().get_texts():
        text.set_parse_math(False)
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=120)
