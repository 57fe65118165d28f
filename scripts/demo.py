"""`make demo`: five trainings on real data, each for one family of the ops, in a quick form.

Run it from the repository's root: `python -m scripts.demo`. It prints a table of what was reached, and writes a page
with all pictures. It exits with status 1 if a training does not reach what it should, or its losses are not those that
PyTorch has on the same batches.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from rich import box
from rich.console import Console
from rich.table import Table

from scripts.trainings import distillation, line_reader, multilabel, sparse_coding, synchronized_batch_norm
from scripts.trainings.command import Options, Result, timed
from scripts.trainings.page import page

# Each has a function `run`, and a docstring whose first line says what it is.
TRAININGS: tuple[ModuleType, ...] = (
    multilabel,
    line_reader,
    distillation,
    sparse_coding,
    synchronized_batch_norm,
)

console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Runs the trainings and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the trainings in their whole length, some minutes each")
    parser.add_argument("--seed", type=int, default=0, help="of weights, samples and their order; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), metavar="FOLDER", help="default: %(default)s")
    given = parser.parse_args(arguments)

    console.print("[bold]onnx_ops: five trainings in onnxruntime, without a training framework[/bold]")
    results = {}
    for training in TRAININGS:
        name = training.__name__.rpartition(".")[2]
        folder = given.out / name
        folder.mkdir(parents=True, exist_ok=True)
        options = Options(quick=not given.full, seed=given.seed, folder=folder, resume=False)
        console.print(f"\n[bold]{name}[/bold]: {(training.__doc__ or '').splitlines()[0]}", soft_wrap=True)
        results[name] = timed(functools.partial(training.run, options))

    console.print()
    console.print(table(results.values()))
    console.print("The last column: the first losses beside PyTorch's, from the same start on the same batches.")
    written = given.out / "index.html"
    written.write_text(page(results, full=given.full), encoding="utf-8")
    console.print(f"All pictures: {written}", soft_wrap=True, markup=False)
    return say_what_failed(results)


def table(results: Iterable[Result]) -> Table:
    """What a visitor wants to know at a glance."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("op", no_wrap=True)
    made.add_column("task")
    made.add_column("reached")
    made.add_column("seconds", justify="right")
    made.add_column("off PyTorch", justify="right")
    for result in results:
        made.add_row(result.op, result.task, result.figure, f"{result.seconds:.0f}", f"{result.difference:.0e}")
    return made


def say_what_failed(results: Mapping[str, Result]) -> int:
    """Prints it; returns the exit status."""
    missed = [
        f"{name} has reached {result.figure}, less than it should"
        for name, result in results.items()
        if not result.reached
    ]
    missed += [
        f"{name} is off PyTorch's losses by {result.difference:.1e}"
        for name, result in results.items()
        if not result.is_like_torch
    ]
    for text in missed:
        console.print(f"[bold red]FAILED[/bold red]: {text}", soft_wrap=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
