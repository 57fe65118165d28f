"""Sums of terms by pairwise two-sum (Knuth): a sum is a pair of float64, the second one its rounding error."""

from __future__ import annotations

from numba import njit

from onnx_ops.loops.memory import channel_type, item_size
from onnx_ops.loops.primitives import add_any_order
from onnx_ops.loops.records import CHUNK, MAX_OUTPUTS
from onnx_ops.runtime.loops.chunks import BUFFER, STATE_BYTES, apply, evaluate, start_task
from onnx_ops.runtime.loops.operands import CHANNEL, COUNT, LINEAR, SCALAR, STRIDED, UNREAD, element_offset
from onnx_ops.runtime.loops.plan import LEAST_RUN, LEAST_TOTAL, NOTHING, PARAMETERS_AT
from onnx_ops.runtime.memory import f8_at, i8_at, layout_at, loop_at, stack
from onnx_ops.runtime.native import OPTIONS, call
from onnx_ops.runtime.records import OPERANDS

MAX_TERMS = 4
LOST_AT = STATE_BYTES
HIGH_AT = LOST_AT + 8 * CHUNK
LOW_AT = HIGH_AT + 8 * CHUNK * MAX_TERMS
TERMS_AT = LOW_AT + 8 * CHUNK * MAX_TERMS
PART_AT = TERMS_AT + 8 * CHUNK * MAX_TERMS
SUM_BYTES = PART_AT + 8 * CHUNK * MAX_TERMS
LONGEST = 16 * CHUNK
"""Elements summed by `totals` at a time, before the rounding error is tracked."""
POINTERS = 8 * (MAX_TERMS + MAX_OUTPUTS + OPERANDS)
OPERANDS_BYTES = 8 * OPERANDS


@njit(**OPTIONS)
def add_up(values, unit, count, lost):
    """Pairwise sum of `count` runs of `unit` elements, into the first run; `lost` receives the rounding errors."""
    for i in range(unit * count):
        lost[i] = 0.0
    while count > 1:
        half = count // 2
        upper = (count - half) * unit
        for i in range(half * unit):
            a, b = values[i], values[upper + i]
            total = a + b
            part = total - a
            lost[i] += lost[upper + i] + ((a - (total - part)) + (b - part))
            values[i] = total
        count -= half


@njit(**OPTIONS)
def add_up_rounded(values, unit, count):
    """`add_up` without rounding errors."""
    while count > 1:
        half = count // 2
        upper = (count - half) * unit
        for i in range(half * unit):
            values[i] += values[upper + i]
        count -= half


@njit(**OPTIONS)
def accumulate(high, low, values, lost, count):
    """Add sums in two parts to others."""
    for i in range(count):
        a, b = high[i], values[i]
        total = a + b
        part = total - a
        low[i] += lost[i] + ((a - (total - part)) + (b - part))
        high[i] = total


@njit(**OPTIONS)
def join(high, low, count):
    """Round the two parts to one, into `high`; where it is infinite, the low part is NaN and ignored."""
    for i in range(count):
        total = high[i] + low[i]
        high[i] = total if low[i] == low[i] else high[i]


@njit(**OPTIONS)
def evaluate_terms(kernel, loop, layout, start, count, core, state, out):
    evaluate(kernel, layout, start, count, loop.sum_type, loop.sum_load, core, False, state, out)


@njit(**OPTIONS)
def sum_task(kernel, loop, job, layout, number, state):
    """The sums of a block of results over one slice."""
    start_task(layout, item_size(loop.sum_type), state, BUFFER)
    piece, block = number // layout.blocks, number % layout.blocks
    columns, lost = layout.columns, f8_at(state + LOST_AT)
    if layout.summed_rows:
        first = block * layout.block
        count = min(layout.block, columns - first)
        begin_row, stop = piece * layout.slice, min((piece + 1) * layout.slice, layout.rows)
        # Few enough rows added by `totals` have no low part.
        in_parts = loop.sum_totals == 0 or stop - begin_row > LONGEST or begin_row >= stop
        if in_parts:
            clear(loop, state, count)
            step = rows_of_chunk(columns) if loop.sum_totals == 0 else LONGEST
            for row in range(begin_row, stop, step):
                add_rows(kernel, loop, layout, row, min(row + step, stop), first, count, state)
        else:
            add_rows_rounded(kernel, loop, layout, begin_row, stop, first, count, state, state + HIGH_AT)
        folded, kept = layout.folded, count // layout.folded
        for k in range(loop.terms):
            high, low = high_at(state, k), low_at(state, k)
            if not in_parts:
                fold_rounded(high, low, folded, kept)
            elif folded > 1:
                fold(high, low, folded, kept)
        deliver(kernel, loop, job, layout, piece, first // folded, kept, state)
        return
    row, stop = block * layout.rows_of_task, min((block + 1) * layout.rows_of_task, layout.rows)
    begin_column, end_column = piece * layout.slice, min((piece + 1) * layout.slice, columns)
    short = columns <= CHUNK and (loop.sum_totals == 0 or columns < LEAST_TOTAL)
    in_place = not short and loop.sum_totals != 0 and are_in_place(kernel, loop, layout)
    together = CHUNK if in_place else max(CHUNK // max(columns, 1), 1)
    while row < stop:
        rows = min(together, stop - row)
        clear(loop, state, rows)
        if short:
            evaluate_terms(kernel, loop, layout, row * columns, rows * columns, loop.sum_core, state, state + TERMS_AT)
            for k in range(loop.terms):
                for r in range(rows):
                    add_row(state, k, r, r * columns, columns, lost)
        elif in_place:
            add_rows_in_place(kernel, loop, layout, row, rows, begin_column, end_column, state, lost)
        else:
            for r in range(rows):
                add_long_row(kernel, loop, layout, row + r, r, begin_column, end_column, state, lost)
        deliver(kernel, loop, job, layout, piece, row, rows, state)
        row += rows


@njit(**OPTIONS)
def rows_of_chunk(columns):
    """Number of rows per chunk, at least 1."""
    return CHUNK // columns if 0 < columns <= CHUNK else 1


@njit(**OPTIONS)
def add_rows(kernel, loop, layout, row, stop, first, count, state):
    """Add rows elementwise to adjacent results: one chunk at a time, or LONGEST elements where order is free."""
    lost = f8_at(state + LOST_AT)
    if loop.sum_totals != 0:
        add_rows_rounded(kernel, loop, layout, row, stop, first, count, state, state + PART_AT)
        for i in range(count):
            lost[i] = 0.0
    else:
        start, elements = row * layout.columns + first, (stop - row) * count
        evaluate_terms(kernel, loop, layout, start, elements, loop.sum_core, state, state + PART_AT)
    for k in range(loop.terms):
        part = f8_at(state + PART_AT + 8 * CHUNK * k)
        if loop.sum_totals == 0:
            add_up(part, count, stop - row, lost)
        accumulate(high_at(state, k), low_at(state, k), part, lost, count)


@njit(**OPTIONS)
def add_rows_rounded(kernel, loop, layout, row, stop, first, count, state, out):
    """Elementwise sum of at least one row, to `out`, without rounding errors."""
    terms = out  # the first chunk is stored
    while row < stop:
        rows = min(rows_of_chunk(layout.columns), stop - row)
        start, elements = row * layout.columns + first, rows * count
        evaluate_terms(kernel, loop, layout, start, elements, loop.sum_core, state, terms)
        for k in range(loop.terms):
            values = f8_at(terms + 8 * CHUNK * k)
            add_up_rounded(values, count, rows)
            if terms != out:
                add_plainly(f8_at(out + 8 * CHUNK * k), values, count)
        row += rows
        terms = state + TERMS_AT


@njit(**OPTIONS)
def add_plainly(sums, values, count):
    for i in range(count):
        sums[i] += values[i]


@njit(**OPTIONS)
def high_at(state, term):
    return f8_at(state + HIGH_AT + 8 * CHUNK * term)


@njit(**OPTIONS)
def low_at(state, term):
    return f8_at(state + LOW_AT + 8 * CHUNK * term)


@njit(**OPTIONS)
def clear(loop, state, count):
    for k in range(loop.terms):
        high, low = high_at(state, k), low_at(state, k)
        for i in range(count):
            high[i] = 0.0
            low[i] = 0.0


@njit(**OPTIONS)
def add_row(state, term, place, start, count, lost):
    """Add a row of terms to one result."""
    if count == 0:
        return
    row = f8_at(state + TERMS_AT + 8 * (CHUNK * term + start))
    add_up(row, 1, count, lost)
    high, low = state + HIGH_AT + 8 * (CHUNK * term + place), state + LOW_AT + 8 * (CHUNK * term + place)
    accumulate(f8_at(high), f8_at(low), row, lost, 1)


@njit(**OPTIONS)
def add_long_row(kernel, loop, layout, row, place, column, end, state, lost):
    """Add columns of one row to one result, a chunk at a time."""
    while column < end:
        count = min(CHUNK, end - column)
        start = row * layout.columns + column
        if loop.sum_totals != 0:
            evaluate_terms(kernel, loop, layout, start, count, loop.sum_totals, state, state + TERMS_AT)
            add_terms(loop, place, state, lost)
        else:
            evaluate_terms(kernel, loop, layout, start, count, loop.sum_core, state, state + TERMS_AT)
            for k in range(loop.terms):
                add_row(state, k, place, 0, count, lost)
        column += count


@njit(**OPTIONS)
def add_rows_in_place(kernel, loop, layout, row, rows, column, end, state, lost):
    """Add columns of rows to one result each, for as long as operands can be read in place.

    Memory is read sequentially: a run of one row is followed by that of the next one. All rows lie along one axis, so
    operands have a constant distance between rows.
    """
    steps_address = stack(OPERANDS_BYTES)
    pointers, steps = i8_at(state), i8_at(steps_address)
    for i in range(layout.operands):
        pointers[i], steps[i] = layout.data[i], 0
        if layout.kind[i] > SCALAR:
            step = element_offset(layout, i, layout.columns, layout.operand_axes[i])
            steps[i] = step * item_size(layout.source_type[i])
    while column < end:
        count = min(LONGEST, end - column)
        for i in range(layout.operands):
            if layout.kind[i] == STRIDED:
                inner = layout.operand_extent[i, layout.operand_axes[i] - 1]
                count = min(count, inner - column % inner)
        for i in range(layout.operands):
            if layout.kind[i] > SCALAR:
                start = element_offset(layout, i, row * layout.columns + column, layout.operand_axes[i])
                pointers[i] = layout.data[i] + start * item_size(layout.source_type[i])
        for r in range(rows):
            apply(loop.sum_totals, count, state, state + TERMS_AT)
            add_terms(loop, r, state, lost)
            for i in range(layout.operands):
                pointers[i] += steps[i]
        column += count


@njit(**OPTIONS)
def add_terms(loop, place, state, lost):
    """Add one element of each term to one result."""
    for k in range(loop.terms):
        lost[0] = 0.0
        high, low = state + HIGH_AT + 8 * (CHUNK * k + place), state + LOW_AT + 8 * (CHUNK * k + place)
        accumulate(f8_at(high), f8_at(low), f8_at(state + TERMS_AT + 8 * k), lost, 1)


@njit(**OPTIONS)
def are_in_place(kernel, loop, layout):
    """Whether operands can be read in place, in long runs; of per-channel operands `totals` reads the first element."""
    for i in range(layout.operands):
        per_place = i >= kernel.inputs or loop.role[i] & CHANNEL
        unread = i < kernel.inputs and loop.role[i] & (UNREAD | COUNT)
        if layout.kind[i] == STRIDED:
            last = layout.operand_axes[i] - 1
            if layout.operand_extent[i, last] < LEAST_RUN or (layout.operand_stride[i, last] == 0 and not per_place):
                return False
        elif not (layout.kind[i] == LINEAR or unread or (layout.kind[i] == SCALAR and per_place)):
            return False
        own_type = channel_type(loop.sum_type) if per_place else loop.sum_type
        if layout.source_type[i] != own_type and not unread:
            return False
    return True


@njit(**OPTIONS)
def deliver(kernel, loop, job, layout, piece, first, count, state):
    """Write the sums of results [first, first + count) to the output, or to the memory that `finish` reads."""
    if layout.totals == 0:
        join(high_at(state, 0), low_at(state, 0), count)
        target = job.output[0] + first * item_size(kernel.output_type[0])
        call(kernel.write, (state + HIGH_AT, kernel.output_type[0], count, target))
        return
    for k in range(loop.terms):
        high, low = totals_at(loop, layout, piece, k)
        for i in range(count):
            high[first + i] = high_at(state, k)[i]
            low[first + i] = low_at(state, k)[i]


@njit(**OPTIONS)
def totals_at(loop, layout, piece, term):
    """The two parts of the sums of a term over a slice."""
    high = layout.totals + 8 * (piece * loop.terms + term) * layout.places
    return f8_at(high), f8_at(high + 8 * layout.slices * loop.terms * layout.places)


def finish(kernel, job):
    """Compute the outputs from the sums of slices, added in a fixed order."""
    loop, layout = loop_at(kernel.loop), layout_at(job.layout)
    if not layout.summed or layout.totals == 0:
        return
    kept = layout.places
    for k in range(loop.terms):
        high, low = totals_at(loop, layout, 0, k)
        for piece in range(1, layout.slices):
            more, lost = totals_at(loop, layout, piece, k)
            accumulate(high, low, more, lost, kept)
        join(high, low, kept)
    if loop.finish == 0:
        totals, _ = totals_at(loop, layout, 0, 0)
        if loop.kept == NOTHING:
            for i in range(kept):
                totals[i] /= layout.divisor
        call(kernel.write, (layout.totals, kernel.output_type[0], kept, job.output[0]))
        return
    pointers_address = stack(POINTERS)
    pointers = i8_at(pointers_address)
    results = layout.totals + 16 * layout.slices * loop.terms * layout.places
    for k in range(loop.terms):
        pointers[k] = layout.totals + 8 * k * layout.places
    for k in range(MAX_OUTPUTS):
        pointers[MAX_TERMS + k] = results + 8 * k * kept
    place = MAX_TERMS + MAX_OUTPUTS
    for k in range(layout.channel_inputs):
        pointers[place + k] = layout.wide + 8 * k * layout.channels
    pointers[place + layout.channel_inputs] = layout.pivots
    totals, inputs, outputs = pointers_address, pointers_address + 8 * place, pointers_address + 8 * MAX_TERMS
    count = layout.size // max(kept, 1)
    call(loop.finish, (totals, inputs, outputs, kept, count, job.layout + PARAMETERS_AT))
    for k in range(kernel.outputs):
        if kernel.output_type[k] != 0:
            call(kernel.write, (pointers[MAX_TERMS + k], kernel.output_type[k], kept, job.output[k]))


@njit(**OPTIONS)
def fold(high, low, folded, kept):
    """Sum each group of `folded` adjacent sums."""
    for i in range(kept):
        total, lost = high[i * folded], low[i * folded]
        for j in range(1, folded):
            b = high[i * folded + j]
            a = total
            total = a + b
            part = total - a
            lost += low[i * folded + j] + ((a - (total - part)) + (b - part))
        high[i], low[i] = total, lost


@njit(**OPTIONS)
def fold_rounded(high, low, folded, kept):
    """`fold` for sums without a low part."""
    for i in range(kept):
        total = 0.0
        for j in range(folded):
            total = add_any_order(total, high[i * folded + j])
        high[i], low[i] = total, 0.0
