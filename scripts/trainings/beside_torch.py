"""The steps of the trainings beside the same steps in PyTorch eager, from the same start on the same batches.

Run it from the repository's root: `python -m scripts.trainings.beside_torch`. It needs torch and onnxscript.

float32     the largest difference of the first 100 losses of the captured step from PyTorch's, as a share of these
float64     the same of a step that is captured in float64; "n/a: Op" where onnxruntime has no such operator for it
captured    seconds of an epoch by the captured step, `onnx_ops.Trainer.step`, on so many threads
eager       seconds of an epoch by PyTorch: zero_grad, loss, backward, optimizer.step
of eager    captured by eager, the median of the ratios within the rounds

Steps are timed in turns, in a process of their own for each training and number of threads, on the batches of an epoch
that are in memory; an epoch's seconds are the median of a step's, times the steps.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from models import torch_step
from models.capturing import STEPS, without_state
from models.torch_step import TorchStep
from models.training import StartedStep, difference, first_losses
from onnx_ops import Trainer
from onnx_ops.torch import CaptureError
from onnx_ops.training.arrays import numpy_dtype
from scripts import markdown, measuring, timing
from scripts.measuring import Run

# Rounding is different from PyTorch's, and steps carry the difference on; what is wrong shows in the first digits.
MOST_DIFFERENCE = {"float32": 1e-4, "float64": 1e-9}


def name_of(step: TorchStep) -> str:
    """The folder of a training, and the step where it has several."""
    files = step.training.files
    return files.folder.name + ("" if files.name == "step" else f", {files.name}")


NAMED = {name_of(step): step for step in STEPS}


@dataclass(frozen=True)
class Losses:
    """How far the first losses are from PyTorch's.

    Attributes:
        float32, float64: the largest differences; None where onnxruntime lacks an operator.
        lacking: the operator that it lacks for float64.
    """

    float32: float
    float64: float | None
    lacking: str

    @property
    def are_like_torch(self) -> bool:
        found = {"float32": self.float32, "float64": self.float64}
        return all((found[dtype] or 0) <= most for dtype, most in MOST_DIFFERENCE.items())


@dataclass(frozen=True)
class Seconds:
    """What an epoch takes.

    Attributes:
        threads: of onnxruntime and of PyTorch.
        captured, eager: medians.
        of_eager: the median of the ratios within the rounds.
        others: cores that other processes kept busy meanwhile; None where the system does not tell.
    """

    threads: int
    captured: float
    eager: float
    of_eager: float
    others: float | None


@dataclass(frozen=True)
class Row:
    """What came of a training."""

    name: str
    losses: Losses
    seconds: list[Seconds]


def main() -> int:
    """Measures, prints the table, writes the files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--training", nargs="+", choices=list(NAMED), default=list(NAMED), metavar="NAME", help="; ".join(NAMED)
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--budget", type=float, default=10.0, metavar="SECONDS", help="of each timing; default: %(default)s"
    )
    parser.add_argument("--json", type=Path, default="build/beside_torch.json", metavar="PATH")
    options = parser.parse_args()

    rows = []
    with tqdm(options.training, unit="training") as progress:
        for name in progress:
            progress.set_description(name)
            losses = timing.in_own_process(losses_of, name)
            seconds = [timing.in_own_process(seconds_of, name, n, options.budget) for n in options.threads]
            rows.append(Row(name, losses, seconds))
    machine = measuring.machine(max(options.threads))
    print(", ".join(f"{key} {value}" for key, value in machine.items() if key != "threads"))
    print(table(rows))
    timing.print_disturbance(timed.others for row in rows for timed in row.seconds)
    summary = measuring.write_rows(options.json, machine, rows, table(rows))
    print(f"Written to {options.json} and {summary}.")
    return 0 if all(row.losses.are_like_torch for row in rows) else 1


def losses_of(name: str) -> Losses:
    """Compare the first losses."""
    warnings.simplefilter("ignore")  # of PyTorch, on its own insides
    step = NAMED[name]
    training = step.training
    ours = first_losses(training, Trainer(training.started(0)))
    float32 = difference(ours, torch_step.first_losses(step, training.model))
    try:
        model = without_state(step.capture(torch.float64))
    except CaptureError as error:
        return Losses(float32, None, lacking_operator(error))
    ours = first_losses(training, Trainer(StartedStep(model, training.state(model, 0), None)))
    return Losses(float32, difference(ours, torch_step.first_losses(step, model, dtype=torch.float64)), "")


def lacking_operator(error: CaptureError) -> str:
    """The operator that onnxruntime says it does not have; raises the error if it says something else."""
    found = re.search(r"Could not find an implementation for (\w+)", str(error))
    if found is None:
        raise error
    return found[1]


def seconds_of(name: str, threads: int, budget: float) -> Seconds:
    """Time the steps of an epoch for about `budget` seconds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    step = NAMED[name]
    steps = step.training.in_batches(step.training.samples(0)).steps
    batches = list(itertools.islice(step.batches(), steps))
    runs = {
        "captured": in_turn(captured_step(step, threads), batches),
        "eager": in_turn(step.started(step.training.model), batches),
    }
    with timing.without_gc():
        turns, others = timing.least_disturbed(runs, budget)
    captured, eager = (steps * statistics.median(turns[name]) for name in runs)
    of_eager = timing.median_of(lambda ours, theirs: ours / theirs, turns["captured"], turns["eager"])
    return Seconds(threads, captured, eager, of_eager, others)


def captured_step(step: TorchStep, threads: int) -> Callable[..., object]:
    """A function that makes the captured step, of the tensors of a batch."""
    trainer = Trainer(step.training.started(0), timing.session_options(threads))
    names = list(step.training.samples(0))
    dtypes = {name: numpy_dtype(tensor) for name, tensor in trainer.batch_inputs.items()}

    def make(*batch: torch.Tensor) -> object:
        arrays = dict(zip(names, batch, strict=True))
        return trainer.step(**{name: np.asarray(arrays[name].numpy(), dtype) for name, dtype in dtypes.items()})

    return make


def in_turn(make: Callable[..., object], batches: Iterable[tuple[Any, ...]]) -> Run:
    """A call that makes the step with the next of the batches, which begin anew after the last."""
    endless = itertools.cycle(batches)
    return lambda: make(*next(endless))


def table(rows: list[Row]) -> str:
    """One line per training, in Markdown."""
    header = ["training", "float32", "float64"]
    for timed in rows[0].seconds:
        threads = f"{timed.threads} thread{'s' * (timed.threads > 1)}"
        header += [f"captured, {threads}", f"eager, {threads}", "of eager"]
    lines = []
    for row in rows:
        line = [row.name, f"{row.losses.float32:.1e}"]
        line.append(f"n/a: {row.losses.lacking}" if row.losses.float64 is None else f"{row.losses.float64:.1e}")
        for timed in row.seconds:
            line += [f"{timed.captured:.3g} s", f"{timed.eager:.3g} s", f"{timed.of_eager:.2f}"]
        lines.append(line)
    return markdown.table(header, lines, right=range(1, len(header)))


if __name__ == "__main__":
    sys.exit(main())
