"""Kernels compiled on all cores before a session needs them, and the progress shown meanwhile."""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from numba import types

import onnx_ops
from onnx_ops.core.call import Call
from onnx_ops.core.op import Op
from onnx_ops.integrations.examples import example_model
from onnx_ops.linking.link import link_with_calls
from onnx_ops.ops import OPS
from onnx_ops.runtime import ahead, cache, callbacks, compiler, host, kernels, progress, worker
from onnx_ops.runtime.process import STATE

FUNCTIONS = [(callbacks.one, kind(kind)) for kind in (types.int8, types.uint8, types.uint32, types.float32)]
"""Small ones, with signatures that nothing else has."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; two cores."""
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(ahead, "available_cores", lambda: 2)
    return cache.cache_directory()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Workers that do nothing."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*_: int) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(["sleep", "60"]))
        return processes[-1]

    monkeypatch.setattr(ahead, "_started", start)
    return processes


def test_workers_fill_the_cache(folder: Path) -> None:
    ahead.compile_ahead(FUNCTIONS)
    assert {path.name for path in folder.iterdir()} == {*map(compiler.entry_name, FUNCTIONS)}
    assert ahead.missing(FUNCTIONS) == []
    assert not {*FUNCTIONS} & compiler.compiled.keys()


def test_worker_stops_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """Its parent was killed, and could not end it."""
    (tmp_path / "functions").write_bytes(pickle.dumps([]))
    file, (queue, end) = os.open(tmp_path / "functions", os.O_RDONLY), os.pipe()
    os.write(end, bytes(ahead.RECORD_BYTES))
    worker.main(queue, file, parent=os.getpid())
    assert os.read(queue, ahead.RECORD_BYTES) == bytes(ahead.RECORD_BYTES)
    for descriptor in (file, queue, end):
        os.close(descriptor)


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MIN_FUNCTIONS", len(FUNCTIONS) + 1)


def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "available_cores", lambda: 1)


def no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/blender")


def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(Path(__file__) / "below a file"))


def all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "is_kept", lambda function: True)


@pytest.mark.parametrize("reason", [few, one_core, no_python, no_cache, all_there])
def test_no_worker_is_started_without_need(
    reason: Callable[[pytest.MonkeyPatch], None],
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason(monkeypatch)
    ahead.compile_ahead(FUNCTIONS)
    assert not started


def test_interrupt_ends_the_workers(started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ahead, "reporter", lambda: interrupt)
    with pytest.raises(KeyboardInterrupt):
        ahead.compile_ahead(FUNCTIONS)
    assert [process.returncode for process in started] == [-9, -9]
    assert ahead._workers() == []


@pytest.fixture
def locked(folder: Path) -> Iterator[None]:
    """Another process compiles for the same folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


@pytest.mark.usefixtures("locked")
def test_what_another_process_has_compiled_is_not_compiled(
    folder: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def advance(done: int, total: int) -> None:
        told.append((done, total))
        (folder / compiler.entry_name(FUNCTIONS[done % total])).touch()  # the other process is done with one more

    monkeypatch.setattr(ahead, "reporter", lambda: advance)
    ahead.compile_ahead(FUNCTIONS)
    assert told == [(done, 4) for done in range(5)]
    assert not started


@pytest.mark.usefixtures("locked")
def test_another_process_that_does_nothing_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "PATIENCE", 0.1)
    with ahead._locked(folder, FUNCTIONS, lambda done, total: None) as is_left:
        assert is_left


def test_a_model_tells_all_that_its_session_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.DIRECTORY_VARIABLE)
    needed: list[compiler.Function] = []

    def compile_kernel(op: Op, call: Call) -> kernels.Parts:
        needed.extend(kernels.functions_of(op, call))
        return kernels.compile_kernel(op, call)

    monkeypatch.setattr(host, "compile_kernel", compile_kernel)
    host._parts.cache_clear()
    for op in OPS.values():
        _, calls = link_with_calls(example_model(op))
        told = {function for used, call in calls for function in kernels.functions_of(used, call)}
        needed.clear()
        onnx_ops.InferenceSession(example_model(op))
        assert needed
        assert {*needed} <= told, op.name


# --- what is told ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (progress.HINTED, progress.SECONDS):
        monkeypatch.delitem(STATE.settled, name, raising=False)


@pytest.mark.usefixtures("fresh")
def test_progress_is_logged_after_a_second(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100, 100.5, 101.5, 101.5, 102, 135, 135))  # when it begins; at each call, and when it logs
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    advance = progress.reporter()
    for done in (0, 2, 3, 4):
        advance(done, 5)
    first, second = (record.getMessage() for record in caplog.records)
    assert first == f"onnx_ops compiles kernels, 2 of 5 functions are done{progress.HINT}"
    assert second == "onnx_ops compiles kernels, 4 of 5 functions are done"
    assert {(record.name, record.levelno) for record in caplog.records} == {("onnx_ops", logging.WARNING)}


@pytest.mark.usefixtures("fresh")
def test_progress_can_be_shown_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    shown: list[Any] = []
    with progress.showing(lambda *numbers: shown.append(numbers)):
        progress.reporter()(1, 2)
        progress.spent(5)
    assert shown == [(1, 2)]
    assert not caplog.records


def test_compiling_in_the_process_is_told_once_and_to_standard_error() -> None:
    program = "from onnx_ops.runtime import progress\nfor seconds in (0.5, 0.5, 3, 2): progress.spent(seconds)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == f"onnx_ops compiles kernels, which takes 5 to 10 seconds for an op{progress.HINT}\n"
