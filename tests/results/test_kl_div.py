"""KlDiv: sums over data for which shortcuts of the kernel could go wrong, against exact sums."""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from backends import BFLOAT16, FLOAT16, FLOAT32, KERNEL, Array

from tests.ops import kl_div
from tests.ops._shared import arrays, numbers

MEAN = 1
ELEMENTS = 5000
"""More than are looked at together, and no multiple of that."""
PLACES = 0.9
"""Units in the last place: 0.5 from the rounding of the result, and what arithmetic in float32 adds to it."""
by_dtype = pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=lambda dtype: dtype.name)
by_log_target = pytest.mark.parametrize("log_target", [0, 1])


def loss(own: Array, target: Array, log_target: int) -> Array:
    return KERNEL("KlDiv", [own, target], {"reduction": MEAN, "log_target": log_target})


def assert_exact(own: Array, target: Array, log_target: int) -> None:
    expected = kl_div.oracle(own, target, MEAN, log_target, dtype=np.longdouble)
    error = numbers.ulp_error(loss(own, target, log_target), expected)
    assert error <= PLACES, f"off by {error} units: {expected}"


def in_dtype(values: object, dtype: np.dtype) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype)


def constants(dtype: np.dtype, log_target: int) -> Iterator[tuple[Array, Array]]:
    """Pairs of one number each. What is wrong with one term is wrong with all, and does not average out."""
    random = np.random.default_rng(5)
    targets = [1.0, 1 / 3, 1 / 10, 1 / 1000, 0.5 + 2**-9, 1 - 2**-8, 1.99, *random.uniform(0.01, 1, 8)]
    for probability, distance in zip(targets * 4, np.geomspace(1e-6, 16, 60), strict=True):
        target = in_dtype(math.log(probability) if log_target else probability, dtype)
        logarithm = float(target) if log_target else math.log(float(target))
        yield in_dtype(logarithm + distance, dtype), target
        yield in_dtype(logarithm - distance, dtype), target


@by_log_target
@by_dtype
def test_constant_targets(dtype: np.dtype, log_target: int) -> None:
    for own, target in constants(dtype, log_target):
        assert_exact(np.full(ELEMENTS, own), np.full(ELEMENTS, target), log_target)


def distributions(distance: float, dtype: np.dtype, log_target: int) -> tuple[Array, Array]:
    """Rows that are probabilities, the logarithms of two of them so far apart."""
    logits = arrays.normal((50, 100), np.float64, "logits")
    moved = logits + distance * arrays.normal((50, 100), np.float64, "moved")
    own, target = (a - np.log(np.exp(a).sum(1, keepdims=True)) for a in (moved, logits))
    return in_dtype(own, dtype), in_dtype(target if log_target else np.exp(target), dtype)


@pytest.mark.parametrize("distance", [3.0, 1.0, 0.3, 0.1, 0.01, 1e-3])
@by_log_target
@by_dtype
def test_distributions(dtype: np.dtype, log_target: int, distance: float) -> None:
    """Close ones too, whose terms all but cancel."""
    assert_exact(*distributions(distance, dtype, log_target), log_target)


@pytest.mark.parametrize("left", [1e-4, 3e-3, 0.04, 0.08, 0.3])
@by_log_target
@by_dtype
def test_terms_that_cancel_each_other(dtype: np.dtype, log_target: int, left: float) -> None:
    """Two terms, of which one takes all but a part of the other away, over and over again."""
    random = np.random.default_rng(6)
    for _ in range(15):
        weights, size = random.uniform(0.1, 1, 2), random.choice([0.1, 1, 10])
        target = in_dtype(np.log(weights) if log_target else weights, dtype)
        exact = numbers.real(target)
        logarithms, weights = (exact, np.exp(exact)) if log_target else (np.log(exact), exact)
        own = in_dtype(logarithms + size * np.array([1.0, (left - 1) * weights[0] / weights[1]]), dtype)
        assert_exact(np.tile(own, ELEMENTS // 2), np.tile(target, ELEMENTS // 2), log_target)


@pytest.mark.parametrize("scale", [0, -100, -126, -130])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=lambda dtype: dtype.name)
def test_small_targets(dtype: np.dtype, scale: int) -> None:
    """Subnormal ones too, and targets of 0 and one-hot among them."""
    target = in_dtype(np.ldexp(arrays.uniform((ELEMENTS,), np.float64, "target"), scale), dtype)
    own = arrays.normal((ELEMENTS,), dtype, "self")
    assert_exact(own, target, 0)
    target[1::2] = 0
    assert_exact(own, target, 0)
    target[:] = 0
    target[::100] = in_dtype(math.ldexp(1, scale), dtype)
    assert_exact(own, target, 0)


@by_log_target
@by_dtype
def test_a_single_extreme_number(dtype: np.dtype, log_target: int) -> None:
    """At some place of many, next to numbers that need no care."""
    largest = float(ml_dtypes.finfo(dtype).max)
    extremes = [math.inf, -math.inf, math.nan, -0.0, -1.0, 0.0, largest, -largest, 88.0, -88.0, 104.0]
    for place, extreme in enumerate(extremes):
        own, target = distributions(1.0, dtype, log_target)
        for operand in (own, target):
            changed = operand.copy()
            changed.flat[1700 + place] = extreme
            pair = (changed, target) if operand is own else (own, changed)
            assert_close(loss(*pair, log_target), kl_div.oracle(*pair, MEAN, log_target, dtype=np.longdouble))


def assert_close(actual: Array, expected: Array) -> None:
    """Equal where it is infinite or NaN, or out of range."""
    if np.isfinite(in_dtype(expected, actual.dtype)):
        assert numbers.ulp_error(actual, expected) <= PLACES
    else:
        np.testing.assert_array_equal(numbers.real(actual), numbers.real(in_dtype(expected, actual.dtype)))
