"""Data-parallel training with small batches, with and without synchronized batch norm.

Run it from the root of the repository: `mpiexec -n 4 python -m scripts.trainings.synchronized_batch_norm`, or without
mpiexec, where the workers are threads. It does not require PyTorch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from models.batch_norm_workers.data import digits
from models.batch_norm_workers.training import LEARNING_RATE, TRAINING
from onnx_ops import InferenceSession, Trainer
from onnx_ops.fitting.samples import Samples
from onnx_ops.training.workers.communicator import Communicator
from onnx_ops.training.workers.ending import end_all_by_exceptions
from scripts.trainings import command, pictures, threads
from scripts.trainings.command import Options, Result

if TYPE_CHECKING:
    from mpi4py import MPI

NAME = "synchronized_batch_norm"
DESCRIPTION = """\
Train a classifier of digits data-parallel: workers share each batch of 12 samples.

    mpiexec -n 4 python -m scripts.trainings.synchronized_batch_norm
    python -m scripts.trainings.synchronized_batch_norm --workers 4

In the first form the workers are MPI processes (pip install 'onnx-ops[mpi]'), in the second one threads. The same
network is trained with the same initial state by one worker and by several, whose batch norm has the statistics of all
samples (synchronized) or of the samples of each worker (plain)."""

EPOCHS, QUICK_EPOCHS = 12, 3
WORKERS = 4
TOLERANCE = 1e-5
"""Maximal relative difference between the losses of synchronized trainings and of one worker."""
EXCESS, QUICK_EXCESS = 2.0, 1.3
"""Lower bound of loss with plain batch norm / loss of one worker, for at least WORKERS workers and the usual epochs."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class Course:
    """A variant of the training.

    Attributes:
        title: in figures; names the checkpoint too.
        workers: number of workers; of several numbers each resumes from the checkpoint of the one before.
        synchronized: whether batch norm is synchronized.
        uneven: whether each worker has fewer samples than the one before, and the last one none.
    """

    title: str
    workers: tuple[int, ...]
    synchronized: bool = True
    uneven: bool = False


@dataclass(frozen=True)
class Curve:
    """The result of a course.

    Attributes:
        course: the variant.
        losses: (E,), mean loss of each epoch.
        right: accuracy on the held-out digits.
    """

    course: Course
    losses: np.ndarray
    right: float


def courses(workers: int) -> list[Course]:
    """The variants with up to `workers` workers; the first one has one worker."""
    numbers = [2**k for k in range(workers.bit_length())]
    most, named = numbers[-1], {n: f"{n} worker{'s' * (n > 1)}" for n in numbers}
    made = [Course(name, (n,)) for n, name in named.items()]
    if most > 1:
        decreasing = tuple(reversed(numbers))
        made.append(Course(f"{named[most]}, uneven shares", (most,), uneven=True))
        made.append(Course(f"{' then '.join(map(str, decreasing))} workers", decreasing))
        made += [Course(f"{named[n]}, plain", (n,), synchronized=False) for n in numbers[1:]]
    return made


# --- workers ----------------------------------------------------------------------------------------------------------


class Team(Protocol):
    """A pool of workers.

    Attributes:
        size: number of workers.
        leads: whether this process prints and writes the results.
    """

    size: int
    leads: bool

    def together(self, size: int, work: Callable[[Communicator], Made]) -> Made:
        """Run `work` in the first `size` workers; returns the result of worker 0."""


class Threads:
    """Threads of this process as workers; attributes as of `Team`."""

    leads = True

    def __init__(self, size: int) -> None:
        self.size = size

    def together(self, size: int, work: Callable[[Communicator], Made]) -> Made:
        return threads.together(size, work)[0]


class Processes:
    """MPI processes as workers, of the communicator `world`; attributes as of `Team`."""

    def __init__(self, world: MPI.Intracomm) -> None:
        end_all_by_exceptions(world)
        self._world, self.size, self.leads = world, world.size, world.rank == 0
        self._groups: dict[int, MPI.Comm] = {}

    def together(self, size: int, work: Callable[[Communicator], Made]) -> Made:
        if size not in self._groups:
            self._groups[size] = self._world.Split(self._world.rank < size, self._world.rank)
        made = work(self._groups[size]) if self._world.rank < size else None
        ready = self._world.Ibarrier()
        while not ready.Test():  # MPI's own wait keeps a core busy
            time.sleep(1e-3)
        return self._world.bcast(made)


def team(workers: int) -> Team:
    """The processes started by mpiexec; `workers` threads without it."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: the MPI library is missing
        return Threads(workers)
    return Processes(MPI.COMM_WORLD) if MPI.COMM_WORLD.size > 1 else Threads(workers)


@dataclass(frozen=True)
class Share(Samples):
    """The samples of one worker.

    Attributes:
        part: start and end of the worker's slice of each batch, as fractions of the batch.
    """

    part: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of_worker(cls, samples: Samples, rank: int, workers: int, uneven: bool) -> Share:
        weights = np.arange(workers)[::-1] if uneven else np.ones(workers)
        ends = np.concatenate([[0.0], weights.cumsum() / weights.sum()])
        arrays = {field.name: getattr(samples, field.name) for field in fields(Samples)}
        return cls(**arrays, part=(ends[rank], ends[rank + 1]))

    def batch(self, order: np.ndarray, number: int) -> dict[str, np.ndarray]:
        """This worker's slice of a batch."""
        whole = super().batch(order, number)
        count = len(self.chosen(order, number))
        first, end = (round(share * count) for share in self.part)
        return {name: array[first:end] for name, array in whole.items()}


# --- the trainings ----------------------------------------------------------------------------------------------------


def run(options: Options, workers: Team | None = None, epochs: int | None = None) -> Result:
    """Train all variants and compare their losses with those of one worker.

    Args:
        options: of all trainings.
        workers: default: `WORKERS` threads.
        epochs: default: `EPOCHS`, or `QUICK_EPOCHS`.
    """
    workers = workers or Threads(WORKERS)
    usual = epochs is None and workers.size >= WORKERS
    epochs = epochs or (QUICK_EPOCHS if options.quick else EPOCHS)
    curves = [train_course(course, epochs, workers, options) for course in courses(workers.size)]
    alone, *others = curves
    error = max((difference(c, alone) for c in others if c.course.synchronized), default=0.0)
    figure, reached = f"{alone.right:.1%} of held-out digits right", error <= TOLERANCE
    if others:
        plain = others[-1]
        ratio = float(plain.losses[-1] / alone.losses[-1])
        reached = reached and (not usual or ratio >= (QUICK_EXCESS if options.quick else EXCESS))
        figure = (
            f"losses of one worker within {error:.0e}, with plain batch norm {ratio:.1f} times as large;"
            f" {alone.right:.0%} right, with plain {plain.right:.0%}"
        )
    return Result(
        op="BatchNormGatherStatsWithCounts",
        task="data-parallel training with small batches",
        figure=figure,
        reached=reached,
        difference=TRAINING.difference() if workers.leads else 0.0,
        pictures=pictures_of(curves, options) if workers.leads and others else {},
    )


def train_course(course: Course, epochs: int, workers: Team, options: Options) -> Curve:
    """Train a variant; several numbers of workers divide the epochs among them."""
    ends = [round(epochs * (k + 1) / len(course.workers)) for k in range(len(course.workers))]
    for number, until in zip(course.workers, ends, strict=True):
        resumed = replace(options, resume=options.resume or until > ends[0])

        def work(communicator: Communicator, until: int = until, options: Options = resumed) -> Curve:
            return train_worker(course, communicator, until, epochs, options)

        curve = workers.together(number, work)
    return curve


def train_worker(course: Course, communicator: Communicator, until: int, epochs: int, options: Options) -> Curve:
    """Train as one worker.

    Args:
        course: the variant.
        communicator: of all workers.
        until: the epoch to stop at.
        epochs: total number of epochs, for the learning rate.
        options: of all trainings.
    """
    trained, held_out = digits(options.seed)
    trainer = Trainer(
        TRAINING.started(options.seed),
        one_thread(),
        communicator=communicator if communicator.size > 1 else None,
        synchronize_batch_norm=course.synchronized,
    )
    training = TRAINING.run(trainer, trained, options.seed)
    training.samples = Share.of_worker(training.samples, communicator.rank, communicator.size, course.uneven)
    session = InferenceSession(onnx.parser.parse_model(TRAINING.files.inference.read_text()), one_thread())
    command.train(
        training,
        until,
        course.title.replace(",", ""),
        options,
        rate=lambda done: LEARNING_RATE * (1 - done * until / epochs),
        after=lambda trainer: {"right": f"{accuracy(session, trainer, held_out):.1%}"},
        leads=communicator.rank == 0,
    )
    return Curve(course, np.array(training.losses), accuracy(session, trainer, held_out))


def one_thread() -> ort.SessionOptions:
    """Options of a session with one thread."""
    result = ort.SessionOptions()
    result.intra_op_num_threads = 1
    return result


def accuracy(session: ort.InferenceSession, trainer: Trainer, samples: dict[str, np.ndarray]) -> float:
    """Accuracy of the inference graph with the trainer's current parameters."""
    weights, (images, *names) = trainer.weights(), (value.name for value in session.get_inputs())
    (logits,) = session.run(None, {images: samples["images"]} | {name: weights[name] for name in names})
    return float((logits.argmax(axis=1) == samples["labels"]).mean())


def difference(curve: Curve, reference: Curve) -> float:
    """Maximal relative difference between the losses of the epochs."""
    return float(np.abs(curve.losses / reference.losses - 1).max())


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictures_of(curves: list[Curve], options: Options) -> dict[Path, str]:
    """Draw the figures; returns their captions by path."""
    alone, plain = curves[0], [curve for curve in curves if not curve.course.synchronized]
    synchronized = [curve for curve in curves[1:] if curve.course.synchronized]
    most = plain[-1].course.workers[0]
    return {
        curves_drawn(alone, synchronized, plain, options.folder / "curves.png"): "With synchronized batch norm the "
        "losses of several workers are those of one, even if a worker has no sample or the number of workers changes; "
        f"with plain batch norm they are not. The batch of all workers has {TRAINING.batch_size} samples.",
        batch_drawn(most, options, options.folder / "batch.png"): f"One batch, split among {most} workers, with mean "
        "and standard deviation of the pixels of each worker, which plain batch norm normalizes with.",
    }


MARKERS = "osD^v<>p"


def curves_drawn(alone: Curve, synchronized: list[Curve], plain: list[Curve], path: Path) -> Path:
    """The losses of all variants, and their relative differences from those of one worker."""
    epochs = np.arange(1, len(alone.losses) + 1)
    styles: list[tuple[Curve, dict[str, Any]]] = []
    sizes = np.linspace(13, 5, len(synchronized))  # markers on the same point remain visible
    for curve, marker, size, colour in zip(synchronized, MARKERS, sizes, SYNCHRONIZED_COLOURS, strict=False):
        styles.append((curve, {"marker": marker, "markersize": size, "markerfacecolor": "none", "color": colour}))
    for curve, marker, line in zip(plain, "Xx*+", ("--", "-", ":", "-."), strict=False):
        styles.append((curve, {"marker": marker, "markersize": 5, "linestyle": line, "color": pictures.ORANGE}))
    with pictures.picture(path, 4.6) as figure:
        left, middle = figure.subplots(1, 2, width_ratios=(1.2, 1))
        left.plot(epochs, alone.losses, color="black", linewidth=2.5, label=alone.course.title)
        for curve, style in styles:
            left_style = style if curve in plain else style | {"linestyle": "none", "markeredgewidth": 1.5}
            left.plot(epochs, curve.losses, label=label(curve), **left_style)
            error = np.abs(curve.losses / alone.losses - 1)
            middle.plot(epochs, np.maximum(error, LEAST), **style)
        middle.axhline(TOLERANCE, color=pictures.GREY, linewidth=1)
        middle.text(epochs[-1], TOLERANCE * 1.4, "tolerance", color=pictures.GREY, ha="right")
        left.set(title="Loss of each epoch", xlabel="epoch", yscale="log")
        left.yaxis.set_major_formatter(ScalarFormatter())
        left.yaxis.set_minor_formatter(ScalarFormatter())
        middle.set(title="Relative difference from one worker", xlabel="epoch", yscale="log", ylim=(LEAST, 10))
        for axes in (left, middle):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return path


LEAST = 1e-9
"""Lower bound of the drawn differences, on a logarithmic axis."""
SYNCHRONIZED_COLOURS = (pictures.BLUE, pictures.GREEN, pictures.PURPLE, pictures.SKY, pictures.YELLOW)


def label(curve: Curve) -> str:
    return f"{curve.course.title}{', synchronized' * curve.course.synchronized}"


def batch_drawn(workers: int, options: Options, path: Path) -> Path:
    """The first batch by worker, with mean and standard deviation of the pixels."""
    samples = TRAINING.in_batches(TRAINING.samples(options.seed))
    order = samples.order(options.seed, 0)
    shares = [Share.of_worker(samples, rank, workers, False).batch(order, 0)["images"][:, 0] for rank in range(workers)]
    whole = np.concatenate(shares)
    most, places = max(map(len, shares)), np.arange(workers)
    with pictures.picture(path, 4.0) as figure:
        grid = figure.add_gridspec(workers, most + 1, width_ratios=[*[1] * most, 1.5 * most])
        for row, own in enumerate(shares):
            for column, image in enumerate(own):
                pictures.show(figure.add_subplot(grid[row, column]), image, vmin=whole.min(), vmax=whole.max())
        axes = figure.add_subplot(grid[:, -1])
        means, deviations = ([float(getattr(own, name)()) for own in shares] for name in ("mean", "std"))
        axes.axvspan(whole.mean() - whole.std(), whole.mean() + whole.std(), color=pictures.SKY, alpha=0.35, lw=0)
        axes.axvline(whole.mean(), color=pictures.BLUE, label="all: mean ± standard deviation")
        axes.errorbar(means, places, xerr=deviations, fmt="o", color=pictures.ORANGE, capsize=5, label="each worker")
        axes.set(ylim=(workers - 0.5, -0.5), xlabel="pixel", title="Statistics of each worker")
        axes.set_yticks(places, [f"worker {rank}" for rank in places])
        figure.legend(loc="outside lower right", ncols=2)
    return path


def main() -> int:
    parser = command.parser(DESCRIPTION, NAME)
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help="number of threads without mpiexec; default: %(default)s"
    )
    parser.add_argument("--epochs", type=int, help=f"of each training; default: {EPOCHS}, with --quick {QUICK_EPOCHS}")
    parsed = parser.parse_args()
    for name in ("workers", "epochs"):
        if (value := getattr(parsed, name)) is not None and value < 1:
            parser.error(f"argument --{name}: {value}, expected at least 1")
    workers = team(parsed.workers)
    result = command.timed(lambda: run(command.options(parsed), workers, parsed.epochs))
    return command.report(result) if workers.leads else 0


if __name__ == "__main__":
    sys.exit(main())
