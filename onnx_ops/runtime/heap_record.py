"""The data of a heap (`runtime.heap`), and the addresses of its functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from onnx_ops.runtime.abi import I64, VP, OrtAllocator


class Record(OrtAllocator):
    """An OrtAllocator, followed by the heap's data. A block begins with a header; see `runtime.heap_callbacks`."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("info", VP),  # OrtMemoryInfo
        ("begin", I64),  # of the address space
        ("end", I64),
        ("top", I64),  # end of the last block
        ("last", I64),  # the last block, 0 for none
        ("free_blocks", I64),  # the first of a list, 0 for none
        ("blocks", I64),  # number of those in use
        ("returns", I64),  # whether pages of freed blocks are returned to the system
        ("closed", I64),
        ("page", I64),  # bytes of a page
        # functions of libc and of the C++ library
        ("lock", VP),
        ("unlock", VP),
        ("advise", VP),
        ("unmap", VP),
        ("new", VP),
        ("delete", VP),
        ("mutex", I64 * 16),
    )


class Functions(NamedTuple):
    """Addresses of an OrtApi, and of the functions of an OrtAllocator in `runtime.heap_callbacks`."""

    api: int
    allocate: int
    free: int
    info: int
