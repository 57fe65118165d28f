"""Benchmarks training steps: captured steps in onnxruntime against PyTorch eager and torch.compile.

Run it from the root of the repository: `python -m scripts.bench_training`. It requires torch, and for torch.compile a
C++ compiler. A step is forward pass, backward pass and optimizer update of a network of models/networks.py, on a batch
in memory with constant shapes. Each row is measured in a process of its own, with interleaved measurements; a ratio is
the median over the rounds.

step      `onnx_ops.Trainer.step` of the saved file
eager     the same in PyTorch: zero_grad, loss, backward, optimizer.step
compile   eager, with torch.compile of the loss and of optimizer.step
export    capturing the step, without the verification against PyTorch
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

import torch
from torch import Tensor, nn
from tqdm import tqdm

import onnx_ops
import onnx_ops.torch
from models.networks import TASKS, Task
from scripts import markdown, measuring, timing
from scripts.measuring import Run

MAX_STEP_OVER_EAGER = {"MLP, BCE": 0.6, "MLP, KL": 0.6}
"""Goals for time of the step / time of eager, by network; 1 for all others."""


@dataclass(frozen=True)
class Row:
    """The result for a network and a number of threads.

    Attributes:
        times: median seconds of a step by candidate.
        over_eager, over_compile: median over the rounds of time of the captured step / time of PyTorch; None where
            torch.compile fails.
        file_bytes: size of the saved step.
        export: seconds of the capture.
        foreign_load: cores kept busy by other processes; None where it is unknown.
    """

    network: str
    threads: int
    times: dict[str, float]
    over_eager: float
    over_compile: float | None
    file_bytes: int
    export: float
    foreign_load: float | None

    @property
    def goal(self) -> float:
        return MAX_STEP_OVER_EAGER.get(self.network, 1.0)

    @property
    def is_met(self) -> bool:
        return round(self.over_eager, 2) <= self.goal


def main() -> int:
    """Measure, print the table, write the files; returns the exit status."""
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
    timing.print_foreign_load(row.foreign_load for row in rows)
    summary = measuring.write_rows(options.json, machine, rows, table(rows))
    print(f"Written to {options.json} and {summary}.")
    return 0


def measure(network: str, threads: int, budget: float) -> Row:
    """Time the steps of a network for about `budget` seconds."""
    warnings.simplefilter("ignore")  # PyTorch warns of its own internals
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
        rounds, foreign_load = timing.least_loaded(runs, budget)

    def step_over(candidate: str) -> float:
        return timing.median_of(lambda ours, theirs: ours / theirs, rounds["step"], rounds[candidate])

    times = {name: statistics.median(seconds) for name, seconds in rounds.items()}
    over_compile = step_over("compile") if "compile" in rounds else None
    return Row(network, threads, times, step_over("eager"), over_compile, file_bytes, export, foreign_load)


def eager_step(task: Task, model: nn.Module, batch: tuple[Tensor, ...]) -> Run:
    """A training step in PyTorch eager mode, on a copy of the network."""
    own = copy.deepcopy(model)
    optimizer = task.optimizer(own)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(own, *batch).backward()
        optimizer.step()

    return step


def compiled_step(task: Task, model: nn.Module, batch: tuple[Tensor, ...]) -> Run | None:
    """A training step with torch.compile of loss and update, on a copy of the network; None where that fails."""
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
    """A Markdown table."""
    header = ["network", "threads", "step", "eager", "compile"]
    header += ["step / eager", "step / compile", "file", "export", "goal"]
    lines = [
        [
            row.network,
            str(row.threads),
            *(milliseconds(row.times.get(name)) for name in ("step", "eager", "compile")),
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in (row.over_eager, row.over_compile)),
            f"{row.file_bytes / 1e6:.2f} MB",
            f"{row.export:.1f} s",
            "met" if row.is_met else f"step / eager <= {row.goal:g}",
        ]
        for row in rows
    ]
    return markdown.table(header, lines, right=range(1, 9))


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
