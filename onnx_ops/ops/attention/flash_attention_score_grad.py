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
from onnx_ops.ops.attention._formula import (
    Products,
    exchanged,
    scores_of,
    spread_heads,
    with_heads_first,
    written_scores,
)
from onnx_ops.ops.attention._gradient import PLAN, prepare, task
from onnx_ops.ops.attention._rules import attention_attributes, check_attention, statistics_dtype
from onnx_ops.ops.computing import computing_type
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
        Input("pse_shift", "Added to the scores.", like="query", default=Default(0.0)),
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


def kernel(call: Call) -> Tasks:
    return Tasks(PLAN, task, prepare=prepare, compute=computing_type(call))


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
