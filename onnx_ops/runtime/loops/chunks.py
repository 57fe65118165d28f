"""Passes operands to a core chunk by chunk, converted to the computing dtype and made contiguous where necessary."""

from __future__ import annotations

from numba import njit

from onnx_ops.loops.memory import channel_type, item_size, whole_lines
from onnx_ops.loops.primitives import LAST_PARAMETER
from onnx_ops.loops.records import CHUNK
from onnx_ops.runtime.loops.operands import CHANNEL, COUNT, LINEAR, SCALAR, STRIDED, UNREAD, element_offset
from onnx_ops.runtime.loops.plan import DIVISOR, LONG
from onnx_ops.runtime.memory import f4_at, f8_at, i8_at, loop_at, repeat, u1_at, u2_at
from onnx_ops.runtime.native import DOUBLE, OPTIONS, call, f4, f8
from onnx_ops.runtime.records import OPERANDS

PARAMETERS = 8
# State of a task: pointers to the operands, the content of each buffer, the parameters in the computing dtype, address
# and distance of the buffers, then one buffer per operand and a spare one. A buffer holds two chunks, too large for the
# stack of a small thread, and what `duplicate` writes beyond them; or one element, for operands read in place.
POINTERS = 8 * OPERANDS
PARAMETERS_AT = 2 * POINTERS
DEFAULT_AT = PARAMETERS_AT + 8 * PARAMETERS
PLACE_AT = DEFAULT_AT + 8
BUFFERS_AT = whole_lines(PLACE_AT + 16)
BUFFER, SMALL_BUFFER = (2 * CHUNK + LONG) * 8, 8
PERIODIC = -1
"""Content of a buffer that holds one period plus CHUNK elements, so that any start within the period is contiguous."""
STATE_BYTES, SMALL_STATE_BYTES = (BUFFERS_AT + (OPERANDS + 1) * step for step in (BUFFER, SMALL_BUFFER))


@njit(**OPTIONS)
def duplicate(data, source_type, size, start, count, inner, width, load, buffer, spare):
    """Repeat each element `inner` < LONG times: out[k] = data[(start + k) // inner].

    Each is written LONG times as a few vectors, the excess overwritten by the next one.
    """
    first = start // inner
    call(load, (data + first * size, source_type, 1, (start + count - 1) // inner + 1 - first, spare))
    place, k = first * inner - start, 0
    while place < count:
        begin = max(place, 0)
        if width == 8:
            repeat(f8_at(spare)[k], LONG, buffer + 8 * begin)
        elif width == 4:
            repeat(f4_at(spare)[k], LONG, buffer + 4 * begin)
        else:
            repeat(u2_at(spare)[k], LONG, buffer + 2 * begin)
        place += inner
        k += 1


@njit(**OPTIONS)
def tile(buffer, period, count, width):
    """Extend a buffer with the first `period` elements to `count` elements periodically."""
    while period < count:
        size = min(period, count - period) * width
        source, target = u1_at(buffer), u1_at(buffer + period * width)
        for i in range(size):
            target[i] = source[i]
        period *= 2


@njit(**OPTIONS)
def gather(layout, i, start, count, width, element_type, load, buffer, spare, filled, single):
    """Address of elements [start, start + count) of a strided operand, in the dtype of the core.

    Elements that cannot be used in place are copied to the buffer. filled[i] is its content: the address of the element
    that fills it, PERIODIC, or 0. With `single`, an element equal for the whole block is needed only once.
    """
    source_type, axes = layout.source_type[i], layout.operand_axes[i]
    inner, step = layout.operand_extent[i, axes - 1], layout.operand_stride[i, axes - 1]
    if axes > 1 and layout.operand_stride[i, 0] == 0 and not single:
        period = 1
        for axis in range(1, axes):
            period *= layout.operand_extent[i, axis]
        if period <= CHUNK:
            if filled[i] != PERIODIC:
                filled[i] = PERIODIC
                collect(layout, i, 0, period, width, load, buffer)
                tile(buffer, period, min(CHUNK, layout.size) + period, width)
            return buffer + (start % period) * width
    offset = (start % inner) * step + (element_offset(layout, i, start // inner, axes - 1) if axes > 1 else 0)
    source = layout.data[i] + offset * item_size(source_type)
    if start % inner + count <= inner:  # contiguous
        if source_type == element_type and (step == 1 or (step == 0 and single)):
            return source
        if step == 0 and inner >= CHUNK:
            if filled[i] != source:
                filled[i] = source
                call(load, (source, source_type, 0, CHUNK, buffer))
            return buffer
    filled[i] = 0
    if axes == 2 and inner < LONG and layout.operand_stride[i, 0] == 1 and step == 0 and count > inner:
        duplicate(layout.data[i], source_type, item_size(source_type), start, count, inner, width, load, buffer, spare)
    else:
        collect(layout, i, start, count, width, load, buffer)
    return buffer


@njit(**OPTIONS)
def collect(layout, i, start, count, width, load, buffer):
    """Copy elements [start, start + count) of a strided operand to the buffer, one contiguous run after another."""
    source_type, axes = layout.source_type[i], layout.operand_axes[i]
    inner, step = layout.operand_extent[i, axes - 1], layout.operand_stride[i, axes - 1]
    size = item_size(source_type)
    done, row = 0, start // inner
    within = start - row * inner
    while done < count:
        offset = within * step + (element_offset(layout, i, row, axes - 1) if axes > 1 else 0)
        run = min(inner - within, count - done)
        call(load, (layout.data[i] + offset * size, source_type, step, run, buffer + done * width))
        done += run
        row, within = row + 1, 0


@njit(**OPTIONS)
def evaluate(kernel, layout, start, count, element_type, load, core, uniform, state, out):
    """Run the core on elements [start, start + count) of the index space, at most CHUNK unless all are direct.

    With `uniform` the core reads one element of per-channel operands and of the inputs in `loop.uniform`.
    """
    loop, pointers, filled, place = loop_at(kernel.loop), i8_at(state), i8_at(state + POINTERS), i8_at(state + PLACE_AT)
    channel_at = -1  # offset of the channel, the same for all per-channel operands
    for i in range(layout.operands):
        kind = layout.kind[i]
        if i < kernel.inputs and loop.role[i] & (UNREAD | COUNT):
            continue
        buffer = place[0] + i * place[1]
        of_channel = i >= kernel.inputs or loop.role[i] & CHANNEL
        own_type, own_load = element_type, load
        if of_channel:
            own_type, own_load = channel_type(element_type), loop.channel_load
        width, single = item_size(own_type), uniform and (of_channel or loop.uniform[i])
        if kind == LINEAR and layout.source_type[i] == own_type:
            pointers[i] = layout.data[i] + start * width
            continue
        pointers[i] = buffer
        if kind == LINEAR:
            size = item_size(layout.source_type[i])
            call(own_load, (layout.data[i] + start * size, layout.source_type[i], 1, count, buffer))
        elif kind == STRIDED:
            if single and of_channel and channel_at >= 0:
                pointers[i] = layout.data[i] + channel_at
                continue
            spare = place[0] + OPERANDS * place[1]
            pointers[i] = gather(layout, i, start, count, width, own_type, own_load, buffer, spare, filled, single)
            if single and of_channel and pointers[i] != buffer:
                channel_at = pointers[i] - layout.data[i]
        elif filled[i] == 0:  # scalar or omitted
            filled[i] = 1
            wanted = 1 if single else CHUNK
            if kind == SCALAR:
                call(own_load, (layout.data[i], layout.source_type[i], 0, wanted, buffer))
            else:
                f8_at(state + DEFAULT_AT)[0] = kernel.default[i]
                call(own_load, (state + DEFAULT_AT, DOUBLE, 0, wanted, buffer))
    apply(core, count, state, out)


@njit(**OPTIONS)
def apply(core, count, state, out):
    """Run the core on `count` elements at the pointers in the state."""
    call(core, (state, out, count, state + PARAMETERS_AT))


@njit(**OPTIONS)
def start_task(layout, width, state, buffer):
    """Initialize the state: empty buffers of `buffer` bytes, and the parameters in the computing dtype."""
    place = i8_at(state + PLACE_AT)
    place[0], place[1] = state + BUFFERS_AT, buffer
    filled = i8_at(state + POINTERS)
    for i in range(OPERANDS):
        filled[i] = 0
    if width == 8:
        wide = f8_at(state + PARAMETERS_AT)
        for k in range(PARAMETERS):
            wide[k] = layout.parameters[k]
        wide[LAST_PARAMETER] = 0.0
    else:
        narrow, share = f4_at(state + PARAMETERS_AT), layout.parameters[DIVISOR]
        for k in range(PARAMETERS):
            narrow[k] = f4(layout.parameters[k])
        narrow[LAST_PARAMETER] = f4(share - f8(f4(share)))
