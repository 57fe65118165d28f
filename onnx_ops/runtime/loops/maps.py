"""Elementwise outputs."""

from __future__ import annotations

from numba import njit

from onnx_ops.loops.memory import item_size, whole_lines
from onnx_ops.loops.records import CHUNK, MAX_OUTPUTS
from onnx_ops.runtime.loops.chunks import (
    BUFFER,
    SMALL_BUFFER,
    SMALL_STATE_BYTES,
    STATE_BYTES,
    evaluate,
    start_task,
)
from onnx_ops.runtime.loops.operands import CHANNEL, LINEAR, STRIDED
from onnx_ops.runtime.loops.plan import ROW
from onnx_ops.runtime.memory import copy_bytes, copy_past_caches, i8_at, store_fence
from onnx_ops.runtime.native import OPTIONS, call
from onnx_ops.runtime.records import OPERANDS

# Before the state of a task: addresses of the results of a chunk, one per output, and of the operands of the next one;
# after it: buffers for the results.
AHEAD_AT = 8 * MAX_OUTPUTS
STATE_AT = whole_lines(AHEAD_AT + 8 * OPERANDS)
RESULTS_AT = STATE_AT + STATE_BYTES
MAP_BYTES = RESULTS_AT + MAX_OUTPUTS * BUFFER
DIRECT_BYTES = STATE_AT + SMALL_STATE_BYTES
COPY_BYTES = 2048
"""Bytes per call of `copy_past_caches`, so that they, the operands and the next operands stay in the first cache."""


@njit(**OPTIONS)
def map_task(kernel, loop, job, layout, number, memory):
    """A block of elementwise outputs.

    In place, that is if an output has the memory of an input, results are written to a buffer, and copied when the core
    has read all inputs of these elements: it may read an element again after it has written its result, and LLVM's
    vectors are not used where memory overlaps.

    memory: address of DIRECT_BYTES for direct access without `past_caches`, not in place; else of MAP_BYTES.
    """
    width, uniform, state = item_size(loop.compute_type), layout.uniform, memory + STATE_AT
    direct, past_caches = layout.direct and not job.in_place, layout.past_caches and not job.in_place
    start_task(layout, width, state, SMALL_BUFFER if direct else BUFFER)
    core = loop.core_uniform if uniform else loop.core
    step = layout.block if direct else CHUNK
    if past_caches:
        step = COPY_BYTES // width
    table, results = i8_at(memory), memory + RESULTS_AT
    position, stop = number * layout.block, min((number + 1) * layout.block, layout.size)
    while position < stop:
        count = min(step, stop - position)
        for i in range(kernel.inputs):  # up to the end of a long contiguous run of an operand, which avoids a copy
            if layout.kind[i] == STRIDED:
                inner = layout.operand_extent[i, layout.operand_axes[i] - 1]
                of_channel = uniform and loop.role[i] & CHANNEL
                if of_channel or (inner >= ROW and layout.source_type[i] == loop.compute_type):
                    count = min(count, inner - position % inner)
        for k in range(kernel.outputs):
            table[k] = results + k * BUFFER
            if kernel.output_type[k] == loop.compute_type and not past_caches and not job.in_place:
                table[k] = job.output[k] + position * width
        out = table[0] if kernel.outputs == 1 else memory
        evaluate(kernel, layout, position, count, loop.compute_type, loop.load, core, uniform, state, out)
        if past_caches:
            write_past_caches(kernel, loop, job, layout, position, count, memory)
        for k in range(kernel.outputs):
            element_type = kernel.output_type[k]
            if element_type != loop.compute_type and element_type != 0:
                target = job.output[k] + position * item_size(element_type)
                call(loop.store, (table[k], element_type, count, target))
            elif element_type != 0 and job.in_place:
                copy_bytes(table[k], job.output[k] + position * width, count * width)
        position += count
    if past_caches:
        store_fence()


@njit(**OPTIONS)
def write_past_caches(kernel, loop, job, layout, position, count, memory):
    """Write the results of a chunk with non-temporal stores, and prefetch the operands of the next one."""
    width, table, ahead, operands = item_size(loop.compute_type), i8_at(memory), i8_at(memory + AHEAD_AT), 0
    for i in range(kernel.inputs):
        if layout.kind[i] == LINEAR:
            ahead[operands] = layout.data[i] + (position + count) * width
            operands += 1
    for k in range(kernel.outputs):
        copy_past_caches(table[k], job.output[k] + position * width, count * width, ahead, operands)
        operands = 0
