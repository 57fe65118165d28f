"""Returns freed memory to the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

LARGE = 2**25
"""Bytes of parameters of a model for which memory is returned; a smaller one needs less than that takes."""


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
