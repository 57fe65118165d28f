"""Slow, obvious oracles for the five ops, and the forward losses they differentiate, in plain NumPy.

Nothing here imports the package under test. Every function converts its floating inputs to `dtype` (float64, or
np.longdouble where float64 results are to be judged), evaluates the formula as it is written and returns `dtype`.
Inputs come in the order of the op, None stands for a missing optional one, attributes are keywords. IEEE values go
through: what the formula gives for NaN and infinity is the answer, with the exceptions stated per function.

Letters: S broadcast shape of an elementwise op; CTC: T time, N batch, C classes, A = 2 * max(target_lengths) + 1
states, L = 2 * target_length + 1 states of one sample.

`reduction`: 0 none, 1 mean, 2 sum, 3 batchmean.

References
    Graves, Fernandez, Gomez, Schmidhuber, "Connectionist Temporal Classification", ICML 2006 (equations 6-16).
    Ioffe, Szegedy, "Batch Normalization", ICML 2015 (section 3).
    PyTorch, aten/src/ATen/native: LossCTC.cpp (log_alpha includes log_probs at t), Loss.cpp, Normalization.cpp.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, Any]
Reals = type[np.float64] | type[np.longdouble]

NEG_INF = -math.inf

# bits after the leading one, exponent of the smallest normal number, exponent of the first power of two too large
_FORMATS = {
    np.dtype(np.float16): (10, -14, 16),
    np.dtype(ml_dtypes.bfloat16): (7, -126, 128),
    np.dtype(np.float32): (23, -126, 128),
    np.dtype(np.float64): (52, -1022, 1024),
}


def _real(array: ArrayLike, dtype: Reals) -> Array:
    array = np.asarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float64)  # ml_dtypes has no cast to longdouble
    return array.astype(dtype)


def _reduce(loss: Array, reduction: int) -> Array:
    """The loss (S) as it is, or its mean, its sum, or its sum divided by the first extent of S."""
    if reduction == 0:
        return loss
    return np.asarray(loss.sum() / _divisor(reduction, loss.shape))


def _divisor(reduction: int, shape: tuple[int, ...]) -> int:
    """What the sum over `shape` is divided by; batchmean of a rank-0 shape divides by 1."""
    if reduction not in (0, 1, 2, 3):
        raise ValueError(f"reduction is {reduction}, expected 0, 1, 2 or 3")
    if reduction == 1:
        return math.prod(shape)
    if reduction == 3 and shape:
        return shape[0]
    return 1


def _broadcast_axes(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of `result` along which an array of `shape` is repeated."""
    padded = (1,) * (len(result) - len(shape)) + shape
    return tuple(i for i, (a, b) in enumerate(zip(padded, result, strict=True)) if a == 1 and b != 1)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without the overflow of exp that would flush sigmoid(-720) to 0."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


# --------------------------------------------------------------------------------------------------------------------
# KlDivBackward


def _kl_div_terms(
    grad_output: ArrayLike, self: ArrayLike, target: ArrayLike, reduction: int, log_target: int, dtype: Reals
) -> tuple[Array, tuple[int, ...]]:
    """d over S after the division, and the axes to sum over."""
    shape = np.broadcast_shapes(np.shape(self), np.shape(target))
    grad_output, target = _real(grad_output, dtype), _real(target, dtype)
    d = -np.exp(target) * grad_output if log_target else -target * grad_output
    d = np.broadcast_to(d, shape) / np.asarray(_divisor(reduction, shape), dtype)
    return d, _broadcast_axes(np.shape(self), shape)


def kl_div_backward(
    grad_output: ArrayLike,
    self: ArrayLike,
    target: ArrayLike,
    reduction: int = 1,
    log_target: int = 0,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """Gradient of `kl_div` with respect to self, whose values do not enter; result of self's shape.

    d = -exp(target) * grad_output if log_target else -target * grad_output, over S = broadcast(self, target);
    divided by numel(S) (mean) or S[0] (batchmean); summed over the axes along which self was broadcast.
    """
    with np.errstate(all="ignore"):
        d, axes = _kl_div_terms(grad_output, self, target, reduction, log_target, dtype)
        return np.asarray(d.sum(axis=axes)).reshape(np.shape(self))


def kl_div_backward_largest_term(
    grad_output: ArrayLike, self: ArrayLike, target: ArrayLike, reduction: int = 1, log_target: int = 0
) -> Array:
    """Largest |d| among the terms summed into each element of the result; self's shape, 0 for an empty sum."""
    with np.errstate(all="ignore"):
        d, axes = _kl_div_terms(grad_output, self, target, reduction, log_target, np.float64)
        return np.asarray(np.abs(d).max(axis=axes, initial=0.0)).reshape(np.shape(self))


def kl_div(
    self: ArrayLike, target: ArrayLike, reduction: int = 1, log_target: int = 0, *, dtype: Reals = np.float64
) -> Array:
    """target * (log(target) - self), 0 * log(0) = 0; with log_target exp(target) * (target - self).

    Result of shape S for reduction 0, else rank 0. NaN where target < 0, as in PyTorch (xlogy).
    """
    self, target = _real(self, dtype), _real(target, dtype)
    with np.errstate(all="ignore"):
        if log_target:
            loss = np.exp(target) * (target - self)
        else:
            loss = np.where(target == 0, 0, target * np.log(target)) - target * self
        return _reduce(loss, reduction)


# --------------------------------------------------------------------------------------------------------------------
# BinaryCrossEntropyWithLogitsBackward


def _bce_operands(
    self: ArrayLike, target: ArrayLike, weight: ArrayLike | None, pos_weight: ArrayLike | None, dtype: Reals
) -> tuple[Array, Array, Array, Array]:
    x, y = _real(self, dtype), _real(target, dtype)
    w = np.ones((), dtype) if weight is None else _real(weight, dtype)
    p = np.ones((), dtype) if pos_weight is None else _real(pos_weight, dtype)
    return x, y, w, p


def binary_cross_entropy_with_logits_backward(
    grad_output: ArrayLike,
    self: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """grad_output * w * ((p * y + 1 - y) * sigmoid(x) - p * y), divided by numel(self) for mean; self's shape.

    x = self, y = target, w = weight, p = pos_weight. The difference cancels where sigmoid(x) is near 1: judge results
    with `binary_cross_entropy_with_logits_backward_largest_term`, or against `..._split`, which does not cancel.
    """
    x, y, w, p = _bce_operands(self, target, weight, pos_weight, dtype)
    with np.errstate(all="ignore"):
        out = _real(grad_output, dtype) * w * ((p * y + 1 - y) * _sigmoid(x) - p * y)
        return np.broadcast_to(out, x.shape) / np.asarray(_divisor(reduction, x.shape), dtype)


def binary_cross_entropy_with_logits_backward_split(
    grad_output: ArrayLike,
    self: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """The same gradient as grad_output * w * ((1 - y) * sigmoid(x) - p * y * sigmoid(-x)); for finite inputs.

    Equal in exact arithmetic, with full relative accuracy for y = 0 and y = 1 at any x. Infinite weights or targets
    meet different indeterminate forms here, so it does not stand in for the formula there.
    """
    x, y, w, p = _bce_operands(self, target, weight, pos_weight, dtype)
    with np.errstate(all="ignore"):
        out = _real(grad_output, dtype) * w * ((1 - y) * _sigmoid(x) - p * y * _sigmoid(-x))
        return np.broadcast_to(out, x.shape) / np.asarray(_divisor(reduction, x.shape), dtype)


def binary_cross_entropy_with_logits_backward_largest_term(
    grad_output: ArrayLike,
    self: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: int = 1,
) -> Array:
    """|grad_output * w / n| * max(|(p * y + 1 - y) * sigmoid(x)|, |p * y|), self's shape."""
    x, y, w, p = _bce_operands(self, target, weight, pos_weight, np.float64)
    with np.errstate(all="ignore"):
        terms = np.maximum(np.abs((p * y + 1 - y) * _sigmoid(x)), np.abs(p * y))
        return _bce_scaled(terms, grad_output, w, reduction, x.shape)


def binary_cross_entropy_with_logits_backward_factor(
    grad_output: ArrayLike,
    self: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: int = 1,
) -> Array:
    """|grad_output * w / n| * max(|1 - y|, |p * y|): what sigmoid(x) and sigmoid(-x) are multiplied by, at most."""
    x, y, w, p = _bce_operands(self, target, weight, pos_weight, np.float64)
    with np.errstate(all="ignore"):
        return _bce_scaled(np.maximum(np.abs(1 - y), np.abs(p * y)), grad_output, w, reduction, x.shape)


def _bce_scaled(sizes: Array, grad_output: ArrayLike, w: Array, reduction: int, shape: tuple[int, ...]) -> Array:
    scale = np.abs(_real(grad_output, np.float64) * w) / _divisor(reduction, shape)
    return np.broadcast_to(scale * sizes, shape)


def binary_cross_entropy_with_logits(
    self: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """-w * (p * y * log(sigmoid(x)) + (1 - y) * log(1 - sigmoid(x))); self's shape for reduction 0, else rank 0."""
    x, y, w, p = _bce_operands(self, target, weight, pos_weight, dtype)
    zero = np.zeros((), dtype)
    with np.errstate(all="ignore"):
        return _reduce(w * (p * y * np.logaddexp(zero, -x) + (1 - y) * np.logaddexp(zero, x)), reduction)


# --------------------------------------------------------------------------------------------------------------------
# CtcLossBackward


def ctc_targets(targets: ArrayLike, target_lengths: ArrayLike) -> list[Array]:
    """The labels of each sample as int64 (target_length,), from padded (N, S) or concatenated 1-D targets."""
    targets = np.asarray(targets).astype(np.int64)
    lengths = [int(length) for length in np.asarray(target_lengths)]
    if targets.ndim == 2:
        return [targets[n, :length] for n, length in enumerate(lengths)]
    starts = [0, *itertools.accumulate(lengths)]
    return [targets[start : start + length] for start, length in zip(starts, lengths, strict=False)]


def ctc_extended_labels(target: ArrayLike, blank: int = 0) -> Array:
    """l' = blank, t1, blank, ..., tS, blank (L,); Graves et al. 2006, section 4.1."""
    target = np.asarray(target, np.int64)
    labels = np.full(2 * len(target) + 1, blank, np.int64)
    labels[1::2] = target
    return labels


def _shifted(states: Array, by: int) -> Array:
    """states (L,) moved up by `by` states (down if negative), -inf where nothing comes from."""
    moved = np.full_like(states, NEG_INF)
    if by > 0:
        moved[by:] = states[:-by]
    else:
        moved[:by] = states[-by:]
    return moved


def ctc_log_alpha(log_probs: Array, labels: Array) -> Array:
    """Forward variables (Tn, L) of one sample from log_probs (Tn, C) and l' (L,); Graves et al. 2006, eq. 6-7.

    The skip from state s - 2 is open where l'_s differs from l'_{s-2}, which closes it for blanks; PyTorch's reading,
    also for a target that contains the blank itself.
    """
    emit = log_probs[:, labels]  # (Tn, L)
    may_skip = np.zeros(len(labels), bool)
    may_skip[2:] = labels[2:] != labels[:-2]
    log_alpha = np.full_like(emit, NEG_INF)
    log_alpha[:1, :2] = emit[:1, :2]
    for t in range(1, len(emit)):
        before = log_alpha[t - 1]
        skip = np.where(may_skip, _shifted(before, 2), NEG_INF)
        log_alpha[t] = emit[t] + np.logaddexp(np.logaddexp(before, _shifted(before, 1)), skip)
    return log_alpha


def _log_times(a: Array, b: Array) -> Array:
    """The logarithm of a product of probabilities, of which a 0 is stronger than infinity and NaN."""
    return np.where((a == NEG_INF) | (b == NEG_INF), NEG_INF, a + b)


def ctc_log_beta(log_probs: Array, labels: Array) -> Array:
    """Backward variables (Tn, L) of one sample, log_probs at t included; Graves et al. 2006, eq. 9-11.

    -inf in a state that cannot reach the end, or only by steps of probability 0, whatever other log_probs hold.
    """
    emit = log_probs[:, labels]  # (Tn, L)
    may_skip = np.zeros(len(labels), bool)
    may_skip[:-2] = labels[:-2] != labels[2:]
    log_beta = np.full_like(emit, NEG_INF)
    log_beta[-1:, -2:] = emit[-1:, -2:]
    for t in range(len(emit) - 2, -1, -1):
        after = log_beta[t + 1]
        skip = np.where(may_skip, _shifted(after, -2), NEG_INF)
        log_beta[t] = _log_times(emit[t], np.logaddexp(np.logaddexp(after, _shifted(after, -1)), skip))
    return log_beta


def ctc_loss(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, Array]:
    """neg_log_likelihood (N,) and log_alpha (N, T, A) of log_probs (T, N, C); Graves et al. 2006, eq. 6-8.

    log_alpha is -inf for t >= input_length and for states past L. input_length 0 gives loss 0 for an empty target and
    +inf for any other.
    """
    log_probs = _real(log_probs, dtype)
    steps, batch, _ = log_probs.shape
    samples = ctc_targets(targets, target_lengths)
    states = 2 * max((len(sample) for sample in samples), default=0) + 1
    log_alpha = np.full((batch, steps, states), NEG_INF, dtype)
    neg_log_likelihood = np.empty(batch, dtype)
    with np.errstate(all="ignore"):
        for n, sample in enumerate(samples):
            length, labels = int(np.asarray(input_lengths)[n]), ctc_extended_labels(sample, blank)
            alpha = ctc_log_alpha(log_probs[:length, n], labels)
            log_alpha[n, :length, : len(labels)] = alpha
            if length == 0:
                neg_log_likelihood[n] = math.inf if len(sample) else 0
            else:
                neg_log_likelihood[n] = 0 - np.logaddexp.reduce(alpha[-1, -2:])
    return neg_log_likelihood, log_alpha


def ctc_loss_backward(
    grad_out: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    neg_log_likelihood: ArrayLike,
    log_alpha: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """Gradient (T, N, C) of `ctc_loss`, times grad_out (N,); Graves et al. 2006, eq. 14-16.

    grad_out[n] * (exp(log_probs) - exp(logsum_{s: l'_s = c}(log_alpha + log_beta) + neg_log_likelihood - log_probs)),
    the first exp left out unless through_log_softmax. log_alpha (N, T, >= A) and neg_log_likelihood are used as given.
    A state has a term unless its log_alpha or its log_beta is -inf; a class without terms contributes 0 to the second
    exp. 0 for t >= input_length. A loss of +inf gives NaN for t < input_length, or 0 with zero_infinity; NaN gives NaN.
    """
    loss = _real(neg_log_likelihood, dtype)
    first, posterior = _ctc_terms(log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank, dtype)
    with np.errstate(all="ignore"):
        out = _real(grad_out, dtype)[:, None] * ((first if through_log_softmax else 0) - posterior)
    lost = np.where((loss == math.inf) & bool(zero_infinity), 0, math.nan)[:, None]
    out = np.where((loss < math.inf)[:, None], out, lost)
    return np.where(_inside(out, input_lengths), out, 0)


def ctc_loss_backward_largest_term(
    grad_out: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    neg_log_likelihood: ArrayLike,
    log_alpha: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """The larger of the two terms of the difference of `ctc_loss_backward`, times |grad_out| (T, N, C)."""
    del zero_infinity
    loss = _real(neg_log_likelihood, dtype)
    first, posterior = _ctc_terms(log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank, dtype)
    with np.errstate(all="ignore"):
        return np.abs(_real(grad_out, dtype))[:, None] * np.maximum(first if through_log_softmax else 0, posterior)


def _ctc_terms(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    loss: Array,
    log_alpha: ArrayLike,
    blank: int,
    dtype: Reals,
) -> tuple[Array, Array]:
    """exp(log_probs), and what `ctc_loss_backward` subtracts from it, 0 for t >= input_length (both T, N, C)."""
    log_probs, log_alpha = _real(log_probs, dtype), _real(log_alpha, dtype)
    posterior = np.zeros_like(log_probs)
    with np.errstate(all="ignore"):
        for n, sample in enumerate(ctc_targets(targets, target_lengths)):
            length, labels = int(np.asarray(input_lengths)[n]), ctc_extended_labels(sample, blank)
            log_beta = ctc_log_beta(log_probs[:length, n], labels)  # (Tn, L)
            for t in range(length):
                paths = np.full(log_probs.shape[2], NEG_INF, dtype)  # eq. 15, summed over the states of each class
                np.logaddexp.at(paths, labels, _log_times(log_alpha[n, t, : len(labels)], log_beta[t]))
                found = np.exp(paths + loss[n] - log_probs[t, n])
                posterior[t, n] = np.where(paths == NEG_INF, 0, found)
        return np.exp(log_probs), posterior


def _inside(result: Array, input_lengths: ArrayLike) -> Array:
    """Which time steps of a result (T, N, C) its samples have (T, N, 1)."""
    return (np.arange(len(result))[:, None] < np.asarray(input_lengths).astype(np.int64))[:, :, None]


def ctc_state_paths(labels: Array, state: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Every way to be in `state` and, `steps` - 1 steps later, in one of the last two states of l' (L,)."""
    if steps == 1:
        if state >= len(labels) - 2:
            yield (state,)
        return
    for by in range(3):
        onto = state + by
        if onto < len(labels) and not (by == 2 and labels[state] == labels[onto]):
            yield from ((state, *rest) for rest in ctc_state_paths(labels, onto, steps - 1))


def ctc_brute_force_loss_backward(
    grad_out: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    neg_log_likelihood: ArrayLike,
    log_alpha: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
) -> Array:
    """`ctc_loss_backward` (T, N, C) from `ctc_state_paths`: any log_alpha, number by number. Tiny sizes only.

    beta[t, s] is the sum over all paths from s at t to the end that no step makes impossible; a state has a term if
    there is such a path and its log_alpha is not -inf.
    """
    grad, lp, loss, alpha = (_real(a, np.float64) for a in (grad_out, log_probs, neg_log_likelihood, log_alpha))
    out = np.zeros_like(lp)
    with np.errstate(all="ignore"):
        for n, sample in enumerate(ctc_targets(targets, target_lengths)):
            length, labels = int(np.asarray(input_lengths)[n]), ctc_extended_labels(sample, blank)
            for t, c in np.ndindex(length, lp.shape[2]):
                terms = []
                for s in np.flatnonzero(labels == c):
                    paths = ctc_state_paths(labels, int(s), length - t)
                    steps = [lp[np.arange(t, length), n, labels[list(path)]] for path in paths]
                    possible = [row.sum() for row in steps if NEG_INF not in row]
                    if possible and alpha[n, t, s] != NEG_INF:
                        terms.append(alpha[n, t, s] + np.logaddexp.reduce(possible))
                posterior = np.exp(np.logaddexp.reduce(terms) + loss[n] - lp[t, n, c]) if terms else 0.0
                out[t, n, c] = grad[n] * ((np.exp(lp[t, n, c]) if through_log_softmax else 0.0) - posterior)
            if np.isnan(loss[n]):
                out[:length, n] = math.nan
            elif loss[n] == math.inf:
                out[:length, n] = 0.0 if zero_infinity else math.nan
    return out


def ctc_alignments(target: ArrayLike, steps: int, classes: int, blank: int = 0) -> Iterator[tuple[int, ...]]:
    """Every path of `steps` classes that collapses to `target`, out of all classes**steps; eq. 2-3 of the paper."""
    wanted = [int(label) for label in np.asarray(target)]
    for path in itertools.product(range(classes), repeat=steps):
        if [label for label, _ in itertools.groupby(path) if label != blank] == wanted:
            yield path


def ctc_brute_force_loss(
    log_probs: ArrayLike, targets: ArrayLike, input_lengths: ArrayLike, target_lengths: ArrayLike, blank: int = 0
) -> Array:
    """neg_log_likelihood (N,) as minus the log of the sum of the probabilities of all alignments. Tiny sizes only."""
    log_probs = _real(log_probs, np.float64)
    losses = []
    for n, sample in enumerate(ctc_targets(targets, target_lengths)):
        length = int(np.asarray(input_lengths)[n])
        paths = ctc_alignments(sample, length, log_probs.shape[2], blank)
        total = math.fsum(math.exp(sum(log_probs[t, n, c] for t, c in enumerate(path))) for path in paths)
        losses.append(0 - math.log(total) if total else math.inf)
    return np.array(losses, np.float64)


def ctc_brute_force_posteriors(
    log_probs: ArrayLike, targets: ArrayLike, input_lengths: ArrayLike, target_lengths: ArrayLike, blank: int = 0
) -> Array:
    """P(path goes through c at t | target) (T, N, C), counted over all alignments; 0 for t >= input_length.

    NaN (0 / 0) for t < input_length where no alignment has a probability above 0.
    """
    log_probs = _real(log_probs, np.float64)
    counted = np.zeros_like(log_probs)
    for n, sample in enumerate(ctc_targets(targets, target_lengths)):
        length = int(np.asarray(input_lengths)[n])
        total = 0.0
        for path in ctc_alignments(sample, length, log_probs.shape[2], blank):
            probability = math.exp(sum(log_probs[t, n, c] for t, c in enumerate(path)))
            total += probability
            for t, c in enumerate(path):
                counted[t, n, c] += probability
        with np.errstate(all="ignore"):
            counted[:length, n] /= total
    return counted


def ctc_brute_force_gradient(
    grad_out: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
) -> Array:
    """The result of `ctc_loss_backward` (T, N, C) from `ctc_brute_force_posteriors`. Tiny sizes only."""
    log_probs = _real(log_probs, np.float64)
    lengths = np.asarray(input_lengths).astype(np.int64)
    posteriors = ctc_brute_force_posteriors(log_probs, targets, lengths, target_lengths, blank)
    if zero_infinity:
        impossible = np.isinf(ctc_brute_force_loss(log_probs, targets, lengths, target_lengths, blank))
    else:
        impossible = np.zeros(len(lengths), bool)
    first = np.exp(log_probs) if through_log_softmax else np.zeros_like(log_probs)
    out = _real(grad_out, np.float64)[:, None] * (first - posteriors)
    return np.where(_inside(out, lengths) & ~impossible[:, None], out, 0)


# --------------------------------------------------------------------------------------------------------------------
# BatchNormElemtBackward


def _per_channel(values: ArrayLike, rank: int, dtype: Reals) -> Array:
    """values (channels,) shaped to broadcast along axis 1 of an array of `rank`."""
    return _real(values, dtype).reshape((-1,) + (1,) * (rank - 2))


def _batch_norm_terms(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    weight: ArrayLike | None,
    sum_dy: ArrayLike,
    sum_dy_xmu: ArrayLike,
    counter: ArrayLike,
    dtype: Reals,
) -> tuple[Array, Array, Array, Array]:
    """grad_out, sum_dy / n, the projection onto input - mean, and the scale invstd * weight."""
    x = _real(input, dtype)
    mean, invstd, sum_dy, sum_dy_xmu = (_per_channel(a, x.ndim, dtype) for a in (mean, invstd, sum_dy, sum_dy_xmu))
    n = _real(counter, dtype).sum()
    scale = invstd if weight is None else invstd * _per_channel(weight, x.ndim, dtype)
    return _real(grad_out, dtype), sum_dy / n, (x - mean) * (invstd**2 * (sum_dy_xmu / n)), scale


def batch_norm_elemt_backward(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    weight: ArrayLike | None,
    sum_dy: ArrayLike,
    sum_dy_xmu: ArrayLike,
    counter: ArrayLike,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """((grad_out - sum_dy/n) - (input - mean) * (invstd**2 * (sum_dy_xmu/n))) * invstd * weight, n = sum(counter).

    grad_out and input have the channels on axis 1; mean, invstd, weight, sum_dy, sum_dy_xmu are (channels,); counter
    holds one sample count per worker, in any shape. Ioffe and Szegedy 2015, section 3.
    """
    with np.errstate(all="ignore"):
        g, average, projection, scale = _batch_norm_terms(
            grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, counter, dtype
        )
        return (g - average - projection) * scale


def batch_norm_elemt_backward_largest_term(
    grad_out: ArrayLike,
    input: ArrayLike,
    mean: ArrayLike,
    invstd: ArrayLike,
    weight: ArrayLike | None,
    sum_dy: ArrayLike,
    sum_dy_xmu: ArrayLike,
    counter: ArrayLike,
) -> Array:
    """|invstd * weight| * max(|grad_out|, |sum_dy/n|, |(input - mean) * invstd**2 * sum_dy_xmu/n|), input's shape."""
    with np.errstate(all="ignore"):
        g, average, projection, scale = _batch_norm_terms(
            grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, counter, np.float64
        )
        return np.abs(scale) * np.maximum(np.maximum(np.abs(g), np.abs(average)), np.abs(projection))


def batch_norm(
    input: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    epsilon: float = 1e-5,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, Array, Array]:
    """Training-mode batch norm: output (input's shape), mean (channels,), invstd = 1 / sqrt(var + epsilon) (channels,).

    var is the biased variance over all axes but 1. For synchronized batch norm pass the samples of all workers.
    """
    x = _real(input, dtype)
    axes = (0, *range(2, x.ndim))
    with np.errstate(all="ignore"):
        mean = x.mean(axis=axes)
        centred = x - _per_channel(mean, x.ndim, dtype)
        invstd = 1 / np.sqrt((centred**2).mean(axis=axes) + _real(epsilon, dtype))
        output = centred * _per_channel(invstd, x.ndim, dtype)
        if weight is not None:
            output = output * _per_channel(weight, x.ndim, dtype)
        if bias is not None:
            output = output + _per_channel(bias, x.ndim, dtype)
    return output, mean, invstd


def batch_norm_backward_reduce(
    grad_out: ArrayLike, input: ArrayLike, mean: ArrayLike, *, dtype: Reals = np.float64
) -> tuple[Array, Array]:
    """sum_dy = sum(grad_out), sum_dy_xmu = sum(grad_out * (input - mean)), each (channels,), of one worker's samples.

    The first two results of PyTorch's batch_norm_backward_reduce; the workers' sums add up.
    """
    g, x = _real(grad_out, dtype), _real(input, dtype)
    axes = (0, *range(2, x.ndim))
    with np.errstate(all="ignore"):
        return g.sum(axis=axes), (g * (x - _per_channel(mean, x.ndim, dtype))).sum(axis=axes)


# --------------------------------------------------------------------------------------------------------------------
# HardshrinkBackward


def _threshold(lambd: float) -> np.float64:
    """lambd rounded to float32, at least 0, widened exactly."""
    return np.float64(max(np.float32(lambd), np.float32(0)))


def hardshrink_backward(
    grad_output: ArrayLike, self: ArrayLike, lambd: float = 0.5, *, dtype: Reals = np.float64
) -> Array:
    """grad_output where self > lambd or self < -lambd, else +0; shape broadcast(grad_output, self).

    lambd is compared as a float32 value. NaN in self gives 0; NaN in grad_output shows only where the mask is on.
    """
    g, x = _real(grad_output, dtype), _real(self, dtype)
    limit = _threshold(lambd)
    with np.errstate(all="ignore"):
        return np.where((x > limit) | (x < -limit), g, np.zeros((), dtype))


def hardshrink_backward_largest_term(grad_output: ArrayLike, self: ArrayLike, lambd: float = 0.5) -> Array:
    """|result|: the op selects and adds nothing."""
    return np.abs(hardshrink_backward(grad_output, self, lambd))


def hardshrink(self: ArrayLike, lambd: float = 0.5, *, dtype: Reals = np.float64) -> Array:
    """0 where -lambd <= self <= lambd, else self (so NaN stays NaN, as in PyTorch); self's shape."""
    x = _real(self, dtype)
    limit = _threshold(lambd)
    with np.errstate(all="ignore"):
        return np.where((x >= -limit) & (x <= limit), np.zeros((), dtype), x)


# --------------------------------------------------------------------------------------------------------------------
# Judging results


def finite_difference(function: Callable[[Array], Any], array: ArrayLike, step: float = 1e-6) -> Array:
    """Central differences in float64 of a scalar function of an array; result of array's shape."""
    array = _real(array, np.float64)
    gradient = np.empty_like(array)
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (float(function(up)) - float(function(down))) / (up[index] - down[index])
    return gradient


def ulp_error(actual: Array, expected_float64: ArrayLike, largest_term: ArrayLike | None = None) -> Array:
    """|actual - expected| in units in the last place of actual.dtype, as a float64 array of actual's shape.

    The unit is the spacing of actual.dtype at max(|expected|, largest_term), never below its smallest subnormal; a
    NaN or infinite largest_term is ignored. Equal infinities and NaN on both sides count 0, any other meeting of a
    special value inf. Two exceptions for an infinite result of the right sign where a finite value is expected: 0 where
    expected rounds to it; in the last binade it counts as the power of two that is the first not to fit.
    expected may be longdouble; correct rounding gives at most 0.5.
    """
    actual = np.asarray(actual)
    expected = np.asarray(expected_float64)
    if actual.shape != expected.shape:
        raise ValueError(f"actual has shape {actual.shape}, expected has shape {expected.shape}")
    bits, lowest, overflow = _FORMATS[actual.dtype]
    with np.errstate(all="ignore"):
        got, want = _real(actual, np.longdouble), _real(expected, np.longdouble)
        size = np.where(np.isfinite(want), np.abs(want), 0)
        if largest_term is not None:
            largest = np.broadcast_to(np.abs(_real(largest_term, np.longdouble)), size.shape)
            size = np.maximum(size, np.where(np.isfinite(largest), largest, 0))
        exponent = np.where(size == 0, lowest, np.frexp(size)[1] - 1)
        exponent = np.clip(exponent, lowest, overflow - 1) - bits
        places = np.ldexp(got, -exponent)
        infinite = np.isinf(got) & np.isfinite(want) & (np.signbit(got) == np.signbit(want))
        near = infinite & (np.abs(want) >= np.ldexp(np.longdouble(1), overflow - 1))
        places = np.where(near, np.copysign(np.ldexp(np.longdouble(1), overflow - exponent), want), places)
        error = np.abs(places - np.ldexp(want, -exponent))
        rounded = _real(expected, np.float64).astype(actual.dtype)
        error = np.where(infinite & np.isinf(rounded), 0, error)
        error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, error)
        return np.where(np.isnan(error), math.inf, error).astype(np.float64)
