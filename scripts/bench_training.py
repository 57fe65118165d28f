"""Times whole steps of training: captured ones in onnxruntime, beside PyTorch eager and torch.compile.

Run it from the repository's root: `python -m scripts.bench_training`. It needs torch, and for torch.compile a C++
compiler. A step is forward and backward pass and the update of the optimizer, of the networks of models/networks.py,
with the batch in memory and shapes that do not change. Each row is measured in a process of its own, in turns; a ratio
is the median of the ratios within the rounds.

step      `onnx_ops.Trainer.step` of the saved file
eager     the same in PyTorch: zero_grad, loss, backward, optimizer.step
compile   eager, with torch.compile of the loss, and of the optimizer's step
export    capturing the step, without the check against PyTorch
"""

import argparse
import copy
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import onnx_ops
import onnx_ops.torch
from models.networks import TASKS, Task
from scripts import markdown, measuring, timing
from scripts.measuring import Run

# Of the step's time by eager's, at most.
MOST_OF_EAGER = {"MLP, BCE": 0.6, "MLP, KL": 0.6}


@dataclass(frozen=True)
class Row:
    """What came of a network on a number of threads.

    Attributes:
        times: median seconds of a step of each contender.
        of_eager, of_compile: median over the rounds of a captured step's time by that of PyTorch; None without a
            compiler.
        file_bytes: of the saved step.
        export: seconds that capturing took.
        others: cores that other processes kept busy meanwhile; None where the system does not tell.
    """

    network: str
    threads: int
    times: dict[str, float]
    of_eager: float
    of_compile: float | None
    file_bytes: int
    export: float
    others: float | None

    @property
    def is_met(self) -> bool:
        return round(self.of_eager, 2) <= MOST_OF_EAGER.get(self.network, 1.0)


def main() -> int:
    """Measures, prints the table, writes the files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="NETWORK")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="per row; default: %(default)s")
    parser.add_argument("--json", type=Path, default="build/bench_training.json", metavar="PATH")
    options = parser.parse_args()

    chosen = [(network, threads) for network in options.network for threads in options.threads]
    rows = []
    with tqdm(chosen, unit="row") as progress:
        for network, threads in progress:
            progress.set_description(f"{network}, {threads} threads")
            rows.append(timing.in_own_process(measure, network, threads, options.budget))
    machine = measuring.machine(max(options.threads))
    print(", ".join(f"{key} {value}" for key, value in machine.items() if key != "threads"))
    print(table(rows))
    timing.print_disturbance(row.others for row in rows)
    summary = measuring.write_rows(options.json, machine, rows, table(rows))
    print(f"Written to {options.json} and {summary}.")
    return 0


def measure(network: str, threads: int, budget: float) -> Row:
    """Times the steps of a network for about `budget` seconds."""
    warnings.simplefilter("ignore")  # of PyTorch, on its own insides
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    task = TASKS[network]
    model, batch = task.network(), task.batch()
    start = time.perf_counter()
    captured = onnx_ops.torch.training_step(model, task.loss, batch, task.optimizer(model), check=False)
    export = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        captured.save(path)
        file_bytes = path.stat().st_size
        trainer = onnx_ops.Trainer(path, timing.session_options(threads))
    arrays = dict(zip(trainer.batch_inputs, (tensor.numpy() for tensor in batch), strict=True))
    runs: dict[str, Run] = {"step": lambda: trainer.step(**arrays), "eager": eager_step(task, model, batch)}
    if (compiled := compiled_step(task, model, batch)) is not None:
        runs["compile"] = compiled
    with timing.without_gc():
        turns, others = timing.least_disturbed(runs, budget)

    def ratio(contender: str) -> float | None:
        if contender not in turns:
            return None
        return timing.median_of(lambda ours, theirs: ours / theirs, turns["step"], turns[contender])

    of_eager = ratio("eager")
    assert of_eager is not None
    times = {name: statistics.median(seconds) for name, seconds in turns.items()}
    return Row(network, threads, times, of_eager, ratio("compile"), file_bytes, export, others)


def eager_step(task: Task, model: Any, batch: tuple[Any, ...]) -> Run:
    """A step of PyTorch eager on a copy of the network."""
    own = copy.deepcopy(model)
    optimizer = task.optimizer(own)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(own, *batch).backward()
        optimizer.step()

    return step


def compiled_step(task: Task, model: Any, batch: tuple[Any, ...]) -> Run | None:
    """The same with what torch.compile makes of loss and update; None where it cannot compile."""
    own = copy.deepcopy(model)
    optimizer = task.optimizer(own)
    loss, update = torch.compile(task.loss), torch.compile(optimizer.step)

    def step() -> None:
        optimizer.zero_grad()
        loss(own, *batch).backward()
        update()

    try:
        for _ in range(3):  # the first steps compile
            step()
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException):
        return None
    return step


def table(rows: list[Row]) -> str:
    """One line per row, in Markdown."""
    header = ["network", "threads", "step", "eager", "compile", "of eager", "of compile", "file", "export", "goal"]
    lines = [
        [
            row.network,
            str(row.threads),
            *(milliseconds(row.times.get(name)) for name in ("step", "eager", "compile")),
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in (row.of_eager, row.of_compile)),
            f"{row.file_bytes / 1e6:.2f} MB",
            f"{row.export:.1f} s",
            "met" if row.is_met else f"{MOST_OF_EAGER.get(row.network, 1.0):g} of eager",
        ]
        for row in rows
    ]
    return markdown.table(header, lines, right=range(1, 9))


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
