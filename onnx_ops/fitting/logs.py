"""Logs of the metrics of epochs: CSV, JSON lines, and event files of TensorBoard."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from onnx_ops.core.step_format import learning_rate_name, learning_rate_names
from onnx_ops.fitting.metrics import VALIDATION
from onnx_ops.fitting.run import Epoch
from onnx_ops.training.errors import StepError

Row = dict[str, int | float]


class Log(Protocol):
    """A log that epochs are added to."""

    def add(self, row: Row) -> None:
        """Add an epoch."""

    def close(self) -> None: ...


def row_of(number: int, epoch: Epoch) -> Row:
    """An epoch, counted from 1, as names and numbers; equal ones for equal trainings, interrupted or not."""
    groups = len(epoch.learning_rate)
    rates = {learning_rate_name(group, groups): rate for group, rate in enumerate(epoch.learning_rate)}
    return {"epoch": number, "steps": epoch.steps, **rates, **epoch.metrics}


class Logs:
    """Logs of a training, each of which begins with the epochs that are finished.

    Args:
        files: files that are written anew: .csv or .jsonl.
        tensorboard: a folder for an event file; epochs that are added hide those of earlier files from their step on.
        history: the epochs that are finished.

    Raises:
        OSError: a file that cannot be written.
        StepError: a file with another extension; a package that is missing.
    """

    def __init__(self, files: Iterable[Path], tensorboard: Path | None, history: Iterable[Epoch]) -> None:
        check_log_names(files)
        self._stack, self._logs = ExitStack(), list[Log]()
        rows = [row_of(number, epoch) for number, epoch in enumerate(history, 1)]
        for path in files:
            self._open((CsvLog if path.suffix == ".csv" else JsonLinesLog)(path), rows)
        if tensorboard is not None:
            self._open(TensorBoardLog(tensorboard, len(rows)), [])

    def _open(self, log: Log, rows: Iterable[Row]) -> None:
        self._stack.callback(log.close)
        self._logs.append(log)
        for row in rows:
            log.add(row)

    def add(self, number: int, epoch: Epoch) -> None:
        """Add an epoch, counted from 1."""
        for log in self._logs:
            log.add(row_of(number, epoch))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def check_log_names(files: Iterable[Path]) -> None:
    """Raise StepError for a file whose extension is not that of a log."""
    for path in files:
        if path.suffix not in (".csv", ".jsonl"):
            raise StepError(f"the log is {path}, expected a file .csv or .jsonl")


class CsvLog:
    """A header with the names, and a line for each epoch."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8", newline="")
        self._writer: Any = None

    def add(self, row: Row) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row), lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class JsonLinesLog:
    """A JSON object for each epoch, with NaN and infinities as null."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8")

    def add(self, row: Row) -> None:
        known = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._file.write(json.dumps(known, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardLog:
    """Scalars in an event file: train/<metric>, validation/<metric> and learning rates, over epochs."""

    def __init__(self, folder: Path, epochs: int) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise StepError(
                f"{folder} needs tensorboard, which is not installed: pip install 'onnx-ops[tensorboard]'"
            ) from error
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))
        if epochs:  # TensorBoard then drops what an interrupted process has written of the epochs that follow
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(step=epochs + 1, session_log=start))

    def add(self, row: Row) -> None:
        values = [
            self._summary.Value(tag=_tag(name), simple_value=value) for name, value in row.items() if name != "epoch"
        ]
        self._writer.add_event(self._event(step=int(row["epoch"]), summary=self._summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _tag(name: str) -> str:
    if name == "steps" or learning_rate_names([name]):
        return name
    return f"validation/{name.removeprefix(VALIDATION)}" if name.startswith(VALIDATION) else f"train/{name}"
