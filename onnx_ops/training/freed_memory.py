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
def _trim() -> Callable[[int], int] | None:
    """malloc_trim of glibc; None with another C library."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, TypeError, OSError):
        return None
    return trim


def return_freed_memory() -> None:
    """Return freed memory that glibc keeps to the system; with other C libraries, nothing is done.

    glibc keeps freed blocks of up to 32 MiB, between which larger tensors do not fit: with weights of this size it
    holds several times the memory that is in use.
    """
    if (trim := _trim()) is not None:
        trim(0)


@contextlib.contextmanager
def returned_when_freed() -> Iterator[None]:
    """A context in which glibc returns large blocks to the system as soon as they are freed.

    Other blocks, and those of all sizes with another C library or under a threshold that the environment sets, are kept
    as ever. As mallopt cannot return to glibc's changing threshold, it is at its largest value afterwards, which it
    reaches in each process that frees tensors of that size.
    """
    option = _option()
    if option is None or "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in os.environ.get(TUNABLES, ""):
        yield
        return
    try:
        _set_threshold(option, SEPARATE)
        yield
    finally:
        _set_threshold(option, LARGEST_THRESHOLD)


TUNABLES = "GLIBC_TUNABLES"


@functools.cache
def _option() -> Callable[[int, int], int] | None:
    """mallopt of glibc; None with another C library."""
    try:
        option: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError, OSError):
        return None
    return option


def _set_threshold(option: Callable[[int, int], int], size: int) -> None:
    """Set the size from which blocks are mapped separately, and that of a free end of the heap as glibc would."""
    option(M_MMAP_THRESHOLD, size)
    option(M_TRIM_THRESHOLD, 2 * size)
