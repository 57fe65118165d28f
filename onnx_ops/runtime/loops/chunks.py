"""Brings chunks of the operands to an op's loop.

Each operand is brought into the computing dtype, one element after another, unless it lies in memory like that already.
"""

from __future__ import annotations

from numba import njit

from onnx_ops.loops.primitives import LAST_PARAMETER, channel_type, item_size
from onnx_ops.loops.records import CHUNK
from onnx_ops.runtime.loops.operands import CHANNEL, COUNT, LINEAR, SCALAR, STRIDED, UNREAD, element_offset
from onnx_ops.runtime.loops.plan import DIVISOR, LONG
from onnx_ops.runtime.memory import LINE, f4_at, f8_at, i8_at, loop_at, repeat, u1_at, u2_at
from onnx_ops.runtime.native import DOUBLE, OPTIONS, call, f4, f8
from onnx_ops.runtime.records import OPERANDS

PARAMETERS = 8
# What a task keeps from chunk to chunk: pointers to the operands, what fills which buffer, the parameters in the
# computing dtype, where the buffers are and how far apart, and then the buffers, one for each operand and one more. A
# buffer holds two chunks, which would not fit on the stack of a small thread, and what `stretch` writes beyond them; or
# a single number, where operands are read in place.
POINTERS = 8 * OPERANDS
PARAMETERS_AT = 2 * POINTERS
MISSING_AT = PARAMETERS_AT + 8 * PARAMETERS
PLACE_AT = MISSING_AT + 8
BUFFERS_AT = (PLACE_AT + 16 + LINE - 1) // LINE * LINE
BUFFER, SMALL_BUFFER = (2 * CHUNK + LONG) * 8, 8
RECURRING = -1
"""Marks a buffer that holds elements which recur, a chunk of them from each of them on."""
STATE_BYTES, SMALL_STATE_BYTES = (BUFFERS_AT + (OPERANDS + 1) * step for step in (BUFFER, SMALL_BUFFER))


@njit(**OPTIONS)
def stretch(data, source_type, size, start, count, inner, width, load, buffer, spare):
    """Elements each of which stands `inner` times in a row, less than LONG.

    Each is written LONG times, which takes a few vectors; the next ones go over what is too much.
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
    """Repeat the first elements of a buffer, `period` of them, until there are `count`."""
    while period < count:
        size = min(period, count - period) * width
        source, target = u1_at(buffer), u1_at(buffer + period * width)
        for i in range(size):
            target[i] = source[i]
        period *= 2


@njit(**OPTIONS)
def gather(layout, i, start, count, width, element_type, load, buffer, spare, filled, single):
    """Address of elements [start, start + count) of a strided operand, in the core's dtype.

    They are brought into the buffer, unless they are there to be used in place. filled[i] tells what is in the buffer
    already: the address of one element that fills it, or RECURRING. With `single` an element that fills the whole
    stretch is wanted only once.
    """
    source_type, axes = layout.source_type[i], layout.operand_axes[i]
    inner, step = layout.operand_extent[i, axes - 1], layout.operand_stride[i, axes - 1]
    if axes > 1 and layout.operand_stride[i, 0] == 0 and not single:
        period = 1
        for axis in range(1, axes):
            period *= layout.operand_extent[i, axis]
        if period <= CHUNK:  # elements from any of them on are found in the buffer
            if filled[i] != RECURRING:
                filled[i] = RECURRING
                collect(layout, i, 0, period, width, load, buffer)
                tile(buffer, period, min(CHUNK, layout.size) + period, width)
            return buffer + (start % period) * width
    offset = (start % inner) * step + (element_offset(layout, i, start // inner, axes - 1) if axes > 1 else 0)
    source = layout.data[i] + offset * item_size(source_type)
    if start % inner + count <= inner:  # a single run of memory
        if source_type == element_type and (step == 1 or (step == 0 and single)):
            return source
        if step == 0 and inner >= CHUNK:
            if filled[i] != source:
                filled[i] = source
                call(load, (source, source_type, 0, CHUNK, buffer))
            return buffer
    filled[i] = 0
    if axes == 2 and inner < LONG and layout.operand_stride[i, 0] == 1 and step == 0 and count > inner:
        stretch(layout.data[i], source_type, item_size(source_type), start, count, inner, width, load, buffer, spare)
    else:
        collect(layout, i, start, count, width, load, buffer)
    return buffer


@njit(**OPTIONS)
def collect(layout, i, start, count, width, load, buffer):
    """Bring elements [start, start + count) of a strided operand into the buffer, one run of memory after another."""
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
    """The op's loop over elements [start, start + count) of the index space, at most CHUNK if not all are direct.

    With `uniform` the core reads a single element of what is the same for a channel, and of inputs that the op names.
    """
    loop, pointers, filled, place = loop_at(kernel.loop), i8_at(state), i8_at(state + POINTERS), i8_at(state + PLACE_AT)
    channel_at = -1  # all per-channel operands lie alike, so the place of the channel is looked for once
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
        elif filled[i] == 0:  # one value throughout
            filled[i] = 1
            wanted = 1 if single else CHUNK
            if kind == SCALAR:
                call(own_load, (layout.data[i], layout.source_type[i], 0, wanted, buffer))
            else:
                f8_at(state + MISSING_AT)[0] = kernel.missing[i]
                call(own_load, (state + MISSING_AT, DOUBLE, 0, wanted, buffer))
    apply(core, count, state, out)


@njit(**OPTIONS)
def apply(core, count, state, out):
    """The op's loop over `count` elements that the state points to."""
    call(core, (state, out, count, state + PARAMETERS_AT))


@njit(**OPTIONS)
def start_task(layout, width, state, buffer):
    """Nothing fills a buffer, of `buffer` bytes, yet; the parameters in the computing dtype."""
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
