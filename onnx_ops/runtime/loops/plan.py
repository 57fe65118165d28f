"""Plans a run of a loop: shapes of outputs, layout of operands, and tasks.

Results do not depend on the number of threads: tasks of sums depend on sizes alone, and an elementwise result is the
same in any task.
"""

from __future__ import annotations

from numba import njit

from onnx_ops.core.reduction import Divisor
from onnx_ops.loops.loop import Kept
from onnx_ops.loops.memory import channel_type, item_size, whole_lines
from onnx_ops.loops.primitives import ceil_divide
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
from onnx_ops.runtime.memory import address_of, f4_at, f8_at, i8_at, layout_at, loop_at, number_at, repeat, stack
from onnx_ops.runtime.native import DOUBLE, OPTIONS, call, f4, f8
from onnx_ops.runtime.records import LAYOUT, OPERANDS

BLOCK = 16384
"""Least number of elements per task."""
MANY, LARGEST_BLOCK = 64, 8 * BLOCK
"""Above MANY blocks, blocks grow up to LARGEST_BLOCK, since longer contiguous reads are faster."""
MAX_SLICES = 64
LONG_RUN = 16384
"""Elements of a contiguous run that is read at full speed."""
LEAST_RUN = 16
"""Elements of a channel's contiguous run from which on sums take it as it lies in memory."""
LEAST_TOTAL = 128
"""Elements of a sum from which on it is computed by itself; shorter ones several at a time."""
SAMPLES, SAMPLED_EVERY = 5, 128
"""A pivot is the median of at most SAMPLES elements, two per SAMPLED_EVERY elements: with few elements, little is lost
to cancellation."""
SAMPLES_BYTES = 8 * SAMPLES
LONG = 32
"""Contiguous runs shorter than this are repeated, tiled or expanded to a pattern instead of one call each."""
PATTERN, LARGEST_PATTERN, ROW = 256, 32768, 256
"""Least and greatest length of a pattern of channels, which stays in cache. From ROW elements per channel on, channels
are processed one by one."""
DIVISOR = 0
"""Index of the reciprocal of the divisor in the parameters, followed by those of the loop."""
POINTERS = 8 * OPERANDS

BY_SIZE, BY_BATCH = int(Divisor.SIZE), int(Divisor.BATCH)
NOTHING, CHANNELS, LIKE_INPUT = map(int, Kept)
PARAMETERS_AT = offset(LAYOUT, "parameters")
DIMS = offset(JOB, "dims")


def plan(kernel, job):
    """Plan a run from the shapes of the inputs."""
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
        if layout.patterned:  # `begin` expands the channels to the period of the elements
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
            layout.source_type[i] = narrowed_type  # the dtype that `begin` writes
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
            dims = i8_at(address_of(job) + DIMS + i * AXES)
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
    """Elements per task.

    Memory-bound work is split into few tasks, the same number per core: it is so short that starting a task matters, as
    does a last task that the other cores wait for.
    """
    if not loop.memory_bound:
        return min(max(BLOCK, (size // MANY // CHUNK) * CHUNK), LARGEST_BLOCK)
    most = loop.cores * LARGEST_BLOCK
    tasks = loop.cores * max((size + most - 1) // most, 1)
    return max(BLOCK, whole_lines(ceil_divide(size, tasks)))


@njit(**OPTIONS)
def plan_map(kernel, loop, layout):
    """Select the core, and whether operands are read and results written in place.

    If operands and results are twice as large as the last-level cache, results of a memory-bound core are written with
    non-temporal stores, which saves reading memory before writing. That needs short chunks, for which computing the
    offset of a broadcast operand costs too much.
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
    """Whether sums keep an axis of the index space."""
    if loop.kept == LIKE_INPUT:
        own = axis - (layout.axes - job.rank[loop.like])
        return own >= 0 and (job.dims[loop.like, own] != 1 or layout.extent[axis] == 1)
    if loop.kept == CHANNELS:  # short runs along the other axes are summed at the end
        is_short = layout.inner < (LEAST_RUN if layout.size >= LEAST_TOTAL * layout.extent[1] else LONG)
        return axis == 1 or (axis > 1 and layout.inner > 0 and is_short)
    return False


@njit(**OPTIONS)
def shape_outputs(kernel, loop, job, layout):
    """Set the shapes of the outputs; returns whether they are sums."""
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
    """Order axes into rows and columns: summed axes last, unless the innermost axis is kept."""
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
    """Split the sums into tasks, with scratch memory for sums that several tasks share."""
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
        # Rows of short runs are interleaved in memory: a task reads a block of it with a slice of each of its rows.
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
    layout.slices = max(layout.slices, 1)  # an empty sum is stored as well
    job.tasks = layout.blocks * layout.slices
    # Per-channel operands and pivot, in float64 and as the core reads them; then two parts of each sum.
    kept = layout.extent[1] if loop.kept == CHANNELS else 1
    held = 16 * (layout.channel_inputs * layout.channels + (kept if loop.pivot >= 0 else 0))
    layout.totals = 0
    if layout.slices > 1 or loop.finish != 0 or loop.kept == NOTHING or loop.terms > 1:
        layout.totals = 1  # replaced by the address in `begin`
        held += 16 * layout.slices * loop.terms * layout.places
        if loop.finish != 0:
            held += 8 * MAX_OUTPUTS * layout.places
    job.scratch_bytes = held


def begin(kernel, job):
    """Write per-channel inputs to the scratch memory: prepared in float64, then converted to the computing dtype."""
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
                        f8_at(free_at)[c] = kernel.default[i]
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
                    repeat_channels(pointers[place], free_at, channels, layout, loop.compute_type)
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
    """Convert float64 elements to a computing dtype."""
    wide = f8_at(source)
    if element_type == DOUBLE:
        for i in range(count):
            f8_at(target)[i] = wide[i]
    else:
        for i in range(count):
            f4_at(target)[i] = f4(wide[i])


@njit(**OPTIONS)
def repeat_channels(source, target, channels, layout, element_type):
    """Convert float64 per-channel elements to a computing dtype, repeated to the period of the elements.

    LONG elements after the pattern may be overwritten.
    """
    size, inner, period = item_size(channel_type(element_type)), layout.inner, channels * layout.inner
    if inner == 1:
        narrow(source, target, channels, element_type)
    else:
        for c in range(channels):
            value = f8_at(source)[c]
            for k in range(0, inner, LONG):  # the excess is overwritten by the next channel
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
    """For each kept index the median of a few distant elements.

    It is 0 where that median is closer to 0 than its neighbours are to each other, so that a sum of differences is the
    sum itself, and where it is not finite.
    """
    source, element_type = job.data[loop.pivot], kernel.element_type[loop.pivot]
    count = layout.size // max(kept, 1)
    inner = layout.inner if loop.kept == CHANNELS else count
    samples_address = stack(SAMPLES_BYTES)
    samples, pivots = f8_at(samples_address), f8_at(target)
    taken = min(count, 1 + 2 * (count // SAMPLED_EVERY), SAMPLES)
    places_address = stack(SAMPLES_BYTES)
    places = i8_at(places_address)  # offsets of the samples of the first kept index
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
