"""Output of commands: text, JSON, progress and errors."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from onnx_ops.cli.inspection import REFUSALS
from onnx_ops.runtime.progress import showing

if TYPE_CHECKING:
    from rich.console import Console

NAME = "onnx-ops"
FAILED = 1
UNWRAPPED = 1_000_000
"""Width where the output is no terminal: programs that read it expect unbroken lines."""
INDENT = "  "

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def make_console(stderr: bool = False) -> Console:
    """A LineConsole on standard output or standard error."""
    from onnx_ops.cli.console import LineConsole

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNWRAPPED
    return LineConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_json(**answer: object) -> None:
    print(json.dumps(_finite(answer), indent=2, allow_nan=False))


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on a terminal; yields advance(done, total, description)."""
    if not sys.stderr.isatty():  # a disabled bar writes an empty line before rich 15
        yield lambda done, total, what: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = make_console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)


@contextlib.contextmanager
def compiling_status() -> Iterator[None]:
    """A progress bar while kernels compile; without a terminal the library logs the progress."""
    if not sys.stderr.isatty():
        yield
        return
    what = "compiling the kernels that are not in the cache"
    with progress_bar(what) as advance, showing(lambda done, total: advance(done, total, what)):
        yield


def _finite(value: object) -> object:
    """Replace floats that JSON does not have by strings, as in protobuf's JSON."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextlib.contextmanager
def refusals(as_json: bool) -> Iterator[None]:
    try:
        yield
    except REFUSALS as refusal:
        fail(str(refusal), as_json)


def fail(problem: str, as_json: bool) -> NoReturn:
    if as_json:
        print_json(error=problem)
    else:
        print_wrapped(make_console(stderr=True), f"{NAME}: {problem}", INDENT, style="red")
    raise typer.Exit(FAILED)


def reason(error: OSError) -> str:
    """The file and why it cannot be read or written."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def print_wrapped(console: Console, text: str, indent: str = "", style: str | None = None) -> None:
    """Print text wrapped between words, with an indent from the second line on."""
    from onnx_ops.cli.console import escaped

    shown = escaped(re.sub(r"[\t-\r]", " ", text))
    for line in textwrap.wrap(
        shown, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ):
        console.print(line, style=style, soft_wrap=True)


def print_lines(console: Console, text: str) -> None:
    """Print lines without wrapping."""
    for line in text.splitlines():
        console.print(line, soft_wrap=True)


def print_fields(console: Console, fields: Iterable[tuple[str, str]]) -> None:
    """Print names and texts in two columns."""
    fields = list(fields)
    column = max((len(name) for name, _ in fields), default=0) + 2
    for name, text in fields:
        print_wrapped(console, f"{INDENT}{name:{column}}{text}", " " * (len(INDENT) + column))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
