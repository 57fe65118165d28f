"""Compares the steps of the trainings with PyTorch eager, with the same initial state and the same batches.

Run it from the root of the repository: `python -m scripts.trainings.beside_torch`. It requires torch and onnxscript.

float32           maximal relative difference between the first 100 losses of the captured step and of PyTorch
float64           the same for a step captured in float64; "n/a: Op" where onnxruntime does not have an operator
captured          seconds of an epoch with the captured step, `onnx_ops.Trainer.step`
eager             seconds of an epoch in PyTorch: zero_grad, loss, backward, optimizer.step
captured / eager  median over the rounds

The measurements are interleaved, in a process for each training and number of threads, with the batches of an epoch in
memory; the seconds of an epoch are the median of a step times the number of steps.
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

import numpy as np
import torch
from torch import Tensor
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

MAX_DIFFERENCE = {"float32": 1e-4, "float64": 1e-9}
"""Rounding errors grow from step to step; a wrong step shows in the first digits."""


def name_of(step: TorchStep) -> str:
    """The folder of a training, with the name of the step if it has several."""
    files = step.training.files
    return files.folder.name + ("" if files.name == "step" else f", {files.name}")


NAMED = {name_of(step): step for step in STEPS}


@dataclass(frozen=True)
class Losses:
    """Differences between the first losses and PyTorch's.

    Attributes:
        float32, float64: maximal relative differences; None where onnxruntime does not have an operator.
        lacking: the operator that onnxruntime does not have for float64.
    """

    float32: float
    float64: float | None
    lacking: str

    @property
    def are_like_torch(self) -> bool:
        differences = {"float32": self.float32, "float64": self.float64}
        return all((differences[dtype] or 0) <= most for dtype, most in MAX_DIFFERENCE.items())


@dataclass(frozen=True)
class Seconds:
    """Seconds of an epoch.

    Attributes:
        threads: of onnxruntime and of PyTorch.
        captured, eager: medians.
        over_eager: median over the rounds of captured / eager.
        foreign_load: cores kept busy by other processes; None where it is unknown.
    """

    threads: int
    captured: float
    eager: float
    over_eager: float
    foreign_load: float | None


@dataclass(frozen=True)
class Row:
    """The results for one training."""

    name: str
    losses: Losses
    seconds: list[Seconds]


def main() -> int:
    """Measure, print the table, write the files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--training", nargs="+", choices=list(NAMED), default=list(NAMED), metavar="NAME", help="; ".join(NAMED)
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--budget", type=float, default=10.0, metavar="SECONDS", help="of each measurement; default: %(default)s"
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
    timing.print_foreign_load(seconds.foreign_load for row in rows for seconds in row.seconds)
    summary = measuring.write_rows(options.json, machine, rows, table(rows))
    print(f"Written to {options.json} and {summary}.")
    return 0 if all(row.losses.are_like_torch for row in rows) else 1


def losses_of(name: str) -> Losses:
    """Compare the first losses of a training with PyTorch's."""
    warnings.simplefilter("ignore")  # PyTorch warns of its own internals
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
    """The operator that onnxruntime does not have; raises the error if that is not its cause."""
    match = re.search(r"Could not find an implementation for (\w+)", str(error))
    if match is None:
        raise error
    return match[1]


def seconds_of(name: str, threads: int, budget: float) -> Seconds:
    """Time the steps of an epoch for about `budget` seconds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    step = NAMED[name]
    steps = step.training.in_batches(step.training.samples(0)).steps
    batches = list(itertools.islice(step.batches(), steps))
    runs = {
        "captured": on_next_batch(captured_step(step, threads), batches),
        "eager": on_next_batch(step.started(step.training.model), batches),
    }
    with timing.without_gc():
        rounds, foreign_load = timing.least_loaded(runs, budget)
    captured, eager = (steps * statistics.median(rounds[name]) for name in runs)
    over_eager = timing.median_of(lambda ours, theirs: ours / theirs, rounds["captured"], rounds["eager"])
    return Seconds(threads, captured, eager, over_eager, foreign_load)


def captured_step(step: TorchStep, threads: int) -> Callable[..., object]:
    """A function that runs the captured step on the tensors of a batch."""
    trainer = Trainer(step.training.started(0), timing.session_options(threads))
    names = list(step.training.samples(0))
    dtypes = {name: numpy_dtype(tensor) for name, tensor in trainer.batch_inputs.items()}

    def run(*batch: Tensor) -> object:
        arrays = dict(zip(names, batch, strict=True))
        return trainer.step(**{name: np.asarray(arrays[name].numpy(), dtype) for name, dtype in dtypes.items()})

    return run


def on_next_batch(step: Callable[..., object], batches: Iterable[tuple[Tensor, ...]]) -> Run:
    """A call that runs the step on the next batch, cyclically."""
    cycle = itertools.cycle(batches)
    return lambda: step(*next(cycle))


def table(rows: list[Row]) -> str:
    """A Markdown table, one line per training."""
    header = ["training", "float32", "float64"]
    for seconds in rows[0].seconds:
        threads = f"{seconds.threads} thread{'s' * (seconds.threads > 1)}"
        header += [f"captured, {threads}", f"eager, {threads}", "captured / eager"]
    lines = []
    for row in rows:
        line = [row.name, f"{row.losses.float32:.1e}"]
        line.append(f"n/a: {row.losses.lacking}" if row.losses.float64 is None else f"{row.losses.float64:.1e}")
        for seconds in row.seconds:
            line += [f"{seconds.captured:.3g} s", f"{seconds.eager:.3g} s", f"{seconds.over_eager:.2f}"]
        lines.append(line)
    return markdown.table(header, lines, right=range(1, len(header)))


if __name__ == "__main__":
    sys.exit(main())
