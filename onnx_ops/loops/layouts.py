"""Layouts: what the tasks of a kernel share, computed once per run, as a record at the start of its scratch memory.

A kernel has a function write_layout(layout, kernel, job), which writes the layout and, to the job, the shapes of the
outputs and the numbers of tasks and of bytes of scratch memory, with those of the layout. It returns whether the shapes
of the inputs fit. In the plan the scratch memory has address 0, as there is none yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx_ops.loops.memory import free, malloc, record_at, size_of
from onnx_ops.loops.primitives import helper
from onnx_ops.loops.records import JOB, KERNEL, NO_MEMORY, OK, REFUSED

WriteLayout = Callable[[Any, Any, Any], bool]


@helper
def plan_layout(write_layout: WriteLayout, record: Any, kernel_address: int, job_address: int) -> int:
    """The plan of a kernel with a layout, a record of this dtype."""
    memory = malloc(size_of(record))
    if memory == 0:
        return NO_MEMORY
    job = record_at(job_address, JOB)
    job.scratch = 0
    fits = write_layout(record_at(memory, record), record_at(kernel_address, KERNEL), job)
    free(memory)
    return OK if fits else REFUSED


@helper
def begin_layout(write_layout: WriteLayout, record: Any, kernel_address: int, job_address: int) -> None:
    """The `begin` of a kernel with a layout: writes it to the scratch memory."""
    job = record_at(job_address, JOB)
    if job.scratch_bytes > 0:
        write_layout(record_at(job.scratch, record), record_at(kernel_address, KERNEL), job)
