"""The kernel of the gradient of attention: one task per block of keys of a head."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ops.loops.loop import Layout
from onnx_ops.loops.memory import LANES, allocate, array_at, computing_size, free, record_at, size_of, tail, whole_lines
from onnx_ops.loops.primitives import (
    Array,
    Floating,
    Number,
    add_any_order,
    ceil_divide,
    exp_of_difference,
    helper,
    like,
)
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.shapes import give_shape, same_shape
from onnx_ops.loops.tiles import PANEL, ROWS, add_outer_products
from onnx_ops.ops.attention._rules import RANK
from onnx_ops.ops.attention._tiles import (
    ATTRIBUTES,
    KEYS,
    LAYOUT,
    MOST_SKIPPED,
    QUERIES,
    ROW,
    WIDTH,
    Heads,
    Scores,
    dropped_at,
    finish_scores,
    hides_by_shift,
    interleave_rows,
    mask_row,
    may_skip,
    multiply_by_interleaved,
    multiply_by_rows,
    of_keys,
    of_queries,
    panels_of,
    read_rows,
    seen_by_any,
    sum_of_sizes,
    vectors_of,
    whole_vectors,
    write_row_of,
    write_sizes,
)

QUERY, KEY, VALUE, GRAD, SHIFT, DROP, MASK, MOST, TOTAL, RESULT = range(10)
BY_QUERY, BY_KEY, BY_VALUE = range(3)
TASKS = 8
"""Tasks that the work is split into as far as its sizes allow: each has gradients of all queries of a head, which are
added up afterwards."""


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    if not write_sizes(layout, attributes, job, QUERY, KEY, VALUE, SHIFT, DROP, MASK):
        return False
    if job.rank[GRAD] != RANK or not same_shape(job, RESULT, GRAD) or job.dims[GRAD, 3] != layout.value_size:
        return False
    for axis in range(3):
        if job.dims[GRAD, axis] != job.dims[QUERY, axis]:
            return False
    if job.rank[MOST] != RANK - 1 or not same_shape(job, TOTAL, MOST) or job.dims[MOST, 2] != layout.queries:
        return False
    if job.dims[MOST, 0] != layout.samples or job.dims[MOST, 1] != layout.heads:
        return False
    give_shape(job, BY_QUERY, QUERY)
    give_shape(job, BY_KEY, KEY)
    give_shape(job, BY_VALUE, VALUE)
    pairs, blocks = layout.samples * layout.key_heads, ceil_divide(layout.keys, KEYS)
    layout.block = ceil_divide(blocks, min(ceil_divide(TASKS, max(pairs, 1)), blocks)) * KEYS
    splits = ceil_divide(layout.keys, layout.block)
    job.prepare_tasks, job.tasks = pairs * splits, 0
    job.scratch_bytes = whole_lines(size_of(LAYOUT))
    if splits > 1:
        job.tasks = layout.samples * layout.heads
        numbers = splits * job.tasks * layout.queries * whole_vectors(layout.size)
        job.scratch_bytes += numbers * computing_size(kernel.element_type[QUERY])
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


@helper
def partial_gradients(job: Job, layout: Scores, split: int, sample: int, head: int, dtype: Floating) -> Any:
    """The gradients of the queries of a head by a block of keys, in the scratch memory."""
    count = layout.queries * whole_vectors(layout.size)
    number = (split * layout.samples + sample) * layout.heads + head
    return array_at(job.scratch + whole_lines(size_of(LAYOUT)) + number * count * size_of(dtype), count, dtype)


@helper
def write_query_gradient(
    job: Job, layout: Scores, scale: Number, numbers: Array, sample: int, head: int, query: int
) -> None:
    """Write the gradient of a query, a row of sums, times `scale`."""
    for d in range(layout.size):
        numbers[d] *= scale
    element_type = record_at(job.kernel, KERNEL).element_type[QUERY]
    write_row_of(of_queries(layout, job.output[BY_QUERY], element_type, layout.size), sample, head, query, numbers)


@helper
def clear_by_key(sums: Array, row_size: int, columns: int) -> None:
    """Set the sums of `columns` keys, and of the others of their tiles, to 0."""
    for panel in range(panels_of(row_size)):
        begin = panel * KEYS * WIDTH
        for i in range(ceil_divide(columns, ROWS) * ROWS * WIDTH):
            sums[begin + i] = like(0, sums[0])


@helper
def add_by_key(sums: Array, row_size: int, rows: Array, weights: Array, count: int, columns: int) -> None:
    """Add sums of `count` rows with weights to the rows of `columns` keys, [panel, key, WIDTH]."""
    for panel in range(panels_of(row_size)):
        for key in range(0, columns, ROWS):
            add_outer_products(
                sums, (panel * KEYS + key) * PANEL, 1, rows, panel * WIDTH, LANES, weights, key,
                (1, 1, 1, count), (0, 0, 0, row_size), (0, 0, 0, ROW), vectors_of(row_size, panel),
            )  # fmt: skip


@helper
def write_by_key(
    tensor: Heads, sums: Array, scale: Number, sample: int, head: int, first: int, count: int, buffer: Array
) -> None:
    """Write the sums of a block of keys, times `scale`."""
    for i in range(count):
        for e in range(tensor.size):
            buffer[e] = sums[(e // WIDTH * KEYS + i) * WIDTH + e % WIDTH] * scale
        write_row_of(tensor, sample, head, first + i, buffer)


def prepare(job: Job, number: int, dtype: Floating) -> None:
    """Gradients of a block of keys and values of a head, and by them of all its queries, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    element_type = kernel.element_type[QUERY]
    splits = ceil_divide(layout.keys, layout.block)
    split, pair = number % splits, number // splits
    key_head, sample = pair % layout.key_heads, pair // layout.key_heads
    group = layout.heads // layout.key_heads
    queries = layout.queries
    q_row, v_row = whole_vectors(layout.size), whole_vectors(layout.value_size)

    words = (QUERIES, np.int64)
    (
        memory,
        q_starts, v_starts, tile_starts, tile_places, product_places, zero, sources,
        tile, passed, rows, product, grads,
        keys, values, key_rows, by_key, by_value,
        buffer, other, delta, own_gradients,
    ) = allocate(
        words, words, words, words, words, (1, np.int64), (LANES, np.int64),
        (QUERIES * ROW, dtype), (QUERIES * ROW, dtype), (QUERIES * q_row, dtype), (QUERIES * q_row, dtype),
        (QUERIES * v_row, dtype),
        (KEYS * layout.size, dtype), (KEYS * layout.value_size, dtype), (KEYS * q_row, dtype),
        (KEYS * panels_of(q_row) * WIDTH, dtype), (KEYS * panels_of(v_row) * WIDTH, dtype),
        (KEYS + q_row + v_row, dtype), (v_row, dtype), (group * queries, dtype),
        (group * queries * q_row if splits == 1 else 0, dtype),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    queries_in = of_queries(layout, job.data[QUERY], element_type, layout.size)
    grads_in = of_queries(layout, job.data[GRAD], element_type, layout.value_size)
    results_in = of_queries(layout, job.data[RESULT], element_type, layout.value_size)
    keys_in = of_keys(layout, job.data[KEY], element_type, layout.size)
    values_in = of_keys(layout, job.data[VALUE], element_type, layout.value_size)
    nought, one = like(0, buffer[0]), like(1, buffer[0])
    scale, keep = like(attributes.scale_value, nought), one / like(attributes.keep_prob, nought)
    for i in range(QUERIES):
        q_starts[i], v_starts[i], tile_starts[i] = i * q_row, i * v_row, i * ROW
        tile_places[i], product_places[i] = i * ROW // LANES, i * q_row // LANES
    for i in range(min(layout.keys, KEYS) * q_row):
        key_rows[i] = nought
    of_tiles = ceil_divide(min(queries, QUERIES), ROWS) * ROWS
    for i in range(of_tiles * q_row):
        rows[i] = nought
    for i in range(of_tiles * v_row):
        grads[i] = nought

    # A weight of 0 times a number that is not finite is NaN, and with statistics of NaN all weights are: such keys and
    # queries are not left out.
    skips = may_skip(layout, job, SHIFT, MASK) and sum_of_sizes(keys_in, sample, key_head, buffer, dtype) < MOST_SKIPPED
    shifts = skips and hides_by_shift(layout, job, attributes, SHIFT)
    shifts = shifts and sum_of_sizes(values_in, sample, key_head, buffer, dtype) < MOST_SKIPPED
    for h in range(group):
        head = key_head * group + h
        skips = skips and sum_of_sizes(queries_in, sample, head, buffer, dtype) < MOST_SKIPPED
        skips = skips and sum_of_sizes(grads_in, sample, head, buffer, dtype) < MOST_SKIPPED
        for query in range(queries):
            read_rows(grads_in, sample, head, query, 1, buffer)
            read_rows(results_in, sample, head, query, 1, other)
            total = nought
            for e in range(layout.value_size):
                total = add_any_order(total, buffer[e] * other[e])
            delta[h * queries + query] = total
            shifts = shifts and abs(total) < MOST_SKIPPED
            statistic = ((sample * layout.heads + head) * queries + query) * size_of(dtype)
            for i in (MOST, TOTAL):
                number = array_at(job.data[i] + statistic, 1, dtype)[0]
                skips = skips and number == number
        by_query = partial_gradients(job, layout, split, sample, head, dtype)
        if splits == 1:
            by_query = tail(own_gradients, h * queries * q_row)
        for i in range(queries * q_row):
            by_query[i] = nought

    for first_key in range(split * layout.block, min((split + 1) * layout.block, layout.keys), KEYS):
        key_count = min(KEYS, layout.keys - first_key)
        interleave_rows(keys_in, sample, key_head, first_key, key_count, sources, keys)
        interleave_rows(values_in, sample, key_head, first_key, key_count, sources, values)
        read_rows(keys_in, sample, key_head, first_key, key_count, key_rows)
        clear_by_key(by_key, q_row, key_count)
        clear_by_key(by_value, v_row, key_count)
        for h in range(group):
            head = key_head * group + h
            by_query = partial_gradients(job, layout, split, sample, head, dtype)
            if splits == 1:
                by_query = tail(own_gradients, h * queries * q_row)
            for first in range(0, queries, QUERIES):
                query_count = min(QUERIES, queries - first)
                seen = key_count
                if skips:
                    seen = seen_by_any(
                        layout, job, SHIFT, MASK, shifts, sample, head, first, query_count, first_key, key_count, buffer
                    )
                if seen == 0:
                    continue
                padded = ceil_divide(seen, LANES) * LANES
                read_rows(queries_in, sample, head, first, query_count, rows)
                read_rows(grads_in, sample, head, first, query_count, grads)
                multiply_by_interleaved(rows, q_starts, query_count, layout.size, keys, seen, tile, tile_places, zero)
                multiply_by_interleaved(
                    grads, v_starts, query_count, layout.value_size, values, seen, passed, tile_places, zero
                )
                for i in range(query_count):
                    query = first + i
                    row, gradient = tail(tile, i * ROW), tail(passed, i * ROW)
                    finish_scores(
                        layout, job, attributes, SHIFT, MASK, sample, head, query, first_key, seen, row, buffer
                    )
                    statistic = ((sample * layout.heads + head) * queries + query) * size_of(dtype)
                    most = array_at(job.data[MOST] + statistic, 1, dtype)[0]
                    total = array_at(job.data[TOTAL] + statistic, 1, dtype)[0]
                    least = nought if most == like(-np.inf, nought) else most
                    share = one / (one if total == nought else total)
                    own = delta[h * queries + query]
                    if kernel.element_type[DROP] == 0:
                        for j in range(padded):
                            weight = exp_of_difference(row[j] - least) * share
                            row[j] = weight * keep
                            gradient[j] = weight * (gradient[j] * keep - own)
                    else:
                        step = layout.drop[RANK - 1]
                        kept = array_at(dropped_at(layout, job, DROP, sample, head, query, first_key), 1, np.uint8)
                        for j in range(seen):
                            weight = exp_of_difference(row[j] - least) * share
                            row[j] = weight * keep if kept[j * step] != 0 else nought
                            given = gradient[j] * keep if kept[j * step] != 0 else nought
                            gradient[j] = weight * (given - own)
                    mask_row(layout, job, MASK, sample, head, query, first_key, seen, gradient, nought)
                    for j in range(seen, padded):
                        row[j], gradient[j] = nought, nought
                add_by_key(by_value, v_row, grads, tile, query_count, seen)
                add_by_key(by_key, q_row, rows, passed, query_count, seen)
                multiply_by_rows(passed, tile_starts, query_count, seen, key_rows, q_row, product, product_places, zero)
                sums = tail(by_query, first * q_row)
                for i in range(query_count * q_row):
                    sums[i] += product[i]
        keys_out = of_keys(layout, job.output[BY_KEY], element_type, layout.size)
        values_out = of_keys(layout, job.output[BY_VALUE], element_type, layout.value_size)
        write_by_key(keys_out, by_key, scale, sample, key_head, first_key, key_count, buffer)
        write_by_key(values_out, by_value, one, sample, key_head, first_key, key_count, buffer)
    if splits == 1:
        for i in range(group * queries):
            head = key_head * group + i // queries
            write_query_gradient(job, layout, scale, tail(own_gradients, i * q_row), sample, head, i % queries)
    free(memory)


def task(job: Job, number: int, dtype: Floating) -> None:
    """Add up the gradients of the queries of a head by all blocks of keys."""
    layout = record_at(job.scratch, LAYOUT)
    sample, head = number // layout.heads, number % layout.heads
    row_size = whole_vectors(layout.size)
    sums = partial_gradients(job, layout, 0, sample, head, dtype)
    for split in range(1, ceil_divide(layout.keys, layout.block)):
        others = partial_gradients(job, layout, split, sample, head, dtype)
        for i in range(layout.queries * row_size):
            sums[i] += others[i]
    scale = like(record_at(record_at(job.kernel, KERNEL).attributes, ATTRIBUTES).scale_value, sums[0])
    for query in range(layout.queries):
        write_query_gradient(job, layout, scale, tail(sums, query * row_size), sample, head, query)
