"""Returns freed memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator

LARGE = 2**25
"""Bytes of parameters of a model for which memory is returned; a smaller one needs less than that takes."""

SEPARATE = 2**22
"""Bytes from which blocks are mapped separately within `returned_when_freed`: with 2**20 a capture takes a third more
time, as each mapping begins with pages that the system has to fill."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 2**25
"""What glibc raises the threshold of separate mappings to as blocks of that size are freed (mallopt(3))."""


@functools.cache
def _of_glibc(name: str) -> Callable[..., int] | None:
    """A function of glibc that other C libraries do not have; None with another one."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, TypeError, OSError):
        return None
    return function


def return_freed_memory() -> None:
    """Return freed memory that glibc keeps to the system; with other C libraries, nothing is done.

    glibc keeps freed blocks of up to 32 MiB, between which larger tensors do not fit: with weights of this size it
    holds several times the memory that is in use.
    """
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


@contextlib.contextmanager
def returned_when_freed() -> Iterator[None]:
    """A context in which glibc returns large blocks to the system as soon as they are freed.

    Smaller blocks are kept. So are all with another C library, or if the environment sets a threshold. mallopt cannot
    return to glibc's changing threshold: afterwards it is at its largest value, which it reaches in each process that
    frees tensors of that size.
    """
    option = _of_glibc("mallopt")
    if (
        option is None
        or "MALLOC_MMAP_THRESHOLD_" in os.environ
        or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", "")
    ):
        yield
        return
    try:
        _set_threshold(option, SEPARATE)
        yield
    finally:
        _set_threshold(option, LARGEST_THRESHOLD)


def _set_threshold(option: Callable[[int, int], int], size: int) -> None:
    """Set the size from which blocks are mapped separately, and that of a free end of the heap as glibc would."""
    option(M_MMAP_THRESHOLD, size)
    option(M_TRIM_THRESHOLD, 2 * size)
