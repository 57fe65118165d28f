"""The 16-bit kernels over all 65536 bit patterns of one operand, against the correctly rounded result.

A result that float64 arithmetic and one rounding would not give may be off by one unit in the last place at most; NaN
and infinities stand exactly where they are expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import backends
import cases
import ml_dtypes
import numpy as np
import pytest
from backends import BFLOAT16, FLOAT16, KERNEL, PORTABLE, Array, Backend

from tests.ops import (
    batch_norm_elemt_backward,
    binary_cross_entropy_with_logits_backward,
    hardshrink_backward,
    kl_div_backward,
)
from tests.ops._shared import arrays, numbers

HALVES = pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=cases.shape_id)
BODIES = pytest.mark.parametrize("backend", [KERNEL, PORTABLE], ids=str)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Signalling NaN among the bit patterns make casts warn, in the oracles too."""
    with np.errstate(all="ignore"):
        yield


def assert_within_one_unit(actual: Array, expected: Array, largest: Array | None = None) -> None:
    """largest: the size of the terms where the result is a difference of theirs."""
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    error = numbers.ulp_error(actual, expected, largest)
    worst = int(error.argmax())
    # 0.5 from the rounding; what float32 arithmetic adds shows only near ties.
    assert error.max() <= 0.51, f"{error.flat[worst]} at {worst}: {actual.flat[worst]}, not {expected.flat[worst]}"
    normal = np.isfinite(expected) & (np.abs(expected) >= float(ml_dtypes.finfo(actual.dtype).smallest_normal))
    if largest is None:
        got, want = (a[normal].view(np.int16).astype(int) for a in (actual, expected.astype(actual.dtype)))
        assert np.abs(got - want).max() <= 1  # in steps of the format, across powers of two as well


@HALVES
@BODIES
@pytest.mark.parametrize("lambd", [0.0, 0.5, 0.123456789, 1e-7, 40000.0])
def test_hardshrink_self(backend: Backend, dtype: np.dtype, lambd: float) -> None:
    x = arrays.all_bits(dtype)
    g = np.ones((), dtype)
    actual = backend("HardshrinkBackward", [g, x], {"lambd": lambd})
    expected = hardshrink_backward.oracle(g, x, lambd).astype(dtype)
    backends.assert_same_bits(actual, expected)


@HALVES
def test_hardshrink_grad_output(dtype: np.dtype) -> None:
    """Every bit of the gradient, but for what kind of NaN a NaN is."""
    g = arrays.all_bits(dtype)
    kept = ~np.isnan(g)
    passed = KERNEL("HardshrinkBackward", [g, np.ones((), dtype)])
    backends.assert_same_bits(passed[kept], g[kept])
    assert np.isnan(passed[~kept]).all()
    backends.assert_same_bits(KERNEL("HardshrinkBackward", [g, np.zeros((), dtype)]), np.zeros_like(g))


@HALVES
@BODIES
@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize(("grad", "reduction"), [(1.0, 0), (-0.7, 0), (0.75, 1), (1e-3, 0)])
def test_kl_div_target(backend: Backend, dtype: np.dtype, grad: float, reduction: int, log_target: int) -> None:
    q = arrays.all_bits(dtype)
    inputs = [np.array(grad, dtype), q, q]
    attributes = {"reduction": reduction, "log_target": log_target}
    actual = backend("KlDivBackward", inputs, attributes)
    expected = kl_div_backward.oracle(*inputs, **attributes)
    if dtype == BFLOAT16 and log_target and backend is PORTABLE:
        # exp beyond float32, which what it is multiplied with would bring back
        fits = ~(q.astype(np.float64) > 88.72)
        actual, expected = actual[fits], expected[fits]
    assert_within_one_unit(actual, expected)


@HALVES
def test_kl_div_grad_output(dtype: np.dtype) -> None:
    g = arrays.all_bits(dtype)
    inputs = [g, g, np.array(0.3, dtype)]
    for log_target in (0, 1):
        attributes = {"reduction": 0, "log_target": log_target}
        expected = kl_div_backward.oracle(*inputs, **attributes)
        assert_within_one_unit(KERNEL("KlDivBackward", inputs, attributes), expected)


BCE = "BinaryCrossEntropyWithLogitsBackward"


def _binary_cross_entropy(inputs: Sequence[Array | None]) -> tuple[Array, Array, Array]:
    attributes = {"reduction": 0}
    expected = binary_cross_entropy_with_logits_backward.split(*inputs, **attributes)
    largest = binary_cross_entropy_with_logits_backward.terms(*inputs, **attributes)
    return KERNEL(BCE, inputs, attributes), expected, largest


@HALVES
@BODIES
@pytest.mark.parametrize("target", [0.0, 1.0, 0.25, 0.9, -0.5, 2.0])
def test_binary_cross_entropy_logits(backend: Backend, dtype: np.dtype, target: float) -> None:
    """The kernel keeps its digits in the tails, so that it is judged by the result where only one term is left."""
    x = arrays.all_bits(dtype)
    inputs = [np.ones((), dtype), x, np.full(x.shape, target, dtype)]
    if backend.portable:
        backends.check(backend, BCE, inputs, {"reduction": 0})
        return
    actual, expected, largest = _binary_cross_entropy(inputs)
    assert_within_one_unit(actual, expected, None if target in (0.0, 1.0) else largest)


@HALVES
def test_binary_cross_entropy_logits_with_weights(dtype: np.dtype) -> None:
    x = arrays.all_bits(dtype)
    y = np.full(x.shape, 1.0, dtype)
    inputs = [np.array(0.3, dtype), x, y, np.array(1.7, dtype), np.array(2.6, dtype)]
    actual, expected, _ = _binary_cross_entropy(inputs)
    assert_within_one_unit(actual, expected)


@HALVES
@pytest.mark.parametrize("logit", [0.0, -2.0, 1.3, 9.0])
def test_binary_cross_entropy_target(dtype: np.dtype, logit: float) -> None:
    y = arrays.all_bits(dtype)
    x = np.full(y.shape, logit, dtype)
    op = "BinaryCrossEntropyWithLogitsBackward"
    inputs = [np.ones((), dtype), x, y]
    actual = KERNEL(op, inputs, {"reduction": 0})
    expected = binary_cross_entropy_with_logits_backward.formula(*inputs, reduction=0)
    largest = binary_cross_entropy_with_logits_backward.terms(*inputs, reduction=0)
    assert_within_one_unit(actual, expected, largest)


@HALVES
@BODIES
@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no_weight"])
@pytest.mark.parametrize("place", [0, 1], ids=["grad_out", "input"])
def test_batch_norm(backend: Backend, dtype: np.dtype, place: int, weighted: bool) -> None:
    """float32 statistics, as beside 16-bit activations; two channels, the bits of one operand along both."""
    bits = arrays.all_bits(dtype).reshape(2, 2, 128, 128)
    other = np.full(bits.shape, 0.3, dtype)
    statistics = [np.float32([0.1, -0.4]), np.float32([0.7, 1.9]), np.float32([1.3, -0.2]) if weighted else None]
    sums = [np.float32([3.1, -2.2]), np.float32([0.9, 5.3]), np.int32([3, 8])]
    inputs = [bits, other] if place == 0 else [other, bits]
    inputs = [*inputs, *statistics, *sums]
    actual = backend("BatchNormElemtBackward", inputs)
    expected = batch_norm_elemt_backward.oracle(*inputs)
    largest = batch_norm_elemt_backward.terms(*inputs)
    sizes = np.abs(bits.astype(np.float64))
    fits = (sizes < 1e37) | ~np.isfinite(sizes)  # beyond, a product of float32 overflows on the way to a bfloat16
    assert_within_one_unit(actual[fits], expected[fits], largest[fits])


@HALVES
@pytest.mark.parametrize("other", [np.float32, np.float64])
def test_rounding_of_wider_numbers(dtype: np.dtype, other: type) -> None:
    """A wider operand leads past every tie of the format: halfway, a hair below and a hair above it."""
    every = arrays.all_bits(dtype)
    finite = every[np.isfinite(every.astype(np.float64)) & (every.astype(np.float64) > 0)].astype(np.float64)
    ties = (np.sort(finite)[1:] + np.sort(finite)[:-1]) / 2
    hair = 2.0 ** (-12 if other == np.float32 and dtype == FLOAT16 else -14 if other == np.float32 else -40)
    q = np.concatenate([ties, ties * (1 + hair), ties * (1 - hair)]).astype(other)
    inputs = [np.array(-1.0, other), np.zeros(q.shape, dtype), q]
    actual = KERNEL("KlDivBackward", inputs, {"reduction": 0})
    wanted = q.astype(np.float64)
    if dtype == FLOAT16:
        backends.assert_same_bits(actual, wanted.astype(np.float16))
    else:
        below = ties.astype(np.float64)
        lower, upper = np.sort(finite)[:-1], np.sort(finite)[1:]
        even = np.where(lower.astype(dtype).view(np.uint16) % 2 == 0, lower, upper)
        nearest = np.concatenate([even, upper, lower])
        exact = np.concatenate([below, below * (1 + hair), below * (1 - hair)]) == wanted  # float32 holds the hair
        np.testing.assert_array_equal(actual.astype(np.float64)[exact], nearest[exact])
        assert exact.mean() > 0.3
