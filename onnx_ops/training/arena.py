"""How the sessions of steps allocate memory: onnxruntime's arena, and the heap of the C library."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator

import onnxruntime as ort

from onnx_ops.core.types import TensorType
from onnx_ops.training.arrays import byte_count

LARGEST_GRADIENTS = 3
"""The number of gradients of the largest parameter for which the first region of a session's memory arena has room."""
LEAST_REGION = 256 << 20
"""Bytes below which the arena chooses its first region: there it has been measured to need less memory so."""


def first_region(changing: Iterable[TensorType]) -> int:
    """Bytes of the first region of the memory arena of a step that changes tensors of these types; 0 if it may choose.

    The arena cannot join free blocks of several regions, and leaves gaps if gradients take a large part of a region. It
    writes 1/32 of a region at once, for its bookkeeping; on Windows memory that is not written counts too.
    """
    largest = max(map(byte_count, changing), default=0)
    region: int = 1 << max(LARGEST_GRADIENTS * largest - 1, 0).bit_length()
    return region if region >= LEAST_REGION and sys.platform != "win32" else 0


@contextlib.contextmanager
def without_memory_patterns(options: ort.SessionOptions) -> Iterator[None]:
    """Sessions allocate each value by itself: a block for all of them would be added to what the first run has used."""
    before = options.enable_mem_pattern
    options.enable_mem_pattern = False
    try:
        yield
    finally:
        options.enable_mem_pattern = before
