"""The oracles against hand-made numbers, closed forms, brute force, finite differences and PyTorch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import golden
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.ops import (
    batch_norm_elemt,
    batch_norm_elemt_backward,
    batch_norm_reduce_backward,
    batch_norm_stats,
    binary_cross_entropy_with_logits,
    binary_cross_entropy_with_logits_backward,
    ctc_loss_backward,
    hardshrink,
    hardshrink_backward,
    kl_div,
    kl_div_backward,
)
from tests.ops._shared import ctc, numbers

INF, NAN = math.inf, math.nan
GOLDEN = golden.load_golden()


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def batch_norm(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output, mean and invstd of batch norm in training."""
    mean, invstd = batch_norm_stats.oracle(x, eps)
    return batch_norm_elemt.oracle(x, weight, bias, mean, invstd), mean, invstd


def reduced(grad_out: Any, x: Any, mean: Any) -> tuple[np.ndarray, ...]:
    """The sums of one worker."""
    return batch_norm_reduce_backward.oracle(grad_out, x, mean, np.ones_like(mean))[:2]


def assert_equal(actual: np.ndarray, expected: Any) -> None:
    """Same values, NaN at the same places; float64."""
    assert actual.dtype == np.float64
    np.testing.assert_array_equal(actual, np.asarray(expected, np.float64), strict=True)


def assert_close(actual: np.ndarray, expected: Any, tolerance: float = 1e-12) -> None:
    """Within tolerance times the largest finite |expected|, float64 sums of a few hundred terms."""
    expected = np.asarray(expected, np.float64)
    size = np.abs(expected).max(where=np.isfinite(expected), initial=1e-300)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * size)
    assert np.shape(actual) == expected.shape


# --------------------------------------------------------------------------------------------------------------------
# PyTorch's stored numbers


def test_golden_has_every_op_and_dtype() -> None:
    seen = {(case.op, case.expected.dtype.name) for case in GOLDEN}
    ops = {case.op for case in GOLDEN}
    assert len(ops) == 5
    assert seen == {(op, dtype) for op in ops for dtype in ("float16", "bfloat16", "float32", "float64")}
    assert golden.PATH.stat().st_size < 300_000


# --------------------------------------------------------------------------------------------------------------------
# KlDivBackward

TARGET = [[1.0, 2.0], [0.0, -4.0], [0.5, 8.0]]


def test_kl_div_backward_log_target() -> None:
    actual = kl_div_backward.oracle([1.0, 3.0, 1.0], np.zeros(3), [0.0, math.log(2.0), -INF], 0, 1)
    assert_close(actual, [-1.0, -6.0, 0.0])


def test_kl_div_backward_special_values() -> None:
    actual = kl_div_backward.oracle([1.0, 1.0, INF, NAN], np.zeros(4), [INF, NAN, 0.0, 1.0], 0)
    assert_equal(actual, [-INF, NAN, NAN, NAN])


def test_kl_div_backward_largest_term() -> None:
    assert_equal(kl_div_backward.terms(1.0, np.zeros((1, 2)), TARGET, 2), [[1.0, 8.0]])
    assert_equal(kl_div_backward.terms(3.0, np.zeros((3, 1)), TARGET, 3), [[2.0], [4.0], [8.0]])
    assert_equal(kl_div_backward.terms(1.0, np.zeros((1, 2)), np.zeros((0, 2)), 2), np.zeros((1, 2)))


@pytest.mark.parametrize("log_target", [0, 1])
@pytest.mark.parametrize("reduction", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (4,), (3, 1)])
def test_kl_div_backward_is_the_derivative(shape: tuple[int, ...], reduction: int, log_target: int) -> None:
    x, target = rng(1).normal(size=shape), rng(2).uniform(0.1, 1.0, size=(3, 4))
    actual = kl_div_backward.oracle(1.7, x, target, reduction, log_target)
    expected = numbers.finite_difference(lambda x: 1.7 * kl_div.oracle(x, target, reduction, log_target), x, 1e-4)
    assert_close(actual, expected, 1e-9)


def test_kl_div_by_hand() -> None:
    assert_close(kl_div.oracle([-1.0, -2.0], [0.0, 0.5], 0), [0.0, 0.5 * math.log(0.5) + 1.0])
    assert_close(kl_div.oracle([-1.0], [math.log(3.0)], 0, 1), [3.0 * (math.log(3.0) + 1.0)])
    assert_close(kl_div.oracle([[-1.0, -1.0]], [[1.0, 1.0]], 1), 1.0)
    assert_close(kl_div.oracle([[-1.0, -1.0]], [[1.0, 1.0]], 3), 2.0)


# --------------------------------------------------------------------------------------------------------------------
# BinaryCrossEntropyWithLogitsBackward

bce_backward = binary_cross_entropy_with_logits_backward.formula
bce_split = binary_cross_entropy_with_logits_backward.split


def test_bce_backward_saturates() -> None:
    x = np.array([-INF, -1e300, -720.0, 720.0, 1e300, INF])
    assert_equal(bce_backward(1.0, x, np.ones(6), reduction=0), [-1.0, -1.0, -1.0, 0.0, 0.0, 0.0])
    zeros = bce_backward(1.0, x, np.zeros(6), reduction=0)
    assert_equal(zeros, [0.0, 0.0, zeros[2], 1.0, 1.0, 1.0])
    np.testing.assert_allclose(zeros[2], math.exp(-720.0), rtol=1e-9, atol=0)  # subnormal


def test_bce_backward_special_values() -> None:
    assert_equal(bce_backward(1.0, [NAN, 0.0, 0.0], [0.0, NAN, 0.0], [1.0, 1.0, NAN], reduction=0), [NAN] * 3)
    assert_equal(bce_backward(INF, [0.0, INF], [0.0, 1.0], reduction=0), [INF, NAN])
    assert_equal(bce_backward(1.0, [0.0], [1.0], None, INF, reduction=0), [NAN])
    assert_equal(bce_backward(1.0, np.zeros((0, 2)), np.zeros((0, 2))), np.zeros((0, 2)))
    assert_equal(bce_backward(1.0, 0.0, 0.0), 0.5)


def test_bce_backward_split_keeps_the_digits() -> None:
    x = np.array([40.0, 100.0, 700.0])
    np.testing.assert_allclose(bce_split(1.0, x, np.ones(3), reduction=0), -np.exp(-x), rtol=1e-13, atol=0)
    arguments = [rng(i).uniform(-5, 5, size=(4, 5)) for i in range(5)]
    assert_close(bce_backward(*arguments), bce_split(*arguments))
    assert_close(np.asarray(bce_split(*arguments, dtype=np.longdouble), np.float64), bce_split(*arguments))


def test_bce_backward_largest_term() -> None:
    largest = binary_cross_entropy_with_logits_backward.terms
    assert_equal(largest(-2.0, [0.0, 0.0], [0.0, 1.0], None, 3.0, reduction=1), [0.5, 3.0])
    assert_equal(largest(1.0, [INF, -INF], [0.0, 1.0], -2.0, None, reduction=2), [2.0, 2.0])


@pytest.mark.parametrize("reduction", [1, 2])
def test_bce_backward_is_the_derivative(reduction: int) -> None:
    x, y = rng(1).normal(size=(3, 4)), rng(2).uniform(size=(3, 4))
    weight, pos_weight = rng(3).uniform(size=(3, 1)), rng(4).uniform(0.5, 3.0, size=4)
    actual = bce_backward(1.7, x, y, weight, pos_weight, reduction=reduction)
    expected = numbers.finite_difference(
        lambda x: 1.7 * binary_cross_entropy_with_logits.oracle(x, y, weight, pos_weight, reduction=reduction), x, 1e-4
    )
    assert_close(actual, expected, 1e-7)


def test_bce_by_hand() -> None:
    loss = binary_cross_entropy_with_logits.oracle
    assert_close(loss([0.0, math.log(3.0)], [1.0, 0.0], reduction=0), [math.log(2.0), math.log(4.0)])
    assert_close(loss([0.0, 0.0], [1.0, 0.0], [1.0, 2.0], 3.0), 2.5 * math.log(2.0))
    assert_equal(loss([1e4, -1e4], [0.0, 1.0], reduction=0), [1e4, 1e4])


# --------------------------------------------------------------------------------------------------------------------
# CtcLossBackward

# targets of the samples of one batch, input lengths; T = 5, blank 0
CTC_BATCHES = {
    "distinct": ([[1, 2], [2, 1]], [5, 4]),
    "repeated": ([[1, 1], [2, 2], [1, 2, 1]], [5, 3, 5]),
    "empty_target": ([[], [1]], [5, 5]),
    "no_input": ([[], [1, 2]], [0, 2]),
    "single_path": ([[1, 2, 1], [1, 1]], [3, 3]),
}


def ctc_inputs(samples: list[list[int]], input_lengths: list[int], steps: int = 5, classes: int = 3) -> tuple[Any, ...]:
    """log_probs, targets, input_lengths, target_lengths with uint8 lengths."""
    log_probs = ctc.log_softmax(rng(len(samples)).normal(size=(steps, len(samples), classes)))
    lengths = np.array([len(sample) for sample in samples], np.uint8)
    return log_probs, ctc.padded(samples), np.array(input_lengths, np.uint8), lengths


@pytest.mark.parametrize(("samples", "input_lengths"), CTC_BATCHES.values(), ids=CTC_BATCHES)
@pytest.mark.parametrize("through_log_softmax", [0, 1])
def test_ctc_against_all_alignments(
    samples: list[list[int]], input_lengths: list[int], through_log_softmax: int
) -> None:
    inputs = ctc_inputs(samples, input_lengths)
    loss, log_alpha = ctc.forward(*inputs)
    assert log_alpha.shape == (len(samples), 5, 2 * max(map(len, samples)) + 1)
    assert_close(loss, ctc.brute_force_loss(*inputs))
    grad_out = rng(9).normal(size=len(samples))
    actual = ctc_loss_backward.oracle(grad_out, *inputs, loss, log_alpha, 0, 0, through_log_softmax)
    expected = ctc.brute_force_gradient(grad_out, *inputs, 0, 0, through_log_softmax)
    assert_close(actual, expected)
    for n, length in enumerate(input_lengths):
        assert not actual[length:, n].any()


def test_ctc_last_class_as_blank() -> None:
    log_probs, targets, lengths, target_lengths = ctc_inputs([[1, 2], [2, 2]], [5, 4])
    inputs = log_probs, 2 - targets, lengths, target_lengths
    mirrored = log_probs[:, :, ::-1], targets, lengths, target_lengths
    loss, log_alpha = ctc.forward(*inputs, 2)
    assert_equal(loss, ctc.forward(*mirrored)[0])
    actual = ctc_loss_backward.oracle(np.ones(2), *inputs, loss, log_alpha, 2)
    assert_close(actual, ctc.brute_force_gradient(np.ones(2), *inputs, 2))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float16])
def test_ctc_concatenated_targets(dtype: type) -> None:
    samples = [[1, 2], [], [2, 2, 1]]
    log_probs, targets, lengths, target_lengths = ctc_inputs(samples, [5, 4, 5])
    loss, log_alpha = ctc.forward(log_probs, targets, lengths, target_lengths)
    flat = np.array(list(itertools.chain(*samples)), dtype)
    flat_loss, flat_alpha = ctc.forward(log_probs, flat, lengths, target_lengths)
    assert_equal(flat_loss, loss)
    assert_equal(flat_alpha, log_alpha)
    actual = ctc_loss_backward.oracle(np.ones(3), log_probs, flat, lengths, target_lengths, loss, log_alpha)
    expected = ctc_loss_backward.oracle(np.ones(3), log_probs, targets, lengths, target_lengths, loss, log_alpha)
    assert_equal(actual, expected)


@pytest.mark.parametrize(("steps", "length"), [(1, 0), (1, 1), (4, 0), (6, 3), (9, 2), (9, 9), (20, 7)])
def test_ctc_uniform_closed_form(steps: int, length: int) -> None:
    """With a target of distinct labels, binomial(T + S, 2 S) alignments each have the probability C**-T."""
    classes = length + 2
    log_probs = np.full((steps, 1, classes), -math.log(classes))
    loss, _ = ctc.forward(log_probs, np.arange(1, length + 1)[None], [steps], [length])
    assert_close(loss, [steps * math.log(classes) - math.log(math.comb(steps + length, 2 * length))])


@pytest.mark.parametrize("sample", [[1, 2, 3], [1, 1], [2, 2, 2], [3]])
def test_ctc_single_path(sample: list[int]) -> None:
    """T is just enough (labels, and a blank between equal ones): the path is the only one, its posterior one-hot."""
    path = [sample[0]]
    for before, label in itertools.pairwise(sample):
        path += [0, label] if label == before else [label]
    log_probs = ctc.log_softmax(rng(5).normal(size=(len(path), 1, 4)))
    steps = np.arange(len(path))
    inputs = log_probs, [sample], [len(path)], [len(sample)]
    loss, log_alpha = ctc.forward(*inputs)
    assert_close(loss, [-log_probs[steps, 0, path].sum()])
    expected = np.exp(log_probs)
    expected[steps, 0, path] -= 1
    assert_close(ctc_loss_backward.oracle([1.0], *inputs, loss, log_alpha), expected)


def test_ctc_extended_labels() -> None:
    np.testing.assert_array_equal(ctc.extended_labels([3, 1, 1], 2), [2, 3, 2, 1, 2, 1, 2])
    np.testing.assert_array_equal(ctc.extended_labels([], 2), [2])


def test_ctc_alignments() -> None:
    assert list(ctc.alignments([1], 2, 2)) == [(0, 1), (1, 0), (1, 1)]
    assert list(ctc.alignments([1, 1], 3, 2)) == [(1, 0, 1)]
    assert list(ctc.alignments([], 2, 2)) == [(0, 0)]
    assert list(ctc.alignments([1], 0, 2)) == []


def test_ctc_impossible_sample() -> None:
    log_probs, targets, lengths, target_lengths = ctc_inputs([[1, 1, 1], [1, 2]], [4, 4])
    inputs = log_probs, targets, lengths, target_lengths
    loss, log_alpha = ctc.forward(*inputs)
    assert loss[0] == INF
    assert np.isfinite(loss[1])
    assert_equal(ctc.brute_force_loss(*inputs)[:1], [INF])
    nan = ctc_loss_backward.oracle([0.0, 1.0], *inputs, loss, log_alpha)
    assert np.isnan(nan[:4, 0]).all()
    assert not nan[4:].any()
    zero = ctc_loss_backward.oracle([1.0, 1.0], *inputs, loss, log_alpha, zero_infinity=1)
    assert not zero[:, 0].any()
    assert_equal(zero[:, 1], nan[:, 1])
    assert_close(zero, ctc.brute_force_gradient([1.0, 1.0], *inputs, zero_infinity=1))
    assert_close(nan, ctc.brute_force_gradient([1.0, 1.0], *inputs))


def test_ctc_masked_class_has_no_gradient() -> None:
    """Class 3 is masked and unused, class 2 is masked at t = 0, where the target [1, 2] does not reach it."""
    logits = rng(6).normal(size=(4, 1, 4))
    logits[:, :, 3] = -INF
    logits[0, 0, 2] = -INF
    inputs = ctc.log_softmax(logits), [[1, 2]], [4], [2]
    loss, log_alpha = ctc.forward(*inputs)
    assert np.isfinite(loss).all()
    for through_log_softmax in (0, 1):
        actual = ctc_loss_backward.oracle([1.0], *inputs, loss, log_alpha, through_log_softmax=through_log_softmax)
        assert_close(actual, ctc.brute_force_gradient([1.0], *inputs, through_log_softmax=through_log_softmax))
        assert not actual[:, :, 3].any()
        assert actual[0, 0, 2] == 0


def test_ctc_uses_only_what_the_lengths_cover() -> None:
    log_probs, targets, lengths, target_lengths = ctc_inputs([[1, 2], [1]], [3, 5])
    loss, log_alpha = ctc.forward(log_probs, targets, lengths, target_lengths)
    expected = ctc_loss_backward.oracle(np.ones(2), log_probs, targets, lengths, target_lengths, loss, log_alpha)
    poisoned = np.full((2, 5, 9), NAN)
    poisoned[0, :3, :5], poisoned[1, :, :3] = log_alpha[0, :3], log_alpha[1, :, :3]
    log_probs[3:, 0] = NAN
    actual = ctc_loss_backward.oracle(np.ones(2), log_probs, targets, lengths, target_lengths, loss, poisoned)
    assert_equal(actual, expected)
    assert_equal(ctc.forward(log_probs, targets, lengths, target_lengths)[0], loss)


def test_ctc_takes_the_loss_and_alpha_as_given() -> None:
    """Doubling a likelihood, or halving exp(alpha), halves the posteriors."""
    inputs = ctc_inputs([[1, 2]], [5])
    loss, log_alpha = ctc.forward(*inputs)
    once = ctc_loss_backward.oracle([1.0], *inputs, loss, log_alpha, through_log_softmax=0)
    for changed in ((loss - math.log(2), log_alpha), (loss, log_alpha - math.log(2))):
        assert_close(ctc_loss_backward.oracle([1.0], *inputs, *changed, through_log_softmax=0), once / 2)


def test_ctc_empty_shapes() -> None:
    loss, log_alpha = ctc.forward(np.zeros((3, 0, 4)), np.zeros((0, 2)), [], [])
    assert loss.shape == (0,)
    assert log_alpha.shape == (0, 3, 5)
    out = ctc_loss_backward.oracle([], np.zeros((3, 0, 4)), np.zeros((0, 2)), [], [], loss, log_alpha)
    assert_equal(out, np.zeros((3, 0, 4)))
    loss, log_alpha = ctc.forward(np.zeros((0, 2, 4)), [[], []], [0, 0], [0, 0])
    assert_equal(loss, [0.0, 0.0])
    assert log_alpha.shape == (2, 0, 1)


@pytest.mark.parametrize("through_log_softmax", [0, 1])
def test_ctc_gradient_is_the_derivative(through_log_softmax: int) -> None:
    """With the first term: through log_softmax, of logits. Without: of log_probs, normalized or not."""
    _, targets, lengths, target_lengths = ctc_inputs([[1, 2, 2], [2], [1, 2]], [5, 4, 3])
    x, grad_out = rng(8).normal(size=(5, 3, 3)), rng(9).normal(size=3)
    transform = ctc.log_softmax if through_log_softmax else np.asarray
    rest = targets, lengths, target_lengths
    loss, log_alpha = ctc.forward(transform(x), *rest)
    actual = ctc_loss_backward.oracle(
        grad_out, transform(x), *rest, loss, log_alpha, through_log_softmax=through_log_softmax
    )
    expected = numbers.finite_difference(lambda x: grad_out @ ctc.forward(transform(x), *rest)[0], x, 1e-4)
    assert_close(actual, expected, 1e-7)


def test_ctc_long_sequence() -> None:
    """Posteriors of every t sum to 1, so the rows of the gradient sum to 0; float64 against longdouble."""
    labels = rng(11).integers(1, 20, size=(1, 100))
    log_probs = ctc.log_softmax(rng(10).normal(size=(400, 1, 20)))
    inputs = log_probs, labels, [400], [100]
    loss, log_alpha = ctc.forward(*inputs)
    actual = ctc_loss_backward.oracle([1.0], *inputs, loss, log_alpha)
    np.testing.assert_allclose(actual.sum(axis=2), 0, atol=1e-10)
    wide_loss, wide_alpha = ctc.forward(*inputs, dtype=np.longdouble)
    wide = ctc_loss_backward.oracle([1.0], *inputs, wide_loss, wide_alpha, dtype=np.longdouble)
    assert wide.dtype == wide_alpha.dtype == np.longdouble
    np.testing.assert_allclose(actual, wide.astype(np.float64), atol=1e-10)


@pytest.mark.parametrize("zero_infinity", [0, 1])
def test_ctc_impossible_against_torch(zero_infinity: int) -> None:
    torch = pytest.importorskip("torch")
    log_probs, targets, _, _ = ctc_inputs([[1, 1, 1], [1, 2, 1]], [4, 5])
    arguments = torch.tensor(log_probs), torch.tensor(targets), [4, 5], [3, 3]
    torch_loss, torch_alpha = torch.ops.aten._ctc_loss(*arguments, 0, False)
    torch_out = torch.ops.aten._ctc_loss_backward(
        torch.ones(2, dtype=torch.float64), *arguments, torch_loss, torch_alpha, 0, bool(zero_infinity)
    )
    loss, log_alpha = ctc.forward(log_probs, targets, [4, 5], [3, 3])
    actual = ctc_loss_backward.oracle(np.ones(2), log_probs, targets, [4, 5], [3, 3], loss, log_alpha, 0, zero_infinity)
    assert_close(actual, torch_out.numpy())


def test_ctc_blank_inside_a_target_against_torch() -> None:
    """Such a target is never a collapsed path; the recursion still opens its skips where the labels differ."""
    torch = pytest.importorskip("torch")
    log_probs, targets, _, _ = ctc_inputs([[1, 0, 2]], [5])
    expected, _ = torch.ops.aten._ctc_loss(torch.tensor(log_probs), torch.tensor(targets), [5], [3], 0, False)
    assert_close(ctc.forward(log_probs, targets, [5], [3])[0], expected.numpy())


# --------------------------------------------------------------------------------------------------------------------
# BatchNormElemtBackward

bn_backward = batch_norm_elemt_backward.oracle


def test_batch_norm_elemt_backward_by_hand() -> None:
    """n = 4, sum_dy/n = 1, invstd**2 * sum_dy_xmu/n = 1/4 * 2 = 1/2."""
    arguments = [[1.0], [2.0]], [[3.0], [5.0]], [4.0], [0.5], [2.0], [4.0], [8.0]
    assert_equal(bn_backward(*arguments, np.array([1, 3], np.int32)), [[0.5], [0.5]])
    assert_equal(bn_backward(*arguments, np.array([[[4.0]]], np.float16)), [[0.5], [0.5]])
    assert_equal(bn_backward(*arguments[:4], None, *arguments[5:], 4.0), [[0.25], [0.25]])
    assert_equal(batch_norm_elemt_backward.terms(*arguments, 4.0), [[1.0], [2.0]])


def test_batch_norm_elemt_backward_special_values() -> None:
    one = np.ones(1)
    assert_equal(
        bn_backward([[1.0], [NAN], [INF]], np.ones((3, 1)), one, one, None, one, one, 1.0), [[0.0], [NAN], [INF]]
    )
    assert_equal(bn_backward([[1.0]], [[1.0]], one, one, None, one, one, 0.0), [[NAN]])
    assert_equal(bn_backward(np.zeros((0, 1)), np.zeros((0, 1)), one, one, None, one, one, []), np.zeros((0, 1)))


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 4), (2, 2, 1, 2, 1, 2, 1, 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_batch_norm_elemt_backward_is_the_derivative(shape: tuple[int, ...], weighted: bool) -> None:
    x, grad = rng(1).normal(size=shape), rng(2).normal(size=shape)
    weight = rng(3).normal(size=shape[1]) if weighted else None
    _, mean, invstd = batch_norm(x, weight)
    sums = reduced(grad, x, mean)
    actual = bn_backward(grad, x, mean, invstd, weight, *sums, x.size // shape[1])
    expected = numbers.finite_difference(lambda x: (grad * batch_norm(x, weight)[0]).sum(), x, 1e-4)
    assert_close(actual, expected, 1e-7)


def test_batch_norm_elemt_backward_over_workers() -> None:
    """The workers' sums and counts add up, and each finishes its own rows."""
    x, grad = rng(1).normal(size=(7, 3, 2)), rng(2).normal(size=(7, 3, 2))
    _, mean, invstd = batch_norm(x)
    rows = [slice(0, 2), slice(2, 7)]
    sums = np.sum([reduced(grad[row], x[row], mean) for row in rows], axis=0)
    whole = bn_backward(grad, x, mean, invstd, None, *reduced(grad, x, mean), [14])
    parts = [bn_backward(grad[row], x[row], mean, invstd, None, *sums, np.array([4, 10], np.int32)) for row in rows]
    assert_close(np.concatenate(parts), whole)


def test_batch_norm_by_hand() -> None:
    output, mean, invstd = batch_norm([[1.0], [3.0]], [10.0], [1.0], 0.0)
    assert_equal(output, [[-9.0], [11.0]])
    assert_equal(mean, [2.0])
    assert_equal(invstd, [1.0])
    sum_dy, sum_dy_xmu = reduced([[5.0], [7.0]], [[1.0], [3.0]], [2.0])
    assert_equal(sum_dy, [12.0])
    assert_equal(sum_dy_xmu, [2.0])


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 4), (2, 3, 2, 2)])
def test_batch_norm_against_torch(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x, grad = rng(1).normal(size=shape), rng(2).normal(size=shape)
    weight, bias = rng(3).normal(size=3), rng(4).normal(size=3)
    leaf = torch.tensor(x, requires_grad=True)
    torch_output = torch.nn.functional.batch_norm(
        leaf, None, None, torch.tensor(weight), torch.tensor(bias), training=True, eps=2.0**-10
    )
    torch_output.backward(torch.tensor(grad))
    output, mean, invstd = batch_norm(x, weight, bias, 2.0**-10)
    assert_close(output, torch_output.detach().numpy())
    sums = reduced(grad, x, mean)
    assert_close(bn_backward(grad, x, mean, invstd, weight, *sums, x.size // 3), leaf.grad.numpy())


# --------------------------------------------------------------------------------------------------------------------
# HardshrinkBackward


def test_hardshrink_backward_off_is_plus_zero() -> None:
    actual = hardshrink_backward.oracle([NAN, INF, -1.0, -0.0, -0.0, NAN], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    assert_equal(actual, [0.0, 0.0, 0.0, 0.0, 0.0, NAN])
    np.testing.assert_array_equal(np.signbit(actual[:5]), [False, False, False, False, True])


def test_hardshrink_backward_lambd_is_float32() -> None:
    limit = float(np.float32(0.3))  # 0.3000000119
    x = np.array([limit, np.nextafter(limit, 1.0), 0.3, -limit, -np.nextafter(limit, 1.0)])
    assert_equal(hardshrink_backward.oracle(np.ones(5), x, 0.3), [0.0, 1.0, 0.0, 0.0, 1.0])


def test_hardshrink_backward_is_the_derivative() -> None:
    x, grad = rng(1).normal(size=(4, 5)), rng(2).normal(size=(4, 5))
    expected = numbers.finite_difference(lambda x: (grad * hardshrink.oracle(x)).sum(), x)
    assert_close(hardshrink_backward.oracle(grad, x), expected, 1e-8)


# --------------------------------------------------------------------------------------------------------------------
# Helpers and conversions


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("wide", [np.float64, np.longdouble])
def test_dtypes_are_widened_exactly(dtype: type, wide: type) -> None:
    x = rng().normal(size=(4, 3)).astype(dtype)
    one = np.ones(3, dtype)
    results = [
        hardshrink_backward.oracle(x, np.full((4, 3), 2, dtype), dtype=wide),
        -kl_div_backward.oracle(one, np.zeros((4, 3), dtype), x, 0, dtype=wide),
        bn_backward(x, x, 0 * one, one, one, 0 * one, 0 * one, np.array([4], np.int32), dtype=wide),
        2 * bce_backward(x, np.zeros((4, 3), dtype), np.zeros((4, 3), dtype), one, reduction=0, dtype=wide),
    ]
    for result in results:
        assert result.dtype == wide
        np.testing.assert_array_equal(result, x.astype(np.float64))


def test_reduction_is_checked() -> None:
    with pytest.raises(ValueError, match="reduction is 4, expected 0, 1, 2 or 3"):
        kl_div_backward.oracle(1.0, 1.0, 1.0, 4)


def test_finite_difference() -> None:
    actual = numbers.finite_difference(lambda a: a[0, 0] ** 2 * a[0, 1], np.array([[3.0, 5.0]]), 1e-4)
    np.testing.assert_allclose(actual, [[30.0, 9.0]], rtol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "epsilon", "tiny", "largest"),
    [
        (np.float16, 2.0**-10, 2.0**-24, 65504.0),
        (ml_dtypes.bfloat16, 2.0**-7, 2.0**-133, (2 - 2.0**-7) * 2.0**127),
        (np.float32, 2.0**-23, 2.0**-149, (2 - 2.0**-23) * 2.0**127),
        (np.float64, 2.0**-52, 2.0**-1074, (2 - 2.0**-52) * 2.0**1023),
    ],
)
def test_ulp_error(dtype: npt.DTypeLike, epsilon: float, tiny: float, largest: float) -> None:
    def error(actual: float, expected: float, term: float | None = None) -> float:
        terms = None if term is None else np.array([term])
        return float(numbers.ulp_error(np.array([actual]).astype(dtype), np.array([expected]), terms)[0])

    assert error(1.0, 1.0) == 0
    assert error(1 + epsilon, 1.0) == 1
    assert error(1 - epsilon / 2, 1.0) == 0.5  # the spacing is halved below 1, the unit is that of 1
    assert error(-2 - 4 * epsilon, -2.0) == 2
    assert error(3.0, 3.0, 1e300) == 0
    assert error(1 + 4 * epsilon, 1.0, 4.0) == 1
    assert error(1 + 4 * epsilon, 1.0, NAN) == error(1 + 4 * epsilon, 1.0, INF) == 4
    assert error(tiny, 0.0) == error(0.0, tiny) == error(3 * tiny, 2 * tiny) == 1
    assert error(INF, INF) == error(-INF, -INF) == error(NAN, NAN) == error(-0.0, 0.0) == 0
    for actual, expected in ((NAN, 1.0), (1.0, NAN), (INF, NAN), (NAN, INF), (INF, -INF), (INF, 1.0), (1.0, INF)):
        assert error(actual, expected) == INF
    assert error(INF, largest) == 1
    assert error(-INF, largest) == INF
    assert error(largest, largest) == 0


def test_ulp_error_of_overflow_and_longdouble() -> None:
    half = np.array([INF, INF, 65504.0], np.float16)
    np.testing.assert_allclose(numbers.ulp_error(half, [1e6, 65519.0, 65528.0]), [0.0, 17 / 32, 0.75])
    if np.finfo(np.longdouble).nmant > 52:
        third = np.longdouble(1) / 3
        assert 0 < numbers.ulp_error(np.array(1 / 3), third) <= 0.5


def test_difference() -> None:
    got = numbers.difference([1.5, -2.0, INF, NAN, INF, -INF, 1.0, NAN], [1.0, 2.0, INF, NAN, -INF, 1.0, NAN, INF])
    assert got.tolist() == [0.5, 4.0, 0.0, 0.0, INF, INF, INF, INF]


def test_ulp_error_checks_shapes() -> None:
    with pytest.raises(ValueError, match="shape"):
        numbers.ulp_error(np.zeros(2), np.zeros((2, 1)))
