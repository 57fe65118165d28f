"""FlashAttentionScoreGrad: gradients of attention, in memory that is linear in the lengths of the sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.types import TensorType, dtype_name
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.primitives import (
    LANES,
    add_any_order,
    array_at,
    exp_of_difference,
    free,
    helper,
    item_size,
    like,
    malloc,
    record_at,
)
from onnx_ops.loops.records import JOB, KERNEL, NO_MEMORY, OK, REFUSED, attributes_of
from onnx_ops.loops.shapes import give_shape, same_shape
from onnx_ops.loops.tiles import PANEL, ROWS, add_outer_products
from onnx_ops.ops.attention._formula import (
    Products,
    exchanged,
    scores_of,
    spread_heads,
    with_heads_first,
    written_scores,
)
from onnx_ops.ops.attention._rules import RANK, attention_attributes, check_attention, statistics_dtype
from onnx_ops.ops.attention._tiles import (
    KEYS,
    LAYOUT,
    LAYOUT_BYTES,
    LINE,
    QUERIES,
    ROW,
    WIDTH,
    all_finite,
    ceil_divide,
    dropped_at,
    finish_scores,
    interleave_rows,
    layout_of,
    mask_row,
    multiply_by_interleaved,
    multiply_by_rows,
    read_row,
    read_rows,
    row_of,
    seen_keys,
    whole_lines,
    whole_panels,
    write_row,
    write_sizes,
)
from onnx_ops.ops.references import rounded

WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE)
SIGNATURE = Signature(
    "FlashAttentionScoreGrad",
    """
Gradients of scaled dot-product attention (aclnnFlashAttentionScoreGradV2; Dao et al. 2022), which computes the weights
once more from the statistics of FlashAttentionScore. Memory is linear in the number of queries and keys.

    dv[b, m, j, e]      = sum of dropped[b, n, i, j] * dy[b, n, i, e] over i and the heads n of queries that meet m
    passed[b, n, i, j]  = sum of dy[b, n, i, e] * value[b, m, j, e] over e, dropped as the weights are
    d_scores            = weights * (passed - delta)
                          0  where atten_mask, or query i does not see key j
    delta[b, n, i]      = sum of dy[b, n, i, e] * attention_in[b, n, i, e] over e
    dq[b, n, i, d]      = scale_value * sum of d_scores[b, n, i, j] * key_in[b, m, j, d] over j
    dk[b, m, j, d]      = scale_value * sum of d_scores[b, n, i, j] * query[b, n, i, d] over i and the heads n
    weights[b, n, i, j] = exp(scores[b, n, i, j] - softmax_max[b, n, i]) / softmax_sum[b, n, i]

FlashAttentionScore, whose attributes and inputs these are, defines `scores`, `dropped` and `m`; `pse_shift` is its
`real_shift`. The gradient with respect to `pse_shift`, dpse, which aclnn reserves, is not computed.

Shapes: `query` and `dq` (B, N, Sq, D), `key_in` and `dk` (B, M, Sk, D), `value` and `dv` (B, M, Sk, E), `dy` and
`attention_in` (B, N, Sq, E); with `input_layout` 1, the axes of heads and of positions of these are exchanged:
(B, Sq, N, D). `softmax_max` and `softmax_sum` (B, N, Sq). `pse_shift`, `drop_mask` and `atten_mask` broadcast to
(B, N, Sq, Sk).

Dtypes: all have one dtype, float16, bfloat16, float or double, except for masks, which are bool, and `softmax_max` and
`softmax_sum`, which are double if that is double, else float. Computed in that dtype, and rounded once. The order of
summation is fixed and does not depend on the number of threads.

Edge rules: the weights of a query whose `softmax_sum` is 0 are 0. NaN and infinities propagate as in the formula, also
where they are multiplied by a weight of 0. A weight below exp(-87) (double: exp(-708)) times that of a score of
`softmax_max` counts as 0, one above exp(87) times it as infinite.

Without a kernel: the scores and their gradients are in memory as a whole, the order of summation is that of the
runtime's MatMul, and weights do not count as 0 or infinite. Shapes known only at run time are not checked.
""",
    inputs=(
        Input("query", "Queries, (B, N, Sq, D)."),
        Input("key_in", "Keys, (B, M, Sk, D).", like="query"),
        Input("value", "Values, (B, M, Sk, E).", like="query"),
        Input("dy", "Gradient of the loss with respect to the result of attention, (B, N, Sq, E).", like="query"),
        Input("pse_shift", "Added to the scores.", like="query", default=Default(0.0, dtype_of="query")),
        Input("drop_mask", "Weights that dropout keeps.", dtypes=(TensorProto.BOOL,), default=Default(1.0)),
        Input("atten_mask", "Scores that are set to -inf.", dtypes=(TensorProto.BOOL,), default=Default(0.0)),
        Input("softmax_max", "The largest score of each query, (B, N, Sq).", dtypes=WIDE),
        Input("softmax_sum", "Sums of exponentials, (B, N, Sq).", dtypes=WIDE, like="softmax_max"),
        Input("attention_in", "The result of attention, (B, N, Sq, E).", like="query"),
    ),
    outputs=(
        Output("dq", "Gradient of the loss with respect to `query`.", "query"),
        Output("dk", "Gradient of the loss with respect to `key_in`.", "query"),
        Output("dv", "Gradient of the loss with respect to `value`.", "query"),
    ),
    attributes=tuple(attention_attributes()),
)


def reference(
    query: np.ndarray,
    key_in: np.ndarray,
    value: np.ndarray,
    dy: np.ndarray,
    pse_shift: np.ndarray | None,
    drop_mask: np.ndarray | None,
    atten_mask: np.ndarray | None,
    softmax_max: np.ndarray,
    softmax_sum: np.ndarray,
    attention_in: np.ndarray,
    *,
    keep_prob: float = 1.0,
    input_layout: int = 0,
    scale_value: float = 1.0,
    dtype: npt.DTypeLike | None = None,
    **settings: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64.

    Args:
        query, key_in, value: floating arrays (B, N, Sq, D), (B, M, Sk, D) and (B, M, Sk, E).
        dy, attention_in: floating arrays (B, N, Sq, E).
        pse_shift: floating array that broadcasts to (B, N, Sq, Sk).
        drop_mask, atten_mask: bool, broadcast to (B, N, Sq, Sk).
        softmax_max, softmax_sum: (B, N, Sq), float32 or float64.
        keep_prob, input_layout, scale_value, settings: attributes, as in the schema.
        dtype: dtype of the results instead of query's.

    Returns:
        dq, dk and dv, arrays like query, key_in and value.
    """
    q, k, v, grad, out = (
        exchanged(array.astype(np.float64), input_layout) for array in (query, key_in, value, dy, attention_in)
    )
    scores, hidden = scores_of(q, k, pse_shift, atten_mask, scale_value=scale_value, **settings)
    most, total = (array.astype(np.float64)[..., None] for array in (softmax_max, softmax_sum))
    keep, scale = np.float64(np.float32(keep_prob)), np.float64(np.float32(scale_value))
    groups = (k.shape[0], k.shape[1], q.shape[1] // max(k.shape[1], 1))
    with np.errstate(all="ignore"):
        weights = np.exp(scores - np.where(most == -np.inf, 0.0, most)) / np.where(total == 0, 1.0, total)
        passed = grad @ spread_heads(v, q.shape[1]).swapaxes(2, 3) / keep
        dropped = weights / keep
        if drop_mask is not None:
            passed, dropped = np.where(drop_mask, passed, 0.0), np.where(drop_mask, dropped, 0.0)
        of_scores = np.where(hidden, 0.0, weights * (passed - (grad * out).sum(-1, keepdims=True)))
        by_query = of_scores @ spread_heads(k, q.shape[1]) * scale
        by_key = (of_scores.swapaxes(2, 3) @ q).reshape(*groups, *k.shape[2:]).sum(2) * scale
        by_value = (dropped.swapaxes(2, 3) @ grad).reshape(*groups, *v.shape[2:]).sum(2)
    by_query, by_key, by_value = (
        rounded(exchanged(array, input_layout), query.dtype, dtype) for array in (by_query, by_key, by_value)
    )
    return by_query, by_key, by_value


# --- the kernel: one task per block of keys of a head ----------------------------------------------------------------

QUERY, KEY, VALUE, GRAD, SHIFT, DROP, MASK, MOST, TOTAL, RESULT = range(10)
BY_QUERY, BY_KEY, BY_VALUE = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
TASKS = 8
"""Tasks that the work is split into as far as its sizes allow: each has gradients of all queries of a head, which are
added up afterwards."""


@helper
def write_layout(layout: Any, job: Any, size: int) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit.

    size: of an element of the computing dtype.
    """
    attributes = record_at(record_at(job.kernel, KERNEL).attributes, ATTRIBUTES)
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
    job.scratch_bytes = LAYOUT_BYTES + LINE
    if splits > 1:
        job.tasks = layout.samples * layout.heads
        job.scratch_bytes += splits * job.tasks * layout.queries * whole_panels(layout.size) * size
    return True


@helper
def plan_with(job_address: int, size: int) -> int:
    memory = malloc(LAYOUT_BYTES)
    if memory == 0:
        return NO_MEMORY
    fits = write_layout(record_at(memory, LAYOUT), record_at(job_address, JOB), size)
    free(memory)
    return OK if fits else REFUSED


@helper
def partial_gradients(job: Any, layout: Any, split: int, sample: int, head: int, size: int) -> int:
    """Address of the gradients of the queries of a head by a block of keys, in the scratch memory."""
    number = (split * layout.samples + sample) * layout.heads + head
    return int(whole_lines(job.scratch) + LAYOUT_BYTES + number * layout.queries * whole_panels(layout.size) * size)


@helper
def write_query_gradient(
    job: Any, layout: Any, scale: Any, rows: Any, address: int, sample: int, head: int, query: int
) -> None:
    """Write the gradient of a query, a row at an address."""
    element_type = record_at(job.kernel, KERNEL).element_type[QUERY]
    for d in range(layout.size):
        rows[d] *= scale
    place = row_of(layout, layout.heads, layout.queries, layout.size, sample, head, query)
    write_row(address, element_type, layout.size, job.output[BY_QUERY] + place * item_size(element_type))


@helper
def add_by_key(sums: Any, row_size: int, rows: Any, weights: Any, count: int, columns: int) -> None:
    """Add sums of `count` rows with weights to the rows of `columns` keys, [panel, key, WIDTH]."""
    for panel in range(row_size // WIDTH):
        for key in range(0, columns, ROWS):
            add_outer_products(
                sums, (panel * KEYS + key) * PANEL, 1, rows, panel * WIDTH, LANES, weights, key,
                (1, 1, 1, count), (0, 0, 0, row_size), (0, 0, 0, ROW),
            )  # fmt: skip


@helper
def write_by_key(
    layout: Any,
    sums: Any,
    scale: Any,
    size: int,
    sample: int,
    head: int,
    first: int,
    count: int,
    target: int,
    element_type: int,
    buffer: Any,
    address: int,
) -> None:
    """Write the sums of a block of keys, times `scale`."""  # fmt: skip
    for i in range(count):
        for e in range(size):
            buffer[e] = sums[(e // WIDTH * KEYS + i) * WIDTH + e % WIDTH] * scale
        place = row_of(layout, layout.key_heads, layout.keys, size, sample, head, first + i)
        write_row(address, element_type, size, target + place * item_size(element_type))


@helper
def run_block(job: Any, number: int, dtype: Any, size: int) -> None:
    """Gradients of a block of keys and values of a head, and by them of all its queries."""
    kernel, layout = record_at(job.kernel, KERNEL), layout_of(job)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    element_type = kernel.element_type[QUERY]
    splits = ceil_divide(layout.keys, layout.block)
    split, pair = number % splits, number // splits
    key_head, sample = pair % layout.key_heads, pair // layout.key_heads
    group = layout.heads // layout.key_heads
    queries = layout.queries
    q_row, v_row = whole_panels(layout.size), whole_panels(layout.value_size)

    words = whole_lines(8 * QUERIES)
    tile_bytes = whole_lines(QUERIES * ROW * size)
    q_bytes, v_bytes = whole_lines(QUERIES * q_row * size), whole_lines(QUERIES * v_row * size)
    key_bytes, value_bytes = whole_lines(KEYS * layout.size * size), whole_lines(KEYS * layout.value_size * size)
    k_sums, v_sums = whole_lines(KEYS * q_row * size), whole_lines(KEYS * v_row * size)
    buffer_bytes, delta_bytes = whole_lines((KEYS + q_row + 2 * v_row) * size), whole_lines(group * queries * size)
    own_bytes = whole_lines(group * queries * q_row * size) if splits == 1 else 0
    memory = malloc(
        5 * words + 2 * LINE + 8 * LANES + 2 * tile_bytes + 2 * q_bytes + v_bytes + key_bytes + value_bytes
        + 2 * k_sums + v_sums + buffer_bytes + delta_bytes + own_bytes
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    at = whole_lines(memory)
    q_starts, at = array_at(at, QUERIES, np.int64), at + words
    v_starts, at = array_at(at, QUERIES, np.int64), at + words
    tile_starts, at = array_at(at, QUERIES, np.int64), at + words
    tile_places, at = array_at(at, QUERIES, np.int64), at + words
    product_places, at = array_at(at, QUERIES, np.int64), at + words
    zero, at = array_at(at, 1, np.int64), at + LINE
    sources, at = array_at(at, LANES, np.int64), at + 8 * LANES
    tile_at, at = at, at + tile_bytes
    passed_at, at = at, at + tile_bytes
    rows_at, at = at, at + q_bytes
    product_at, at = at, at + q_bytes
    grads_at, at = at, at + v_bytes
    keys, at = array_at(at, KEYS * layout.size, dtype), at + key_bytes
    values, at = array_at(at, KEYS * layout.value_size, dtype), at + value_bytes
    key_rows_at, at = at, at + k_sums
    by_key, at = array_at(at, KEYS * q_row, dtype), at + k_sums
    by_value, at = array_at(at, KEYS * v_row, dtype), at + v_sums
    buffer_at, at = at, at + buffer_bytes
    delta, own_at = array_at(at, group * queries, dtype), at + delta_bytes
    tile, passed = array_at(tile_at, QUERIES * ROW, dtype), array_at(passed_at, QUERIES * ROW, dtype)
    rows, product = array_at(rows_at, QUERIES * q_row, dtype), array_at(product_at, QUERIES * q_row, dtype)
    grads, key_rows = array_at(grads_at, QUERIES * v_row, dtype), array_at(key_rows_at, KEYS * q_row, dtype)
    buffer = array_at(buffer_at, KEYS + q_row + 2 * v_row, dtype)
    nought, one = like(0, buffer[0]), like(1, buffer[0])
    scale, keep = like(attributes.scale_value, nought), one / like(attributes.keep_prob, nought)
    for i in range(QUERIES):
        q_starts[i], v_starts[i], tile_starts[i] = i * q_row, i * v_row, i * ROW
        tile_places[i], product_places[i] = i * ROW // LANES, i * q_row // LANES
    for i in range(KEYS * q_row):
        key_rows[i] = nought
    for i in range(QUERIES * q_row):
        rows[i] = nought
    for i in range(QUERIES * v_row):
        grads[i] = nought

    # A weight of 0 times a number that is not finite is NaN, and with statistics of NaN all weights are: such keys and
    # queries are not left out.
    skips = layout.reach < layout.keys - 1 and all_finite(
        layout, job.data[KEY], element_type, layout.key_heads, layout.keys, layout.size, sample, key_head, buffer,
        buffer_at,
    )  # fmt: skip
    other_at = buffer_at + whole_lines(v_row * size)
    other = array_at(other_at, v_row, dtype)
    for h in range(group):
        head = key_head * group + h
        skips = skips and all_finite(
            layout, job.data[QUERY], element_type, layout.heads, queries, layout.size, sample, head, buffer, buffer_at
        )
        skips = skips and all_finite(
            layout, job.data[GRAD], element_type, layout.heads, queries, layout.value_size, sample, head, buffer,
            buffer_at,
        )  # fmt: skip
        for query in range(queries):
            place = row_of(layout, layout.heads, queries, layout.value_size, sample, head, query)
            place *= item_size(element_type)
            read_row(job.data[GRAD] + place, element_type, layout.value_size, buffer_at)
            read_row(job.data[RESULT] + place, element_type, layout.value_size, other_at)
            total = nought
            for e in range(layout.value_size):
                total = add_any_order(total, buffer[e] * other[e])
            delta[h * queries + query] = total
            statistic = ((sample * layout.heads + head) * queries + query) * size
            for i in (MOST, TOTAL):
                number = array_at(job.data[i] + statistic, 1, dtype)[0]
                skips = skips and number == number
        by_query_at = partial_gradients(job, layout, split, sample, head, size)
        if splits == 1:
            by_query_at = own_at + h * queries * q_row * size
        by_query = array_at(by_query_at, queries * q_row, dtype)
        for i in range(queries * q_row):
            by_query[i] = nought

    for first_key in range(split * layout.block, min((split + 1) * layout.block, layout.keys), KEYS):
        key_count = min(KEYS, layout.keys - first_key)
        interleave_rows(
            layout, job.data[KEY], element_type, layout.size, sample, key_head, first_key, key_count, sources, keys
        )
        interleave_rows(
            layout, job.data[VALUE], element_type, layout.value_size, sample, key_head, first_key, key_count, sources,
            values,
        )  # fmt: skip
        read_rows(
            layout, job.data[KEY], element_type, layout.key_heads, layout.keys, layout.size, sample, key_head,
            first_key, key_count, key_rows_at, size,
        )  # fmt: skip
        for i in range(KEYS * q_row):
            by_key[i] = nought
        for i in range(KEYS * v_row):
            by_value[i] = nought
        for h in range(group):
            head = key_head * group + h
            by_query_at = partial_gradients(job, layout, split, sample, head, size)
            if splits == 1:
                by_query_at = own_at + h * queries * q_row * size
            for first in range(0, queries, QUERIES):
                query_count = min(QUERIES, queries - first)
                seen = seen_keys(layout, first + query_count - 1, first_key, key_count) if skips else key_count
                if seen == 0:
                    continue
                padded = ceil_divide(seen, LANES) * LANES
                read_rows(
                    layout, job.data[QUERY], element_type, layout.heads, queries, layout.size, sample, head, first,
                    query_count, rows_at, size,
                )  # fmt: skip
                read_rows(
                    layout, job.data[GRAD], element_type, layout.heads, queries, layout.value_size, sample, head,
                    first, query_count, grads_at, size,
                )  # fmt: skip
                multiply_by_interleaved(
                    rows, q_starts, query_count, layout.size, keys, seen, tile_at, tile_places, zero, dtype, size
                )
                multiply_by_interleaved(
                    grads, v_starts, query_count, layout.value_size, values, seen, passed_at, tile_places, zero, dtype,
                    size,
                )  # fmt: skip
                for i in range(query_count):
                    query = first + i
                    row = array_at(tile_at + i * ROW * size, ROW, dtype)
                    gradient = array_at(passed_at + i * ROW * size, ROW, dtype)
                    finish_scores(
                        layout, job, attributes, SHIFT, MASK, sample, head, query, first_key, seen, row, buffer,
                        buffer_at,
                    )  # fmt: skip
                    statistic = ((sample * layout.heads + head) * queries + query) * size
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
                multiply_by_rows(
                    passed, tile_starts, query_count, seen, key_rows, q_row, product_at, product_places, zero, dtype,
                    size,
                )  # fmt: skip
                by_query = array_at(by_query_at + first * q_row * size, query_count * q_row, dtype)
                for i in range(query_count * q_row):
                    by_query[i] += product[i]
        write_by_key(
            layout, by_key, scale, layout.size, sample, key_head, first_key, key_count, job.output[BY_KEY],
            element_type, buffer, buffer_at,
        )  # fmt: skip
        write_by_key(
            layout, by_value, one, layout.value_size, sample, key_head, first_key, key_count, job.output[BY_VALUE],
            element_type, buffer, buffer_at,
        )  # fmt: skip
    if splits == 1:
        for i in range(group * queries):
            address = own_at + i * q_row * size
            by_query = array_at(address, q_row, dtype)
            write_query_gradient(
                job, layout, scale, by_query, address, sample, key_head * group + i // queries, i % queries
            )
    free(memory)


@helper
def run_task(job: Any, number: int, dtype: Any, size: int) -> None:
    """Add up the gradients of the queries of a head by all blocks of keys."""
    layout = layout_of(job)
    sample, head = number // layout.heads, number % layout.heads
    row_size = whole_panels(layout.size)
    first_at = partial_gradients(job, layout, 0, sample, head, size)
    sums = array_at(first_at, layout.queries * row_size, dtype)
    for split in range(1, ceil_divide(layout.keys, layout.block)):
        others = array_at(partial_gradients(job, layout, split, sample, head, size), 1, dtype)
        for i in range(layout.queries * row_size):
            sums[i] += others[i]
    scale = like(record_at(record_at(job.kernel, KERNEL).attributes, ATTRIBUTES).scale_value, sums[0])
    for query in range(layout.queries):
        address = first_at + query * row_size * size
        write_query_gradient(job, layout, scale, array_at(address, row_size, dtype), address, sample, head, query)


def plan(kernel_address: int, job_address: int) -> int:
    return plan_with(job_address, 4)


def plan_in_double(kernel_address: int, job_address: int) -> int:
    return plan_with(job_address, 8)


def begin(kernel_address: int, job_address: int) -> None:
    """Write the layout to the scratch memory."""
    job = record_at(job_address, JOB)
    write_layout(layout_of(job), job, 4)


def begin_in_double(kernel_address: int, job_address: int) -> None:
    job = record_at(job_address, JOB)
    write_layout(layout_of(job), job, 8)


def prepare(job_address: int, number: int) -> None:
    run_block(record_at(job_address, JOB), number, np.float32, 4)


def prepare_in_double(job_address: int, number: int) -> None:
    run_block(record_at(job_address, JOB), number, np.float64, 8)


def task(job_address: int, number: int) -> None:
    run_task(record_at(job_address, JOB), number, np.float32, 4)


def task_in_double(job_address: int, number: int) -> None:
    run_task(record_at(job_address, JOB), number, np.float64, 8)


def kernel(call: Call) -> Tasks:
    if call.dtype("query") == TensorProto.DOUBLE:
        return Tasks(plan_in_double, task_in_double, begin_in_double, prepare=prepare_in_double)
    return Tasks(plan, task, begin, prepare=prepare)


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    query, key, value, grad, result = (
        with_heads_first(b, b.load(name)) for name in ("query", "key_in", "value", "dy", "attention_in")
    )
    products = Products.of(b, query, key)
    scores, hidden = written_scores(b, products, query, key, "pse_shift")
    most, total = (
        b.op("Unsqueeze", b.load(name), [3], name=f"{name}_column") for name in ("softmax_max", "softmax_sum")
    )
    least = b.op("Where", most.equal(-np.inf).named("has_none"), 0.0, most, name="subtracted")
    divisor = b.op("Where", total.equal(0.0).named("is_empty"), 1.0, total, name="divisor")
    weights = (b.op("Exp", scores - least, name="terms") / divisor).named("weights")
    passed, dropped = products.with_keys(grad, value, "passed"), weights
    if b.attribute("keep_prob") != 1.0:
        keep = b.value_of("keep_prob")
        passed, dropped = (passed / keep).named("passed_scaled"), (dropped / keep).named("weights_scaled")
    if b.has("drop_mask"):
        kept = b.inputs["drop_mask"]
        passed = b.op("Where", kept, passed, 0.0, name="passed_dropped")
        dropped = b.op("Where", kept, dropped, 0.0, name="dropped")
    delta = b.op("ReduceSum", grad * result, [3], name="delta", keepdims=1)
    of_scores = (weights * (passed - delta)).named("d_scores")
    if hidden is not None:
        of_scores = b.op("Where", hidden, 0.0, of_scores, name="d_seen")
    scale = b.value_of("scale_value")
    b.store("dq", with_heads_first(b, products.weighted(of_scores, key, "by_query") * scale), "query")
    b.store("dk", with_heads_first(b, products.by_key(of_scores, query, "by_key") * scale), "query")
    b.store("dv", with_heads_first(b, products.by_key(dropped, grad, "by_value")), "query")


def infer(call: Call) -> tuple[TensorType, ...]:
    result, rows = check_attention(call, "key_in", "pse_shift")
    for name in ("dy", "attention_in"):
        call.same_shape(name, result, "the shape of the result of attention")
    for name in ("softmax_max", "softmax_sum"):
        call.same_shape(name, rows, "samples, heads and queries")
    query, given, expected = call.dtype("query"), call.dtype("softmax_max"), statistics_dtype(call)
    if given is not None and expected is not None and given != expected:
        problem = f"input 'softmax_max' has dtype {dtype_name(given)}, expected {dtype_name(expected)}"
        raise call.error(f"{problem}, as 'query' is {dtype_name(query or 0)}")
    return tuple(TensorType(query, call.shape(name)) for name in ("query", "key_in", "value"))


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Two keys of equal scores, whose weights are 1/2.
        {
            "query": [[[[1.0]]]],
            "key_in": [[[[2.0], [2.0]]]],
            "value": [[[[3.0], [5.0]]]],
            "dy": [[[[10.0]]]],
            "softmax_max": [[[2.0]]],
            "softmax_sum": [[[2.0]]],
            "attention_in": [[[[4.0]]]],
        },
        {"dq": [[[[0.0]]]], "dk": [[[[-5.0], [5.0]]]], "dv": [[[[5.0], [5.0]]]]},
    ),
    body_opset=18,
)
