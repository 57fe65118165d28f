"""Inputs that hold indices, int64 or int32."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnx_ops.core.call import Call
from onnx_ops.loops.memory import array_at
from onnx_ops.loops.primitives import Array, helper
from onnx_ops.loops.records import Job, Kernel

INDICES = (TensorProto.INT64, TensorProto.INT32)
INT64 = int(TensorProto.INT64)
NONE = -1
"""The end of a linked list of places."""


@helper
def lie_within(indices: Array, count: int, size: int) -> bool:
    lowest, highest = 0, -1
    for i in range(count):
        lowest, highest = min(lowest, indices[i]), max(highest, indices[i])
    return bool(lowest >= 0 and highest < size)


@helper
def indices_fit(kernel: Kernel, job: Job, i: int, count: int, size: int) -> bool:
    """Whether the `count` elements of input i are in [0, size)."""
    if kernel.element_type[i] == INT64:
        return lie_within(array_at(job.data[i], count, np.int64), count, size)
    return lie_within(array_at(job.data[i], count, np.int32), count, size)


@helper
def widened_bytes(kernel: Kernel, i: int, count: int) -> int:
    """Bytes that `write_widened` writes."""
    return 0 if kernel.element_type[i] == INT64 else 8 * count


@helper
def write_widened(kernel: Kernel, job: Job, i: int, count: int, memory: int) -> None:
    """Write the `count` elements of input i as int64 into memory, unless they are int64 already."""
    if kernel.element_type[i] != INT64:
        given, wide = array_at(job.data[i], count, np.int32), array_at(memory, count, np.int64)
        for k in range(count):
            wide[k] = given[k]


@helper
def widened(kernel: Kernel, job: Job, i: int, count: int, memory: int) -> Any:
    """The `count` elements of input i as int64, once `write_widened` has run."""
    return array_at(job.data[i] if kernel.element_type[i] == INT64 else memory, count, np.int64)


@helper
def links_bytes(kernel: Kernel, i: int, rows: int, count: int) -> int:
    """Bytes of scratch memory for the linked lists of input i, whose elements are in [0, rows)."""
    return widened_bytes(kernel, i, count) + 8 * (rows + count)


@helper
def links(kernel: Kernel, job: Job, i: int, rows: int, count: int) -> tuple[Any, Any]:
    """Linked lists in the scratch memory: for each index its first place, and for each place the next one of its index.

    NONE where there is none.
    """
    memory = job.scratch + widened_bytes(kernel, i, count)
    return array_at(memory, rows, np.int64), array_at(memory + 8 * rows, count, np.int64)


@helper
def link_places(kernel: Kernel, job: Job, i: int, rows: int, count: int) -> None:
    """Write `links`."""
    write_widened(kernel, job, i, count, job.scratch)
    indices = widened(kernel, job, i, count, job.scratch)
    first, following = links(kernel, job, i, rows, count)
    for v in range(rows):
        first[v] = NONE
    for k in range(count - 1, -1, -1):
        v = indices[k]
        following[k] = first[v]
        first[v] = k


def check_indices(call: Call, name: str, array: np.ndarray | None, size: int, what: str) -> None:
    """Refuse an index outside [0, size); `what` names what it is an index of."""
    indices = np.asarray(array)
    for place in np.argwhere((indices < 0) | (indices >= size)):
        value, where = indices[tuple(place)], ", ".join(map(str, place.tolist()))
        raise call.error(f"input '{name}' has {value} at ({where}), expected {what} in [0, {size})")
