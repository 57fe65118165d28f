"""The sessions of steps: their options, and how they allocate memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
import onnxruntime as ort

from onnx_ops.core.types import TensorType
from onnx_ops.integrations.sessions import InferenceSession, OwnOptions, new_heap, registered_options, reserving
from onnx_ops.runtime.heap import Heap
from onnx_ops.training.arrays import byte_count
from onnx_ops.training.errors import refusals_as_step_errors
from onnx_ops.training.freed_memory import LARGE, return_freed_memory
from onnx_ops.training.step_runner import MakeSession

SPINNING = "session.intra_op.allow_spinning"
"""Session option: whether waiting threads keep their cores busy."""

LARGEST_GRADIENTS = 3
"""The number of gradients of the largest parameter for which the first region of a session's memory arena has room."""
LEAST_REGION = 256 << 20
"""Bytes below which the arena chooses its first region: there it has been measured to need less memory so."""


def session_maker(
    sess_options: ort.SessionOptions | None,
    providers: Sequence[str | tuple[str, dict[Any, Any]]] | None,
    state: Iterable[TensorType],
    changing: Iterable[TensorType],
    *,
    distributed: bool,
) -> MakeSession:
    """A function that makes sessions of the graphs of steps.

    Args:
        sess_options, providers: as for `Trainer`.
        state: types of the tensors of the state.
        changing: types of those that the steps change.
        distributed: whether the steps are made by several workers.
    """
    registered = registered_options(sess_options, stacklevel=4, kernels={} if sess_options is None else None)
    heap = new_heap(registered)
    region = first_region(changing) if heap is None else 0
    large = sum(map(byte_count, state)) > LARGE

    def session(model: onnx.ModelProto) -> InferenceSession:
        options = OwnOptions() if sess_options is None else registered
        if distributed and sess_options is None:
            # Threads that spin until their session's next run slow down other workers and other parts of the step.
            options.add_session_config_entry(SPINNING, "0")
        refusals = refusals_as_step_errors("the step cannot be run")
        with refusals, allocating_each_value(options), reserving(region):
            if heap is None:
                made = InferenceSession(model, options, providers)
            else:
                made = HeapSession(heap, model, options, providers)
        if large:
            return_freed_memory()  # that making a session leaves between blocks that it keeps
        return made

    return session


class HeapSession(InferenceSession):
    """A session that allocates from a heap.

    In its first run, which writes the state of the optimizer for the first time, what it frees is returned to the
    system. Later runs keep it: they would need it again.

    Args:
        heap: the heap.
        model, options, args: as for InferenceSession.
    """

    def __init__(self, heap: Heap, model: onnx.ModelProto, options: ort.SessionOptions, *args: Any) -> None:
        self._heap, self._has_run = heap, False
        with heap.serving(options):
            super().__init__(model, options, *args)

    def run_with_iobinding(self, *args: Any) -> None:
        self._heap.return_pages(not self._has_run)
        super().run_with_iobinding(*args)
        self._has_run = True


def first_region(changing: Iterable[TensorType]) -> int:
    """Bytes of the first region of the memory arena of a step that changes tensors of these types; 0 if it may choose.

    The arena cannot join free blocks of several regions, and leaves gaps if gradients take a large part of a region. It
    writes 1/32 of a region at once, for its bookkeeping; on Windows memory that is not written counts too.
    """
    largest = max(map(byte_count, changing), default=0)
    region: int = 1 << max(LARGEST_GRADIENTS * largest - 1, 0).bit_length()
    return region if region >= LEAST_REGION and sys.platform != "win32" else 0


@contextlib.contextmanager
def allocating_each_value(options: ort.SessionOptions) -> Iterator[None]:
    """Sessions that are made in this context allocate each value by itself, and free it after its last use.

    With memory patterns, a block for all values would be added to what the first run has used. With memory reuse, the
    memory of a value is kept for a later one of the same shape, which may be far off.

    Args:
        options: of the sessions; after the context they are as before.
    """
    before = options.enable_mem_pattern, options.enable_mem_reuse
    options.enable_mem_pattern = options.enable_mem_reuse = False
    try:
        yield
    finally:
        options.enable_mem_pattern, options.enable_mem_reuse = before
