"""Kernels compiled on all cores before a session needs them, and the progress shown meanwhile."""

from __future__ import annotations

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
from onnx_ops.linking.link import link_in_place
from onnx_ops.ops import OPS
from onnx_ops.runtime import ahead, cache, callbacks, compiler, kernels, progress, requests, worker
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
    assert {path.name for path in folder.iterdir()} == {cache.LOCKS, *map(compiler.entry_name, FUNCTIONS)}
    assert ahead.missing(FUNCTIONS) == []
    assert not {*FUNCTIONS} & compiler.compiled.keys()


def test_worker_stops_when_nobody_waits_for_it(tmp_path: Path, seen: list[compiler.Function]) -> None:
    """Its parent was killed, and could not end it."""
    work(tmp_path, parent=os.getpid())
    assert not seen


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


ELSEWHERE = """
import fcntl, sys, zlib
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX, 1, zlib.crc32(sys.argv[2].encode()))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which compiles the first function until its standard input ends."""
    command = [sys.executable, "-c", ELSEWHERE, str(folder / cache.LOCKS), compiler.entry_name(FUNCTIONS[0])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        yield process


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[compiler.Function]:
    """What a worker in this process compiles."""
    functions: list[compiler.Function] = []
    monkeypatch.setattr(worker, "compile_native", lambda *function: functions.append(function))
    return functions


def work(tmp_path: Path, parent: int | None = None) -> None:
    """A worker for all functions, in this process, as if `parent` had started it."""
    wanted = [(function.__module__, function.__name__, signature) for function, signature in FUNCTIONS]
    (tmp_path / "functions").write_bytes(pickle.dumps(wanted))
    file, (queue, end) = os.open(tmp_path / "functions", os.O_RDONLY), os.pipe()
    for number in (*range(len(FUNCTIONS)), ahead.LAST):
        os.write(end, number.to_bytes(ahead.RECORD_BYTES, "little"))
    worker.main(queue, file, parent or os.getppid())
    for descriptor in (file, queue, end):
        os.close(descriptor)


def test_what_another_process_compiles_comes_last_and_is_not_compiled(
    folder: Path,
    tmp_path: Path,
    elsewhere: subprocess.Popen[str],
    seen: list[compiler.Function],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compile_other(*function: Any) -> None:
        seen.append(function)
        if function == FUNCTIONS[-1]:  # meanwhile the other process is done with the first one
            (folder / compiler.entry_name(FUNCTIONS[0])).touch()
            elsewhere.communicate()

    monkeypatch.setattr(worker, "compile_native", compile_other)
    monkeypatch.setattr(worker, "is_kept", lambda function: (folder / compiler.entry_name(function)).exists())
    work(tmp_path)
    assert seen == FUNCTIONS[1:]


@pytest.mark.usefixtures("elsewhere")
def test_another_process_that_does_not_finish_is_not_waited_for(
    tmp_path: Path, seen: list[compiler.Function], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 0.1)
    work(tmp_path)
    assert seen == [*FUNCTIONS[1:], FUNCTIONS[0]]


def test_another_process_that_ends_leaves_its_function(
    tmp_path: Path, elsewhere: subprocess.Popen[str], seen: list[compiler.Function]
) -> None:
    elsewhere.kill()
    elsewhere.wait()
    work(tmp_path)
    assert seen == FUNCTIONS


def test_a_model_tells_all_that_its_session_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.DIRECTORY_VARIABLE)
    needed: list[compiler.Function] = []

    def compile_kernel(op: Op, call: Call) -> kernels.Parts:
        needed.extend(kernels.functions_of(op, call))
        return kernels.compile_kernel(op, call)

    monkeypatch.setattr(requests, "compile_kernel", compile_kernel)
    requests._parts.cache_clear()
    for op in OPS.values():
        calls = link_in_place(example_model(op))
        told = {function for used, call in calls for function in kernels.functions_of(used, call)}
        needed.clear()
        onnx_ops.InferenceSession(example_model(op))
        assert needed
        assert {*needed} <= told, op.name


# --- what is told ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (progress.HINTED, progress.SECONDS):
        monkeypatch.delitem(STATE.shared, name, raising=False)


@pytest.mark.usefixtures("fresh")
def test_progress_is_logged_after_a_second(logged: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100, 100.5, 101.5, 101.5, 102, 135, 135))  # when it begins; at each call, and when it logs
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    advance = progress.reporter()
    for done in (0, 2, 3, 4):
        advance(done, 5)
    first, second = (record.getMessage() for record in logged)
    assert first == f"onnx_ops compiles kernels, 2 of 5 functions are done{progress.HINT}"
    assert second == "onnx_ops compiles kernels, 4 of 5 functions are done"
    assert {(record.name, record.levelno) for record in logged} == {("onnx_ops", logging.WARNING)}


@pytest.mark.usefixtures("fresh")
def test_progress_can_be_shown_elsewhere(logged: list[logging.LogRecord]) -> None:
    shown: list[Any] = []
    with progress.showing(lambda *numbers: shown.append(numbers)):
        progress.reporter()(1, 2)
        progress.spent(5)
    assert shown == [(1, 2)]
    assert not logged


def test_compiling_in_the_process_is_told_once_and_to_standard_error() -> None:
    program = "from onnx_ops.runtime import progress\nfor seconds in (0.5, 0.5, 3, 2): progress.spent(seconds)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == f"onnx_ops compiles kernels, which takes 5 to 10 seconds for an op{progress.HINT}\n"
