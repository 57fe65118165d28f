"""Compiles functions in parallel, before they are needed.

Numba has a global compiler lock, so that functions are compiled in worker processes (`onnx_ops.runtime.worker`). These
only fill the cache, from which functions are loaded when they are needed; those that are missing are compiled then.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from onnx_ops.runtime import cache
from onnx_ops.runtime.compiler import Function, compiled, entry_name, is_kept
from onnx_ops.runtime.loops.compilation import available_cores
from onnx_ops.runtime.process import STATE
from onnx_ops.runtime.progress import reporter
from onnx_ops.runtime.signatures import PLAN, TASK_IN

MIN_FUNCTIONS = 4
"""Fewer functions are compiled in the process itself: a worker takes two seconds to start."""
MAX_WORKERS = 16
"""A worker takes 300 MB."""

# Workers read indices of functions from a pipe that they share, until LAST.
RECORD_BYTES = 4
LAST = 2 ** (8 * RECORD_BYTES) - 1


def compile_ahead(functions: Iterable[Function]) -> None:
    """Compile the functions that are not in the cache, on all cores, into the cache; returns when that is done."""
    left = missing(functions)
    workers = min(available_cores(), len(left) // 2, MAX_WORKERS)
    if len(left) < MIN_FUNCTIONS or workers < 2 or not _can_start_python():
        return
    try:
        folder = cache.cache_directory()
    except OSError:  # workers could not pass on what they compile
        return
    _compile(sorted(left, key=_order), workers, folder)


def missing(functions: Iterable[Function]) -> list[Function]:
    """The functions that are neither compiled in this process nor in the cache."""
    return [function for function in dict.fromkeys(functions) if function not in compiled and not is_kept(function)]


def _order(function: Function) -> tuple[bool, bool]:
    """Sort key: the longest compilations first (tasks, then plans), for a balanced load."""
    _, signature = function
    return signature not in TASK_IN.values(), signature != PLAN


def _can_start_python() -> bool:
    """False on Windows, where there are no kernels, and in frozen or embedding programs."""
    is_python = Path(sys.executable or "").name.startswith("python")
    return sys.platform != "win32" and is_python and not getattr(sys, "frozen", False)


def _compile(functions: Sequence[Function], workers: int, folder: Path) -> None:
    advance, left = reporter(), {folder / entry_name(function) for function in functions}
    queue, queue_end = os.pipe()
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as file:
        file.write(pickle.dumps([(f.__module__, f.__name__, signature) for f, signature in functions]))
        file.flush()
        try:
            numbers = [*range(len(functions)), *[LAST] * workers]
            os.write(queue_end, b"".join(number.to_bytes(RECORD_BYTES, "little") for number in numbers))
            for _ in range(workers):
                running.append(_started(queue, file.fileno()))
                _workers().append(running[-1])
            while any(worker.poll() is None for worker in running):
                left = {entry for entry in left if not entry.exists()}
                advance(len(functions) - len(left), len(functions))
                time.sleep(cache.POLL_SECONDS)
        finally:
            os.close(queue_end)
            os.close(queue)
            for worker in running:
                _end(worker)
                _workers().remove(worker)


def _started(queue: int, functions: int) -> subprocess.Popen[bytes]:
    """Start a worker with the sys.path of this process; -P: without the working directory."""
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    arguments = map(str, (queue, functions, os.getpid()))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "onnx_ops.runtime.worker", *arguments],
        env=os.environ | {"PYTHONPATH": paths},
        pass_fds=(queue, functions),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


def _end_all() -> None:
    for worker in list(_workers()):
        _end(worker)


def _workers() -> list[subprocess.Popen[bytes]]:
    """The running workers, which are ended with this process."""
    if "workers" not in STATE.shared:
        workers: list[subprocess.Popen[bytes]] = []
        STATE.shared["workers"] = workers
        STATE.at_the_end.append(_end_all)
        STATE.in_child.append(workers.clear)
    found: list[subprocess.Popen[bytes]] = STATE.shared["workers"]
    return found
