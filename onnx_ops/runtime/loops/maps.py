"""Terms as elements of the output."""

from __future__ import annotations

from numba import njit

from onnx_ops.loops.primitives import item_size
from onnx_ops.loops.records import CHUNK, MAX_OUTPUTS
from onnx_ops.runtime.loops.chunks import BUFFER, LINE, STATE_BYTES, evaluate, start_task
from onnx_ops.runtime.loops.operands import CHANNEL, COUNT, LINEAR, SCALAR, STRIDED, UNREAD
from onnx_ops.runtime.loops.plan import ROW
from onnx_ops.runtime.native import OPTIONS, call, i8_at

RESULTS_AT = STATE_BYTES + LINE
"""Behind the addresses of what a chunk gives, one for each output, come buffers for them."""
MAP_BYTES = RESULTS_AT + MAX_OUTPUTS * BUFFER


@njit(**OPTIONS)
def map_task(kernel, loop, job, layout, number, state):
    """The terms of one block are elements of the outputs."""
    width = item_size(loop.compute_type)
    start_task(layout, width, state)
    uniform = loop.core_uniform != 0
    for i in range(kernel.inputs):
        if loop.uniform[i] and layout.kind[i] > SCALAR and (layout.patterned or not loop.role[i] & CHANNEL):
            uniform = False
    core = loop.core_uniform if uniform else loop.core
    direct = True  # operands are read, and results written, where they lie
    for k in range(kernel.outputs):
        if kernel.output_type[k] != loop.compute_type:
            direct = False
    for i in range(kernel.inputs):
        in_place = layout.source_type[i] == loop.compute_type and (
            layout.kind[i] == LINEAR or (uniform and loop.role[i] & CHANNEL)
        )
        one_value = uniform and loop.uniform[i] and layout.kind[i] <= SCALAR
        if not (in_place or one_value or loop.role[i] & (UNREAD | COUNT)):
            direct = False
    step = layout.block if direct else CHUNK
    table, results = i8_at(state + STATE_BYTES), state + RESULTS_AT
    position, stop = number * layout.block, min((number + 1) * layout.block, layout.size)
    while position < stop:
        count = min(step, stop - position)
        for i in range(kernel.inputs):  # up to where a long run of an operand ends, which then needs no copy
            if layout.kind[i] == STRIDED:
                inner = layout.operand_extent[i, layout.operand_axes[i] - 1]
                of_channel = uniform and loop.role[i] & CHANNEL
                if of_channel or (inner >= ROW and layout.source_type[i] == loop.compute_type):
                    count = min(count, inner - position % inner)
        for k in range(kernel.outputs):
            table[k] = results + k * BUFFER
            if kernel.output_type[k] == loop.compute_type:
                table[k] = job.output[k] + position * width
        out = table[0] if kernel.outputs == 1 else state + STATE_BYTES
        evaluate(kernel, layout, position, count, loop.compute_type, loop.load, core, uniform, state, out)
        for k in range(kernel.outputs):
            element_type = kernel.output_type[k]
            if element_type != loop.compute_type and element_type != 0:
                target = job.output[k] + position * item_size(element_type)
                call(loop.store, (table[k], element_type, count, target))
        position += count
