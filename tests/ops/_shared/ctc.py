"""What the ops around the CTC loss share.

Letters: T time, N batch, C classes, S labels of the longest target, A states of the longest extended target,
L = 2 * target_length + 1 states of one sample.

References
    Graves, Fernandez, Gomez, Schmidhuber, "Connectionist Temporal Classification", ICML 2006 (equations 2-16).
    PyTorch, aten/src/ATen/native/LossCTC.cpp (log_alpha includes log_probs at t).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from tests.ops._shared.arrays import FLOAT16, FLOAT32, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import LENGTHS, Attribute, Call, Choice, DType, Input, Refusal

NEG_INF = -math.inf


def samples_of(targets: ArrayLike, target_lengths: ArrayLike) -> list[Array]:
    """The labels of each sample as int64 (target_length,), from padded (N, S) or concatenated 1-D targets."""
    targets = np.asarray(targets).astype(np.int64)
    lengths = [int(length) for length in np.asarray(target_lengths)]
    if targets.ndim == 2:
        return [targets[n, :length] for n, length in enumerate(lengths)]
    starts = [0, *itertools.accumulate(lengths)]
    return [targets[start : start + length] for start, length in zip(starts, lengths, strict=False)]


def extended_labels(target: ArrayLike, blank: int = 0) -> Array:
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


def log_times(a: Array, b: Array) -> Array:
    """The logarithm of a product of probabilities, of which a 0 is stronger than infinity and NaN."""
    return np.where((a == NEG_INF) | (b == NEG_INF), NEG_INF, a + b)


def forward_variables(log_probs: Array, labels: Array) -> Array:
    """Forward variables (Tn, L) of one sample from log_probs (Tn, C) and l' (L,); Graves et al. 2006, eq. 6-7.

    The skip from state s - 2 is open where l'_s differs from l'_{s-2}, which closes it for blanks; PyTorch's reading,
    also for a target that contains the blank itself. -inf in a state that no path has reached, whatever log_probs hold.
    """
    emit = log_probs[:, labels]  # (Tn, L)
    may_skip = np.zeros(len(labels), bool)
    may_skip[2:] = labels[2:] != labels[:-2]
    log_alpha = np.full_like(emit, NEG_INF)
    log_alpha[:1, :2] = emit[:1, :2]
    for t in range(1, len(emit)):
        before = log_alpha[t - 1]
        skip = np.where(may_skip, _shifted(before, 2), NEG_INF)
        log_alpha[t] = log_times(emit[t], np.logaddexp(np.logaddexp(before, _shifted(before, 1)), skip))
    return log_alpha


def backward_variables(log_probs: Array, labels: Array) -> Array:
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
        log_beta[t] = log_times(emit[t], np.logaddexp(np.logaddexp(after, _shifted(after, -1)), skip))
    return log_beta


def forward(
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
    +inf for any other. A is 2 * S + 1 for targets (N, S), else 2 * max(target_lengths) + 1.
    """
    log_probs = real(log_probs, dtype)
    steps, batch, _ = log_probs.shape
    samples = samples_of(targets, target_lengths)
    longest = max((len(sample) for sample in samples), default=0)
    states = 2 * (np.shape(targets)[1] if np.ndim(targets) == 2 else longest) + 1
    log_alpha = np.full((batch, steps, states), NEG_INF, dtype)
    neg_log_likelihood = np.empty(batch, dtype)
    with np.errstate(all="ignore"):
        for n, sample in enumerate(samples):
            length, labels = int(np.asarray(input_lengths)[n]), extended_labels(sample, blank)
            alpha = forward_variables(log_probs[:length, n], labels)
            log_alpha[n, :length, : len(labels)] = alpha
            if length == 0:
                neg_log_likelihood[n] = math.inf if len(sample) else 0
            else:
                neg_log_likelihood[n] = 0 - np.logaddexp.reduce(alpha[-1, -2:])
    return neg_log_likelihood, log_alpha


def terms_of_gradient(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    loss: Array,
    log_alpha: ArrayLike,
    blank: int,
    dtype: Reals,
) -> tuple[Array, Array]:
    """exp(log_probs), and what the gradient subtracts from it, 0 for t >= input_length (both T, N, C)."""
    log_probs, log_alpha = real(log_probs, dtype), real(log_alpha, dtype)
    posterior = np.zeros_like(log_probs)
    with np.errstate(all="ignore"):
        for n, sample in enumerate(samples_of(targets, target_lengths)):
            length, labels = int(np.asarray(input_lengths)[n]), extended_labels(sample, blank)
            log_beta = backward_variables(log_probs[:length, n], labels)  # (Tn, L)
            # eq. 15, summed over the states of each class
            paths = np.full((length, log_probs.shape[2]), NEG_INF, dtype)
            np.logaddexp.at(paths, (slice(None), labels), log_times(log_alpha[n, :length, : len(labels)], log_beta))
            found = np.exp(paths + loss[n] - log_probs[:length, n])
            posterior[:length, n] = np.where(paths == NEG_INF, 0, found)
        return np.exp(log_probs), posterior


def inside(result: Array, input_lengths: ArrayLike) -> Array:
    """Which time steps of a result (T, N, C) its samples have (T, N, 1)."""
    return (np.arange(len(result))[:, None] < np.asarray(input_lengths).astype(np.int64))[:, :, None]


def state_paths(labels: Array, state: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Every way to be in `state` and, `steps` - 1 steps later, in one of the last two states of l' (L,)."""
    if steps == 1:
        if state >= len(labels) - 2:
            yield (state,)
        return
    for by in range(3):
        onto = state + by
        if onto < len(labels) and not (by == 2 and labels[state] == labels[onto]):
            yield from ((state, *rest) for rest in state_paths(labels, onto, steps - 1))


def brute_force_loss_backward(
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
    """the gradient (T, N, C) from `state_paths`: any log_alpha, number by number. Tiny sizes only.

    beta[t, s] is the sum over all paths from s at t to the end that no step makes impossible; a state has a term if
    there is such a path and its log_alpha is not -inf.
    """
    grad, lp, loss, alpha = (real(a, np.float64) for a in (grad_out, log_probs, neg_log_likelihood, log_alpha))
    out = np.zeros_like(lp)
    with np.errstate(all="ignore"):
        for n, sample in enumerate(samples_of(targets, target_lengths)):
            length, labels = int(np.asarray(input_lengths)[n]), extended_labels(sample, blank)
            for t, c in np.ndindex(length, lp.shape[2]):
                terms = []
                for s in np.flatnonzero(labels == c):
                    paths = state_paths(labels, int(s), length - t)
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


def alignments(target: ArrayLike, steps: int, classes: int, blank: int = 0) -> Iterator[tuple[int, ...]]:
    """Every path of `steps` classes that collapses to `target`, out of all classes**steps; eq. 2-3 of the paper."""
    wanted = [int(label) for label in np.asarray(target)]
    for path in itertools.product(range(classes), repeat=steps):
        if [label for label, _ in itertools.groupby(path) if label != blank] == wanted:
            yield path


def brute_force_loss(
    log_probs: ArrayLike, targets: ArrayLike, input_lengths: ArrayLike, target_lengths: ArrayLike, blank: int = 0
) -> Array:
    """neg_log_likelihood (N,) as minus the log of the sum of the probabilities of all alignments. Tiny sizes only."""
    log_probs = real(log_probs, np.float64)
    losses = []
    for n, sample in enumerate(samples_of(targets, target_lengths)):
        length = int(np.asarray(input_lengths)[n])
        paths = alignments(sample, length, log_probs.shape[2], blank)
        total = math.fsum(math.exp(sum(log_probs[t, n, c] for t, c in enumerate(path))) for path in paths)
        losses.append(0 - math.log(total) if total else math.inf)
    return np.array(losses, np.float64)


def brute_force_posteriors(
    log_probs: ArrayLike, targets: ArrayLike, input_lengths: ArrayLike, target_lengths: ArrayLike, blank: int = 0
) -> Array:
    """P(path goes through c at t | target) (T, N, C), counted over all alignments; 0 for t >= input_length.

    NaN (0 / 0) for t < input_length where no alignment has a probability above 0.
    """
    log_probs = real(log_probs, np.float64)
    counted = np.zeros_like(log_probs)
    for n, sample in enumerate(samples_of(targets, target_lengths)):
        length = int(np.asarray(input_lengths)[n])
        total = 0.0
        for path in alignments(sample, length, log_probs.shape[2], blank):
            probability = math.exp(sum(log_probs[t, n, c] for t, c in enumerate(path)))
            total += probability
            for t, c in enumerate(path):
                counted[t, n, c] += probability
        with np.errstate(all="ignore"):
            counted[:length, n] /= total
    return counted


def brute_force_gradient(
    grad_out: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
) -> Array:
    """The gradient (T, N, C) from `brute_force_posteriors`. Tiny sizes only."""
    log_probs = real(log_probs, np.float64)
    lengths = np.asarray(input_lengths).astype(np.int64)
    posteriors = brute_force_posteriors(log_probs, targets, lengths, target_lengths, blank)
    if zero_infinity:
        impossible = np.isinf(brute_force_loss(log_probs, targets, lengths, target_lengths, blank))
    else:
        impossible = np.zeros(len(lengths), bool)
    first = np.exp(log_probs) if through_log_softmax else np.zeros_like(log_probs)
    out = real(grad_out, np.float64)[:, None] * (first - posteriors)
    return np.where(inside(out, lengths) & ~impossible[:, None], out, 0)


# --- calls ---------------------------------------------------------------------------------------------------------


def log_softmax(logits: Array) -> Array:
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))


def padded(samples: Sequence[Sequence[int]], fill: int = -1) -> Array:
    """(N, S), beyond each target's length something that is no class, so that using it shows."""
    rows = np.full((len(samples), max(map(len, samples), default=0)), fill, np.int64)
    for row, sample in zip(rows, samples, strict=True):
        row[: len(sample)] = sample
    return rows


def joined(samples: Sequence[Sequence[int]]) -> Array:
    """The same targets one after another."""
    return np.array([label for sample in samples for label in sample], np.int64)


def forward_inputs(
    samples: Sequence[Sequence[int]],
    input_lengths: Sequence[int],
    classes: int = 4,
    *,
    steps: int | None = None,
    dtype: npt.DTypeLike = np.float64,
    flat: bool = False,
    log_probs: Array | None = None,
) -> dict[str, Array]:
    """The inputs of the loss for labels of each sample; log_probs of normal scores unless given."""
    shape = (max(input_lengths, default=0) if steps is None else steps, len(samples), classes)
    if log_probs is None:
        log_probs = log_softmax(normal(shape, np.float64, "logits", scale=2.0))
    return {
        "log_probs": log_probs.astype(dtype),
        "targets": joined(samples) if flat else padded(samples),
        "input_lengths": np.array(input_lengths, np.int64),
        "target_lengths": np.array([len(s) for s in samples], np.int64),
    }


TARGETS = Input((np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.bool_), FLOAT32, FLOAT16))
INPUTS = {"targets": TARGETS, "input_lengths": Input(LENGTHS), "target_lengths": Input(LENGTHS)}
ATTRIBUTES = {
    "blank": Attribute(0, (0, 2), (-1, 4, 2**31), ("[0, 4)",)),
    "zero_infinity": Attribute(0, (0, 1), (-1, 2)),
}


@dataclass(frozen=True)
class Batch:
    """Labels of each sample, as places among the classes that are not blank, and time steps of each."""

    samples: Sequence[Sequence[int]]
    lengths: Sequence[int]
    steps: int | None = None
    flat: bool = False


FORMS: dict[str, Batch] = {
    "plain": Batch([[0, 1], [2]], [5, 4]),
    "repeats": Batch([[0, 1, 1], [2], []], [9, 7, 4]),
    "joined": Batch([[0, 1, 1], [2], []], [9, 7, 4], flat=True),
    "impossible": Batch([[0], [0, 0, 0], [1, 2]], [6, 4, 6]),
    "no_time": Batch([[], [0], [1]], [0, 0, 3], steps=4),
    "joined_no_labels": Batch([[], []], [3, 2], flat=True),
}


def inputs_of(choice: Choice) -> dict[str, Array]:
    """The inputs of the loss in the dtypes of a choice; a bool can hold two labels."""
    blank, batch = choice.attributes["blank"], choice.form
    classes = range(2 if choice.dtypes["targets"] == np.bool_ else 4)
    labels = [c for c in classes if c != blank]
    samples = [[labels[place % len(labels)] for place in sample] for sample in batch.samples]
    made = forward_inputs(samples, batch.lengths, steps=batch.steps, flat=batch.flat)
    return {name: array.astype(choice.dtype(name)) for name, array in made.items()}


def refusals(plain: Call, per_sample: Sequence[str]) -> Iterator[Refusal]:
    """Shapes and values that do not fit; the plain call has log_probs (5, 2, 4) and targets [[1, 2], [3, -1]]."""

    def wrong(name: str, shape: Shape, *words: str, by_rank: bool = False) -> Refusal:
        text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        label = f"{name}_of_{'x'.join(map(str, shape)) or 'rank_0'}"
        change = {name: np.zeros(shape, plain.dtype(name))}
        return Refusal(label, (f"'{name}'", text, "expected", *words), change, by_rank=by_rank)

    for name in per_sample:
        yield wrong(name, (3,), "(2,)", "'log_probs'")
        yield wrong(name, (2, 1), "(2,)", by_rank=True)
        yield wrong(name, (), "(2,)", by_rank=True)
    yield wrong("log_probs", (5, 4), "(T, N, C)", by_rank=True)
    yield wrong("log_probs", (1, 5, 2, 4), "(T, N, C)", by_rank=True)
    yield wrong("targets", (3, 2), "(2, 2)" if "grad_out" in plain.inputs else "2", "'log_probs'")
    yield wrong("targets", (), "(N, S)", by_rank=True)
    yield wrong("targets", (1, 2, 2), "(N, S)", by_rank=True)

    def value(label: str, name: str, numbers: Any, *words: str, dtype: npt.DTypeLike = np.int64) -> Refusal:
        return Refusal(label, (f"'{name}'", *words), {name: np.array(numbers, dtype)}, by_values=True)

    most, least = 2**63 - 1, -(2**63)
    yield value("input_length_too_long", "input_lengths", [5, 6], "6", "5")
    yield value("input_length_negative", "input_lengths", [-1, 5], "-1", "5")
    yield value("input_length_int64_min", "input_lengths", [5, least], str(least))
    yield value("input_length_int64_max", "input_lengths", [most, 5], str(most))
    yield value("target_length_negative", "target_lengths", [2, -1], "-1")
    yield value("target_length_beyond_S", "target_lengths", [2, 3], "3", "S = 2")
    yield value("target_length_int64_max", "target_lengths", [most, 0], str(most))
    yield value("target_length_2**62", "target_lengths", [2**62, 2**62], str(2**62))
    yield value("label_too_large", "targets", [[1, 2], [4, 0]], " 4 ", "sample 1", "[0, 4)")
    yield value("label_negative", "targets", [[1, -1], [3, 0]], " -1 ", "sample 0", "[0, 4)")
    yield value("label_int64_max", "targets", [[1, most], [3, 0]], str(most), "[0, 4)")
    yield value("joined_label", "targets", [1, 2, 7], " 7 ", "sample 1")
    yield value("joined_too_short", "targets", [1, 2], "2 ", "3")
    yield value("joined_too_long", "targets", [1, 2, 3, 1], "4 ", "3")
    for number in (0.5, math.nan, math.inf, -1.0, 4.0):
        yield value(f"label_{number}", "targets", [[1, number], [3, -1]], f" {number} ", "[0, 4)", dtype=np.float32)


# T, N, C and labels of each sample.
SIZES = {
    "50x16x20x10": (50, 16, 20, 10),
    "500x32x100x50": (500, 32, 100, 50),
    "1000x32x32x200": (1000, 32, 32, 200),
    "200x8x5000x30": (200, 8, 5000, 30),
}
OF_TORCH = {"500x32x100x50": 3.0, "1000x32x32x200": 3.0}


def random_inputs(
    size: tuple[int, int, int, int], dtype: DType, random: np.random.Generator, spread: float = 1.0
) -> dict[str, Array]:
    """Random sequences of full length and targets of full length, class 0 being the blank.

    spread: the standard deviation of the logits.
    """
    steps, batch, classes, labels = size
    logits = random.normal(scale=spread, size=(steps, batch, classes))
    return {
        "log_probs": log_softmax(logits).astype(dtype),
        "targets": random.integers(1, classes, size=(batch, labels)),
        "input_lengths": np.full(batch, steps),
        "target_lengths": np.full(batch, labels),
    }


def large_batch(dtype: DType) -> Mapping[str, Array]:
    """40 samples of unequal lengths."""
    samples = [[1 + (n + k) % 7 for k in range(n % 13)] for n in range(40)]
    return forward_inputs(samples, [30 + n % 21 for n in range(40)], 9, dtype=dtype)
