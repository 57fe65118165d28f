"""What attention and its gradient share: the scores, written head by head, shapes, attributes and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ops._shared.arrays import FLOAT32, FLOAT64, normal, rng
from tests.ops._shared.numbers import Array, Reals, attribute, real
from tests.ops._shared.record import Attribute, Call, Choice, DType, Refusal, with_value

BNSD, BSND = 0, 1
ATTRIBUTES = {
    "scale_value": Attribute(1.0, (1.0, 0.25, -0.5)),
    "keep_prob": Attribute(1.0, (1.0, 0.75), (0.0, -0.5, 1.5), ("above 0", "at most 1")),
    "input_layout": Attribute(0, (0, 1), (2, -1), ("0 (BNSD)", "1 (BSND)")),
    "sparse_mode": Attribute(0, (0, 2, 3), (1, 4, -1), ("0 (all keys)", "2 (left-up causal)")),
    "pse_type": Attribute(1, (0, 1), (2,), ("expected one of",)),
}


@dataclass(frozen=True)
class Form:
    """Samples, heads of queries and of keys, queries, keys, numbers per head of keys and of values.

    masked: the axes along which the shift and the masks are not broadcast.
    """

    samples: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    masked: tuple[int, ...] = (0, 1, 2, 3)

    @property
    def scores(self) -> tuple[int, ...]:
        whole = (self.samples, self.heads, self.queries, self.keys)
        return tuple(whole[axis] if axis in self.masked else 1 for axis in range(4))


FORMS = {
    "grouped": Form(2, 4, 2, 5, 7, 3, 4),
    "tiles": Form(1, 2, 2, 70, 300, 9, 40, (2, 3)),
    "more_queries": Form(2, 1, 1, 9, 4, 33, 2, (0, 3)),
    "one_query": Form(1, 3, 1, 1, 20, 16, 16, (1, 2)),
    "no_samples": Form(0, 2, 1, 3, 2, 2, 2),
    "no_queries": Form(1, 2, 2, 0, 3, 2, 2),
    "no_values": Form(1, 2, 2, 2, 3, 2, 0),
}
FEW = FORMS["grouped"]
LAYERS = {
    "8x8x128x32": Form(8, 8, 8, 128, 128, 32, 32),
    "4x12x128x64": Form(4, 12, 12, 128, 128, 64, 64),
    "4x12x512x64": Form(4, 12, 12, 512, 512, 64, 64),
    "1x12x2048x64": Form(1, 12, 12, 2048, 2048, 64, 64),
}
"""Samples, heads, queries and keys, numbers per head."""
LARGE = Form(1, 2, 1, 600, 280, 8, 8, (2,))
"""Several tasks of each head, and several tiles."""


def exchanged(array: Array, input_layout: int) -> Array:
    return array.transpose(0, 2, 1, 3) if input_layout == BSND else array


def operands(form: Form, dtype: DType, input_layout: int = BNSD) -> dict[str, Array | None]:
    """Queries, keys and values."""
    shapes = {
        "query": (form.samples, form.heads, form.queries, form.size),
        "key": (form.samples, form.key_heads, form.keys, form.size),
        "value": (form.samples, form.key_heads, form.keys, form.value_size),
    }
    return {n: np.ascontiguousarray(exchanged(normal(s, dtype, n), input_layout)) for n, s in shapes.items()}


def masks(form: Form) -> dict[str, Array]:
    """The two masks: a quarter of the weights dropped, a third of the scores masked, and a query that sees no key."""
    hidden = rng("hidden", form.scores).random(form.scores) < 1 / 3
    hidden[..., -1:, :] |= form.queries > 1
    return {"drop_mask": rng("kept", form.scores).random(form.scores) < 3 / 4, "atten_mask": hidden}


def chosen(choice: Choice, shift: str) -> dict[str, Array | None]:
    """The inputs of a choice but for those of the gradient alone; `shift` is the name of one."""
    form, dtype = choice.form, choice.dtype("query")
    given = operands(form, dtype, choice.attributes.get("input_layout", BNSD))
    optional = {shift: normal(form.scores, dtype, "shift"), **masks(form)}
    return given | {name: array for name, array in optional.items() if choice.dtypes[name] is not None}


HIDING = Form(1, 2, 1, 70, 300, 3, 4, (2, 3))


def hiding() -> Iterator[tuple[str, dict[str, Array | None], Array | None, dict[str, Any]]]:
    """Attention in which no query of a tile sees the last keys: by a mask, by shifts of -infinity, by both.

    Yields:
        A label, the inputs but the shift, which may have numbers that are not finite where they are hidden, the shift,
        and attributes.
    """
    later = np.arange(HIDING.keys) > 3 * np.arange(HIDING.queries)[:, None] + 20
    far = np.arange(HIDING.keys) > 3 * np.arange(HIDING.queries)[:, None] + 40
    beyond = np.broadcast_to(np.arange(HIDING.keys) > 30, (1, HIDING.keys))
    low = np.where(later, -np.inf, normal(later.shape, FLOAT32, "shift")).astype(FLOAT32)
    given = operands(HIDING, FLOAT32)
    last = {"key": (0, 0, 299, 1), "value": (0, 0, 290, 0), "query": (0, 1, 5, 2)}
    plain: tuple[tuple[str, Array | None, Array | None, dict[str, Any]], ...] = (
        ("mask", later, None, {}),
        ("mask_of_all_queries", beyond, None, {"sparse_mode": 3}),
        ("shift", None, low, {"pse_type": 0}),
        ("shift_before_scale", None, low, {"scale_value": 0.5}),
        ("mask_and_shift", far, low, {}),
    )
    for label, mask, shift, attributes in plain:
        yield f"hidden_by_{label}", given | {"atten_mask": mask}, shift, attributes
    for label, mask, shift, attributes in (plain[0], plain[2]):
        for name, place in last.items():
            for value in (np.nan, np.inf) if name == "query" else (np.nan, np.inf, 1e30):
                special = with_value(given, name, place, value) | {"atten_mask": mask}
                yield f"{value}_in_{name}_hidden_by_{label}", special, shift, attributes
    unknown = np.where(np.arange(HIDING.keys) == 250, np.nan, low).astype(FLOAT32)
    yield "nan_in_hiding_shift", given, unknown, {}


@dataclass(frozen=True)
class Scores:
    """The scores (B, N, Sq, Sk) of a call, and the keys and values of each head of the queries (B, N, Sk, ...).

    Attributes:
        scores: -infinity where `hidden`.
        sizes: the sum of the absolute values of the terms of each score.
    """

    query: Array
    key: Array
    value: Array
    scores: Array
    hidden: Array
    sizes: Array
    most: Array
    terms: Array


@np.errstate(all="ignore")
def scores_of(
    query: Any, key: Any, value: Any, shift: Any, mask: Any, dtype: Reals, settings: Mapping[str, Any]
) -> Scores:
    """The scores, key by key; infinite beyond the range of the computing dtype."""
    layout, mode = settings["input_layout"], settings["sparse_mode"]
    q, k, v = (exchanged(real(array, dtype), layout) for array in (query, key, value))
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (np.stack([array[:, n // group] for n in range(q.shape[1])], 1) for array in (k, v))
    scale = attribute(settings["scale_value"], dtype)
    shape = (*q.shape[:3], k.shape[2])
    scores, sizes = np.empty(shape, dtype), np.empty(shape, dtype)
    added = np.broadcast_to(dtype(0) if shift is None else real(shift, dtype), shape)
    hidden = np.zeros(shape, bool) if mask is None else np.broadcast_to(mask, shape).copy()
    if mode in (2, 3):  # causal, for the first or the last queries
        hidden |= ~np.tri(*shape[2:], k=0 if mode == 2 else shape[3] - shape[2], dtype=bool)
    for j in range(shape[3]):
        products = q * k[:, :, j, None, :]
        dots = products.sum(-1)
        own = added[..., j]
        scores[..., j] = (dots + own) * scale if settings["pse_type"] == 1 else dots * scale + own
        sizes[..., j] = abs(scale) * np.abs(products).sum(-1) + np.abs(own)
    widest = np.finfo(FLOAT64 if np.asarray(query).dtype == FLOAT64 else FLOAT32).max
    scores[np.abs(scores) > widest] *= np.inf
    scores[hidden], sizes[hidden] = -np.inf, 0
    most = scores.max(-1, initial=-np.inf)
    terms = np.exp(scores - np.where(np.isneginf(most), 0, most)[..., None])
    return Scores(q, k, v, scores, hidden, sizes, most, terms)


def rounding(call: Call) -> float:
    """The relative error of one operation in the computing dtype."""
    return 2.0**-53 if call.dtype("query") == FLOAT64 else 2.0**-24


def score_error(call: Call, found: Scores) -> Array:
    """How much the scores of each query may be off, (B, N, Sq)."""
    size = found.query.shape[3]
    finite = np.where(np.isfinite(found.sizes), found.sizes, 0)
    return np.asarray((size + 4) * rounding(call) * finite.max(-1, initial=0), np.float64)


def refusals(call: Call, shift: str, key_name: str = "key") -> Iterator[Refusal]:
    """The call has the form FEW, in which all axes differ but for samples and heads of keys."""
    query, key, value = (call.given[name] for name in ("query", key_name, "value"))
    yield Refusal("rank_of_query", ("'query'", "(4, 5, 3)", "4 dimensions"), {"query": query[0]}, by_rank=True)
    yield Refusal("rank_of_value", ("'value'", "(2, 7, 4)", "4 dimensions"), {"value": value[0]}, by_rank=True)
    yield Refusal("samples", (f"'{key_name}'", "(1, 2, 7, 3)", "2 at axis 0"), {key_name: key[:1]})
    yield Refusal("samples_of_value", ("'value'", "(1, 2, 7, 4)", "2 at axis 0"), {"value": value[:1]})
    yield Refusal("size", (f"'{key_name}'", "(2, 2, 7, 2)", "3 at axis 3"), {key_name: key[..., :2]})
    yield Refusal("keys", ("'value'", "(2, 2, 6, 4)", "7 at axis 2"), {"value": value[:, :, :6]})
    yield Refusal("heads_of_value", ("'value'", "(2, 1, 7, 4)", "2 at axis 1"), {"value": value[:, :1]})
    three = {key_name: key[:, [0, 1, 0]], "value": value[:, [0, 1, 0]]}
    yield Refusal("heads", (f"'{key_name}'", "(2, 3, 7, 3)", "a divisor of the 4 heads"), three)
    yield Refusal("no_keys", (f"'{key_name}'", "at least one key"), {key_name: key[:, :, :0], "value": value[:, :, :0]})
    for name, dtype in ((shift, FLOAT32), ("drop_mask", np.bool_), ("atten_mask", np.bool_)):
        for label, shape in (("keys", (6,)), ("samples", (3, 1, 1, 1)), ("rank", (1, 2, 4, 5, 7))):
            words = (f"'{name}'", str(shape), "(2, 4, 5, 7)")
            yield Refusal(f"{name}_{label}", words, {name: np.zeros(shape, dtype)}, by_rank=label == "rank")
