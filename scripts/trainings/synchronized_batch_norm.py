"""Trains with workers that share small batches, with synchronized batch norm and without.

Run it from the repository's root: `mpiexec -n 4 python -m scripts.trainings.synchronized_batch_norm`, or without
mpiexec, where the workers are threads. It needs no PyTorch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from models.batch_norm_workers.data import digits
from models.batch_norm_workers.training import LEARNING_RATE, TRAINING
from onnx_ops import InferenceSession, Trainer
from onnx_ops.training.samples import Samples
from onnx_ops.training.workers.communicator import Communicator
from onnx_ops.training.workers.ending import end_all_by_exceptions
from scripts.trainings import command, pictures, threads
from scripts.trainings.command import Options, Result

NAME = "synchronized_batch_norm"
DESCRIPTION = """\
Train a reader of digits with workers that share each batch of 12, so that each of them has few samples.

    mpiexec -n 4 python -m scripts.trainings.synchronized_batch_norm
    python -m scripts.trainings.synchronized_batch_norm --workers 4

In the first form the workers are processes that talk over MPI (pip install 'onnx-ops[mpi]'), in the second one they
are threads. The same network is trained from the same start by one worker and by several, whose batch norm normalizes
with the samples of all (synchronized) or with those of each worker (plain)."""

EPOCHS, QUICK_EPOCHS = 12, 3
WORKERS = 4
ALLOWED = 1e-5
"""How far the loss of an epoch may be from that of one worker, as a share of it."""
EXCESS, QUICK_EXCESS = 2.0, 1.3
"""How many times the loss of one worker that of the most workers is at least, if they do not synchronize; of trainings
by as many workers and as long as usual, or by more."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class Course:
    """A training by workers.

    Attributes:
        title: what it is called in pictures, and its checkpoint.
        workers: how many make it; of several numbers each goes on from the checkpoint of the one before.
        synchronized: whether batch norm normalizes with the samples of all workers.
        uneven: whether each worker has fewer samples than the one before, and the last one none.
    """

    title: str
    workers: tuple[int, ...]
    synchronized: bool = True
    uneven: bool = False


@dataclass(frozen=True)
class Curve:
    """What came of a course: the mean loss of each epoch, and the share of held-out digits that are read right."""

    course: Course
    losses: np.ndarray
    right: float


def courses(workers: int) -> list[Course]:
    """The trainings by up to so many workers; the first one is by one worker."""
    numbers = [2**k for k in range(workers.bit_length())]
    most, named = numbers[-1], {n: f"{n} worker{'s' * (n > 1)}" for n in numbers}
    made = [Course(name, (n,)) for n, name in named.items()]
    if most > 1:
        handed = tuple(reversed(numbers))
        made.append(Course(f"{named[most]}, uneven shares", (most,), uneven=True))
        made.append(Course(f"{' then '.join(map(str, handed))} workers", handed))
        made += [Course(f"{named[n]}, plain", (n,), synchronized=False) for n in numbers[1:]]
    return made


# --- workers ----------------------------------------------------------------------------------------------------------


class Team(Protocol):
    """Those who can be workers.

    Attributes:
        size: how many there are.
        leads: whether this process is the one that tells what came of it.
    """

    size: int
    leads: bool

    def together(self, size: int, work: Callable[[Communicator], Made]) -> Made:
        """What the first of so many workers makes."""


class Threads:
    """Workers that are threads of this process; attributes as of `Team`."""

    leads = True

    def __init__(self, size: int) -> None:
        self.size = size

    def together(self, size: int, work: Callable[[Communicator], Made]) -> Made:
        return threads.together(size, work)[0]


class Processes:
    """Workers that are processes, by the communicator of all of them; attributes as of `Team`."""

    def __init__(self, world: Any) -> None:
        end_all_by_exceptions(world)
        self._world, self.size, self.leads = world, world.size, world.rank == 0
        self._groups: dict[int, Any] = {}

    def together(self, size: int, work: Callable[[Communicator], Made]) -> Made:
        if size not in self._groups:
            self._groups[size] = self._world.Split(self._world.rank < size, self._world.rank)
        made = work(self._groups[size]) if self._world.rank < size else None
        ready = self._world.Ibarrier()
        while not ready.Test():  # MPI itself would wait with a busy core
            time.sleep(1e-3)
        return self._world.bcast(made)


def team(workers: int) -> Team:
    """The processes that mpiexec has started, or so many threads."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # the latter where there is no library for it
        return Threads(workers)
    return Processes(MPI.COMM_WORLD) if MPI.COMM_WORLD.size > 1 else Threads(workers)


@dataclass(frozen=True)
class Share(Samples):
    """A worker's part of samples that all workers have alike.

    Attributes:
        part: where in each batch it begins and ends, as shares of the batch.
    """

    part: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of_worker(cls, samples: Samples, rank: int, workers: int, uneven: bool) -> Share:
        weights = np.arange(workers)[::-1] if uneven else np.ones(workers)
        ends = np.concatenate([[0.0], weights.cumsum() / weights.sum()])
        arrays = {field.name: getattr(samples, field.name) for field in fields(Samples)}
        return cls(**arrays, part=(ends[rank], ends[rank + 1]))

    def batch(self, order: np.ndarray, number: int) -> dict[str, np.ndarray]:
        """This worker's part of a batch."""
        whole = super().batch(order, number)
        count = len(self.chosen(order, number))
        first, end = (round(share * count) for share in self.part)
        return {name: array[first:end] for name, array in whole.items()}


# --- the trainings ----------------------------------------------------------------------------------------------------


def run(options: Options, workers: Team | None = None, epochs: int | None = None) -> Result:
    """Train by one worker, by several, with synchronized batch norm and with plain, and compare the losses.

    Args:
        options: as of all trainings.
        workers: who trains; four threads, if that is not said.
        epochs: of each training, in place of the usual number.
    """
    workers = workers or Threads(WORKERS)
    usual = epochs is None and workers.size >= WORKERS
    epochs = epochs or (QUICK_EPOCHS if options.quick else EPOCHS)
    curves = [followed(course, epochs, workers, options) for course in courses(workers.size)]
    alone, *others = curves
    off = max((difference(c, alone) for c in others if c.course.synchronized), default=0.0)
    figure, reached = f"{alone.right:.1%} of held-out digits right", off <= ALLOWED
    if others:
        plain = others[-1]
        times = float(plain.losses[-1] / alone.losses[-1])
        reached = reached and (not usual or times >= (QUICK_EXCESS if options.quick else EXCESS))
        figure = (
            f"losses of one worker within {off:.0e}, with plain batch norm {times:.1f} times as large;"
            f" {alone.right:.0%} right, with plain {plain.right:.0%}"
        )
    return Result(
        op="BatchNormGatherStatsWithCounts",
        task="digits read by workers that share small batches",
        figure=figure,
        reached=reached,
        difference=TRAINING.difference() if workers.leads else 0.0,
        pictures=pictures_of(curves, options) if workers.leads and others else {},
    )


def followed(course: Course, epochs: int, workers: Team, options: Options) -> Curve:
    """Make a training; of several numbers of workers each makes its part of the epochs."""
    ends = [round(epochs * (k + 1) / len(course.workers)) for k in range(len(course.workers))]
    for number, until in zip(course.workers, ends, strict=True):
        goes_on = replace(options, resume=options.resume or until > ends[0])

        def work(communicator: Communicator, until: int = until, told: Options = goes_on) -> Curve:
            return worked(course, communicator, until, epochs, told)

        curve = workers.together(number, work)
    return curve


def worked(course: Course, communicator: Communicator, until: int, epochs: int, options: Options) -> Curve:
    """Be a worker of a training, until so many epochs of it are done; one without others needs no exchange."""
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
        after=lambda trainer: {"right": f"{right(session, trainer, held_out):.1%}"},
        leads=communicator.rank == 0,
    )
    return Curve(course, np.array(training.losses), right(session, trainer, held_out))


def one_thread() -> ort.SessionOptions:
    """Options of a session that leaves the other cores to other workers."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = 1
    return made


def right(session: ort.InferenceSession, trainer: Trainer, samples: dict[str, np.ndarray]) -> float:
    """The share of digits that the network reads right as it is now."""
    weights, (images, *taken) = trainer.weights(), (value.name for value in session.get_inputs())
    (logits,) = session.run(None, {images: samples["images"]} | {name: weights[name] for name in taken})
    return float((logits.argmax(axis=1) == samples["labels"]).mean())


def difference(curve: Curve, other: Curve) -> float:
    """The largest of the losses of epochs, as a share of those of the other."""
    return float(np.abs(curve.losses / other.losses - 1).max())


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictures_of(curves: list[Curve], options: Options) -> dict[Path, str]:
    """Draw what came of it; returns the files with their captions."""
    alone, plain = curves[0], [curve for curve in curves if not curve.course.synchronized]
    synchronized = [curve for curve in curves[1:] if curve.course.synchronized]
    most = plain[-1].course.workers[0]
    return {
        curves_drawn(alone, synchronized, plain, options.folder / "curves.png"): "With synchronized batch norm the "
        "curves of several workers lie on that of one, also if a worker has no sample, or if others take over; with "
        f"plain batch norm they do not. All workers of a training together have {TRAINING.batch_size} samples in each "
        "step.",
        batch_drawn(most, options, options.folder / "batch.png"): f"One batch, as {most} workers share it, and the "
        "mean and the standard deviation of the pixels that each of them sees: what plain batch norm would normalize "
        "with.",
    }


MARKERS = "osD^v<>p"


def curves_drawn(alone: Curve, synchronized: list[Curve], plain: list[Curve], path: Path) -> Path:
    """The losses of all trainings, and how far they are from those of one worker."""
    epochs = np.arange(1, len(alone.losses) + 1)
    styles: list[tuple[Curve, dict[str, Any]]] = []
    spread = np.linspace(13, 5, len(synchronized))  # each marker is seen around the next
    for curve, marker, size, colour in zip(synchronized, MARKERS, spread, FOLLOWING, strict=False):
        styles.append((curve, {"marker": marker, "markersize": size, "markerfacecolor": "none", "color": colour}))
    for curve, marker, line in zip(plain, "Xx*+", ("--", "-", ":", "-."), strict=False):
        styles.append((curve, {"marker": marker, "markersize": 5, "linestyle": line, "color": pictures.ORANGE}))
    with pictures.picture(path, 4.6) as figure:
        left, middle = figure.subplots(1, 2, width_ratios=(1.2, 1))
        left.plot(epochs, alone.losses, color="black", linewidth=2.5, label=alone.course.title)
        for curve, style in styles:
            lined = style if curve in plain else style | {"linestyle": "none", "markeredgewidth": 1.5}
            left.plot(epochs, curve.losses, label=label(curve), **lined)
            off = np.abs(curve.losses / alone.losses - 1)
            middle.plot(epochs, np.maximum(off, LEAST), **style)
        middle.axhline(ALLOWED, color=pictures.GREY, linewidth=1)
        middle.text(epochs[-1], ALLOWED * 1.4, "allowed", color=pictures.GREY, ha="right")
        left.set(title="Loss of each epoch", xlabel="epoch", yscale="log")
        left.yaxis.set_major_formatter(ScalarFormatter())
        left.yaxis.set_minor_formatter(ScalarFormatter())
        middle.set(title="Relative difference from one worker", xlabel="epoch", yscale="log", ylim=(LEAST, 10))
        for axes in (left, middle):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return path


LEAST = 1e-9
"""What smaller differences are drawn as, 0 among them."""
FOLLOWING = (pictures.BLUE, pictures.GREEN, pictures.PURPLE, pictures.SKY, pictures.YELLOW)


def label(curve: Curve) -> str:
    return f"{curve.course.title}{', synchronized' * curve.course.synchronized}"


def batch_drawn(workers: int, options: Options, path: Path) -> Path:
    """The samples of the first batch that each worker has, with the mean and the deviation of their pixels."""
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
        axes.axvline(whole.mean(), color=pictures.BLUE, label="all: mean, and one deviation to both sides")
        axes.errorbar(means, places, xerr=deviations, fmt="o", color=pictures.ORANGE, capsize=5, label="each by itself")
        axes.set(ylim=(workers - 0.5, -0.5), xlabel="brightness of pixels", title="What each worker sees of the batch")
        axes.set_yticks(places, [f"worker {rank}" for rank in places])
        figure.legend(loc="outside lower right", ncols=2)
    return path


def main() -> int:
    parser = command.parser(DESCRIPTION, NAME)
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help="how many threads there are without mpiexec; default: %(default)s"
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
