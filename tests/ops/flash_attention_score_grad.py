"""FlashAttentionScoreGrad: the gradients of scaled dot-product attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, INF, NAN, normal
from tests.ops._shared.attention import (
    ATTRIBUTES,
    FEW,
    FORMS,
    LARGE,
    LAYERS,
    Form,
    chosen,
    exchanged,
    hiding,
    masks,
    operands,
    rounding,
    score_error,
    scores_of,
)
from tests.ops._shared.attention import refusals as shared_refusals
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import (
    SUM_LIMITS,
    TRUTH,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    kept_by_call,
    like,
    with_value,
)

OP = "FlashAttentionScoreGrad"
GRADIENTS = ("dq", "dk", "dv")
DEFAULTS = {name: given.default for name, given in ATTRIBUTES.items()}
LENGTHY = Form(1, 1, 1, 70, 600, 8, 8)
"""One head, whose keys are split into several tasks."""


@np.errstate(all="ignore")
def _terms(
    query: Any,
    key: Any,
    value: Any,
    dy: Any,
    shift: Any,
    drop_mask: Any,
    mask: Any,
    most: Any,
    total: Any,
    result: Any,
    *,
    dtype: Reals = np.float64,
    **settings: Any,
) -> dict[str, Array]:
    """What the gradients are made of, of shapes (B, N, Sq, Sk, ...): sizes are scaled, sums are not yet."""
    found = scores_of(query, key, value, shift, mask, dtype, settings)
    grad, out = (exchanged(real(array, dtype), settings["input_layout"]) for array in (dy, result))
    largest, sums = real(most, dtype)[..., None], real(total, dtype)[..., None]
    weights = np.exp(found.scores - np.where(np.isneginf(largest), 0, largest)) / np.where(sums == 0, 1, sums)
    keep = attribute(settings["keep_prob"], dtype)
    products = grad[:, :, :, None] * found.value[:, :, None] / keep
    dropped = weights / keep
    if drop_mask is not None:
        products, dropped = np.where(drop_mask[..., None], products, 0), np.where(drop_mask, dropped, 0)
    delta = (grad * out).sum(-1)[..., None]
    of_scores = np.where(found.hidden, 0, weights * (products.sum(-1) - delta))
    sizes = np.where(found.hidden, 0, weights * (np.abs(products).sum(-1) + np.abs(grad * out).sum(-1)[..., None]))
    scale = attribute(settings["scale_value"], dtype)
    return {
        "dq": of_scores[..., None] * found.key[:, :, None],
        "dk": of_scores[..., None] * found.query[:, :, :, None],
        "dv": dropped[..., None] * grad[:, :, :, None],
        "dq_sizes": sizes[..., None] * np.abs(found.key)[:, :, None] * abs(scale),
        "dk_sizes": sizes[..., None] * np.abs(found.query)[:, :, :, None] * abs(scale),
        "dv_sizes": dropped[..., None] * np.abs(grad)[:, :, :, None],
    }


def _gathered(gather: Any, terms: Mapping[str, Array], heads: int, layout: int, kind: str = "") -> tuple[Array, ...]:
    """Over the keys for the queries; over the queries, and the heads of a group, for keys and values."""
    own = []
    for name in GRADIENTS:
        array = terms[name + kind]
        if name != "dq":
            samples, all_heads, queries, keys, size = array.shape
            array = array.reshape(samples, heads, all_heads // max(heads, 1), queries, keys, size)
            array = array.transpose(0, 1, 4, 2, 3, 5).reshape(
                samples, heads, keys, all_heads // max(heads, 1) * queries, size
            )
        own.append(exchanged(np.asarray(gather(array)), layout))
    return tuple(own)


def _sum(array: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(array.sum(3))


def _heads(key: Any, settings: Mapping[str, Any]) -> int:
    return int(np.asarray(key).shape[2 if settings["input_layout"] else 1])


def oracle(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> tuple[Array, ...]:
    """The terms of each sum, one by one. A scale that is infinite makes no NaN of terms of both signs."""
    terms = _terms(*inputs, dtype=dtype, **settings)
    dq, dk, dv = _gathered(_sum, terms, _heads(inputs[1], settings), settings["input_layout"])
    with np.errstate(all="ignore"):
        scale = attribute(settings["scale_value"], dtype)
        return dq * scale, dk * scale, dv


def largest_terms(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> tuple[Array, ...]:
    """The largest term of each sum; those of the gradients of scores are themselves differences of sums."""
    terms = _terms(*inputs, dtype=dtype, **settings)
    finite = {name: np.where(np.isfinite(array), array, 0) for name, array in terms.items()}
    largest = functools.partial(np.max, axis=3, initial=0)
    return _gathered(largest, finite, _heads(inputs[1], settings), settings["input_layout"], "_sizes")


@kept_by_call
def _bounds(call: Call) -> tuple[Array, ...]:
    """What scores, exponentials and sums are off by, relative to the sums of the sizes of all terms."""
    settings = RECORD.defaults | dict(call.attributes)
    inputs = RECORD.arrays(call)
    found = scores_of(*inputs[:3], inputs[4], inputs[6], np.float64, settings)
    terms = _terms(*inputs, **settings)
    _, heads, queries, keys = found.scores.shape
    added = queries * heads + keys + found.value.shape[3] + 24
    relative = 2 * score_error(call, found)[..., None, None] + added * rounding(call)
    sizes = {name: array * relative for name, array in terms.items() if name.endswith("sizes")}
    return _gathered(_sum, sizes, _heads(inputs[1], settings), settings["input_layout"], "_sizes")


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    least = 0.0 if call.dtype("query") == FLOAT64 else 2.0**-120
    return _bounds(call)[GRADIENTS.index(output)] + least


@np.errstate(all="ignore")
def completed(given: Mapping[str, Array | None], shift: Array | None, **attributes: Any) -> dict[str, Array | None]:
    """The inputs of a call from those of attention: its statistics and its result, and a gradient of that."""
    settings = DEFAULTS | attributes
    query, mask, dropped = given["query"], given.get("atten_mask"), given.get("drop_mask")
    assert query is not None
    found = scores_of(query, given["key_in"], given["value"], shift, mask, np.float64, settings)
    total = found.terms.sum(-1)
    weights = found.terms / np.where(total == 0, 1, total)[..., None] / attribute(settings["keep_prob"])
    if dropped is not None:
        weights = np.where(dropped, weights, 0)
    out = exchanged(weights @ found.value, settings["input_layout"])
    wide = FLOAT64 if query.dtype == FLOAT64 else FLOAT32
    most = np.where(np.isnan(total), NAN, found.most)
    return {
        **{name: given[name] for name in ("query", "key_in", "value")},
        "dy": normal(out.shape, query.dtype, "dy"),
        "pse_shift": shift,
        "drop_mask": dropped,
        "atten_mask": mask,
        "softmax_max": most.astype(wide),
        "softmax_sum": total.astype(wide),
        "attention_in": np.ascontiguousarray(out).astype(query.dtype),
    }


def renamed(given: Mapping[str, Array | None]) -> dict[str, Array | None]:
    return {"key_in" if name == "key" else name: array for name, array in given.items()}


def make(choice: Choice) -> dict[str, Array | None]:
    given = renamed(chosen(choice, "pse_shift"))
    return completed(given, given.get("pse_shift"), **choice.attributes)


def calls() -> Iterator[Call]:
    given = renamed(operands(FEW, FLOAT32))
    whole = completed(given, None)
    places = {
        "query": (0, 1, 2, 0), "key_in": (0, 0, 1, 1), "value": (0, 1, 3, 0), "dy": (1, 2, 0, 3),
        "attention_in": (1, 3, 4, 0), "softmax_max": (0, 2, 4), "softmax_sum": (1, 1, 1),
    }  # fmt: skip
    for value in (NAN, INF, -INF):
        for name, place in places.items():
            for mode in (0, 2):
                special = with_value(completed(given, None, sparse_mode=mode), name, place, value)
                yield Call(OP, special, {"sparse_mode": mode}, label=f"{value}_in_{name}_{mode}")
    for label, hidden, shift, attributes in hiding():
        yield Call(OP, completed(renamed(hidden), shift, **attributes), attributes, label=label)
    yield Call(OP, whole, label="static", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    given: dict[str, Array | None] = {
        "query": np.array([[[[1.0]]]], dtype),
        "key_in": np.array([[[[2.0], [2.0]]]], dtype),
        "value": np.array([[[[3.0], [5.0]]]], dtype),
        "dy": np.array([[[[10.0]]]], dtype),
        "softmax_max": np.array([[[2.0]]], wide),
        "softmax_sum": np.array([[[2.0]]], wide),
        "attention_in": np.array([[[[4.0]]]], dtype),
    }
    yield Worked(Call(OP, given, label="by_hand"), {"dq": [[[[0]]]], "dk": [[[[-5], [5]]]], "dv": [[[[5], [5]]]]})
    alone = given | {"atten_mask": np.array([False, True]), "softmax_sum": np.array([[[1.0]]], wide)}
    alone |= {"attention_in": np.array([[[[3.0]]]], dtype)}
    yield Worked(Call(OP, alone, label="masked"), {"dq": [[[[0]]]], "dk": [[[[0], [0]]]], "dv": [[[[10], [0]]]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    given = plain.given
    yield from shared_refusals(plain, "pse_shift", "key_in")
    for name, wrong in (("dy", "(2, 4, 4, 4)"), ("attention_in", "(2, 4, 4, 4)")):
        yield Refusal(f"shape_of_{name}", (f"'{name}'", wrong, "(2, 4, 5, 4)"), {name: given[name][:, :, :4]})
    for name in ("softmax_max", "softmax_sum"):
        yield Refusal(f"shape_of_{name}", (f"'{name}'", "(2, 4, 4)", "(2, 4, 5)"), {name: given[name][:, :, :4]})


def large(dtype: DType) -> Iterator[Call]:
    given = renamed(operands(LARGE, dtype))
    shift = normal(LARGE.scores, dtype, "shift")
    yield Call(OP, completed(given, shift, sparse_mode=2), {"sparse_mode": 2}, label="several_tasks")
    yield Call(OP, completed(renamed(operands(LENGTHY, dtype)), None), label="split_keys")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    """Autograd's gradients of torch's attention, without those that it does not have."""
    settings = RECORD.defaults | dict(call.attributes)
    given = {name: with_torch.tensor(torch, array) for name, array in call.given.items()}
    mask, shift, mode = given.get("atten_mask"), given.get("pse_shift"), settings["sparse_mode"]
    if (
        mode == 3
        or "drop_mask" in given
        or settings["keep_prob"] != 1
        or (mode and (mask is not None or shift is not None))
    ):
        return None
    leaves = [given[name].requires_grad_() for name in ("query", "key_in", "value")]
    q, k, v = (leaf.transpose(1, 2) if settings["input_layout"] else leaf for leaf in leaves)
    dy = given["dy"].transpose(1, 2) if settings["input_layout"] else given["dy"]
    scale = settings["scale_value"]
    if shift is not None and settings["pse_type"] == 1:
        shift = shift * scale
    if shift is not None and mask is not None:
        shift, mask = shift.masked_fill(mask, -INF), None
    added = shift if mask is None else ~mask
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, added, is_causal=mode == 2, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    result = given["attention_in"].transpose(1, 2) if settings["input_layout"] else given["attention_in"]
    if out.dtype == torch.float64 and not torch.allclose(out, result, rtol=1e-11, atol=1e-12):
        return None  # a result that was rounded to a narrower dtype
    return lambda: torch.autograd.grad(out, leaves, dy, retain_graph=True)


def benchmark(form: Form, dtype: DType, sparse_mode: int = 0) -> Call:
    attributes = {"scale_value": form.size**-0.5, "sparse_mode": sparse_mode}
    given = renamed(operands(form, dtype))
    query = given["query"]
    assert query is not None
    # Statistics of scores of 0, which take no time to compute and are as good as any.
    wide, rows = FLOAT64 if dtype == FLOAT64 else FLOAT32, query.shape[:3]
    statistics: dict[str, Array | None] = {
        "dy": normal(query.shape, dtype, "dy"),
        "softmax_max": np.full(rows, 4, wide),
        "softmax_sum": np.full(rows, form.keys, wide),
        "attention_in": normal(query.shape, dtype, "out"),
    }
    return Call(OP, given | statistics, attributes)


def causal_benchmark(form: Form, dtype: DType) -> Call:
    return benchmark(form, dtype, 2)


def judged(dtype: DType) -> Iterator[Call]:
    form = Form(1, 2, 2, 64, 96, 32, 32)
    settings = {"scale_value": 0.25, "keep_prob": 0.75}
    yield Call(OP, completed(renamed(operands(form, dtype) | masks(form)), None, **settings), settings)


WIDE = (FLOAT32, FLOAT64)
RECORD = Record(
    OP,
    inputs={
        **{name: Input(variable="T") for name in ("query", "key_in", "value", "dy")},
        "pse_shift": Input(variable="T", optional=True),
        "drop_mask": Input((TRUTH,), optional=True),
        "atten_mask": Input((TRUTH,), optional=True),
        "softmax_max": Input(WIDE, variable="S"),
        "softmax_sum": Input(WIDE, variable="S"),
        "attention_in": Input(variable="T"),
    },
    outputs={name: like("query", limits=SUM_LIMITS, portable_limits=SUM_LIMITS) for name in GRADIENTS},
    attributes=ATTRIBUTES,
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=("aclnnFlashAttentionScoreGradV2", "softmax_sum", "(B, N, Sq, D)", "dpse", "NaN"),
    benchmarks=(
        Benchmark(benchmark, LAYERS),
        Benchmark(causal_benchmark, LAYERS, "causal"),
    ),
    accuracies=(accuracy.Accuracy(judged),),
)
