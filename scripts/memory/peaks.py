"""Peak memory of this process, as Linux counts it."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
RESETS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"

Step = Callable[[], float]
"""Makes a training step and returns its loss."""

Load = Callable[[], Step]
"""Loads or constructs a network and its optimizer, and returns its step."""


@dataclass(frozen=True)
class Measurement:
    """The memory and time that a training needs.

    Attributes:
        level: bytes of the process before the network exists.
        loading: peak bytes above `level` until the end of the first step.
        steps: peak bytes above `level` during the later steps.
        seconds: of a later step, median.
        losses: of all steps.
    """

    level: int
    loading: int
    steps: int
    seconds: float
    losses: list[float]


def resident() -> int:
    """Bytes of the process that are in memory now (VmRSS)."""
    return _status("VmRSS")


def peak() -> int:
    """The maximum of `resident` since `reset_peak`, or since the process began (VmHWM)."""
    return _status("VmHWM")


def reset_peak() -> None:
    RESETS.write_text(RESET_PEAK)


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def measure(load: Load, steps: int) -> Measurement:
    """Load a network and make its steps; `steps` is their number after the first one."""
    gc.collect()
    level = resident()
    reset_peak()
    step = load()
    losses = [step()]
    loading = peak()
    reset_peak()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    return Measurement(level, loading - level, peak() - level, statistics.median(seconds), losses)
