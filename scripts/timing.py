"""Timing of what does the same in several ways: in a process of its own, in turns, by medians within the rounds."""

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
from typing import Any, TypeVar

import onnxruntime as ort

from scripts import measuring
from scripts.measuring import Run

# All in seconds. Idle worker threads keep cores busy for a while before they sleep: onnxruntime's for 30 ms by default,
# which SPIN shortens, torch's (OpenMP) for 3 ms. In REST the threads of one contender fall asleep before the next one
# is timed. In SETTLE its own threads wake up, which takes up to a millisecond and does not count.
SPIN = 0.001
REST = 0.005
SETTLE = 0.002
TURN = 0.003
MOST_CALLS = 300
LEAST_ROUNDS = 5
MOST_ROUNDS = 200
# A call that takes so long is neither warmed up nor settled.
LONG = 0.1
# What takes so many times as long as the fastest contender, and has had the budget for itself, sits out after so many
# rounds: a ratio as large as that needs no more of them.
MANY_TIMES = 10
LEAST_ROUNDS_OF_SLOW = 3
# If other processes keep more cores busy than this, a row is measured again, up to so many times in all.
MOST_FOREIGN_LOAD = 0.1
ATTEMPTS = 2

T = TypeVar("T")


def in_own_process(function: Callable[..., T], *arguments: Any) -> T:
    """The call's result; no row shares the memory, and the luck with it, of those before."""
    with ProcessPoolExecutor(1, mp_context=processes()) as pool:
        return pool.submit(function, *arguments).result()


@functools.cache
def processes() -> multiprocessing.context.BaseContext:
    """How processes are made: where the system can, of one that has imported everything and done nothing else."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scripts.measuring"])
    return context


def median_of(compare: Callable[[float, float], float], first: list[float], second: list[float]) -> float:
    """The median over all rounds of a ratio that is taken within each round."""
    return statistics.median(map(compare, first, second))


def least_disturbed(runs: Mapping[str, Run], budget: float) -> tuple[dict[str, list[float]], float | None]:
    """What `take_turns` finds, and how many cores other processes kept busy; if too many, it is tried a few times."""
    attempts = []
    for _ in range(ATTEMPTS):
        foreign = ForeignLoad()
        attempts.append((take_turns(runs, budget), foreign.cores()))
        if (attempts[-1][1] or 0) <= MOST_FOREIGN_LOAD:
            break
    return min(attempts, key=lambda attempt: attempt[1] or 0)


def take_turns(runs: Mapping[str, Run], budget: float) -> dict[str, list[float]]:
    """Seconds of one call of each contender in each round; the first rounds only of one that is slow.

    The order turns around from round to round.
    """
    expected = {name: warm_up(run) for name, run in runs.items()}
    turns: dict[str, list[float]] = {name: [] for name in runs}
    fastest = min(expected.values())
    order = list(runs)
    end = time.perf_counter() + budget
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for name in order:
            slow = expected[name] > MANY_TIMES * fastest and sum(turns[name]) > budget
            if done < LEAST_ROUNDS_OF_SLOW or not slow:
                turns[name].append(turn(runs[name], expected[name]))
        order.reverse()
    return turns


def warm_up(run: Run) -> float:
    """Seconds that a call takes, once a few calls have warmed it up."""
    seconds: list[float] = []
    end = time.perf_counter() + 0.02
    while len(seconds) < 2 or (time.perf_counter() < end and len(seconds) < MOST_CALLS):
        seconds.append(call_time(run))
        if seconds[0] > LONG:
            break
    return statistics.median(seconds[len(seconds) // 2 :])


def turn(run: Run, expected: float) -> float:
    """Seconds of a call that takes about as long as expected: the median of a few, after some that do not count."""
    time.sleep(REST)
    if expected < LONG:
        settled = time.perf_counter() + SETTLE
        run()
        while time.perf_counter() < settled:
            run()
    return statistics.median(call_time(run) for _ in range(max(1, min(int(TURN / expected), MOST_CALLS))))


def call_time(run: Run) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e9


class ForeignLoad:
    """How many cores other processes keep busy, from the making of this object on."""

    def __init__(self) -> None:
        self.begin = self._now()

    def cores(self) -> float | None:
        """The average so far; None where the system does not tell."""
        now = self._now()
        if self.begin is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self.begin, now, strict=True))
        return max(busy - own, 0.0) / wall

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds by the clock, seconds of all cores' work, and of this process's."""
        try:
            user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
        except OSError:
            return None
        return time.perf_counter(), (user + nice + system) / os.sysconf("SC_CLK_TCK"), time.process_time()


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Switches garbage collection off while the block runs."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def session_options(threads: int) -> ort.SessionOptions:
    """Options of sessions that are timed: their threads, when idle, soon leave the cores to other contenders."""
    options = measuring.quiet_options(threads)
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(round(SPIN * 1e6)))
    return options


def print_disturbance(others: Iterable[float | None]) -> None:
    """Say in how many timings other processes kept cores busy, if in any.

    Args:
        others: for each timing how many cores; None where the system does not tell.
    """
    if disturbed := [cores for cores in others if cores is not None and cores > MOST_FOREIGN_LOAD]:
        print(f"Other processes kept up to {max(disturbed):.1f} cores busy in {len(disturbed)} timings.")
