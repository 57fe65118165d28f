"""What the command `train` does beside printing: it makes a training ready, heeds signals, and draws the losses."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType

import onnx_ops
from onnx_ops.training.run import Checkpoint, Run
from onnx_ops.training.samples import Samples, read_arrays

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def prepare(
    step: Path,
    data: Path,
    checkpoint: Checkpoint | None,
    *,
    batch_size: int | None,
    batch_dimension: str | None,
    learning_rate: float | None,
    seed: int | None,
) -> Run:
    """A training from its start, or from a checkpoint; what is not given is as there.

    Raises:
        OSError, StepError, ModelFileError, OpError, LinkError: files that cannot be read, or do not fit each other.
    """
    trainer = onnx_ops.Trainer(step)
    if checkpoint is not None:
        batch_size = checkpoint.record.batch_size if batch_size is None else batch_size
        seed = checkpoint.record.seed if seed is None else seed
    arrays = read_arrays(data, trainer.batch_inputs)
    samples = Samples.of(arrays, trainer.batch_inputs, batch_size, batch_dimension)
    run = Run(trainer, samples, seed or 0)
    if checkpoint is not None:
        run.resume(checkpoint)
    if learning_rate is not None:
        trainer.learning_rate = learning_rate
    return run


class Stopping:
    """While this is entered, a signal to end the process does not end it but is noted; the second one ends it.

    Attributes:
        signal: the number of the signal that has come, if one has.
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


def no_folder(paths: Iterable[Path | None]) -> Path | None:
    """The first of the folders of these files that is not there: to know it after an epoch is too late."""
    return next((path.parent for path in paths if path is not None and not path.parent.is_dir()), None)


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def plot_losses(path: Path, losses: Sequence[float]) -> None:
    """Draw the losses of epochs as a PNG; OSError for a file that cannot be written."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, marker="." if len(losses) < 50 else None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean loss")
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=120)
