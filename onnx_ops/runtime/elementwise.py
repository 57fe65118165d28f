"""The engine of elementwise kernels: broadcasting, dtypes, blocks and sums around an op's inner loop.

An op brings a loop over plain arrays of float32 or float64 (its core) and says what role each input plays in shapes.
The index space is cut into blocks of fixed size, a block into chunks that stay in cache. For a chunk each operand is
brought into the core's dtype, one element after another, unless it lies in memory like that already.
"""

from __future__ import annotations

from numba import njit, types

from onnx_ops.core.reduction import Divisor
from onnx_ops.loops.layout import BLOCK, CHUNK, JOB, MAX_INPUTS, MAX_RANK, NO_MEMORY, OK, REFUSED, offset
from onnx_ops.loops.primitives import LAST_PARAMETER, item_size, total_of
from onnx_ops.loops.space import Role
from onnx_ops.runtime.native import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    OPTIONS,
    Numbers16,
    bfloat_at,
    call,
    f4,
    f4_at,
    f8,
    f8_at,
    free,
    half_at,
    i8_at,
    job_at,
    kernel_at,
    malloc,
    number_at,
    stack,
    u2_at,
)

NUMBERS = {
    FLOAT: types.CPointer(types.float32),
    DOUBLE: types.CPointer(types.float64),
    FLOAT16: Numbers16(FLOAT16),
    BFLOAT16: Numbers16(BFLOAT16),
}
"""How the computing dtypes lie in memory. 16-bit numbers are computed with in float32, each as it is read."""


def core_signature(dtype: int) -> types.Type:
    """Signature of a core for a computing dtype: (operands, out, count, parameters)."""
    parameters = NUMBERS[DOUBLE if dtype == DOUBLE else FLOAT]
    return types.void(types.CPointer(NUMBERS[dtype]), NUMBERS[dtype], types.int64, parameters)


LOAD = {
    dtype: types.void(types.int64, types.int64, types.int64, types.int64, numbers) for dtype, numbers in NUMBERS.items()
}
"""Signature of a load to a computing dtype: (source, element type, step, count, destination)."""
STORE = {dtype: types.void(NUMBERS[dtype], types.int64, types.int64, types.int64) for dtype in NUMBERS}
"""Signature of a store: (source, element type, count, destination)."""
PREPARE = types.void(types.CPointer(types.CPointer(types.float64)), types.int64, types.CPointer(types.float64))
"""Signature of a prepare: (channel operands, channels, the sum of the count operand)."""

# How an operand lies in the index space.
ABSENT, SCALAR, LINEAR, STRIDED = 0, 1, 2, 3

SHAPE, INTO, SAME, CHANNEL, COUNT, UNREAD = (
    int(Role.SHAPE), int(Role.INTO), int(Role.SAME), int(Role.CHANNEL), int(Role.COUNT), int(Role.UNREAD),
)  # fmt: skip
BY_SIZE, BY_BATCH = int(Divisor.SIZE), int(Divisor.BATCH)
AXES = 8 * MAX_RANK
LONG = 32
"""Runs of memory below this length are not worth a call each: they are stretched, tiled, or laid out as a pattern."""
PATTERN, LARGEST_PATTERN, ROW = 256, 32768, 256
"""Least and greatest length of a pattern of channels: a chunk has few of them, and they stay in cache. From ROW on the
elements of one channel are worth going through by themselves."""
MANY, LARGEST_BLOCK = 64, 8 * BLOCK
"""Where there would be more blocks than MANY, blocks are larger, since longer runs of memory are read faster."""
MAX_SLICES = 64
PARAMETERS = 8
JOB_PARAMETERS = offset(JOB, "parameters")
# What a task keeps in memory of its own, see `evaluate`: it would not fit on the stack of a small thread.
POINTERS = 8 * MAX_INPUTS
PARAMETERS_AT = 2 * POINTERS
ONE_AT = PARAMETERS_AT + 8 * PARAMETERS
BUFFER = CHUNK * 8
RESULT_AT = ONE_AT + 64
TOTALS_AT = RESULT_AT + BUFFER
SPARE_AT = TOTALS_AT + BUFFER
BUFFERS_AT = SPARE_AT + BUFFER
LINE = 64
"""Bytes of a cache line, at whose bounds vectors are read fastest."""
DIVISOR = 0
"""Place of the reciprocal of the divisor among the parameters; the op's float attributes follow."""


# --- dtypes --------------------------------------------------------------------------------------------------------


@njit(**OPTIONS)
def bring(numbers, step, count, out):
    """Numbers of any dtype, `step` apart, into the computing dtype."""
    if step == 1:
        for i in range(count):
            out[i] = numbers[i]
    elif step == 0:
        value = numbers[0]
        for i in range(count):
            out[i] = value
    else:
        for i in range(count):
            out[i] = numbers[i * step]


def load(source, element_type, step, count, out):
    """From a tensor of any dtype into the computing dtype, the type of `out`."""
    if element_type == FLOAT:
        bring(f4_at(source), step, count, out)
    elif element_type == DOUBLE:
        bring(f8_at(source), step, count, out)
    elif element_type == FLOAT16:
        bring(half_at(source), step, count, out)
    else:
        bring(bfloat_at(source), step, count, out)


def store(source, element_type, count, destination):
    """From the computing dtype into a tensor of any dtype, rounded once."""
    if element_type == FLOAT:
        bring(source, 1, count, f4_at(destination))
    elif element_type == DOUBLE:
        bring(source, 1, count, f8_at(destination))
    elif element_type == FLOAT16:
        bring(source, 1, count, half_at(destination))
    else:
        bring(source, 1, count, bfloat_at(destination))


# --- shapes --------------------------------------------------------------------------------------------------------


@njit(**OPTIONS)
def broadcast_shapes(kernel, job):
    """The index space: the shapes of all inputs with a shaping role, broadcast. False if they do not."""
    rank = 0
    for i in range(kernel.inputs):
        if kernel.role[i] & SHAPE and kernel.element_type[i] != 0:
            rank = max(rank, job.rank[i])
    job.axes = rank
    for axis in range(rank):
        job.extent[axis] = 1
    for i in range(kernel.inputs):
        if kernel.role[i] & SHAPE and kernel.element_type[i] != 0:
            lead = rank - job.rank[i]
            for axis in range(job.rank[i]):
                size = job.dims[i, axis]
                if size != 1:
                    if job.extent[lead + axis] != 1 and job.extent[lead + axis] != size:
                        return False
                    job.extent[lead + axis] = size
    job.size = 1
    for axis in range(rank):
        job.size *= job.extent[axis]
    return kernel.ranks[0] <= rank <= kernel.ranks[1]


@njit(**OPTIONS)
def fits(kernel, job, i):
    """Whether the shape of an input suits its role in the index space."""
    role = kernel.role[i]
    if role & COUNT:
        return True
    if role & CHANNEL:
        return job.rank[i] == 1 and job.dims[i, 0] == job.extent[1] and job.extent[1] >= 1
    lead = job.axes - job.rank[i]
    if lead < 0 or (role & SAME and lead != 0):
        return False
    for axis in range(job.rank[i]):
        size, extent = job.dims[i, axis], job.extent[lead + axis]
        if size != extent and (role & SAME or size != 1):
            return False
    return True


@njit(**OPTIONS)
def lay_out(job, i, lead, rank, order):
    """Strides of an operand over the index space, axes in `order`, neighbouring axes merged where they are contiguous.

    The operand's own axes stand at `lead` of the index space and after.
    """
    steps_address = stack(AXES)
    steps = i8_at(steps_address)
    step = 1
    for axis in range(job.axes - 1, -1, -1):
        own = axis - lead
        size = job.dims[i, own] if 0 <= own < rank else 1
        steps[axis] = 0 if size == 1 else step
        step *= size
    count = 0
    for place in range(job.axes):
        axis = order[place]
        extent, stride = job.extent[axis], steps[axis]
        if extent == 1:
            continue
        if count > 0 and job.operand_stride[i, count - 1] == stride * extent:
            job.operand_extent[i, count - 1] *= extent
            job.operand_stride[i, count - 1] = stride
        else:
            job.operand_extent[i, count] = extent
            job.operand_stride[i, count] = stride
            count += 1
    job.operand_axes[i] = count
    if count == 0 or (count == 1 and job.operand_stride[i, 0] == 0):
        job.kind[i] = SCALAR
    elif count == 1 and job.operand_stride[i, 0] == 1:
        job.kind[i] = LINEAR
    else:
        job.kind[i] = STRIDED


@njit(**OPTIONS)
def count_up(job, i, element_type):
    """Sum of all elements of an input, in float64."""
    size, total = 1, 0.0
    for axis in range(job.rank[i]):
        size *= job.dims[i, axis]
    for index in range(size):
        total += number_at(job.data[i], element_type, index)
    return total


def plan(kernel_address, job_address):
    """Shapes of one run into the layout that its tasks follow."""
    kernel, job = kernel_at(kernel_address), job_at(job_address)
    if not broadcast_shapes(kernel, job):
        return REFUSED
    channels = 0
    for i in range(kernel.inputs):
        if kernel.element_type[i] != 0 and not fits(kernel, job, i):
            return REFUSED
        if kernel.role[i] & CHANNEL:
            channels += 1

    like = kernel.output_like
    job.output_rank = job.axes
    for axis in range(job.axes):
        job.output_dims[axis] = job.extent[axis]
    summed = False
    if like >= 0:
        lead = job.axes - job.rank[like]
        job.output_rank = job.rank[like]
        for axis in range(job.rank[like]):
            job.output_dims[axis] = job.dims[like, axis]
            summed |= job.dims[like, axis] != job.extent[lead + axis]
        for axis in range(lead):
            summed |= job.extent[axis] != 1

    divisor = 1.0
    if kernel.divisor == BY_SIZE:
        divisor = f8(job.size)
    elif kernel.divisor == BY_BATCH and job.axes > 0:
        divisor = f8(job.extent[0])
    job.parameters[DIVISOR] = 1.0 / divisor
    for k in range(4):
        job.parameters[1 + k] = kernel.parameters[k]

    job.inner, job.pattern, job.patterned = 1, 0, 1
    if channels > 0 and job.size > 0:
        for axis in range(2, job.axes):
            job.inner *= job.extent[axis]
        job.pattern = job.extent[1]
        job.patterned = job.inner < LONG or (job.inner < ROW and job.inner * job.extent[1] <= LARGEST_PATTERN)
        if job.patterned:  # `begin` lays the channels out as they recur along the elements
            job.pattern *= job.inner
            job.pattern *= (PATTERN + job.pattern - 1) // job.pattern

    last = job.axes - 1
    while last > 0 and job.extent[last] == 1:
        last -= 1
    order_address = stack(AXES)
    order = i8_at(order_address)
    rows_are_summed = summed and job.axes > 0 and kept_axis(job, like, last)
    place, job.rows, job.columns = 0, 1, 1
    for first in (True, False):
        for axis in range(job.axes):
            leads = not summed or kept_axis(job, like, axis) != rows_are_summed
            if leads == first:
                order[place] = axis
                place += 1
                if first:
                    job.rows *= job.extent[axis]
                else:
                    job.columns *= job.extent[axis]

    for i in range(kernel.inputs):
        role = kernel.role[i]
        job.source_type[i] = kernel.element_type[i]
        if role & CHANNEL:
            job.source_type[i] = kernel.compute_type  # as `begin` leaves it
            job.dims[i, 0] = job.extent[1]
            if not job.patterned:
                lay_out(job, i, 1, 1, order)
            else:
                job.kind[i] = LINEAR if job.pattern >= job.size else STRIDED
                job.operand_axes[i] = 2
                job.operand_extent[i, 0], job.operand_stride[i, 0] = job.size, 0
                job.operand_extent[i, 1], job.operand_stride[i, 1] = job.pattern, 1
        elif role & (UNREAD | COUNT) or kernel.element_type[i] == 0:
            job.kind[i] = ABSENT
        else:
            lay_out(job, i, job.axes - job.rank[i], job.rank[i], order)

    job.summed_rows = rows_are_summed
    job.slices = 1
    if not summed:
        job.block = min(max(BLOCK, (job.size // MANY // CHUNK) * CHUNK), LARGEST_BLOCK)
        job.tasks = (job.size + job.block - 1) // job.block
        job.scratch_bytes = 8 * channels * job.pattern
    elif rows_are_summed:
        job.blocks = (job.columns + CHUNK - 1) // CHUNK
        job.slice = job.rows
        if job.blocks < MAX_SLICES:
            job.slice = max(BLOCK // min(max(job.columns, 1), CHUNK), (job.rows + MAX_SLICES - 1) // MAX_SLICES, 1)
            job.slices = (job.rows + job.slice - 1) // job.slice
    else:
        per_task = max(BLOCK // max(job.columns, 1), 1)
        job.blocks = (job.rows + per_task - 1) // per_task
        job.slice = job.columns
        if job.blocks < MAX_SLICES and per_task == 1:
            job.slice = max(BLOCK, (job.columns + MAX_SLICES - 1) // MAX_SLICES)
            job.slices = (job.columns + job.slice - 1) // job.slice
    if summed:
        job.slices = max(job.slices, 1)  # a sum of nothing is still to be stored
        job.tasks = job.blocks * job.slices
        job.scratch_bytes = 8 * job.slices * (job.columns if rows_are_summed else job.rows) if job.slices > 1 else 0
    job.sums = summed
    return OK


@njit(**OPTIONS)
def kept_axis(job, like, axis):
    """Whether an axis of the index space is one of the output, not one that is summed over."""
    own = axis - (job.axes - job.rank[like])
    return own >= 0 and (job.dims[like, own] != 1 or job.extent[axis] == 1)


@njit(**OPTIONS)
def recur(values, channels, job):
    """One number per channel into the pattern in which they recur along the elements."""
    if job.pattern == channels:
        return
    for c in range(channels - 1, -1, -1):
        value = values[c]
        for k in range(job.inner):
            values[c * job.inner + k] = value
    period = channels * job.inner
    for i in range(period, job.pattern):
        values[i] = values[i - period]


def begin(kernel_address, job_address):
    """Per-channel inputs in the scratch memory: worked over by the op in float64, then in the computing dtype."""
    kernel, job = kernel_at(kernel_address), job_at(job_address)
    if job.size == 0:
        return
    channels, pointers_address = job.extent[1], stack(POINTERS)
    pointers = i8_at(pointers_address)
    place, total = 0, 0.0
    for i in range(kernel.inputs):
        if kernel.role[i] & COUNT:
            total += count_up(job, i, kernel.element_type[i])
        if kernel.role[i] & CHANNEL:
            pointers[place] = job.scratch + 8 * place * job.pattern
            values = f8_at(pointers[place])
            for c in range(channels):
                present = kernel.element_type[i] != 0
                values[c] = number_at(job.data[i], kernel.element_type[i], c) if present else 1.0
            job.data[i] = pointers[place]
            place += 1
    job.parameters[DIVISOR] = total
    call(kernel.prepare, (pointers_address, channels, job_address + JOB_PARAMETERS))
    for k in range(place):
        wide, narrow = f8_at(pointers[k]), f4_at(pointers[k])
        if kernel.compute_type == FLOAT:
            for c in range(channels):
                narrow[c] = f4(wide[c])
            recur(narrow, channels, job)
        else:
            recur(wide, channels, job)


# --- elements ------------------------------------------------------------------------------------------------------


@njit(**OPTIONS)
def stretch(data, source_type, size, start, count, inner, width, load, buffer, spare):
    """Elements each of which stands `inner` times in a row."""
    first = start // inner
    call(load, (data + first * size, source_type, 1, (start + count - 1) // inner + 1 - first, spare))
    within, k = start - first * inner, 0
    for i in range(count):
        if width == 8:
            f8_at(buffer)[i] = f8_at(spare)[k]
        elif width == 4:
            f4_at(buffer)[i] = f4_at(spare)[k]
        else:
            u2_at(buffer)[i] = u2_at(spare)[k]
        within += 1
        if within == inner:
            within = 0
            k += 1


@njit(**OPTIONS)
def tile(data, source_type, size, start, count, inner, width, load, buffer):
    """A row of `inner` elements that recurs."""
    within = start % inner
    call(load, (data + within * size, source_type, 1, inner - within, buffer))
    call(load, (data, source_type, 1, within, buffer + (inner - within) * width))
    for i in range(inner, count):
        if width == 8:
            f8_at(buffer)[i] = f8_at(buffer)[i - inner]
        elif width == 4:
            f4_at(buffer)[i] = f4_at(buffer)[i - inner]
        else:
            u2_at(buffer)[i] = u2_at(buffer)[i - inner]


@njit(**OPTIONS)
def gather(job, i, start, count, width, element_type, load, buffer, spare, filled, uniform):
    """Address of elements [start, start + count) of a strided operand, in the core's dtype.

    They are brought into the buffer, one run of memory after another, unless a single run is there to be used in
    place. filled[i] is the address of the one element that fills the buffer already, where that is what it holds. With
    `uniform` an element that fills the whole stretch is wanted only once.
    """
    source_type, axes = job.source_type[i], job.operand_axes[i]
    size = item_size(source_type)
    inner, step = job.operand_extent[i, axes - 1], job.operand_stride[i, axes - 1]
    if axes == 2 and inner < LONG and job.operand_stride[i, 0] == (1 if step == 0 else 0) and count > inner:
        filled[i] = 0
        if step == 0:
            stretch(job.data[i], source_type, size, start, count, inner, width, load, buffer, spare)
        else:
            tile(job.data[i], source_type, size, start, count, inner, width, load, buffer)
        return buffer
    done, row = 0, start // inner
    within = start - row * inner
    while done < count:
        offset = within * step
        if axes == 2:
            offset += row * job.operand_stride[i, 0]
        else:
            rest = row
            for axis in range(axes - 2, -1, -1):
                extent = job.operand_extent[i, axis]
                offset += (rest % extent) * job.operand_stride[i, axis]
                rest //= extent
        run = min(inner - within, count - done)
        source = job.data[i] + offset * size
        if run == count and source_type == element_type and (step == 1 or (step == 0 and uniform)):
            return source
        if run == count and step == 0 and inner >= CHUNK:
            if filled[i] != source:
                call(load, (source, source_type, 0, CHUNK, buffer))
                filled[i] = source
            return buffer
        call(load, (source, source_type, step, run, buffer + done * width))
        done += run
        row, within = row + 1, 0
    filled[i] = 0
    return buffer


@njit(**OPTIONS)
def evaluate(kernel, job, start, count, element_type, load, core, uniform, state, out):
    """The op's loop over elements [start, start + count) of the index space, at most CHUNK if not all are direct.

    state is the address of what a task keeps from chunk to chunk: operand pointers, what fills which buffer, the
    parameters in the core's dtype, and the buffers of results and operands.
    """
    pointers, filled = i8_at(state), i8_at(state + POINTERS)
    width = item_size(element_type)
    for i in range(kernel.inputs):
        kind = job.kind[i]
        buffer = state + BUFFERS_AT + i * BUFFER
        if kind == LINEAR and job.source_type[i] == element_type:
            pointers[i] = job.data[i] + start * width
            continue
        pointers[i] = buffer
        if kind == LINEAR:
            size = item_size(job.source_type[i])
            call(load, (job.data[i] + start * size, job.source_type[i], 1, count, buffer))
        elif kind == STRIDED:
            spare = state + SPARE_AT
            pointers[i] = gather(job, i, start, count, width, element_type, load, buffer, spare, filled, uniform)
        elif filled[i] == 0:  # one value throughout, which is 1 for an input that was left out
            filled[i] = 1
            if kind == SCALAR:
                call(load, (job.data[i], job.source_type[i], 0, CHUNK, buffer))
            else:
                f4_at(state + ONE_AT)[0] = f4(1)
                call(load, (state + ONE_AT, FLOAT, 0, CHUNK, buffer))
    call(core, (state, out, count, state + PARAMETERS_AT))


@njit(**OPTIONS)
def evaluate_wide(kernel, job, start, count, state, out):
    """The same in float64, for terms that are to be summed."""
    evaluate(kernel, job, start, count, DOUBLE, kernel.load_wide, kernel.core_wide, False, state, out)


@njit(**OPTIONS)
def start_task(job, width, state):
    filled = i8_at(state + POINTERS)
    for i in range(MAX_INPUTS):
        filled[i] = 0
    if width == 8:
        wide = f8_at(state + PARAMETERS_AT)
        for k in range(PARAMETERS):
            wide[k] = job.parameters[k]
        wide[LAST_PARAMETER] = 0.0
    else:
        narrow, share = f4_at(state + PARAMETERS_AT), job.parameters[DIVISOR]
        for k in range(PARAMETERS):
            narrow[k] = f4(job.parameters[k])
        narrow[LAST_PARAMETER] = f4(share - f8(f4(share)))


def task(job_address, number):
    """One block of the index space, or of the sums over it."""
    job = job_at(job_address)
    kernel = kernel_at(job.kernel)
    memory = malloc(BUFFERS_AT + BUFFER * kernel.inputs + LINE)
    if memory == 0:
        job.failed = NO_MEMORY
        return
    state = (memory + LINE - 1) // LINE * LINE
    if job.sums:
        sum_task(kernel, job, number, state)
    else:
        map_task(kernel, job, number, state)
    free(memory)


@njit(**OPTIONS)
def map_task(kernel, job, number, state):
    result = state + RESULT_AT
    width = item_size(kernel.compute_type)
    start_task(job, width, state)
    direct = kernel.output_type == kernel.compute_type
    uniform = kernel.core_uniform != 0
    for i in range(kernel.inputs):
        if kernel.uniform[i] and job.kind[i] > SCALAR and (job.patterned or not kernel.role[i] & CHANNEL):
            uniform = False
    core = kernel.core_uniform if uniform else kernel.core
    step = job.block
    for i in range(kernel.inputs):
        in_place = job.source_type[i] == kernel.compute_type and (
            job.kind[i] == LINEAR or (uniform and kernel.role[i] & CHANNEL)
        )
        one_value = uniform and kernel.uniform[i] and job.kind[i] <= SCALAR
        if not direct or not (in_place or one_value or kernel.role[i] & (UNREAD | COUNT)):
            step = CHUNK
    position, stop = number * job.block, min((number + 1) * job.block, job.size)
    while position < stop:
        count = min(step, stop - position)
        for i in range(kernel.inputs):  # up to where a long run of an operand ends, which then needs no copy
            if job.kind[i] == STRIDED:
                inner = job.operand_extent[i, job.operand_axes[i] - 1]
                of_channel = uniform and kernel.role[i] & CHANNEL
                if of_channel or (inner >= ROW and job.source_type[i] == kernel.compute_type):
                    count = min(count, inner - position % inner)
        out = job.output + position * width if direct else result
        evaluate(kernel, job, position, count, kernel.compute_type, kernel.load, core, uniform, state, out)
        if not direct:
            target = job.output + position * item_size(kernel.output_type)
            call(kernel.store, (result, kernel.output_type, count, target))
        position += count


@njit(**OPTIONS)
def deliver(kernel, job, totals, piece, first, count):
    """Sums of output elements [first, first + count), over one slice, to the output or to where `finish` looks."""
    if job.slices == 1:
        target = job.output + first * item_size(kernel.output_type)
        call(kernel.store_wide, (totals, kernel.output_type, count, target))
    else:
        kept = job.columns if job.summed_rows else job.rows
        partial, values = f8_at(job.scratch + 8 * (piece * kept + first)), f8_at(totals)
        for i in range(count):
            partial[i] = values[i]


@njit(**OPTIONS)
def sum_task(kernel, job, number, state):
    result, totals_address = state + RESULT_AT, state + TOTALS_AT
    terms, totals = f8_at(result), f8_at(totals_address)
    start_task(job, 8, state)
    piece, block = number // job.blocks, number % job.blocks
    columns = job.columns
    if job.summed_rows:
        first = block * CHUNK
        count = min(CHUNK, columns - first)
        row, stop = piece * job.slice, min((piece + 1) * job.slice, job.rows)
        together = CHUNK // columns if 0 < columns <= CHUNK else 1  # whole rows that make one chunk
        for c in range(count):
            totals[c] = 0.0
        while row < stop:
            rows = min(together, stop - row)
            evaluate_wide(kernel, job, row * columns + first, rows * count, state, result)
            for k in range(rows):
                for c in range(count):
                    totals[c] += terms[k * count + c]
            row += rows
        deliver(kernel, job, totals_address, piece, first, count)
    else:
        per_task = max(BLOCK // max(columns, 1), 1)
        row, stop = block * per_task, min((block + 1) * per_task, job.rows)
        begin_column, end_column = piece * job.slice, min((piece + 1) * job.slice, columns)
        while row < stop:
            rows = 1
            if columns <= CHUNK:
                rows = min(CHUNK // max(columns, 1), stop - row, CHUNK)
                evaluate_wide(kernel, job, row * columns, rows * columns, state, result)
                for k in range(rows):
                    totals[k] = total_of(terms, k * columns, columns)
            else:
                total, column = 0.0, begin_column
                while column < end_column:
                    count = min(CHUNK, end_column - column)
                    evaluate_wide(kernel, job, row * columns + column, count, state, result)
                    total += total_of(terms, 0, count)
                    column += count
                totals[0] = total
            deliver(kernel, job, totals_address, piece, row, rows)
            row += rows


def finish(kernel_address, job_address):
    """Add up the slices of the sums, always in the same order."""
    kernel, job = kernel_at(kernel_address), job_at(job_address)
    if not job.sums or job.slices == 1:
        return
    kept = job.columns if job.summed_rows else job.rows
    totals = f8_at(job.scratch)
    for piece in range(1, job.slices):
        partial = f8_at(job.scratch + 8 * piece * kept)
        for i in range(kept):
            totals[i] += partial[i]
    call(kernel.store_wide, (job.scratch, kernel.output_type, kept, job.output))
