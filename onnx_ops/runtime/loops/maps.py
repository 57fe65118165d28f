"""Terms as elements of the output."""

from __future__ import annotations

from numba import njit

from onnx_ops.loops.primitives import item_size
from onnx_ops.loops.records import CHUNK
from onnx_ops.runtime.loops.chunks import STATE_BYTES, evaluate, start_task
from onnx_ops.runtime.loops.operands import CHANNEL, COUNT, LINEAR, SCALAR, STRIDED, UNREAD
from onnx_ops.runtime.loops.plan import ROW
from onnx_ops.runtime.native import OPTIONS, call


@njit(**OPTIONS)
def map_task(kernel, loop, job, layout, number, state):
    """The terms of one block are elements of the output."""
    result = state + STATE_BYTES
    width = item_size(loop.compute_type)
    start_task(layout, width, state)
    direct = kernel.output_type[0] == loop.compute_type
    uniform = loop.core_uniform != 0
    for i in range(kernel.inputs):
        if loop.uniform[i] and layout.kind[i] > SCALAR and (layout.patterned or not loop.role[i] & CHANNEL):
            uniform = False
    core = loop.core_uniform if uniform else loop.core
    step = layout.block
    for i in range(kernel.inputs):
        in_place = layout.source_type[i] == loop.compute_type and (
            layout.kind[i] == LINEAR or (uniform and loop.role[i] & CHANNEL)
        )
        one_value = uniform and loop.uniform[i] and layout.kind[i] <= SCALAR
        if not direct or not (in_place or one_value or loop.role[i] & (UNREAD | COUNT)):
            step = CHUNK
    position, stop = number * layout.block, min((number + 1) * layout.block, layout.size)
    while position < stop:
        count = min(step, stop - position)
        for i in range(kernel.inputs):  # up to where a long run of an operand ends, which then needs no copy
            if layout.kind[i] == STRIDED:
                inner = layout.operand_extent[i, layout.operand_axes[i] - 1]
                of_channel = uniform and loop.role[i] & CHANNEL
                if of_channel or (inner >= ROW and layout.source_type[i] == loop.compute_type):
                    count = min(count, inner - position % inner)
        out = job.output[0] + position * width if direct else result
        evaluate(kernel, layout, position, count, loop.compute_type, loop.load, core, uniform, state, out)
        if not direct:
            target = job.output[0] + position * item_size(kernel.output_type[0])
            call(loop.store, (result, kernel.output_type[0], count, target))
        position += count
