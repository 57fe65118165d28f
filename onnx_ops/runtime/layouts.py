"""The plan and the `begin` of kernels that have a `Layout`."""

from __future__ import annotations

from onnx_ops.loops.records import NO_MEMORY, OK, REFUSED
from onnx_ops.runtime.memory import address_of, free, malloc
from onnx_ops.runtime.native import call


def plan(kernel, job):
    memory = malloc(kernel.layout_bytes)
    if memory == 0:
        return NO_MEMORY
    job.scratch = 0
    fits = call(kernel.write_layout, (memory, address_of(kernel), address_of(job)))
    free(memory)
    return OK if fits else REFUSED


def begin(kernel, job):
    if job.scratch_bytes > 0:
        call(kernel.write_layout, (job.scratch, address_of(kernel), address_of(job)))
