"""What the losses, and the gradients of losses, share: reductions, broadcasting, softplus and sigmoid."""

from __future__ import annotations

import math

import numpy as np

from tests.ops._shared.numbers import Array, exact_sum
from tests.ops._shared.record import Attribute, Call, DType

NONE, MEAN, SUM, BATCHMEAN = range(4)
NAMES = ("none", "mean", "sum", "batchmean")
REDUCTION = Attribute(MEAN, (0, 1, 2), (-1, 3), ("0 (none)", "1 (mean)", "2 (sum)"))
REDUCTION_WITH_BATCHMEAN = Attribute(
    MEAN, (0, 1, 2, 3), (-1, 4, 2**40), ("0 (none)", "1 (mean)", "2 (sum)", "3 (batchmean)")
)
LOG_TARGET = Attribute(0, (0, 1), (-1, 2))


def divisor(reduction: int, shape: tuple[int, ...]) -> int:
    """What the sum over `shape` is divided by; batchmean of a rank-0 shape divides by 1."""
    if reduction not in (NONE, MEAN, SUM, BATCHMEAN):
        raise ValueError(f"reduction is {reduction}, expected 0, 1, 2 or 3")
    if reduction == MEAN:
        return math.prod(shape)
    return shape[0] if reduction == BATCHMEAN and shape else 1


def reduced(loss: Array, reduction: int) -> Array:
    """The terms as they are, or their mean, sum, or sum by the first extent; a mean of nothing is NaN."""
    count = divisor(reduction, loss.shape)
    if reduction == NONE:
        return loss
    with np.errstate(all="ignore"):
        return np.asarray(exact_sum(loss, tuple(range(loss.ndim))) / loss.dtype.type(count))


def broadcast_axes(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of `result` along which an array of `shape` is repeated."""
    padded = (1,) * (len(result) - len(shape)) + shape
    return tuple(i for i, (a, b) in enumerate(zip(padded, result, strict=True)) if a == 1 and b != 1)


def summed_to(terms: Array, shape: tuple[int, ...]) -> Array:
    """terms over S summed over the axes along which an array of `shape` was broadcast."""
    axes = broadcast_axes(shape, terms.shape)
    return (exact_sum(terms, axes) if axes else terms).reshape(shape)


def largest_to(terms: Array, shape: tuple[int, ...]) -> Array:
    """The largest |term| of each sum of `summed_to`, 0 for an empty sum."""
    return np.asarray(np.abs(terms).max(axis=broadcast_axes(shape, terms.shape), initial=0.0)).reshape(shape)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without the overflow of exp that would flush sigmoid(-720) to 0."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), which neither overflows nor loses the digits of a small result."""
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def of_sums(sizes: Array, reduction: int) -> float:
    """What float64 sums of terms of these sizes may be off by before they are rounded, each term by a few units."""
    with np.errstate(all="ignore"):
        size = float(np.abs(sizes).sum() / max(divisor(reduction, sizes.shape), 1))
    return 1e-13 * size if math.isfinite(size) else 0.0


def limit_of(call: Call, output: str, dtype: DType) -> float | None:
    """Sums and means are rounded once: within 1 unit of the exact ones. None where there is no sum."""
    return None if call.attributes.get("reduction", MEAN) == NONE else 1.0
