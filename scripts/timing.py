"""Interleaved timing of several candidates in a process of their own; ratios are medians over rounds."""

import contextlib
import functools
import gc
import multiprocessing
import multiprocessing.context
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import onnxruntime as ort

from scripts import measuring
from scripts.measuring import Run

# Seconds. Idle worker threads spin before they sleep: onnxruntime's for 30 ms by default, which SPIN shortens, torch's
# (OpenMP) for 3 ms. During REST the threads of the previous candidate fall asleep; during WARM_UP those of the next one
# wake up, which takes up to a millisecond.
SPIN = 0.001
REST = 0.005
WARM_UP = 0.002
MEASURE = 0.003
MAX_CALLS = 300
MIN_ROUNDS = 5
MAX_ROUNDS = 200
LONG_CALL = 0.1
"""Seconds; calls from this duration on are not warmed up."""
SLOW_RATIO = 10
"""A candidate that takes this many times as long as the fastest one, and has used up the budget, is not timed again
after MIN_ROUNDS_OF_SLOW rounds."""
MIN_ROUNDS_OF_SLOW = 3
MAX_FOREIGN_LOAD = 0.1
"""Cores; if other processes use more of them, the measurement is repeated, up to ATTEMPTS times in all."""
ATTEMPTS = 2

P = ParamSpec("P")
T = TypeVar("T")


def in_own_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a call in a new process: measurements do not share the state of its memory allocator."""
    with ProcessPoolExecutor(1, mp_context=process_context()) as pool:
        return pool.submit(function, *args, **kwargs).result()


@functools.cache
def process_context() -> multiprocessing.context.BaseContext:
    """A forkserver that has imported `scripts.measuring`, where the system has it; else spawn."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scripts.measuring"])
    return context


def median_of(compare: Callable[[float, float], float], first: list[float], second: list[float]) -> float:
    """The median over the rounds of `compare(first[i], second[i])`, such as a ratio."""
    return statistics.median(map(compare, first, second))


def least_loaded(runs: Mapping[str, Run], budget: float) -> tuple[dict[str, list[float]], float | None]:
    """The result of `interleaved` with the least foreign load, and that load in cores, of up to ATTEMPTS attempts."""
    attempts = []
    for _ in range(ATTEMPTS):
        foreign = ForeignLoad()
        attempts.append((interleaved(runs, budget), foreign.cores()))
        if (attempts[-1][1] or 0) <= MAX_FOREIGN_LOAD:
            break
    return min(attempts, key=lambda attempt: attempt[1] or 0)


def interleaved(runs: Mapping[str, Run], budget: float) -> dict[str, list[float]]:
    """Time all candidates in each round, in alternating order, for about `budget` seconds.

    Args:
        runs: a call of each candidate, by name.
        budget: seconds, after MIN_ROUNDS rounds.

    Returns:
        Seconds of a call by candidate, one number per round; of slow candidates the first rounds only.
    """
    expected = {name: warm_up(run) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    fastest = min(expected.values())
    order = list(runs)
    end = time.perf_counter() + budget
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and time.perf_counter() > end:
            break
        for name in order:
            slow = expected[name] > SLOW_RATIO * fastest and sum(seconds[name]) > budget
            if done < MIN_ROUNDS_OF_SLOW or not slow:
                seconds[name].append(measure(runs[name], expected[name]))
        order.reverse()
    return seconds


def warm_up(run: Run) -> float:
    """Call `run` for at least 20 ms; returns the median seconds of the second half of the calls."""
    seconds: list[float] = []
    end = time.perf_counter() + 0.02
    while len(seconds) < 2 or (time.perf_counter() < end and len(seconds) < MAX_CALLS):
        seconds.append(call_time(run))
        if seconds[0] > LONG_CALL:
            break
    return statistics.median(seconds[len(seconds) // 2 :])


def measure(run: Run, expected: float) -> float:
    """Median seconds of several calls, after a rest and some calls that are not counted.

    Args:
        run: the call.
        expected: about how many seconds it takes.
    """
    time.sleep(REST)
    if expected < LONG_CALL:
        warm = time.perf_counter() + WARM_UP
        run()
        while time.perf_counter() < warm:
            run()
    return statistics.median(call_time(run) for _ in range(max(1, min(int(MEASURE / expected), MAX_CALLS))))


def call_time(run: Run) -> float:
    """Seconds of one call."""
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e9


class ForeignLoad:
    """The load of other processes since the construction of this object."""

    def __init__(self) -> None:
        self.begin = self._now()

    def cores(self) -> float | None:
        """The average number of cores that other processes keep busy; None without /proc/stat."""
        now = self._now()
        if self.begin is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self.begin, now, strict=True))
        return max(busy - own, 0.0) / wall

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Wall-clock seconds, CPU seconds of all processes, and of this one."""
        try:
            user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
        except OSError:
            return None
        return time.perf_counter(), (user + nice + system) / os.sysconf("SC_CLK_TCK"), time.process_time()


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Disable garbage collection in the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def session_options(threads: int) -> ort.SessionOptions:
    """Options of a session that is timed: its idle threads spin for SPIN seconds only."""
    options = measuring.quiet_options(threads)
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(round(SPIN * 1e6)))
    return options


def print_foreign_load(loads: Iterable[float | None]) -> None:
    """Print how many measurements had a foreign load above the limit, if any.

    Args:
        loads: of each measurement, in cores; None where it is unknown.
    """
    if noisy := [cores for cores in loads if cores is not None and cores > MAX_FOREIGN_LOAD]:
        print(f"Other processes kept up to {max(noisy):.1f} cores busy in {len(noisy)} measurements.")
