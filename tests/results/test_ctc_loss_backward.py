"""CtcLossBackward: what it computes, on every backend that has it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import backends
import cases
import numpy as np
import numpy.typing as npt
import pytest
from backends import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, KERNEL, Array, Backend, check
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import ctc_loss_backward
from tests.ops._shared import arrays, ctc, numbers

OP = "CtcLossBackward"
# 1e-12 of the larger term, in units in the last place.
SUM_ULPS = 1e-12 * 2**52
INF, NAN = math.inf, math.nan
# (grad_out, log_probs and out; neg_log_likelihood; log_alpha): the same, or wider
WIDENINGS = [
    (own, loss, alpha)
    for own, *wider in ((FLOAT16, FLOAT32, FLOAT64), (BFLOAT16, FLOAT32, FLOAT64), (FLOAT32, FLOAT64), (FLOAT64,))
    for loss, alpha in itertools.product([own, *wider], repeat=2)
]


def make(
    samples: Sequence[Sequence[int]],
    input_lengths: Sequence[int],
    classes: int = 4,
    *,
    steps: int | None = None,
    blank: int = 0,
    dtype: npt.DTypeLike = np.float64,
    wide: npt.DTypeLike = None,
    flat: bool = False,
    log_probs: Array | None = None,
    grad: Array | None = None,
) -> list[Array]:
    """All inputs, the forward op's results worked out from log_probs as `dtype` holds them.

    wide: the dtype of neg_log_likelihood and log_alpha; the same as `dtype` unless told.
    """
    inputs = ctc.forward_inputs(
        samples, input_lengths, classes, steps=steps, dtype=dtype, flat=flat, log_probs=log_probs
    ).values()
    loss, log_alpha = ctc.forward(*inputs, blank)
    kind = np.dtype(wide or dtype)
    if grad is None:
        grad = arrays.uniform((len(samples),), np.float64, "grad", low=-1.0, high=2.0)
    with np.errstate(over="ignore"):
        return [grad.astype(dtype), *inputs, loss.astype(kind), log_alpha.astype(kind)]


# --- closed forms, hand-made numbers, brute force ------------------------------------------------------------------


@backends.on_every_backend
@pytest.mark.parametrize("through_log_softmax", [0, 1])
@pytest.mark.parametrize("label", [1, 2])
@pytest.mark.parametrize(("steps", "length"), [(1, 0), (5, 0), (5, 1), (5, 2), (7, 4)], ids=lambda value: str(value))
def test_uniform_closed_form(backend: Backend, steps: int, length: int, label: int, through_log_softmax: int) -> None:
    """Equal probabilities 1/C: posteriors are counts of alignments, the same for all permutations of classes."""
    classes = 3
    target = [1 + (label + k) % 2 for k in range(length)]
    rows = np.full((steps, 1, classes), -math.log(classes))
    inputs = make([target], [steps], classes, log_probs=rows, grad=np.ones(1))
    counts = np.zeros((steps, classes))
    for path in ctc.alignments(np.array(target, np.int64), steps, classes):
        counts[np.arange(steps), path] += 1
    expected = through_log_softmax / classes - counts / counts[0].sum()
    actual = backend(OP, inputs, {"through_log_softmax": through_log_softmax})
    np.testing.assert_allclose(actual[:, 0], expected, rtol=1e-13, atol=1e-14)


@backends.on_every_backend
@pytest.mark.parametrize("sample", [[1], [2, 1], [1, 2, 3, 1], [1, 2, 1, 2, 1, 2], [1, 0, 1], [1, 0, 0, 1, 0, 1]])
def test_single_path(backend: Backend, sample: list[int]) -> None:
    """Exactly one alignment: as many steps as labels, or with the blanks between repeats made part of the time."""
    target = [label for label in sample if label != 0]
    steps = len(target) + sum(a == b for a, b in itertools.pairwise(target))
    inputs = make([target], [steps])
    path = []
    for before, label in zip([None, *target[:-1]], target, strict=True):
        path += [0, label] if before == label else [label]
    expected = np.exp(inputs[1][:, 0]) - np.eye(4)[path]
    np.testing.assert_allclose(backend(OP, inputs)[:, 0], inputs[0][0] * expected, rtol=1e-12, atol=1e-13)


@backends.on_every_backend
@pytest.mark.parametrize("flat", [False, True], ids=["padded", "concatenated"])
@pytest.mark.parametrize("through_log_softmax", [0, 1])
@pytest.mark.parametrize("zero_infinity", [0, 1])
@pytest.mark.parametrize(
    ("samples", "input_lengths", "blank"),
    [
        ([[1, 2], [2], [], [1, 1]], [5, 4, 3, 5], 0),
        ([[1, 2], [2, 2], [2], []], [5, 3, 0, 0], 0),
        ([[0, 2], [2], [0, 0, 2]], [4, 5, 5], 1),
        ([[0, 1], [1, 1], [1, 0, 1]], [4, 5, 3], 2),
        ([[1, 1, 1], [1, 1], [2, 1, 2, 1]], [5, 2, 3], 0),  # the last two are too short
    ],
    ids=["mixed", "no_time", "blank_1", "blank_2", "impossible"],
)
def test_against_all_alignments(
    backend: Backend,
    samples: list[list[int]],
    input_lengths: list[int],
    blank: int,
    zero_infinity: int,
    through_log_softmax: int,
    flat: bool,
) -> None:
    inputs = make(samples, input_lengths, 3, steps=5, blank=blank, flat=flat)
    settings = {"blank": blank, "zero_infinity": zero_infinity, "through_log_softmax": through_log_softmax}
    actual = backend(OP, inputs, settings)
    expected = ctc.brute_force_gradient(*inputs[:5], **settings)
    if not zero_infinity:  # NaN at every class of the sample, as in the formula
        impossible = np.isinf(inputs[5])
        inside = np.arange(5)[:, None] < inputs[3]
        expected[inside & impossible] = NAN
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)
    check(backend, OP, inputs, settings)


# --- dtypes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_lengths_up_to_the_end_of_their_dtype(dtype: type) -> None:
    longest = int(np.iinfo(dtype).max)
    inputs = make([[1] * 40, [2]], [longest, 100], dtype=np.float64)
    inputs[3], inputs[4] = inputs[3].astype(dtype), inputs[4].astype(dtype)
    check(KERNEL, OP, inputs)


# --- shapes --------------------------------------------------------------------------------------------------------


@backends.on_every_backend
@pytest.mark.parametrize("extra", [1, 2, 9])
def test_more_states_than_needed(backend: Backend, extra: int) -> None:
    """log_alpha past 2 * target_length + 1 is not looked at."""
    inputs = make([[1, 2], [3]], [6, 5])
    expected = backend(OP, inputs)
    rest = np.full((2, 6, extra), NAN)
    backends.assert_same_bits(backend(OP, [*inputs[:6], np.concatenate([inputs[6], rest], axis=2)]), expected)


@backends.on_every_backend
def test_what_lies_beyond_the_lengths_is_not_used(backend: Backend) -> None:
    inputs = make([[1, 2], [3], []], [6, 4, 0])
    expected = backend(OP, inputs)
    for n, length in enumerate(inputs[3]):
        inputs[1][length:, n] = NAN
        inputs[6][n, length:] = NAN
        inputs[6][n, :, 2 * inputs[4][n] + 1 :] = NAN
    inputs[2] = np.where(inputs[2] < 0, 10**9, inputs[2])
    actual = backend(OP, inputs)
    backends.assert_same_bits(actual, expected)
    for n, length in enumerate(inputs[3]):
        backends.assert_result(actual[length:, n], np.zeros((6 - length, 4)), np.float64)


@given(
    data=st.data(),
    dtypes=st.sampled_from(WIDENINGS),
    classes=st.integers(2, 6),
    flat=st.booleans(),
    zero_infinity=st.integers(0, 1),
    through_log_softmax=st.integers(0, 1),
)
def test_any_batch(
    data: st.DataObject,
    dtypes: tuple[np.dtype, ...],
    classes: int,
    flat: bool,
    zero_infinity: int,
    through_log_softmax: int,
) -> None:
    blank = data.draw(st.integers(0, classes - 1))
    labels = st.sampled_from([c for c in range(classes) if c != blank])
    samples = data.draw(st.lists(st.lists(labels, max_size=6), min_size=1, max_size=4))
    lengths = data.draw(st.lists(st.integers(0, 14), min_size=len(samples), max_size=len(samples)))
    inputs = make(samples, lengths, classes, steps=14, blank=blank, dtype=dtypes[0], wide=FLOAT64, flat=flat)
    with np.errstate(over="ignore"):
        inputs[5], inputs[6] = inputs[5].astype(dtypes[1]), inputs[6].astype(dtypes[2])
    settings = {"blank": blank, "zero_infinity": zero_infinity, "through_log_softmax": through_log_softmax}
    check(KERNEL, OP, inputs, settings)


# --- special values ------------------------------------------------------------------------------------------------


@backends.on_typed_backends
@pytest.mark.parametrize("dtype", FLOATS, ids=cases.shape_id)
@pytest.mark.parametrize("zero_infinity", [0, 1])
def test_impossible_sample(backend: Backend, dtype: np.dtype, zero_infinity: int) -> None:
    """NaN up to its input length and 0 after it, or 0 throughout; the neighbours are not touched."""
    inputs = make([[1], [1, 1, 1], [2, 3]], [6, 4, 6], dtype=dtype)
    assert np.isinf(inputs[5]).tolist() == [False, True, False]
    actual = check(backend, OP, inputs, {"zero_infinity": zero_infinity}).astype(np.float64)
    assert np.isfinite(actual[:, [0, 2]]).all()
    backends.assert_result(actual[:4, 1], np.full((4, 4), 0.0 if zero_infinity else NAN), np.float64)
    backends.assert_result(actual[4:, 1], np.zeros((2, 4)), np.float64)


@backends.on_every_backend
@pytest.mark.parametrize("through_log_softmax", [0, 1])
def test_nan_stays_in_its_sample(backend: Backend, through_log_softmax: int) -> None:
    inputs = make([[1, 2], [3], [2, 2]], [7, 7, 7], 5)
    clean = backend(OP, inputs, {"through_log_softmax": through_log_softmax})
    for step, label in [(0, 3), (3, 3), (6, 0), (3, 4)]:  # class 4 is in no target
        log_probs = inputs[1].copy()
        log_probs[step, 1, label] = NAN
        dirty = make([[1, 2], [3], [2, 2]], [7, 7, 7], 5, log_probs=log_probs)
        actual = check(backend, OP, dirty, {"through_log_softmax": through_log_softmax})
        backends.assert_same_bits(actual[:, [0, 2]], clean[:, [0, 2]])


@backends.on_every_backend
@pytest.mark.parametrize("scale", [-1000.0, 1000.0, -20.0, 3.0], ids=str)
def test_the_loss_is_taken_as_given(backend: Backend, scale: float) -> None:
    """exp(1000) is infinite, exp(-1000) is 0, and exp(3) scales every posterior."""
    inputs = make([[1, 2], [3]], [6, 5])
    inputs[5] = inputs[5] + scale
    slack = 1e-12 * max(1.0, np.exp(min(scale, 700.0)))
    check(backend, OP, inputs, {"through_log_softmax": 0}, slack=slack)


@backends.on_every_backend
@pytest.mark.parametrize("through_log_softmax", [0, 1])
def test_log_alpha_is_taken_as_given(backend: Backend, through_log_softmax: int) -> None:
    """Where no forward pass would have put it, too."""
    inputs = make([[1, 2], [3]], [6, 5])
    inputs[6] = np.where(np.isfinite(inputs[6]), inputs[6] + arrays.normal(inputs[6].shape, np.float64), -INF)
    check(backend, OP, inputs, {"through_log_softmax": through_log_softmax}, slack=1e-11)


@backends.on_every_backend
@pytest.mark.parametrize("through_log_softmax", [0, 1])
@pytest.mark.parametrize("level", [-1000.0, -300.0, 800.0], ids=str)
def test_beyond_the_range_of_float64(backend: Backend, level: float, through_log_softmax: int) -> None:
    """Products of rows like these leave float64 after one step; sums of logarithms do not."""
    log_probs = arrays.uniform((12, 2, 4), np.float64, low=level - 5, high=level + 5)
    inputs = make([[1, 2, 1], [3]], [12, 9], log_probs=log_probs, grad=np.ones(2))
    if level > 0 and through_log_softmax:
        pytest.skip("exp(log_probs) itself is infinite")
    settings = {"through_log_softmax": through_log_softmax}
    check(backend, OP, inputs, settings, slack=1e-10)  # exponents of 12 * 1000, a few roundings


@backends.on_every_backend
def test_one_unlikely_step(backend: Backend) -> None:
    """A bottleneck of e**-1000 that every path goes through, and classes e**-1000 apart in all rows."""
    log_probs = ctc.log_softmax(arrays.normal((30, 2, 4), np.float64))
    log_probs[15, 0] -= 1000
    log_probs[:, 1, 1:] -= np.array([0.0, 500.0, 1000.0])
    check(backend, OP, make([[1, 2], [1, 3, 2]], [30, 30], log_probs=log_probs), slack=1e-11)


# --- tables that no forward pass made --------------------------------------------------------------------------------


def halves() -> list[Array]:
    """T = 2, target 1, probabilities 1/2, loss 0, and exp(log_alpha) 1, 2, 4 at the first step, 8, 1, 2 at the second.

    exp(log_beta) is 1/4, 1/2, 1/4 and then 0, 1/2, 1/2. No path can have reached the state 2 by the first step.
    """
    inputs = make([[1]], [2], 2, log_probs=np.full((2, 1, 2), math.log(0.5)), grad=np.ones(1))
    return [*inputs[:5], np.zeros(1), np.log([[[1.0, 2.0, 4.0], [8.0, 1.0, 2.0]]])]


# (input, index, value, minus the second terms: blank and label at the first step, blank and label at the second)
PLACES: list[tuple[str, tuple[int, ...], float, list[float]]] = [
    ("log_alpha", (0, 0, 2), math.log(4.0), [2.5, 2.0, 2.0, 1.0]),  # as it is
    ("log_alpha", (0, 0, 2), -INF, [0.5, 2.0, 2.0, 1.0]),
    ("log_alpha", (0, 0, 2), INF, [INF, 2.0, 2.0, 1.0]),
    ("log_alpha", (0, 0, 2), NAN, [NAN, 2.0, 2.0, 1.0]),
    ("log_alpha", (0, 0, 1), -INF, [2.5, 0.0, 2.0, 1.0]),
    ("log_alpha", (0, 0, 0), NAN, [NAN, 2.0, 2.0, 1.0]),
    # The state 0 at the last step is not one of the two that end the target.
    ("log_alpha", (0, 1, 0), INF, [2.5, 2.0, 2.0, 1.0]),
    ("log_alpha", (0, 1, 0), NAN, [2.5, 2.0, 2.0, 1.0]),
    ("log_alpha", (0, 1, 1), NAN, [2.5, 2.0, 2.0, NAN]),
    # Without the label at the second step nothing leads from the state 0 to the end, and half as much from the state 1.
    ("log_probs", (1, 0, 1), -INF, [2.0, 1.0, 2.0, 0.0]),
    ("log_probs", (1, 0, 1), INF, [INF, INF, 2.0, NAN]),
    ("log_probs", (1, 0, 1), NAN, [NAN, NAN, 2.0, NAN]),
    ("log_probs", (0, 0, 1), NAN, [2.5, NAN, 2.0, 1.0]),
    ("log_probs", (0, 0, 0), INF, [NAN, 2.0, 2.0, 1.0]),
    ("neg_log_likelihood", (0,), math.log(2.0), [5.0, 4.0, 4.0, 2.0]),
    ("neg_log_likelihood", (0,), -INF, [0.0] * 4),
    ("neg_log_likelihood", (0,), NAN, [NAN] * 4),
]


@backends.on_every_backend
@pytest.mark.parametrize(
    ("name", "index", "value", "terms"), PLACES, ids=[f"{p[0]}{list(p[1])}={p[2]:.2}" for p in PLACES]
)
def test_special_values_by_hand(
    backend: Backend, name: str, index: tuple[int, ...], value: float, terms: list[float]
) -> None:
    inputs = halves()
    inputs[{"log_probs": 1, "neg_log_likelihood": 5, "log_alpha": 6}[name]][index] = value
    expected = -np.array(terms).reshape(2, 1, 2)
    for zero_infinity in (0, 1):
        actual = backend(OP, inputs, {"through_log_softmax": 0, "zero_infinity": zero_infinity})
        np.testing.assert_allclose(actual, expected, rtol=1e-14)
    direct = np.exp(inputs[1])
    np.testing.assert_allclose(backend(OP, inputs), direct + expected, rtol=1e-14)


@backends.on_every_backend
@pytest.mark.parametrize("value", [INF, NAN])
def test_special_values_in_a_class_without_states(backend: Backend, value: float) -> None:
    """log_probs of a class that is not in the target counts in the first term alone."""
    inputs = make([[1]], [3], 3, grad=np.ones(1))
    expected = backend(OP, inputs, {"through_log_softmax": 0})
    inputs[1][1, 0, 2] = value
    backends.assert_same_bits(backend(OP, inputs, {"through_log_softmax": 0}), expected)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(backend(OP, inputs)[1, 0, 2], value)


@backends.on_every_backend
def test_nan_in_a_state_without_time_to_reach_the_end(backend: Backend) -> None:
    """It shows where it stands, in the first term, and not at earlier steps: no path goes through it."""
    inputs = make([[1, 2]], [3], 3, grad=np.ones(1))
    expected = backend(OP, inputs)
    inputs[1][2, 0, 1] = NAN
    expected[2, 0, 1] = NAN
    backends.assert_same_bits(backend(OP, inputs), expected)


@backends.on_every_backend
def test_bottleneck_that_log_alpha_does_not_know_of(backend: Backend) -> None:
    """A step of e**-800, which no float64 holds, and before it log_alpha of 810 where a forward pass has far less."""
    inputs = make([[1]], [24], 3, log_probs=np.zeros((24, 1, 3)), grad=np.ones(1))
    inputs[1][20] = -800.0
    inputs[5][:] = 0.0
    inputs[6][0, :10] = np.where(inputs[6][0, :10] == -INF, -INF, 810.0)
    inputs[6][0, 10:] = 0.0
    check_table(backend, inputs, {"through_log_softmax": 0})


SPECIAL = np.array([NAN, INF, -INF])


def sprinkle(random: np.random.Generator, array: Array, share: float) -> Array:
    """A share of the numbers replaced by NaN and infinities."""
    return np.where(random.random(array.shape) < share, random.choice(SPECIAL, array.shape), array)


def table(
    seed: int,
    dtypes: tuple[np.dtype, ...] = (FLOAT64, FLOAT64, FLOAT64),
    *,
    share: float = 0.0,
    reached: bool = False,
    most_steps: int = 9,
    most_labels: int = 4,
) -> tuple[list[Array], dict[str, int]]:
    """Random numbers for log_alpha, losses and log_probs, with lengths of 0, repeated labels and labels like the blank.

    dtypes: of log_probs, neg_log_likelihood and log_alpha. share: how much of the floating inputs is NaN or infinite.
    reached: -inf in the states that no path can have reached. The lowest bits of the seed choose the settings.
    """
    random = arrays.rng("table", seed, share, reached)
    flat, through_log_softmax, zero_infinity, blank = ((seed >> bit) & 1 for bit in range(4))
    steps, batch, classes = int(random.integers(1, most_steps + 1)), int(random.integers(1, 5)), 4
    # The number of different labels is small, so that many are repeated.
    samples = [random.integers(0, 4, random.integers(0, most_labels + 1)).tolist() for _ in range(batch)]
    target_lengths = np.array([len(sample) for sample in samples], np.int64)
    input_lengths = random.integers(0, steps + 1, batch)
    input_lengths[random.random(batch) < 0.5] = steps
    states = 2 * int(target_lengths.max()) + 1 + int(random.integers(0, 3))

    def numbers(*shape: int) -> Array:
        if random.random() < 0.5:
            return random.normal(scale=random.choice([1.0, 5.0]), size=shape)
        return random.uniform(-3.0, 3.0, shape)

    log_probs, log_alpha = numbers(steps, batch, classes), numbers(batch, steps, states)
    if random.random() < 0.5:
        log_probs = ctc.log_softmax(log_probs)
    if reached:
        log_alpha[:, np.arange(states) > 2 * np.arange(steps)[:, None] + 1] = -INF
    floats = [sprinkle(random, a, share) for a in (numbers(batch), log_probs, numbers(batch), log_alpha)]
    grad, log_probs, loss, log_alpha = (
        a.astype(kind) for a, kind in zip(floats, (dtypes[0], *dtypes), strict=True)
    )  # fmt: skip
    targets = ctc.joined(samples) if flat else ctc.padded(samples)
    inputs = [grad, log_probs, targets, input_lengths, target_lengths, loss, log_alpha]
    return inputs, {"blank": blank, "zero_infinity": zero_infinity, "through_log_softmax": through_log_softmax}


def judges_of(inputs: Sequence[Array], settings: dict[str, int]) -> tuple[Array, Array]:
    """The result, and the size of its larger term."""
    oracle, largest_term = ctc_loss_backward.oracle, ctc_loss_backward.terms
    result = oracle(*inputs, **settings, dtype=np.longdouble)  # type: ignore[arg-type]
    return result, largest_term(*inputs, **settings, dtype=np.longdouble)  # type: ignore[arg-type]


@functools.cache
def judged_table(
    seed: int, dtypes: tuple[np.dtype, ...], share: float, reached: bool
) -> tuple[list[Array], dict[str, int], tuple[Array, Array]]:
    inputs, settings = table(seed, dtypes, share=share, reached=reached)
    return inputs, settings, judges_of(inputs, settings)


def check_table(
    backend: Backend, inputs: Sequence[Array], settings: dict[str, int], judges: tuple[Array, Array] | None = None
) -> Array:
    """NaN and infinities exactly; numbers within 1e-12 of the larger term, and one rounding to the result's dtype.

    Posteriors of such tables are anything from 0 to infinity, so there is no absolute tolerance. judges: what
    `judges_of` gives.
    """
    actual = backend(OP, inputs, settings)
    expected, largest = judges or judges_of(inputs, settings)
    error = numbers.ulp_error(actual, expected, largest)
    limit = SUM_ULPS if actual.dtype == FLOAT64 else 0.51
    worst = np.unravel_index(int(error.argmax()), error.shape) if error.size else ()
    assert error.max(initial=0.0) <= limit, f"{actual[worst]!r} at {worst}, expected {expected[worst]!r}"
    return actual


TABLE_DTYPES = [(FLOAT16, FLOAT32, FLOAT64), (BFLOAT16,) * 3, (FLOAT32,) * 3, (FLOAT64,) * 3]
TABLES = [(share, reached) for share in (0.0, 0.02, 0.3) for reached in (False, True)]


@pytest.mark.parametrize(("share", "reached"), TABLES, ids=lambda value: str(value))
def test_oracles_agree_on_tables(share: float, reached: bool) -> None:
    """Recursions over time, and sums over all paths one by one, come to the same."""
    for seed in range(100):
        inputs, settings = table(seed, share=share, reached=reached, most_steps=5, most_labels=3)
        actual = ctc_loss_backward.oracle(*inputs, **settings)
        expected = ctc.brute_force_loss_backward(*inputs, **settings)
        largest = ctc_loss_backward.terms(*inputs, **settings)
        assert numbers.ulp_error(actual, expected, largest).max() <= SUM_ULPS, seed


@backends.in_turns(
    ["share", "reached", "dtypes"], [(*row, dtypes) for row, dtypes in itertools.product(TABLES, TABLE_DTYPES)]
)
def test_tables(share: float, reached: bool, dtypes: tuple[np.dtype, ...], backend: Backend) -> None:
    for seed in range(16):
        check_table(backend, *judged_table(seed, dtypes, share, reached))


@pytest.mark.parametrize(("share", "reached"), TABLES, ids=lambda value: str(value))
def test_large_tables(share: float, reached: bool) -> None:
    """More states than a vector has room for."""
    for seed in range(16):
        settings = {"share": share / 10, "reached": reached, "most_steps": 60, "most_labels": 40}
        check_table(KERNEL, *table(seed, (FLOAT64, FLOAT64, FLOAT64), **settings))


# --- values that a standard graph cannot refuse ---------------------------------------------------------------------


SAMPLES, STEPS = [[1, 2], [3], [2, 2]], [6, 5, 6]


def _changed(place: int, index: Any, value: Any, *, flat: bool = False, dtype: npt.DTypeLike = np.int64) -> list[Array]:
    inputs = make(SAMPLES, STEPS, flat=flat)
    inputs[place] = inputs[place].astype(dtype)
    inputs[place][index] = value
    return inputs


# (case, inputs, the samples that cannot be told)
UNCHECKED: list[tuple[str, list[Array], list[int]]] = [
    *((f"label_{v}", _changed(2, (1, 0), v), [1]) for v in (-1, -4, 4, 5, 2**62, -(2**63))),
    *((f"joined_label_{v}", _changed(2, 2, v, flat=True), [1]) for v in (-1, 4, -(2**62))),
    *((f"label_{v}", _changed(2, (1, 0), v, dtype=np.float32), [1]) for v in (1.5, -0.5, NAN, INF, -INF, 1e30)),
    *((f"input_length_{v}", _changed(3, 1, v), [1]) for v in (-1, 7, 8, 2**40, -(2**63))),
    *((f"target_length_{v}", _changed(4, 1, v), [1]) for v in (-1, 3, 4, 2**40, -(2**63))),
    # The labels of one sample after another: lengths that do not add up leave all of them in doubt.
    *(
        (f"joined_target_length_{v}", _changed(4, 1, v, flat=True), [0, 1, 2])
        for v in (-1, 0, 2, 2**31, 2**40, 2**63 - 1)
    ),
    *((f"joined_target_length_{v}", _changed(4, 2, v, flat=True), [0, 1, 2]) for v in (-1, 0, 1, 3, 2**31, -(2**63))),
]


@pytest.mark.parametrize("backend", [e for e in backends.BACKENDS if e.portable], ids=str)
@pytest.mark.parametrize("zero_infinity", [0, 1])
@pytest.mark.parametrize(("case", "inputs", "bad"), UNCHECKED, ids=[case for case, _, _ in UNCHECKED])
def test_bad_values_spoil_their_sample_alone(
    backend: Backend, case: str, inputs: list[Array], bad: list[int], zero_infinity: int
) -> None:
    """A function body gives NaN up to the input length, and to the other samples what they get without the bad one."""
    good = make(SAMPLES, STEPS, flat=case.startswith("joined"))
    expected = backend(OP, good, {"zero_infinity": zero_infinity})
    for n in bad:
        used = int(np.clip(inputs[3][n], 0, 6))
        expected[:used, n], expected[used:, n] = NAN, 0
    backends.assert_result(backend(OP, inputs, {"zero_infinity": zero_infinity}), expected, np.float64)


@pytest.mark.parametrize("backend", [e for e in backends.BACKENDS if e.portable], ids=str)
@pytest.mark.parametrize("flat", [False, True], ids=["padded", "concatenated"])
def test_too_few_states_spoil_their_sample_alone(backend: Backend, flat: bool) -> None:
    good = make(SAMPLES, STEPS, flat=flat)
    inputs = [*good[:6], good[6][:, :, :3]]
    actual = backend(OP, inputs)
    assert np.isnan(actual[:, [0, 2]]).all()
    backends.assert_same_bits(actual[:, 1], backend(OP, good)[:, 1])


@pytest.mark.parametrize("backend", [e for e in backends.BACKENDS if e.portable], ids=str)
@pytest.mark.parametrize("place", [0, 3, 4, 5])
def test_one_number_for_the_whole_batch_is_an_error(backend: Backend, place: int) -> None:
    """Shapes that are known only when the graph runs do not broadcast either."""
    inputs = make(SAMPLES, STEPS)
    inputs[place] = inputs[place][:1]
    with pytest.raises(Exception, match=r"[Rr]eshape"):
        backend(OP, inputs)


# --- long sequences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "length", "classes", "scale", "roundings"),
    [
        (1000, 50, 30, 1.0, 2),
        (1000, 200, 32, 5.0, 16),  # so far apart that all steps are taken in logarithms, each rounded
        (1000, 480, 3, 1.0, 2),
        (1000, 0, 4, 1.0, 2),
        (400, 399, 5, 4.0, 2),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.parametrize(
    ("dtype", "wide", "through_log_softmax"),
    [
        (FLOAT32, FLOAT32, 0),
        (FLOAT32, FLOAT64, 1),
        (FLOAT64, FLOAT64, 0),
        pytest.param(FLOAT32, FLOAT32, 1, marks=pytest.mark.full),
        pytest.param(FLOAT32, FLOAT64, 0, marks=pytest.mark.full),
        pytest.param(FLOAT64, FLOAT64, 1, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_long_sequences(
    dtype: np.dtype,
    wide: np.dtype,
    through_log_softmax: int,
    steps: int,
    length: int,
    classes: int,
    scale: float,
    roundings: int,
) -> None:
    """The formula's sums of exponents are rounded at the size of the loss, about `roundings` times."""
    strides = arrays.rng("labels", length).integers(1, classes - 1, length)
    labels = 1 + np.cumsum(strides) % (classes - 1)  # no repeats, so that the longest target fits
    log_probs = ctc.log_softmax(arrays.normal((steps, 1, classes), np.float64, "long", scale=scale))
    inputs = make([labels.tolist()], [steps], classes, dtype=dtype, wide=wide, log_probs=log_probs, grad=np.ones(1))
    assert np.isfinite(inputs[5]).all()
    slack = None if dtype == FLOAT32 else max(1e-12, float(inputs[5][0]) * roundings * 2.0**-52)
    check(KERNEL, OP, inputs, {"through_log_softmax": through_log_softmax}, slack=slack)


def test_scaled_sums_grow_and_shrink() -> None:
    """Rows that are not normalized, whose products run from e**-600 to e**600 and back."""
    ramp = np.concatenate([np.full(60, -20.0), np.full(120, 15.0), np.full(60, -10.0)])
    log_probs = arrays.normal((240, 1, 5), np.float64) + ramp[:, None, None]
    inputs = make([[1, 2, 3, 3, 4, 1]], [240], 5, log_probs=log_probs, grad=np.ones(1))
    check(KERNEL, OP, inputs, {"through_log_softmax": 0}, slack=1e-11)


# --- against others ------------------------------------------------------------------------------------------------
