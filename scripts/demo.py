"""`make demo`: five short trainings on real data, one for each of five families of ops.

Run it from the root of the repository: `python -m scripts.demo`. It prints a table of results and writes an HTML page
with all figures. The exit status is 1 if a result is below its target, or if the first losses differ from those of
PyTorch on the same batches.
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

TRAININGS: tuple[ModuleType, ...] = (
    multilabel,
    line_reader,
    distillation,
    sparse_coding,
    synchronized_batch_norm,
)
"""Modules with a function `run`; the first line of their docstring is printed."""

console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Run the trainings; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="full trainings, some minutes each")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and shuffling; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), metavar="FOLDER", help="default: %(default)s")
    parsed = parser.parse_args(arguments)

    console.print("[bold]onnx_ops: five trainings in onnxruntime, without a training framework[/bold]")
    results = {}
    for training in TRAININGS:
        name = training.__name__.rpartition(".")[2]
        folder = parsed.out / name
        folder.mkdir(parents=True, exist_ok=True)
        options = Options(quick=not parsed.full, seed=parsed.seed, folder=folder, resume=False)
        console.print(f"\n[bold]{name}[/bold]: {(training.__doc__ or '').splitlines()[0]}", soft_wrap=True)
        results[name] = timed(functools.partial(training.run, options))

    console.print()
    console.print(table(results.values()))
    console.print("loss difference: maximal relative difference between the first losses and PyTorch's.")
    html = parsed.out / "index.html"
    html.write_text(page(results, full=parsed.full), encoding="utf-8")
    console.print(f"Figures: {html}", soft_wrap=True, markup=False)
    return print_failures(results)


def table(results: Iterable[Result]) -> Table:
    """The results, one line per training."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows.add_column("op", no_wrap=True)
    rows.add_column("task")
    rows.add_column("result")
    rows.add_column("seconds", justify="right")
    rows.add_column("loss\ndifference", justify="right")
    for result in results:
        rows.add_row(result.op, result.task, result.figure, f"{result.seconds:.0f}", f"{result.difference:.0e}")
    return rows


def print_failures(results: Mapping[str, Result]) -> int:
    """Print results below their target and losses that differ from PyTorch's; returns the exit status."""
    failures = [
        f"{name}: {result.figure} is below its target" for name, result in results.items() if not result.reached
    ]
    failures += [
        f"{name}: the first losses differ from PyTorch's by {result.difference:.1e}"
        for name, result in results.items()
        if not result.is_like_torch
    ]
    for text in failures:
        console.print(f"[bold red]FAILED[/bold red]: {text}", soft_wrap=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
