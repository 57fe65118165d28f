"""Shared by the commands of the trainings: command-line options, the training loop, results."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from tqdm import tqdm

from onnx_ops import Trainer
from onnx_ops.fitting.run import Checkpoint, Run
from onnx_ops.fitting.samples import Samples

MAX_DIFFERENCE = 1e-4
"""Rounding errors grow from step to step; a wrong step shows in the first digits."""


@dataclass(frozen=True)
class Options:
    """The command-line options.

    Attributes:
        quick: whether to run the short training, for demonstration and tests.
        seed: of weights, data and shuffling.
        folder: for checkpoints, models and figures.
        resume: whether to resume from the checkpoints in the folder.
    """

    quick: bool
    seed: int
    folder: Path
    resume: bool


@dataclass(frozen=True)
class Result:
    """The result of a training.

    Attributes:
        op: the op that it demonstrates.
        task: what is learned.
        figure: the metric, in few words, such as "97.1 % of digits right".
        reached: whether the metric reaches its target.
        difference: maximal relative difference between the first losses and PyTorch's.
        pictures: captions by path of the PNG file.
        seconds: duration.
    """

    op: str
    task: str
    figure: str
    reached: bool
    difference: float
    pictures: dict[Path, str]
    seconds: float = 0.0

    @property
    def is_like_torch(self) -> bool:
        """Whether the first losses are PyTorch's, up to rounding."""
        return self.difference <= MAX_DIFFERENCE


def parser(description: str, name: str) -> argparse.ArgumentParser:
    """A parser with the options of all trainings.

    Args:
        description: shown by --help.
        name: of the default output folder in build/trainings.
    """
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--quick", action="store_true", help="a short training of less than 30 seconds")
    result.add_argument("--seed", type=int, default=0, help="of weights, data and shuffling; default: %(default)s")
    result.add_argument(
        "--out",
        type=Path,
        default=Path("build/trainings") / name,
        metavar="FOLDER",
        help="for checkpoints, models and figures; default: %(default)s",
    )
    result.add_argument("--resume", action="store_true", help="resume from the checkpoints in that folder")
    return result


def options(parsed: argparse.Namespace) -> Options:
    """The options of all trainings; creates the output folder."""
    parsed.out.mkdir(parents=True, exist_ok=True)
    return Options(parsed.quick, parsed.seed, parsed.out, parsed.resume)


def main(run: Callable[[Options], Result], description: str, name: str) -> int:
    """The command of a training without options of its own; returns the exit status.

    Args:
        run: the training.
        description, name: as for `parser`.
    """
    parsed = options(parser(description, name).parse_args())
    return report(timed(lambda: run(parsed)))


def report(result: Result) -> int:
    """Print a result; returns the exit status."""
    print(f"{result.op}: {result.task}")
    print(f"{result.figure}, in {result.seconds:.0f} s" + ("" if result.reached else "; below the target"))
    print(f"Maximal relative difference between the first losses and PyTorch's: {result.difference:.1e}")
    for path in result.pictures:
        print(f"Figure: {path}")
    return 0 if result.reached and result.is_like_torch else 1


def train(
    run: Run[Samples],
    epochs: int,
    title: str,
    options: Options,
    *,
    rate: Callable[[float], float] | None = None,
    after: Callable[[Trainer], dict[str, str]] | None = None,
    leads: bool = True,
) -> None:
    """Train with a progress bar, and write a checkpoint after each epoch.

    Args:
        run: the training.
        epochs: their total number, including those before a checkpoint that is resumed.
        title: of the progress bar; the checkpoint is `<title>.safetensors`, with underscores for spaces.
        options: folder of the checkpoint, and whether to resume from it.
        rate: learning rate schedule, a function of the fraction of the training that is done, in [0, 1]; default: the
            learning rate of the step.
        after: called after each epoch; returns metrics to show with the loss.
        leads: whether to show the progress and to write checkpoints; of several workers only one does.
    """
    checkpoint = options.folder / f"{title.replace(' ', '_')}.safetensors"
    if options.resume and checkpoint.exists():
        run.resume(Checkpoint.read(checkpoint))
    total = epochs * run.samples.steps
    # disable=None: no progress bar without a terminal; lines are printed instead, ten in all.
    with tqdm(total=total, desc=title, unit="step", file=sys.stdout, disable=None if leads else True) as progress:
        progress.update(done := run.epoch * run.samples.steps + run.step)
        while run.epoch < epochs:
            if rate is not None:
                run.trainer.learning_rate = rate(done / total)
            run.advance()
            done += 1
            progress.update()
            if run.step == 0 and leads:
                metrics = {"loss": f"{run.losses[-1]:.4f}"} | (after(run.trainer) if after is not None else {})
                run.save(checkpoint)
                progress.set_postfix(metrics)
                if progress.disable and (run.epoch in (1, epochs) or run.epoch % max(1, epochs // 10) == 0):
                    line = ", ".join(f"{name} {value}" for name, value in metrics.items())
                    print(f"{title}, epoch {run.epoch:3} of {epochs}: {line}", flush=True)


Metric = TypeVar("Metric", float, list[float])


class History(Generic[Metric]):
    """Metrics of each epoch, in a JSON file beside the checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def metrics(self) -> list[Metric]:
        """Metrics of all epochs so far."""
        metrics: list[Metric] = json.loads(self._path.read_text())
        return metrics

    def add(self, epoch: int, metrics: Metric) -> None:
        """Write the metrics after epoch `epoch`, counted from 1; those of later epochs are discarded."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([*(self.metrics[: epoch - 1] if epoch > 1 else []), metrics]))
        new.replace(self._path)


def timed(run: Callable[[], Result]) -> Result:
    """The result of a call, with its duration."""
    start = time.perf_counter()
    result = run()
    return replace(result, seconds=time.perf_counter() - start)
