"""What the commands of the trainings have in common: their options, their epochs, and what comes of them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from onnx_ops import Trainer
from onnx_ops.training.run import Checkpoint, Run

# Rounding is different from PyTorch's, and steps carry the difference on; what is wrong shows in the first digits.
MOST_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        quick: whether to train shortly, for a first look and for tests.
        seed: of the weights, the samples and their order.
        folder: where checkpoints, models and pictures are written.
        resume: whether to go on from the checkpoints in the folder.
    """

    quick: bool
    seed: int
    folder: Path
    resume: bool


@dataclass(frozen=True)
class Result:
    """What came of a training.

    Attributes:
        op: the op that it is about.
        task: what was learnt.
        figure: what was reached, in few words, such as "97.1 % of digits right".
        reached: whether that is what is expected of it.
        difference: the largest of the losses of the first steps from PyTorch's, as a share of these.
        pictures: the PNG files, each with its caption.
        seconds: how long it took, where that was measured.
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
        """Whether the losses are PyTorch's, but for rounding."""
        return self.difference <= MOST_DIFFERENCE


def parser(description: str, name: str) -> argparse.ArgumentParser:
    """The options that all trainings have.

    Args:
        description: the first lines of the help.
        name: of the folder that is written to, below build/trainings.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="train shortly, in less than 30 seconds")
    made.add_argument("--seed", type=int, default=0, help="of weights, samples and their order; default: %(default)s")
    made.add_argument(
        "--out",
        type=Path,
        default=Path("build/trainings") / name,
        metavar="FOLDER",
        help="for checkpoints, models and pictures; default: %(default)s",
    )
    made.add_argument("--resume", action="store_true", help="go on from the checkpoints in that folder")
    return made


def options(parsed: argparse.Namespace) -> Options:
    """The options that all trainings have, of the parsed ones; makes the folder."""
    parsed.out.mkdir(parents=True, exist_ok=True)
    return Options(parsed.quick, parsed.seed, parsed.out, parsed.resume)


def main(run: Callable[[Options], Result], description: str, name: str) -> int:
    """What the command of a training does that has no options but those of all; returns the exit status.

    Args:
        run: the training.
        description, name: as for `parser`.
    """
    own = options(parser(description, name).parse_args())
    return report(timed(lambda: run(own)))


def report(result: Result) -> int:
    """Print what came of a training; returns the exit status."""
    print(f"{result.op}: {result.task}")
    print(f"{result.figure}, in {result.seconds:.0f} s" + ("" if result.reached else "; more was expected"))
    print(f"Largest difference of the first losses from PyTorch's: {result.difference:.1e}")
    for path in result.pictures:
        print(f"Drawn: {path}")
    return 0 if result.reached and result.is_like_torch else 1


def train(
    run: Run,
    epochs: int,
    title: str,
    options: Options,
    *,
    rate: Callable[[float], float] | None = None,
    after: Callable[[Trainer], dict[str, str]] | None = None,
    leads: bool = True,
) -> None:
    """Train for so many epochs, with a progress bar, and a checkpoint after each of them.

    Args:
        run: the training.
        epochs: how many it has in all, those of a checkpoint that is gone on from among them.
        title: of the progress bar, and of the checkpoint, `<title>.safetensors` with underscores for spaces.
        options: where the checkpoint is, and whether to go on from it.
        rate: from the share of the training that is done, 0 to 1, to the learning rate; that of the step if missing.
        after: is called after each epoch; returns figures to show beside the loss.
        leads: whether to show the progress and to write checkpoints; of workers one does.
    """
    checkpoint = options.folder / f"{title.replace(' ', '_')}.safetensors"
    if options.resume and checkpoint.exists():
        run.resume(Checkpoint.read(checkpoint))
    total = epochs * run.samples.steps
    # Without a terminal (disable=None finds out) tqdm draws nothing; a line for each tenth of the epochs stands in.
    with tqdm(total=total, desc=title, unit="step", file=sys.stdout, disable=None if leads else True) as progress:
        progress.update(done := run.epoch * run.samples.steps + run.step)
        while run.epoch < epochs:
            if rate is not None:
                run.trainer.learning_rate = rate(done / total)
            run.advance()
            done += 1
            progress.update()
            if run.step == 0 and leads:
                figures = {"loss": f"{run.losses[-1]:.4f}"} | (after(run.trainer) if after is not None else {})
                run.save(checkpoint)
                progress.set_postfix(figures)
                if progress.disable and (run.epoch in (1, epochs) or run.epoch % max(1, epochs // 10) == 0):
                    told = ", ".join(f"{name} {value}" for name, value in figures.items())
                    print(f"{title}, epoch {run.epoch:3} of {epochs}: {told}", flush=True)


class History:
    """What is found out after each epoch, in a file beside the checkpoint, for trainings that are resumed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def figures(self) -> list[Any]:
        """Of all epochs that are done."""
        return json.loads(self._path.read_text())

    def note(self, epoch: int, figures: Any) -> None:
        """Note numbers after so many epochs; what an interrupted training has noted of later ones goes."""
        whole = self._path.with_suffix(".new")
        whole.write_text(json.dumps([*(self.figures[: epoch - 1] if epoch > 1 else []), figures]))
        whole.replace(self._path)


def timed(make: Callable[[], Result]) -> Result:
    """The result, with the seconds that it took."""
    start = time.perf_counter()
    made = make()
    return replace(made, seconds=time.perf_counter() - start)
