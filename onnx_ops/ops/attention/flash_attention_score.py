"""FlashAttentionScore: scaled dot-product attention, in memory that is linear in the lengths of the sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Layout, Tasks
from onnx_ops.loops.memory import LANES, allocate, array_at, free, record_at, size_of, tail
from onnx_ops.loops.primitives import Floating, add_any_order, ceil_divide, exp_of_difference, like
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.tiles import largest
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
    ATTRIBUTES,
    KEYS,
    LAYOUT,
    MOST_SKIPPED,
    QUERIES,
    ROW,
    dropped_at,
    finish_scores,
    hides_by_shift,
    interleave_rows,
    may_skip,
    multiply_by_interleaved,
    multiply_by_rows,
    of_keys,
    of_queries,
    read_rows,
    seen_by_any,
    seen_keys,
    sum_of_sizes,
    whole_vectors,
    write_row_of,
    write_sizes,
)
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import rounded

STATISTICS = OutputType(
    "double if `query` is double, else float.", dtypes=(TensorProto.FLOAT, TensorProto.DOUBLE), inputs=("query",)
)
SIGNATURE = Signature(
    "FlashAttentionScore",
    """
Scaled dot-product attention (aclnnFlashAttentionScoreV2; Dao et al. 2022). Neither the scores nor the weights are in
memory as a whole: it is linear in the number of queries and keys.

    scores[b, n, i, j]        = scale_value * (sum of query[b, n, i, d] * key[b, m, j, d] over d
                                               + real_shift[b, n, i, j])
                                -inf  where atten_mask[b, n, i, j], or query i does not see key j
    softmax_max[b, n, i]      = maximum of scores[b, n, i, j] over j
    softmax_sum[b, n, i]      = sum of exp(scores[b, n, i, j] - softmax_max[b, n, i]) over j
    weights[b, n, i, j]       = exp(scores[b, n, i, j] - softmax_max[b, n, i]) / softmax_sum[b, n, i]
    attention_out[b, n, i, e] = sum of dropped[b, n, i, j] * value[b, m, j, e] over j
    dropped                   = weights / keep_prob  where drop_mask
                                0                    elsewhere

Head `n` of N queries meets head `m = n / (N / M)`, rounded down, of M keys (grouped queries). With `pse_type` 0,
`real_shift` is added after the scores are scaled. Query `i` of Sq sees, in `sparse_mode` 0, every key; in 2, the keys
`j <= i`; in 3, the keys `j <= i + Sk - Sq` of Sk.

Shapes: `query` (B, N, Sq, D), `key` (B, M, Sk, D), `value` (B, M, Sk, E), `attention_out` (B, N, Sq, E); with
`input_layout` 1, the axes of heads and of positions of these are exchanged: (B, Sq, N, D). N is a multiple of M; Sk and
D are at least 1. `real_shift`, `drop_mask` and `atten_mask` broadcast to (B, N, Sq, Sk). `softmax_max` and
`softmax_sum` (B, N, Sq); in aclnn these are repeated eight times.

Dtypes: `query`, `key`, `value`, `real_shift` and `attention_out` of one dtype, float16, bfloat16, float or double;
masks bool, where aclnn packs eight elements of `drop_mask` into a byte. `softmax_max` and `softmax_sum` double if that
is double, else float. Computed in that dtype, and rounded once. The order of summation is fixed and does not depend on
the number of threads.

Edge rules: the weights of a query all of whose scores are -inf are 0, and so is its result, as in PyTorch and with
innerPrecise 2 of aclnn; its `softmax_max` is -inf. A score of NaN or infinity makes all weights of the query NaN, as
well as `softmax_max` and `softmax_sum`; one beyond the range of the dtype of computation is infinite. Masked scores are
-inf also where `query` or `key` are NaN; a weight of 0 times an infinite or NaN `value` is NaN. A weight below exp(-87)
(double: exp(-708)) times that of the largest score counts as 0. Dropped weights are 0 even if they are NaN. Without
`real_shift` and masks nothing is added, masked or dropped.

Without a kernel: the scores and weights are in memory as a whole, the order of summation is that of the runtime's
MatMul, and small weights do not count as 0. Shapes known only at run time are not checked.
""",
    inputs=(
        Input("query", "Queries, (B, N, Sq, D)."),
        Input("key", "Keys, (B, M, Sk, D).", like="query"),
        Input("value", "Values, (B, M, Sk, E).", like="query"),
        Input("real_shift", "Added to the scores.", like="query", default=Default(0.0)),
        Input("drop_mask", "Weights that dropout keeps.", dtypes=(TensorProto.BOOL,), default=Default(1.0)),
        Input("atten_mask", "Scores that are set to -inf.", dtypes=(TensorProto.BOOL,), default=Default(0.0)),
    ),
    outputs=(
        Output("softmax_max", "The largest score of each query, (B, N, Sq).", STATISTICS, optional=True),
        Output("softmax_sum", "Sums of exponentials, (B, N, Sq).", STATISTICS, optional=True),
        Output("attention_out", "The weighted sums of the values, (B, N, Sq, E).", "query"),
    ),
    attributes=tuple(attention_attributes()),
)


def reference(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    real_shift: np.ndarray | None = None,
    drop_mask: np.ndarray | None = None,
    atten_mask: np.ndarray | None = None,
    *,
    keep_prob: float = 1.0,
    input_layout: int = 0,
    dtype: npt.DTypeLike | None = None,
    **settings: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64.

    Args:
        query, key, value: floating arrays (B, N, Sq, D), (B, M, Sk, D) and (B, M, Sk, E).
        real_shift: floating array that broadcasts to (B, N, Sq, Sk).
        drop_mask, atten_mask: bool, broadcast to (B, N, Sq, Sk).
        keep_prob, input_layout, settings: attributes, as in the schema.
        dtype: dtype of the results instead of the schema's.

    Returns:
        softmax_max (B, N, Sq), softmax_sum (B, N, Sq) and attention_out (B, N, Sq, E).
    """
    q, k, v = (exchanged(array.astype(np.float64), input_layout) for array in (query, key, value))
    statistics = np.float64 if query.dtype == np.float64 else np.float32
    scores, _ = scores_of(q, k, real_shift, atten_mask, widest=float(np.finfo(statistics).max), **settings)
    with np.errstate(all="ignore"):
        most = scores.max(axis=-1, initial=-np.inf)
        terms = np.exp(scores - np.where(most == -np.inf, 0.0, most)[..., None])
        total = terms.sum(axis=-1)
        most = np.where(np.isnan(total), np.nan, most)
        weights = terms / np.where(total == 0, 1.0, total)[..., None]
        if drop_mask is not None:
            weights = np.where(drop_mask, weights / np.float64(np.float32(keep_prob)), 0.0)
        else:
            weights = weights / np.float64(np.float32(keep_prob))
        result = weights @ spread_heads(v, q.shape[1])
    out = rounded(exchanged(result, input_layout), query.dtype, dtype)
    return rounded(most, statistics, dtype), rounded(total, statistics, dtype), out


# --- the kernel: one task per block of queries of a head -------------------------------------------------------------

QUERY, KEY, VALUE, SHIFT, DROP, MASK = range(6)
MOST, TOTAL, OUT = range(3)
TASKS = 16
"""Tasks that the work is split into as far as its sizes allow."""
LEAST, MOST_QUERIES = 4 * QUERIES, 16 * QUERIES
"""Queries of a task, for which it interleaves the keys."""


def write_layout(address: int, kernel: Kernel, job: Job) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    layout = record_at(address, LAYOUT)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    if not write_sizes(layout, attributes, job, QUERY, KEY, VALUE, SHIFT, DROP, MASK):
        return False
    for k in range(2):
        job.output_rank[k] = RANK - 1
        job.output_dims[k, 0], job.output_dims[k, 1] = layout.samples, layout.heads
        job.output_dims[k, 2] = layout.queries
    job.output_rank[OUT] = RANK
    for axis in range(RANK - 1):
        job.output_dims[OUT, axis] = job.dims[QUERY, axis]
    job.output_dims[OUT, RANK - 1] = layout.value_size
    pairs = layout.samples * layout.heads
    if pairs * layout.queries == 0:
        layout.block, job.tasks = QUERIES, 0
    else:
        block = ceil_divide(layout.queries, ceil_divide(TASKS, pairs))
        layout.block = min(max(ceil_divide(block, QUERIES) * QUERIES, LEAST), MOST_QUERIES)
        job.tasks = pairs * ceil_divide(layout.queries, layout.block)
    job.scratch_bytes = size_of(LAYOUT)
    return True


PLAN = Layout(write_layout, LAYOUT.itemsize)


def task(job: Job, number: int, dtype: Floating) -> None:
    """Attention of a block of queries of a head, computed in this dtype."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, LAYOUT)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    element_type = kernel.element_type[QUERY]
    blocks = ceil_divide(layout.queries, layout.block)
    begin, pair = number % blocks * layout.block, number // blocks
    head, sample = pair % layout.heads, pair // layout.heads
    key_head = head // (layout.heads // layout.key_heads)
    end = min(begin + layout.block, layout.queries)
    count = end - begin
    q_row, v_row = whole_vectors(layout.size), whole_vectors(layout.value_size)

    words = (QUERIES, np.int64)
    (
        memory,
        q_starts, tile_starts, tile_places, product_places, zero, sources,
        most, total, sums, tile, product, rows,
        keys, values, buffer,
    ) = allocate(
        words, words, words, words, (1, np.int64), (LANES, np.int64),
        (count, dtype), (count, dtype), (count * v_row, dtype), (QUERIES * ROW, dtype), (QUERIES * v_row, dtype),
        (QUERIES * q_row, dtype),
        (KEYS * layout.size, dtype), (KEYS * v_row, dtype), (KEYS + q_row + v_row, dtype),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    queries_in = of_queries(layout, job.data[QUERY], element_type, layout.size)
    keys_in = of_keys(layout, job.data[KEY], element_type, layout.size)
    values_in = of_keys(layout, job.data[VALUE], element_type, layout.value_size)
    out = of_queries(layout, job.output[OUT], element_type, layout.value_size)
    nought, lowest = like(0, most[0]), like(-np.inf, most[0])
    for i in range(QUERIES):
        q_starts[i], tile_starts[i] = i * q_row, i * ROW
        tile_places[i], product_places[i] = i * ROW // LANES, i * v_row // LANES
    for i in range(count):
        most[i], total[i] = lowest, nought
    for i in range(count * v_row):
        sums[i] = nought
    for i in range(min(layout.keys, KEYS) * v_row):
        values[i] = nought

    # A weight of 0 times a value that is not finite is NaN, as is a score of infinity less infinity: such keys are not
    # left out.
    skips = (
        may_skip(layout, job, SHIFT, MASK) and sum_of_sizes(values_in, sample, key_head, buffer, dtype) < MOST_SKIPPED
    )
    shifts = skips and hides_by_shift(layout, job, attributes, SHIFT)
    shifts = shifts and sum_of_sizes(keys_in, sample, key_head, buffer, dtype) < MOST_SKIPPED
    shifts = shifts and sum_of_sizes(queries_in, sample, head, buffer, dtype) < MOST_SKIPPED
    for first_key in range(0, layout.keys, KEYS):
        key_count = min(KEYS, layout.keys - first_key)
        if skips and seen_keys(layout, end - 1, first_key, key_count) == 0:
            break
        interleave_rows(keys_in, sample, key_head, first_key, key_count, sources, keys)
        read_rows(values_in, sample, key_head, first_key, key_count, values)
        for first in range(begin, end, QUERIES):
            query_count = min(QUERIES, end - first)
            seen = key_count
            if skips:
                seen = seen_by_any(
                    layout, job, SHIFT, MASK, shifts, sample, head, first, query_count, first_key, key_count, buffer
                )
            if seen == 0:
                continue
            read_rows(queries_in, sample, head, first, query_count, rows)
            multiply_by_interleaved(rows, q_starts, query_count, layout.size, keys, seen, tile, tile_places, zero)
            for i in range(query_count):
                query, own = first + i, first + i - begin
                row = tail(tile, i * ROW)
                finish_scores(layout, job, attributes, SHIFT, MASK, sample, head, query, first_key, seen, row, buffer)
                padded = ceil_divide(seen, LANES) * LANES
                before = most[own]
                found = largest(row, 0, padded)
                found = found if found > before else before
                least = nought if found == lowest else found
                summed = nought
                for j in range(padded):
                    weight = exp_of_difference(row[j] - least)
                    row[j] = weight
                    summed = add_any_order(summed, weight)
                if kernel.element_type[DROP] != 0:
                    step = layout.drop[RANK - 1]
                    kept = array_at(dropped_at(layout, job, DROP, sample, head, query, first_key), 1, np.uint8)
                    for j in range(seen):
                        row[j] = row[j] if kept[j * step] != 0 else nought
                factor = exp_of_difference(before - least)
                most[own], total[own] = found, total[own] * factor + summed
                if first_key > 0:
                    for e in range(v_row):
                        sums[own * v_row + e] *= factor
            multiply_by_rows(tile, tile_starts, query_count, seen, values, v_row, product, product_places, zero)
            begin_of = (first - begin) * v_row
            for i in range(query_count * v_row):
                sums[begin_of + i] += product[i]

    keep = like(attributes.keep_prob, nought)
    one = like(1, nought)
    for i in range(count):
        query = begin + i
        divisor = total[i] * keep
        factor = one / (one if divisor == nought else divisor)
        for e in range(layout.value_size):
            sums[i * v_row + e] *= factor
        write_row_of(out, sample, head, query, tail(sums, i * v_row))
        statistic = (pair * layout.queries + query) * size_of(dtype)
        if job.output[MOST] != 0:
            nan = total[i] != total[i]
            array_at(job.output[MOST] + statistic, 1, dtype)[0] = total[i] if nan else most[i]
        if job.output[TOTAL] != 0:
            array_at(job.output[TOTAL] + statistic, 1, dtype)[0] = total[i]
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, compute=computing_type(call))


# --- the function body -----------------------------------------------------------------------------------------------


def body(b: Body) -> None:
    query, key, value = (with_heads_first(b, b.load(name)) for name in ("query", "key", "value"))
    products = Products.of(b, query, key)
    scores, _ = written_scores(b, products, query, key, "real_shift")
    most = b.op("ReduceMax", scores, [3], name="most", keepdims=1)
    least = b.op("Where", most.equal(-np.inf).named("has_none"), 0.0, most, name="subtracted")
    terms = b.op("Exp", scores - least, name="terms")
    total = b.op("ReduceSum", terms, [3], name="total", keepdims=1)
    divisor = b.op("Where", total.equal(0.0).named("is_empty"), 1.0, total, name="divisor")
    weights = (terms / divisor).named("weights")
    if b.attribute("keep_prob") != 1.0:
        weights = (weights / b.value_of("keep_prob")).named("scaled_weights")
    if b.has("drop_mask"):
        weights = b.op("Where", b.inputs["drop_mask"], weights, 0.0, name="dropped")
    b.store("attention_out", with_heads_first(b, products.weighted(weights, value, "result")), "query")
    most = b.op("Where", b.op("IsNaN", total), np.nan, most, name="most_or_nan")
    for name, statistic in (("softmax_max", most), ("softmax_sum", total)):
        b.store(name, b.op("Squeeze", statistic, [3], name=f"{name}_value"), "query")


def infer(call: Call) -> tuple[TensorType, ...]:
    shape, rows = check_attention(call, "key", "real_shift")
    statistics = TensorType(statistics_dtype(call), rows)
    return statistics, statistics, TensorType(call.dtype("query"), shape)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # Two keys, of scores 2 and 2.
        {"query": [[[[1.0]]]], "key": [[[[2.0], [2.0]]]], "value": [[[[3.0], [5.0]]]]},
        {"softmax_max": [[[2.0]]], "softmax_sum": [[[2.0]]], "attention_out": [[[[4.0]]]]},
    ),
    body_opset=18,  # the first with ReduceMax over axes that are an input
)
