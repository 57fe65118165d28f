"""Kernels of attention: tiles of QUERIES by KEYS scores, with a running maximum and sum of each row.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention". Rows of
queries and values are padded to a multiple of a panel, PANEL * LANES numbers; keys are interleaved, as
[block of LANES keys, number of the head, LANES].
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from onnx_ops.loops.memory import (
    LANES,
    array_at,
    interleave,
    item_size,
    read_row,
    record_at,
    size_of,
    tail,
    write_row,
)
from onnx_ops.loops.primitives import Array, Floating, Number, add_any_order, ceil_divide, helper, like
from onnx_ops.loops.records import KERNEL, Job, Numbers, attribute_record, record_of
from onnx_ops.loops.tiles import PANEL, ROWS, multiply_tile
from onnx_ops.ops.attention._rules import (
    BSND,
    LEFT_UP_CAUSAL,
    RANK,
    RIGHT_DOWN_CAUSAL,
    SCALED_AFTER,
    attention_attributes,
)

QUERIES, KEYS = 64, 256
"""Rows and columns of a tile of scores, which stays in the cache of a core; multiples of ROWS, and of a panel."""
MOST_SKIPPED = 2.0**40
"""Keys are left out of products where the sums of the absolute values of both factors are below this number: products
and scores are finite then."""
ROW = KEYS + LANES
"""Elements from one row of a tile to the next: no power of 2, so that rows do not evict each other from the cache."""
WIDTH = PANEL * LANES
"""Columns of a panel."""
ATTRIBUTES = attribute_record(attention_attributes())


class Scores(Protocol):
    """The layout of attention and its gradients."""

    samples: int
    heads: int  # of the queries
    key_heads: int
    queries: int
    keys: int
    size: int  # numbers per head of queries and keys
    value_size: int
    heads_last: int  # 1: [samples, positions, heads, numbers]
    reach: int  # query i sees keys up to i + reach
    # strides of inputs that broadcast to [samples, heads, queries, keys], in elements
    shift: Annotated[Numbers, RANK]
    drop: Annotated[Numbers, RANK]
    mask: Annotated[Numbers, RANK]
    block: int  # queries or keys of a task


LAYOUT = record_of(Scores)


@helper
def whole_vectors(count: int) -> int:
    return ceil_divide(count, LANES) * LANES


@helper
def panels_of(row_size: int) -> int:
    """Panels of a row of whole vectors, of which the last one may be incomplete."""
    return ceil_divide(row_size, WIDTH)


@helper
def vectors_of(row_size: int, panel: int) -> int:
    """Vectors of a panel of a row."""
    return int(min(row_size // LANES - panel * PANEL, PANEL))


# --- sizes -----------------------------------------------------------------------------------------------------------


@helper
def write_strides(job: Job, i: int, strides: Numbers, layout: Scores) -> bool:
    """Write the strides of an input that broadcasts to the scores; returns whether it does."""
    rank = job.rank[i]
    if rank > RANK:
        return False
    step = 1
    for back in range(RANK):
        axis = RANK - 1 - back
        whole = layout.keys
        if axis == 0:
            whole = layout.samples
        elif axis == 1:
            whole = layout.heads
        elif axis == 2:
            whole = layout.queries
        own = job.dims[i, rank - 1 - back] if back < rank else 1
        if own != whole and own != 1:
            return False
        strides[axis] = step if own != 1 else 0
        step *= own
    return True


@helper
def write_sizes(
    layout: Scores, attributes: Any, job: Job, query: int, key: int, value: int, shift: int, drop: int, mask: int
) -> bool:
    """Write the sizes of attention; returns whether the shapes fit. The other arguments are indices of inputs."""
    if job.rank[query] != RANK or job.rank[key] != RANK or job.rank[value] != RANK:
        return False
    head, place = 1, 2
    if attributes.input_layout == BSND:
        head, place = 2, 1
    layout.heads_last = head - 1
    layout.samples, layout.size, layout.value_size = job.dims[query, 0], job.dims[query, 3], job.dims[value, 3]
    layout.heads, layout.queries = job.dims[query, head], job.dims[query, place]
    layout.key_heads, layout.keys = job.dims[key, head], job.dims[key, place]
    if job.dims[key, 0] != layout.samples or job.dims[key, 3] != layout.size or layout.keys * layout.size == 0:
        return False
    for axis in range(3):
        if job.dims[value, axis] != job.dims[key, axis]:
            return False
    if layout.heads > 0 and (layout.key_heads == 0 or layout.heads % layout.key_heads != 0):
        return False
    layout.reach = layout.keys
    if attributes.sparse_mode == LEFT_UP_CAUSAL:
        layout.reach = 0
    elif attributes.sparse_mode == RIGHT_DOWN_CAUSAL:
        layout.reach = layout.keys - layout.queries
    kernel = record_at(job.kernel, KERNEL)
    if kernel.element_type[shift] != 0 and not write_strides(job, shift, layout.shift, layout):
        return False
    if kernel.element_type[drop] != 0 and not write_strides(job, drop, layout.drop, layout):
        return False
    return kernel.element_type[mask] == 0 or write_strides(job, mask, layout.mask, layout)


# --- rows ------------------------------------------------------------------------------------------------------------


class Heads(NamedTuple):
    """A tensor of heads of rows: queries, keys, values, or something of their shape."""

    address: int
    element_type: int
    heads: int
    rows: int
    size: int  # numbers of a row
    heads_last: int  # as in LAYOUT


@helper
def of_queries(layout: Scores, address: int, element_type: int, size: int) -> Heads:
    """A tensor with a row of so many numbers for each query."""
    return Heads(address, element_type, layout.heads, layout.queries, size, layout.heads_last)


@helper
def of_keys(layout: Scores, address: int, element_type: int, size: int) -> Heads:
    """A tensor with a row of so many numbers for each key."""
    return Heads(address, element_type, layout.key_heads, layout.keys, size, layout.heads_last)


@helper
def row_at(tensor: Heads, sample: int, head: int, row: int) -> int:
    """Address of a row."""
    if tensor.heads_last == 1:
        index = (sample * tensor.rows + row) * tensor.heads + head
    else:
        index = (sample * tensor.heads + head) * tensor.rows + row
    return int(tensor.address + index * tensor.size * item_size(tensor.element_type))


@helper
def write_row_of(tensor: Heads, sample: int, head: int, row: int, numbers: Array) -> None:
    """Write a row of numbers of the computing dtype, rounded once."""
    write_row(numbers, tensor.element_type, tensor.size, row_at(tensor, sample, head, row))


@helper
def read_rows(tensor: Heads, sample: int, head: int, first: int, count: int, target: Array) -> None:
    """Convert rows [first, first + count) of a head, padded to whole panels."""
    for i in range(count):
        source = row_at(tensor, sample, head, first + i)
        read_row(source, tensor.element_type, tensor.size, tail(target, i * whole_vectors(tensor.size)))


@helper
def interleave_rows(tensor: Heads, sample: int, head: int, first: int, count: int, sources: Array, out: Array) -> None:
    """Interleave rows [first, first + count) of a head; the last one is repeated.

    sources: an array of LANES addresses.
    """
    for block in range(ceil_divide(count, LANES)):
        for lane in range(LANES):
            sources[lane] = row_at(tensor, sample, head, first + min(block * LANES + lane, count - 1))
        interleave(sources, tensor.element_type, 0, tensor.size, out, block * tensor.size)


@helper
def sum_of_sizes(tensor: Heads, sample: int, head: int, buffer: Array, dtype: Floating) -> Any:
    """Sum of the absolute values of a head, NaN or infinity if one is not finite; overwrites a buffer of one row."""
    total = like(0, buffer[0])
    as_is = item_size(tensor.element_type) == size_of(dtype)
    rows, size = tensor.rows, tensor.size
    if as_is and tensor.heads_last == 0:
        rows, size = 1, rows * size
    for row in range(rows):
        numbers = array_at(row_at(tensor, sample, head, row), size, dtype)
        if not as_is:
            read_row(row_at(tensor, sample, head, row), tensor.element_type, size, buffer)
            numbers = buffer
        for i in range(size):
            total = add_any_order(total, abs(numbers[i]))
    return total


# --- scores ----------------------------------------------------------------------------------------------------------


@helper
def multiply_by_interleaved(
    rows: Array,
    starts: Array,
    count: int,
    terms: int,
    columns: Array,
    column_count: int,
    out: Array,
    places: Array,
    zero: Array,
) -> None:
    """A tile: products of `count` rows with `column_count` interleaved ones, each of `terms` numbers.

    Args:
        starts: index of each row.
        places: index of each row of `out`, in vectors.
        zero: an array of one number.
    """
    whole = whole_vectors(column_count)
    for panel in range(panels_of(whole)):
        zero[0] = panel * WIDTH * terms
        part, vectors = tail(out, panel * WIDTH), vectors_of(whole, panel)
        for row in range(0, count, ROWS):
            multiply_tile(
                rows, starts, row, 1, terms, LANES, columns, zero, 0, terms * LANES, 1, part, places, row, 1, vectors
            )


@helper
def multiply_by_rows(
    weights: Array,
    starts: Array,
    count: int,
    terms: int,
    rows: Array,
    row_size: int,
    out: Array,
    places: Array,
    zero: Array,
) -> None:
    """Sums of `terms` rows of `row_size` numbers, whole vectors, with the weights of each row of a tile."""
    for panel in range(panels_of(row_size)):
        zero[0] = panel * WIDTH
        part, step = tail(out, panel * WIDTH), row_size // LANES
        for row in range(0, count, ROWS):
            multiply_tile(
                weights, starts, row, 1, terms, LANES, rows, zero, 0, LANES, step, part, places, row, 1,
                vectors_of(row_size, panel),
            )  # fmt: skip


@helper
def seen_keys(layout: Scores, query: int, first: int, count: int) -> int:
    """How many of the keys [first, first + count) a query sees if none is masked; they are the first ones."""
    return int(min(max(query + layout.reach + 1 - first, 0), count))


@helper
def may_skip(layout: Scores, job: Job, shift: int, mask: int) -> bool:
    """Whether blocks of queries may not see the last keys.

    Args:
        shift, mask: indices of inputs.
    """
    types = record_at(job.kernel, KERNEL).element_type
    varies = (types[shift] != 0 and layout.shift[3] != 0) or (types[mask] != 0 and layout.mask[3] != 0)
    return bool(varies or layout.reach < layout.keys - 1)


@helper
def hides_by_shift(layout: Scores, job: Job, attributes: Any, shift: int) -> bool:
    """Whether there is a shift for each key, which hides one of finite score where it is -infinity.

    Args:
        shift: index of the input.
    """
    if record_at(job.kernel, KERNEL).element_type[shift] == 0 or layout.shift[3] == 0:
        return False
    scale = attributes.scale_value
    return bool(abs(scale) < MOST_SKIPPED and (attributes.pse_type != SCALED_AFTER or scale > 0))


@helper
def seen_by_any(
    layout: Scores,
    job: Job,
    shift: int,
    mask: int,
    shifts: bool,
    sample: int,
    head: int,
    query: int,
    queries: int,
    first: int,
    count: int,
    buffer: Array,
) -> int:
    """How many of the keys [first, first + count), up to the last one, any of the queries from `query` on sees.

    Args:
        shift, mask: indices of inputs.
        shifts: whether a shift of -infinity hides a key.
        buffer: an array of KEYS numbers.
    """
    types, seen = record_at(job.kernel, KERNEL).element_type, 0
    masks = types[mask] != 0 and layout.mask[3] != 0
    mask_at = job.data[mask] + sample * layout.mask[0] + head * layout.mask[1] + first * layout.mask[3]
    shift_at = sample * layout.shift[0] + head * layout.shift[1] + first * layout.shift[3]
    for i in range(query + queries - 1, query - 1, -1):  # the last query often sees most
        own = seen_keys(layout, i, first, count)
        if masks and own > seen:
            hidden, shown = array_at(mask_at + i * layout.mask[2], count, np.uint8), 0
            for j in range(seen, own):
                shown += hidden[j] == 0
            own = own if shown > 0 else seen
            while own > seen and hidden[own - 1] != 0:
                own -= 1
        if shifts and own > seen:
            at = job.data[shift] + (shift_at + i * layout.shift[2]) * item_size(types[shift])
            read_row(at, types[shift], own, buffer)
            lowest, shown = like(-np.inf, buffer[0]), 0
            for j in range(seen, own):
                shown += buffer[j] != lowest
            own = own if shown > 0 else seen
            while own > seen and buffer[own - 1] == lowest:
                own -= 1
        seen = max(seen, own)
        if seen == count:
            break
    return int(seen)


@helper
def mask_row(
    layout: Scores,
    job: Job,
    mask: int,
    sample: int,
    head: int,
    query: int,
    first: int,
    count: int,
    row: Array,
    value: Number,
) -> None:
    """Set the elements of a row of a tile to `value` where a query does not see a key.

    Args:
        mask: index of the input.
        first, count: of the keys.
    """
    if record_at(job.kernel, KERNEL).element_type[mask] != 0:
        strides = layout.mask
        at = job.data[mask] + sample * strides[0] + head * strides[1] + query * strides[2] + first * strides[3]
        if strides[3] == 0:
            if array_at(at, 1, np.uint8)[0] != 0:
                for j in range(count):
                    row[j] = value
        else:
            hidden = array_at(at, count, np.uint8)
            for j in range(count):
                row[j] = value if hidden[j] != 0 else row[j]
    for j in range(seen_keys(layout, query, first, count), count):
        row[j] = value


@helper
def finish_scores(
    layout: Scores,
    job: Job,
    attributes: Any,
    shift: int,
    mask: int,
    sample: int,
    head: int,
    query: int,
    first: int,
    count: int,
    row: Array,
    buffer: Array,
) -> None:
    """Scale, shift and mask a row of products of a query with keys; -infinity up to a multiple of LANES.

    Args:
        shift, mask: indices of inputs.
        buffer: an array of KEYS numbers.
    """
    scale = like(attributes.scale_value, row[0])
    element_type = record_at(job.kernel, KERNEL).element_type[shift]
    if element_type == 0:
        for j in range(count):
            row[j] = row[j] * scale
    else:
        strides, size = layout.shift, item_size(element_type)
        at = sample * strides[0] + head * strides[1] + query * strides[2] + first * strides[3]
        if strides[3] == 0:
            read_row(job.data[shift] + at * size, element_type, 1, buffer)
            for j in range(1, count):
                buffer[j] = buffer[0]
        else:
            read_row(job.data[shift] + at * size, element_type, count, buffer)
        if attributes.pse_type == SCALED_AFTER:
            for j in range(count):
                row[j] = (row[j] + buffer[j]) * scale
        else:
            for j in range(count):
                row[j] = row[j] * scale + buffer[j]
    mask_row(layout, job, mask, sample, head, query, first, count, row, like(-np.inf, row[0]))
    for j in range(count, ceil_divide(count, LANES) * LANES):
        row[j] = like(-np.inf, row[0])


@helper
def dropped_at(layout: Scores, job: Job, drop: int, sample: int, head: int, query: int, first: int) -> int:
    """Address of the dropout mask of a weight."""
    strides = layout.drop
    return int(job.data[drop] + sample * strides[0] + head * strides[1] + query * strides[2] + first * strides[3])
