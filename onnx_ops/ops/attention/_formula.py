"""Scores of attention in NumPy, and in standard operators for function bodies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnx_ops.bodies.body import Body
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.ops.attention._rules import ALL_KEYS, BNSD, BSND, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, SCALED_AFTER

# --- NumPy -----------------------------------------------------------------------------------------------------------


def exchanged(array: np.ndarray, input_layout: int) -> np.ndarray:
    """(B, S, N, D) of (B, N, S, D), or the other way round, where `input_layout` is BSND."""
    return array.swapaxes(1, 2) if input_layout == BSND else array


def spread_heads(array: np.ndarray, heads: int) -> np.ndarray:
    """Keys or values (B, M, S, D), repeated for each head of the queries."""
    return array.repeat(heads // max(array.shape[1], 1), axis=1)


def scores_of(
    query: np.ndarray,
    key: np.ndarray,
    shift: np.ndarray | None,
    mask: np.ndarray | None,
    *,
    widest: float = np.inf,
    scale_value: float = 1.0,
    sparse_mode: int = ALL_KEYS,
    pse_type: int = SCALED_AFTER,
) -> tuple[np.ndarray, np.ndarray]:
    """The scores of float64 queries (B, N, Sq, D) and keys (B, M, Sk, D), and whether each is hidden.

    Scores beyond `widest`, the largest number of the dtype in which the kernel computes, are infinite.
    """
    scale, queries, keys = np.float64(np.float32(scale_value)), query.shape[2], key.shape[2]
    with np.errstate(all="ignore"):
        dots = query @ spread_heads(key, query.shape[1]).swapaxes(2, 3)
        added = np.zeros(()) if shift is None else shift.astype(np.float64)
        scores = (dots + added) * scale if pse_type == SCALED_AFTER else dots * scale + added
        scores = np.where(np.abs(scores) > widest, scores * np.inf, scores)
    reach = 0 if sparse_mode == LEFT_UP_CAUSAL else keys - queries if sparse_mode == RIGHT_DOWN_CAUSAL else keys
    hidden = np.broadcast_to(np.arange(keys) > np.arange(queries)[:, None] + reach, scores.shape)
    if mask is not None:
        hidden = hidden | mask
    return np.where(hidden, -np.inf, scores), hidden


# --- function bodies -------------------------------------------------------------------------------------------------


def with_heads_first(b: Body, value: Value) -> Value:
    """(B, N, S, D) of (B, S, N, D), or the other way round, where `input_layout` is BSND."""
    layout = b.attribute("input_layout")
    if layout == BNSD:
        return value

    def transposed() -> Value:
        return b.op("Transpose", value, name=f"{value.hint}_exchanged", perm=[0, 2, 1, 3])

    if layout == BSND:
        return transposed()
    is_last = b.value_of("input_layout").equal(BSND).named("heads_last")
    return b.choose(is_last, transposed, lambda: value, TensorType(b.compute), name=f"{value.hint}_heads_first")


@dataclass(frozen=True)
class Products:
    """Products of matrices with grouped queries: matrices (B, N, Sq, ...) as (B, M, N/M * Sq, ...).

    Attributes:
        together: shape (B, M, N/M * Sq) without the last axis, 1-D.
        apart: shape (B, N, Sq) without the last axis, 1-D.
    """

    b: Body
    together: Value
    apart: Value

    @classmethod
    def of(cls, b: Body, query: Value, key: Value) -> Products:
        """Of queries (B, N, Sq, D) and keys (B, M, Sk, D)."""
        apart = b.op("Shape", query, name="rows", start=0, end=3)
        samples = b.op("Shape", query, name="samples", start=0, end=1)
        heads = b.op("Shape", query, name="heads", start=1, end=2)
        queries = b.op("Shape", query, name="queries", start=2, end=3)
        groups = b.op("Shape", key, name="groups", start=1, end=2)
        places = (heads / b.op("Max", groups, [1], name="divisor") * queries).named("places_of_group")
        return cls(b, b.op("Concat", samples, groups, places, name="grouped_rows", axis=0), apart)

    def _shaped(self, value: Value, rows: Value, name: str) -> Value:
        columns = self.b.op("Shape", value, name="columns", start=3, end=4)
        return self.b.op("Reshape", value, self.b.op("Concat", rows, columns, axis=0), name=name, allowzero=1)

    def grouped(self, value: Value) -> Value:
        """(B, M, N/M * Sq, C) of (B, N, Sq, C)."""
        return self._shaped(value, self.together, f"{value.hint}_grouped")

    def with_keys(self, rows: Value, keys: Value, name: str) -> Value:
        """(B, N, Sq, Sk) of rows (B, N, Sq, C) and keys or values (B, M, Sk, C)."""
        columns = self.b.op("Transpose", keys, name=f"{keys.hint}_transposed", perm=[0, 1, 3, 2])
        return self._shaped(self.b.op("MatMul", self.grouped(rows), columns), self.apart, name)

    def weighted(self, weights: Value, rows: Value, name: str) -> Value:
        """(B, N, Sq, C) of weights (B, N, Sq, Sk) and keys or values (B, M, Sk, C)."""
        return self._shaped(self.b.op("MatMul", self.grouped(weights), rows), self.apart, name)

    def by_key(self, weights: Value, rows: Value, name: str) -> Value:
        """(B, M, Sk, C) of weights (B, N, Sq, Sk) and rows (B, N, Sq, C), summed over the queries."""
        turned = self.b.op("Transpose", self.grouped(weights), name="turned", perm=[0, 1, 3, 2])
        return self.b.op("MatMul", turned, self.grouped(rows), name=name)


def written_scores(b: Body, products: Products, query: Value, key: Value, shift: str) -> tuple[Value, Value | None]:
    """The scores (B, N, Sq, Sk), and whether each is hidden, None if none is. `shift` is the name of an input."""
    dots, scale = products.with_keys(query, key, "dots"), b.value_of("scale_value")
    kind = b.attribute("pse_type")
    if not b.has(shift):
        scores = dots * scale
    elif kind == SCALED_AFTER:
        scores = (dots + b.load(shift)) * scale
    else:
        added = b.load(shift)
        if kind is None:
            added *= b.op("Where", b.value_of("pse_type").equal(SCALED_AFTER), scale, 1.0, name="scale_of_shift")
        scores = dots * scale + added
    hidden = b.inputs["atten_mask"] if b.has("atten_mask") else None
    mode = b.attribute("sparse_mode")
    if mode != ALL_KEYS:
        queries, keys = (
            b.op("Squeeze", b.op("Shape", scores, start=axis, end=axis + 1), name=name)
            for axis, name in ((2, "query_count"), (3, "key_count"))
        )
        own = b.value_of("sparse_mode")
        apart = b.op("Where", own.equal(RIGHT_DOWN_CAUSAL), keys - queries, keys, name="reach_of_others")
        reach = b.op("Where", own.equal(LEFT_UP_CAUSAL), 0, apart, name="reach")
        rows = b.op("Unsqueeze", b.op("Range", 0, queries, 1), [1], name="query_places")
        later = b.op("Range", 0, keys, 1, name="key_places").greater((rows + reach).named("last_seen")).named("later")
        hidden = later if hidden is None else hidden | later
    if hidden is not None:
        scores = b.op("Where", hidden, -np.inf, scores, name="masked")
    return scores.named("scores"), hidden
