"""FlashAttentionScore: scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, INF, NAN, normal
from tests.ops._shared.attention import (
    ATTRIBUTES,
    FEW,
    FORMS,
    LARGE,
    LAYERS,
    Form,
    Scores,
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
from tests.ops._shared.numbers import Array, Reals, attribute
from tests.ops._shared.record import (
    FLOAT64,
    SUM_LIMITS,
    TRUTH,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Output,
    Record,
    Worked,
    at_least_float32,
    like,
    with_value,
)

OP = "FlashAttentionScore"


@np.errstate(all="ignore")
def _products(
    query: Any, key: Any, value: Any, shift: Any, drop_mask: Any, mask: Any, *, dtype: Reals, **settings: Any
) -> tuple[Scores, Array, Array, Array]:
    """(scores, largest score, sum of exponentials, products of dropped weights and values (B, N, Sq, Sk, E))."""
    found = scores_of(query, key, value, shift, mask, dtype, settings)
    total = found.terms.sum(-1)
    most = np.where(np.isnan(total), np.nan, found.most)
    weights = found.terms / np.where(total == 0, 1, total)[..., None] / attribute(settings["keep_prob"], dtype)
    if drop_mask is not None:
        weights = np.where(drop_mask, weights, 0)
    return found, most, total, weights[..., None] * found.value[:, :, None]


def oracle(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> tuple[Array, ...]:
    """The weighted values, one by one."""
    _, most, total, products = _products(*inputs, dtype=dtype, **settings)
    return most, total, exchanged(products.sum(3), settings["input_layout"])


def largest_terms(*inputs: Any, dtype: Reals = np.float64, **settings: Any) -> tuple[Array, ...]:
    """The largest product of each sum."""
    found, _, total, products = _products(*inputs, dtype=dtype, **settings)
    sizes = np.where(np.isfinite(found.sizes), found.sizes, 0)
    largest = np.abs(products).max(3, initial=0)
    return sizes.max(-1, initial=0), np.abs(total), exchanged(largest, settings["input_layout"])


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """The roundings of the scores, which the weights have as relative errors, and those of the sums.

    An exponential is off by 2 roundings (onnxruntime's: 4), and weights below exp(-87) count as 0.
    """
    settings = RECORD.defaults | dict(call.attributes)
    found, _, total, products = _products(*RECORD.arrays(call), dtype=np.float64, **settings)
    error = score_error(call, found)
    if output == "softmax_max":
        return error
    relative = 2 * error + (found.scores.shape[3] + 12) * rounding(call)
    if output == "softmax_sum":
        return np.asarray(total * relative)
    least = 0.0 if call.dtype("query") == FLOAT64 else 2.0**-124
    largest = np.abs(np.where(np.isfinite(found.value), found.value, 0)).sum(2)
    sizes = np.abs(products).sum(3) * relative[..., None] + least * largest[:, :, None]
    return exchanged(np.asarray(sizes), settings["input_layout"])


def make(choice: Choice) -> dict[str, Array | None]:
    return chosen(choice, "real_shift")


def calls() -> Iterator[Call]:
    given = operands(FEW, FLOAT32)
    for value in (NAN, INF, -INF):
        for name, place in (("query", (0, 1, 2, 0)), ("key", (0, 0, 1, 1)), ("value", (0, 1, 3, 0))):
            for mode in (0, 2):
                special = with_value(given, name, place, value)
                yield Call(OP, special, {"sparse_mode": mode}, label=f"{value}_in_{name}_{mode}")
        shift = normal(FEW.scores, FLOAT32, "shift")
        shift[0, 1, 2, 3] = value
        yield Call(OP, given | {"real_shift": shift}, label=f"{value}_in_real_shift")
    every = Form(1, 1, 1, 3, 300, 2, 2)
    shift = np.full(every.scores, -INF, FLOAT32)
    shift[..., 1, 290] = 1
    shift[..., 2, 5] = 1
    yield Call(OP, operands(every, FLOAT32) | {"real_shift": shift}, label="few_keys_of_several_tiles")
    # Scores that differ by more than the range of exponents, the largest of which come last.
    steep = np.linspace(-3000, 3000, 600).astype(FLOAT32)[:, None]
    far = Form(1, 1, 1, 4, 600, 1, 2)
    distant = operands(far, FLOAT32) | {
        "key": steep[None, None],
        "query": np.array([1, -1, 0.01, 0], FLOAT32)[None, None, :, None],
    }
    yield Call(OP, distant, label="distant_scores")
    for wanted in (("attention_out",), ("softmax_sum", "attention_out")):
        yield Call(OP, given, outputs=wanted, label="+".join(wanted))
    for label, hidden, shift, attributes in hiding():
        yield Call(OP, hidden | {"real_shift": shift}, attributes, label=label)
    scalars = {"atten_mask": np.ones((), TRUTH), "drop_mask": np.zeros((), TRUTH)}
    yield Call(OP, given | scalars, label="all_masked", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    given: dict[str, Array | None] = {
        "query": np.array([[[[1.0], [0.0]]]], dtype),
        "key": np.array([[[[3.0], [3.0]]]], dtype),
        "value": np.array([[[[1.0, 10.0], [5.0, 30.0]]]], dtype),
    }
    equal = {"softmax_max": [[[3, 0]]], "softmax_sum": [[[2, 2]]], "attention_out": [[[[3, 20], [3, 20]]]]}
    yield Worked(Call(OP, given, label="equal_scores"), equal)
    first = {"softmax_max": [[[3, 0]]], "softmax_sum": [[[1, 2]]], "attention_out": [[[[1, 10], [3, 20]]]]}
    yield Worked(Call(OP, given, {"sparse_mode": 2}, label="causal"), first)
    none = {"softmax_max": [[[3, -INF]]], "softmax_sum": [[[1, 0]]], "attention_out": [[[[5, 30], [0, 0]]]]}
    hidden = np.array([[True, False], [True, True]])
    yield Worked(Call(OP, given | {"atten_mask": hidden}, label="masked"), none)
    kept = {**equal, "attention_out": [[[[5, 30], [1, 10]]]]}
    halves = {"keep_prob": 0.5}
    yield Worked(
        Call(OP, given | {"drop_mask": np.array([[False, True], [True, False]])}, halves, label="dropped"), kept
    )


def large(dtype: DType) -> Iterator[Call]:
    shift = normal(LARGE.scores, dtype, "shift")
    yield Call(OP, operands(LARGE, dtype) | {"real_shift": shift}, {"sparse_mode": 2}, label="several_tasks")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    """The statistics, where they are wanted, are those of an explicit matrix of scores."""
    settings = RECORD.defaults | dict(call.attributes)
    given = {name: with_torch.tensor(torch, array) for name, array in call.given.items()}
    mask, shift, mode = given.get("atten_mask"), given.get("real_shift"), settings["sparse_mode"]
    if "drop_mask" in given or settings["keep_prob"] != 1:
        return None
    q, k, v = (given[name].transpose(1, 2) if settings["input_layout"] else given[name] for name in list(given)[:3])
    scale = settings["scale_value"]
    if shift is not None and settings["pse_type"] == 1:
        shift = shift * scale
    if mode == 3 or (mode and (mask is not None or shift is not None)):
        reach = 0 if mode == 2 else k.shape[2] - q.shape[2]
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + reach)
        mask, mode = later if mask is None else mask | later, 0
    if shift is not None and mask is not None:
        shift, mask = shift.masked_fill(mask, -INF), None
    added = shift if mask is None else ~mask
    options = {"is_causal": mode == 2, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}

    def attend() -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, added, **options)
        return out.transpose(1, 2) if settings["input_layout"] else out

    def with_statistics() -> Any:
        scores = scale * q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3)
        if shift is not None:
            scores = scores + shift
        elif mask is not None:
            scores = scores.masked_fill(mask, -INF)
        elif mode == 2:
            scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -INF)
        most = scores.amax(-1)
        return most, (scores - most.nan_to_num(neginf=0)[..., None]).exp().sum(-1), attend()

    return attend if call.outputs == ("attention_out",) else with_statistics


def benchmark(form: Form, dtype: DType, sparse_mode: int = 0) -> Call:
    attributes = {"scale_value": form.size**-0.5, "sparse_mode": sparse_mode}
    return Call(OP, operands(form, dtype), attributes, ("attention_out",))


def causal_benchmark(form: Form, dtype: DType) -> Call:
    return benchmark(form, dtype, 2)


def judged(dtype: DType) -> Iterator[Call]:
    form = Form(1, 2, 2, 64, 96, 32, 32)
    yield Call(OP, operands(form, dtype) | masks(form), {"scale_value": 0.25, "keep_prob": 0.75})


RECORD = Record(
    OP,
    inputs={
        **{name: Input(variable="T") for name in ("query", "key", "value")},
        "real_shift": Input(variable="T", optional=True),
        "drop_mask": Input((TRUTH,), optional=True),
        "atten_mask": Input((TRUTH,), optional=True),
    },
    outputs={
        **{
            name: Output(at_least_float32("query"), dtypes=(FLOAT32, FLOAT64), optional=True, limits=SUM_LIMITS)
            for name in ("softmax_max", "softmax_sum")
        },
        "attention_out": like("query", limits=SUM_LIMITS, portable_limits=SUM_LIMITS),
    },
    attributes=ATTRIBUTES,
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=lambda plain: shared_refusals(plain, "real_shift"),
    large=large,
    torch=torch_call,
    documented=("aclnnFlashAttentionScoreV2", "keep_prob", "(B, N, Sq, D)", "-inf", "sparse_mode", "NaN"),
    benchmarks=(
        Benchmark(benchmark, LAYERS),
        Benchmark(causal_benchmark, LAYERS, "causal"),
    ),
    accuracies=(accuracy.Accuracy(judged),),
)
