"""The memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.platform == "darwin":
    import resource

STATUS = Path("/proc/self/status")


def peak_memory() -> int | None:
    """The largest number of bytes of this process that have been in memory at one time; None where it is not known.

    Pages of memory-mapped files that have been read are counted too.
    """
    if STATUS.exists():  # the usage that getrusage returns on Linux may be that of the parent process
        peaks = [line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(peaks[0].split()[1]) * 1024 if peaks else None
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None
