"""BinaryCrossEntropyWithLogits: how exact its sums are."""

from __future__ import annotations

import itertools
import math

import cases
import numpy as np
import pytest
from backends import BFLOAT16, FLOAT16, FLOAT32, KERNEL, Array

from tests.ops._shared.numbers import ulp_error

OP = "BinaryCrossEntropyWithLogits"
MEAN = 1
NARROW = [FLOAT32, FLOAT16, BFLOAT16]
COUNTS = [1, 5, 191, 192, 193, 961, 1024, 1025, 2600]
# A sum in float64 is rounded once, which is half a unit. What comes before that may be off by less than another half.
LIMIT = 0.9


def exact(x: Array, y: Array, p: Array | float = 1.0) -> float:
    """The sum of the terms, of finite numbers: each of them in float64, added up without rounding."""
    logit, label, factor = (np.asarray(v, np.float64) for v in (x, y, p))
    curved, size = np.log1p(np.exp(-np.abs(logit))), np.abs(logit)
    negative, positive = 1 - label, factor * label
    far, near = np.where(logit < 0, positive, negative), np.where(logit < 0, negative, positive)
    return math.fsum(((near + far) * curved + far * size).ravel())


def error(x: Array, y: Array, p: Array | None = None) -> float:
    """Of the mean, in units in the last place."""
    inputs = [x, y] if p is None else [x, y, None, p]
    actual = KERNEL(OP, inputs, {"reduction": MEAN})
    expected = np.array(exact(x, y, 1.0 if p is None else p) / x.size)
    return float(ulp_error(actual, expected))


@pytest.mark.parametrize("dtype", NARROW, ids=cases.shape_id)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "pos_weight"])
@pytest.mark.parametrize("label", [0.0, 1.0, 0.3, 0.9375, 1e-3])
def test_errors_that_are_all_alike(dtype: np.dtype, weighted: bool, label: float) -> None:
    """Of elements that are all the same, whose rounding errors do not average out."""
    sizes = np.concatenate([np.geomspace(1e-3, 85, 36), np.log(2) * np.array([0.4999, 0.5001, 7.499, 7.501])])
    p = np.array([1.7], dtype) if weighted else None
    worst = 0.0
    for (number, size), sign in itertools.product(enumerate(sizes), (-1, 1)):
        count = COUNTS[number % len(COUNTS)]
        x, y = np.full(count, sign * size).astype(dtype), np.full(count, label).astype(dtype)
        worst = max(worst, error(x, y, p))
    assert worst < LIMIT


@pytest.mark.parametrize("dtype", NARROW, ids=cases.shape_id)
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0, 20.0, 60.0])
def test_random_logits(dtype: np.dtype, scale: float) -> None:
    """With labels that are hard, soft, and right by far: in the last case the loss is small."""
    random = np.random.default_rng(7)
    for count in COUNTS:
        x = (scale * random.normal(size=count)).astype(dtype)
        soft, hard = random.random(count).astype(dtype), random.integers(0, 2, count).astype(dtype)
        for y in (soft, hard, (x > 0).astype(dtype)):
            assert error(x, y) < LIMIT
            assert error(x, y, np.array([1.7], dtype)) < LIMIT


@pytest.mark.parametrize("dtype", NARROW, ids=cases.shape_id)
@pytest.mark.parametrize("count", [7, 1500])
@pytest.mark.parametrize(
    ("logit", "label", "expected"),
    [
        (86.99, 0.0, None), (87.01, 0.0, None), (-500.0, 1.0, None), (707.0, 0.25, None), (-709.0, 0.5, None),
        (1e5, 1.0, 0.0), (-1e5, 0.0, 0.0), (1e4, 0.0, 1e4), (3.0, 2.0, None), (-3.0, -1.0, None),
        (math.inf, 1.0, 0.0), (-math.inf, 0.0, 0.0), (math.inf, 0.0, math.inf), (math.inf, 0.5, math.inf),
        (math.nan, 1.0, math.nan), (1.0, math.nan, math.nan), (-1.0, math.inf, math.nan), (1.0, -math.inf, math.nan),
    ],
)  # fmt: skip
def test_one_extreme_element(dtype: np.dtype, count: int, logit: float, label: float, expected: float | None) -> None:
    """Among others whose loss is moderate; its own is worked out by hand, or a formula good to float64."""
    x, y = np.full(count, 0.5).astype(dtype), np.full(count, 0.25).astype(dtype)
    usual = exact(x[1:], y[1:])
    with np.errstate(over="ignore"):
        x[count // 2], y[count // 2] = logit, label
    if expected is None:
        at = slice(count // 2, count // 2 + 1)
        expected = exact(x[at], y[at])
    elif expected == logit:
        expected = float(x[count // 2])
    actual = KERNEL(OP, [x, y], {"reduction": MEAN})
    assert float(ulp_error(actual, np.array((usual + expected) / count))) < LIMIT
