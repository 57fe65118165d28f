"""How commands answer: text for terminals and programs, JSON, progress, and failures."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from onnx_ops.cli.inspection import REFUSALS
from onnx_ops.runtime.progress import showing

if TYPE_CHECKING:
    from rich.console import Console

NAME = "onnx-ops"
FAILED = 1
SILENT = 4
"""onnxruntime's log level for fatal errors only; others are reported by its exceptions."""
UNWRAPPED = 1_000_000
"""The width of what is no terminal: lines there are for programs, which look for them whole."""
INDENT = "  "

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def make_console(stderr: bool = False) -> Console:
    """A console on standard output or standard error. It prints each text as one line, escaped."""
    from onnx_ops.cli.console import LineConsole

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNWRAPPED
    return LineConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_json(**answer: Any) -> None:
    print(json.dumps(_finite(answer), indent=2, allow_nan=False))


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar for whoever watches: advance(done, total, what)."""
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
    """A bar while kernels compile; what is no terminal gets the lines that the library logs."""
    if not sys.stderr.isatty():
        yield
        return
    what = "compiling the kernels that are not in the cache"
    with progress_bar(what) as advance, showing(lambda done, total: advance(done, total, what)):
        yield


def _finite(value: Any) -> Any:
    """The value with floats that JSON does not have as the strings that protobuf's JSON has for them."""
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


def print_wrapped(console: Console, text: str, indent: str = "", style: str | None = None) -> None:
    """Lines broken between words only, and indented from the second on."""
    from onnx_ops.cli.console import escaped

    shown = escaped(re.sub(r"[\t-\r]", " ", text))
    for line in textwrap.wrap(
        shown, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ):
        console.print(line, style=style, soft_wrap=True)


def print_lines(console: Console, text: str) -> None:
    """Text of several lines as they are."""
    for line in text.splitlines():
        console.print(line, soft_wrap=True)


def print_fields(console: Console, fields: Iterable[tuple[str, str]]) -> None:
    """Names in a column of their own, as narrow as can be."""
    fields = list(fields)
    column = max((len(name) for name, _ in fields), default=0) + 2
    for name, text in fields:
        print_wrapped(console, f"{INDENT}{name:{column}}{text}", " " * (len(INDENT) + column))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
