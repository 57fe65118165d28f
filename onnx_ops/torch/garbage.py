"""Python's garbage collector during a capture."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

ALLOCATIONS = 50_000
"""Objects that are made between two collections; a step of PyTorch and its trace make thousands per operator."""


@contextlib.contextmanager
def collected_rarely() -> Iterator[None]:
    """A context in which the collector runs less often, unless the program has set it so already.

    With Python's default of 700 allocations it takes 5 to 8 % of a capture, as it goes through the nodes of its graphs
    over and over.
    """
    before = gc.get_threshold()
    if gc.isenabled() and before[0]:
        gc.set_threshold(max(before[0], ALLOCATIONS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
