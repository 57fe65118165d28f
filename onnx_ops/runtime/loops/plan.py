"""Plans one run of a loop: shapes of the outputs, the layout of the operands, and how the work is cut into tasks.

Results do not depend on the number of threads: tasks of sums go by the sizes alone, and what a map gives for an element
is the same in any task.
"""

from __future__ import annotations

from numba import njit

from onnx_ops.core.reduction import Divisor
from onnx_ops.loops.loop import Kept
from onnx_ops.loops.primitives import channel_type, item_size
from onnx_ops.loops.records import CHUNK, JOB, MAX_OUTPUTS, OK, REFUSED, offset
from onnx_ops.runtime.loops.operands import (
    ABSENT,
    AXES,
    CHANNEL,
    COUNT,
    LINEAR,
    SCALAR,
    STRIDED,
    UNREAD,
    broadcast_shapes,
    count_up,
    fits,
    lay_out,
)
from onnx_ops.runtime.memory import (
    LINE,
    f4_at,
    f8_at,
    i8_at,
    job_at,
    kernel_at,
    layout_at,
    loop_at,
    number_at,
    repeat,
    stack,
)
from onnx_ops.runtime.native import DOUBLE, OPTIONS, call, f4, f8
from onnx_ops.runtime.records import LAYOUT, OPERANDS

BLOCK = 16384
"""Elements of a task, at the least."""
MANY, LARGEST_BLOCK = 64, 8 * BLOCK
"""Where there would be more blocks than MANY, blocks are larger, since longer runs of memory are read faster."""
MAX_SLICES = 64
LONG_RUN = 16384
"""A run of memory of this length is read as fast as one that goes on."""
SAMPLES, SAMPLED_EVERY = 5, 128
"""Elements at the most of which a pivot is the median, and how many there must be for each two of them: they are read
one by one. Where there are few elements, few digits can be lost."""
SAMPLES_BYTES = 8 * SAMPLES
LONG = 32
"""Runs of memory below this length are not worth a call each: they are stretched, tiled, or laid out as a pattern."""
PATTERN, LARGEST_PATTERN, ROW = 256, 32768, 256
"""Least and greatest length of a pattern of channels: a chunk has few of them, and they stay in cache. From ROW on the
elements of one channel are worth going through by themselves."""
DIVISOR = 0
"""Place of the reciprocal of the divisor among the parameters; those of the loop follow."""
POINTERS = 8 * OPERANDS

BY_SIZE, BY_BATCH = int(Divisor.SIZE), int(Divisor.BATCH)
CHANNELS, LIKE_INPUT = int(Kept.CHANNELS), int(Kept.LIKE_INPUT)
PARAMETERS_AT = offset(LAYOUT, "parameters")
DIMS = offset(JOB, "dims")


def plan(kernel_address, job_address):
    """From the shapes of the inputs to what the tasks need."""
    kernel, job = kernel_at(kernel_address), job_at(job_address)
    loop, layout = loop_at(kernel.loop), layout_at(job.layout)
    if not broadcast_shapes(kernel, loop, job, layout):
        return REFUSED
    if loop.ranks[0] > 1 and layout.extent[1] == 0:
        return REFUSED
    layout.channel_inputs = 0
    for i in range(kernel.inputs):
        if kernel.element_type[i] != 0 and not fits(loop, job, layout, i):
            return REFUSED
        if loop.role[i] & CHANNEL:
            layout.channel_inputs += 1

    shape_outputs(kernel, loop, job, layout)
    layout.divisor = 1.0
    if loop.divisor == BY_SIZE:
        layout.divisor = f8(layout.size)
    elif loop.divisor == BY_BATCH and layout.axes > 0:
        layout.divisor = f8(layout.extent[0])
    layout.parameters[DIVISOR] = 1.0 / layout.divisor
    for k in range(4):
        layout.parameters[1 + k] = loop.parameters[k]

    layout.inner, layout.pattern, layout.patterned, layout.channels = 1, 0, 0, 0
    for axis in range(2, layout.axes):
        layout.inner *= layout.extent[axis]
    if layout.channel_inputs > 0:
        layout.channels = layout.pattern = layout.extent[1]
    if layout.channel_inputs > 0 and layout.size > 0 and not layout.summed:
        layout.patterned = layout.inner < LONG or (
            layout.inner < ROW and layout.inner * layout.extent[1] <= LARGEST_PATTERN
        )
        if layout.patterned:  # `begin` lays the channels out as they recur along the elements
            layout.pattern *= layout.inner
            layout.pattern *= (PATTERN + layout.pattern - 1) // layout.pattern

    order_address, row_address = stack(AXES), stack(8)
    order, row = i8_at(order_address), i8_at(row_address)
    order_axes(loop, job, layout, order)
    narrowed_type = channel_type(loop.sum_type if layout.summed else loop.compute_type)
    layout.operands = kernel.inputs
    for i in range(kernel.inputs):
        role = loop.role[i]
        layout.source_type[i] = kernel.element_type[i]
        layout.data[i] = job.data[i]
        if role & CHANNEL:
            layout.source_type[i] = narrowed_type  # as `begin` leaves it
            if role & UNREAD:
                layout.kind[i] = ABSENT
            elif layout.patterned:
                layout.kind[i] = LINEAR if layout.pattern >= layout.size else STRIDED
                layout.operand_axes[i] = 2
                layout.operand_extent[i, 0], layout.operand_stride[i, 0] = layout.size, 0
                layout.operand_extent[i, 1], layout.operand_stride[i, 1] = layout.pattern, 1
            else:
                row[0] = layout.extent[1]
                lay_out(layout, i, row, 1, 1, order)
        elif role & (UNREAD | COUNT) or kernel.element_type[i] == 0:
            layout.kind[i] = ABSENT
        else:
            dims = i8_at(job_address + DIMS + i * AXES)
            lay_out(layout, i, dims, layout.axes - job.rank[i], job.rank[i], order)

    layout.slices, layout.totals = 1, 0
    if not layout.summed:
        layout.block = block_of_map(loop, layout.size)
        job.tasks = (layout.size + layout.block - 1) // layout.block
        of_pattern = layout.pattern + LONG if layout.patterned else layout.channels
        job.scratch_bytes = 8 * layout.channel_inputs * (layout.channels + of_pattern)
        plan_map(kernel, loop, layout)
        return OK
    if loop.pivot >= 0:
        pivot = layout.operands
        layout.operands += 1
        layout.source_type[pivot] = narrowed_type
        row[0] = layout.extent[1] if loop.kept == CHANNELS else 1
        lay_out(layout, pivot, row, 1, loop.kept == CHANNELS, order)
    plan_sums(loop, job, layout)
    return OK


@njit(**OPTIONS)
def block_of_map(loop, size):
    """Elements of a task.

    What waits for memory is cut into few tasks, the same number for each core: it is done so soon that the start of a
    task counts, and an odd one, for which the other cores wait.
    """
    if not loop.memory_bound:
        return min(max(BLOCK, (size // MANY // CHUNK) * CHUNK), LARGEST_BLOCK)
    most = loop.cores * LARGEST_BLOCK
    tasks = loop.cores * max((size + most - 1) // most, 1)
    return max(BLOCK, ((size + tasks - 1) // tasks + LINE - 1) // LINE * LINE)  # a block begins where a line does


@njit(**OPTIONS)
def plan_map(kernel, loop, layout):
    """Which core serves, and whether operands are read, and results written, where they lie.

    Where operands and results are twice as large as the last cache, next to nothing of them is still there at the end.
    So the results of a core that waits for memory go past it, which saves that memory is read before it is written to.
    That takes short chunks, for which it costs too much to look up where a broadcast operand goes on.
    """
    layout.uniform = loop.core_uniform != 0
    for i in range(kernel.inputs):
        if loop.uniform[i] and layout.kind[i] > SCALAR and (layout.patterned or not loop.role[i] & CHANNEL):
            layout.uniform = False
    layout.direct, in_runs, size = True, True, 0
    for k in range(kernel.outputs):
        size += layout.size * item_size(loop.compute_type)
        if kernel.output_type[k] != loop.compute_type:
            layout.direct = in_runs = False
    for i in range(kernel.inputs):
        own_type = channel_type(loop.compute_type) if loop.role[i] & CHANNEL else loop.compute_type
        in_place = layout.source_type[i] == own_type and (
            layout.kind[i] == LINEAR or (layout.uniform and loop.role[i] & CHANNEL)
        )
        one_value = layout.uniform and loop.uniform[i] and layout.kind[i] <= SCALAR
        if not (in_place or one_value or loop.role[i] & (UNREAD | COUNT)):
            layout.direct = False
        if layout.kind[i] == LINEAR:
            size += layout.size * item_size(own_type)
        if layout.kind[i] == STRIDED or (layout.kind[i] == LINEAR and layout.source_type[i] != loop.compute_type):
            in_runs = False
    layout.past_caches = loop.memory_bound and in_runs and size > 2 * loop.cache


@njit(**OPTIONS)
def kept_axis(loop, job, layout, axis):
    """Whether an axis of the index space is one of the sums, not one that is summed over."""
    if loop.kept == LIKE_INPUT:
        own = axis - (layout.axes - job.rank[loop.like])
        return own >= 0 and (job.dims[loop.like, own] != 1 or layout.extent[axis] == 1)
    if loop.kept == CHANNELS:  # where runs along the other axes are short, they are added up at the end
        return axis == 1 or (axis > 1 and 0 < layout.inner < LONG)
    return False


@njit(**OPTIONS)
def shape_outputs(kernel, loop, job, layout):
    """The shapes of the outputs, and whether they are sums."""
    layout.summed = loop.sums
    rank = layout.axes
    for k in range(kernel.outputs):
        for axis in range(rank):
            job.output_dims[k, axis] = layout.extent[axis]
    if loop.sums and loop.kept == LIKE_INPUT:
        like = loop.like
        lead = layout.axes - job.rank[like]
        rank = job.rank[like]
        layout.summed = 0
        for axis in range(lead):
            layout.summed |= layout.extent[axis] != 1
        for axis in range(rank):
            job.output_dims[0, axis] = job.dims[like, axis]
            layout.summed |= job.dims[like, axis] != layout.extent[lead + axis]
    elif loop.sums:
        rank = 1 if loop.kept == CHANNELS else 0
        for k in range(kernel.outputs):
            job.output_dims[k, 0] = layout.extent[1] if loop.kept == CHANNELS else 1
    for k in range(kernel.outputs):
        job.output_rank[k] = rank


@njit(**OPTIONS)
def order_axes(loop, job, layout, order):
    """The index space as rows and columns: the axes that are summed over come last unless the innermost is kept."""
    last = layout.axes - 1
    while last > 0 and layout.extent[last] == 1:
        last -= 1
    layout.summed_rows = layout.summed and layout.axes > 0 and kept_axis(loop, job, layout, last)
    place, layout.rows, layout.columns = 0, 1, 1
    for first in (True, False):
        for axis in range(layout.axes):
            leads = not layout.summed or kept_axis(loop, job, layout, axis) != layout.summed_rows
            if leads == first:
                order[place] = axis
                place += 1
                if first:
                    layout.rows *= layout.extent[axis]
                else:
                    layout.columns *= layout.extent[axis]


@njit(**OPTIONS)
def plan_sums(loop, job, layout):
    """Cut the sums into tasks, and find room for what several tasks add to."""
    layout.folded = layout.inner if loop.kept == CHANNELS and layout.summed_rows else 1
    if layout.summed_rows:
        layout.places = layout.columns // layout.folded
        layout.block = CHUNK - CHUNK % layout.folded
        layout.blocks = (layout.columns + layout.block - 1) // layout.block
        layout.slice = layout.rows
        if layout.blocks < MAX_SLICES:
            least = max(BLOCK // min(max(layout.columns, 1), CHUNK), 1)
            layout.slice = max(least, (layout.rows + MAX_SLICES - 1) // MAX_SLICES)
            layout.slices = (layout.rows + layout.slice - 1) // layout.slice
    elif loop.kept == CHANNELS and layout.columns > CHUNK and layout.inner < LONG_RUN:
        # Rows take turns in memory with short runs: a task reads a stretch of it, in which all its rows have a slice.
        layout.places = layout.rows
        samples = layout.columns // layout.inner
        least, most = (CHUNK + layout.inner - 1) // layout.inner, (samples + MAX_SLICES - 1) // MAX_SLICES
        layout.slice = max(least, most) * layout.inner
        layout.slices = (layout.columns + layout.slice - 1) // layout.slice
        layout.rows_of_task = max(layout.rows * layout.slices // MAX_SLICES, BLOCK // layout.slice, 1)
        layout.blocks = (layout.rows + layout.rows_of_task - 1) // layout.rows_of_task
    else:
        layout.places = layout.rows
        layout.rows_of_task = max(BLOCK // max(layout.columns, 1), 1)
        layout.blocks = (layout.rows + layout.rows_of_task - 1) // layout.rows_of_task
        layout.slice = layout.columns
        if layout.blocks < MAX_SLICES and layout.rows_of_task == 1:
            layout.slice = max(BLOCK, (layout.columns + MAX_SLICES - 1) // MAX_SLICES)
            layout.slices = (layout.columns + layout.slice - 1) // layout.slice
    layout.slices = max(layout.slices, 1)  # a sum of nothing is still to be stored
    job.tasks = layout.blocks * layout.slices
    # The per-channel operands in float64 and as the core reads them, the pivot too; then two numbers for each sum.
    kept = layout.extent[1] if loop.kept == CHANNELS else 1
    held = 16 * (layout.channel_inputs * layout.channels + (kept if loop.pivot >= 0 else 0))
    layout.totals = 0
    if layout.slices > 1 or loop.finish != 0 or loop.divided or loop.terms > 1:
        layout.totals = 1  # `begin` knows the address
        held += 16 * layout.slices * loop.terms * layout.places
        if loop.finish != 0:
            held += 8 * MAX_OUTPUTS * layout.places
    job.scratch_bytes = held


def begin(kernel_address, job_address):
    """Per-channel inputs in the scratch memory: worked over by the op in float64, then in the computing dtype."""
    kernel, job = kernel_at(kernel_address), job_at(job_address)
    loop, layout = loop_at(kernel.loop), layout_at(job.layout)
    free_at = job.scratch
    channels = layout.channels
    if channels > 0 and (layout.size > 0 or layout.summed):
        pointers_address = stack(POINTERS)
        pointers = i8_at(pointers_address)
        place, total = 0, 0.0
        layout.wide = free_at
        for i in range(kernel.inputs):
            if loop.role[i] & COUNT:
                total += count_up(job, i, kernel.element_type[i])
            if loop.role[i] & CHANNEL:
                pointers[place] = free_at
                if kernel.element_type[i] != 0:
                    call(kernel.read, (job.data[i], kernel.element_type[i], 1, channels, free_at))
                else:
                    for c in range(channels):
                        f8_at(free_at)[c] = kernel.missing[i]
                free_at += 8 * channels
                place += 1
        if loop.prepare != 0:
            share = layout.parameters[DIVISOR]
            layout.parameters[DIVISOR] = total
            call(loop.prepare, (pointers_address, channels, job.layout + PARAMETERS_AT))
            layout.parameters[DIVISOR] = share
        place = 0
        for i in range(kernel.inputs):
            if loop.role[i] & CHANNEL:
                layout.data[i] = free_at
                if layout.patterned:
                    recur(pointers[place], free_at, channels, layout, loop.compute_type)
                    free_at += 8 * (layout.pattern + LONG)
                else:
                    narrow(pointers[place], free_at, channels, loop.sum_type if layout.summed else loop.compute_type)
                    free_at += 8 * channels
                place += 1
    if layout.summed:
        if loop.pivot >= 0:
            kept = layout.extent[1] if loop.kept == CHANNELS else 1
            find_pivots(kernel, loop, job, layout, free_at, kept)
            layout.pivots = free_at
            layout.data[layout.operands - 1] = free_at + 8 * kept
            narrow(free_at, free_at + 8 * kept, kept, loop.sum_type)
            free_at += 16 * kept
        if layout.totals != 0:
            layout.totals = free_at


@njit(**OPTIONS)
def narrow(source, target, count, element_type):
    """float64 numbers into a computing dtype."""
    wide = f8_at(source)
    if element_type == DOUBLE:
        for i in range(count):
            f8_at(target)[i] = wide[i]
    else:
        for i in range(count):
            f4_at(target)[i] = f4(wide[i])


@njit(**OPTIONS)
def recur(source, target, channels, layout, element_type):
    """float64 numbers, one per channel, into a computing dtype, in the pattern in which they recur along the elements.

    There is room for LONG numbers behind the pattern.
    """
    size, inner, period = item_size(channel_type(element_type)), layout.inner, channels * layout.inner
    if inner == 1:
        narrow(source, target, channels, element_type)
    else:
        for c in range(channels):
            value = f8_at(source)[c]
            for k in range(0, inner, LONG):  # what is too much belongs to the next channels, which come after
                if size == 8:
                    repeat(value, LONG, target + 8 * (c * inner + k))
                else:
                    repeat(f4(value), LONG, target + 4 * (c * inner + k))
    for i in range(period, layout.pattern):
        if size == 8:
            f8_at(target)[i] = f8_at(target)[i - period]
        else:
            f4_at(target)[i] = f4_at(target)[i - period]


@njit(**OPTIONS)
def find_pivots(kernel, loop, job, layout, target, kept):
    """For each kept place the median of a few elements that lie far from each other.

    It is 0 where the median is no further from 0 than the elements on either side of it are from each other, so that a
    sum of differences is the sum itself, and where the median is not finite.
    """
    source, element_type = job.data[loop.pivot], kernel.element_type[loop.pivot]
    count = layout.size // max(kept, 1)
    inner = layout.inner if loop.kept == CHANNELS else count
    samples_address = stack(SAMPLES_BYTES)
    samples, pivots = f8_at(samples_address), f8_at(target)
    taken = min(count, 1 + 2 * (count // SAMPLED_EVERY), SAMPLES)
    places_address = stack(SAMPLES_BYTES)
    places = i8_at(places_address)  # of the samples of the first kept place
    for k in range(taken):
        index = count * k // taken
        places[k] = index // inner * kept * inner + index % inner
    for c in range(kept):
        for k in range(taken):
            value = number_at(source, element_type, places[k] + c * inner)
            place = k
            while place > 0 and samples[place - 1] > value:
                samples[place] = samples[place - 1]
                place -= 1
            samples[place] = value
        pivot = samples[taken // 2] if taken > 0 else 0.0
        if taken > 0 and samples[taken - 1 - taken // 4] - samples[taken // 4] >= abs(pivot):
            pivot = 0.0
        pivots[c] = pivot if pivot - pivot == 0.0 else 0.0
