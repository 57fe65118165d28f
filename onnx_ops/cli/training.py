"""Parts of the command `train`: preparation, signals, and the plot of the losses."""

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
    """A new training, or one resumed from a checkpoint, whose settings are the defaults.

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


def no_folder(paths: Iterable[Path | None]) -> Path | None:
    """The first missing folder of these files, to fail before the first epoch."""
    return next((path.parent for path in paths if path is not None and not path.parent.is_dir()), None)


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def plot_losses(path: Path, losses: Sequence[float]) -> None:
    """Plot the losses of epochs as a PNG; OSError for a file that cannot be written."""
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
