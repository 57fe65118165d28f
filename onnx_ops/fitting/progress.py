"""A progress bar with the remaining time, on a terminal where rich is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[int, int | None, str], None]
"""Takes the number of steps done, their total if it is known, and a description."""


@contextlib.contextmanager
def progress_bar(shown: bool = True) -> Iterator[Advance]:
    """A bar on standard error; yields what advances it, which does nothing without a bar."""
    if not shown or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)
