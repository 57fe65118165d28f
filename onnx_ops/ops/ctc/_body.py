"""Function bodies of CtcLoss and CtcLossBackward.

A function body cannot raise errors: lengths and labels are clipped to their ranges, and `fits` marks valid samples. A
column has shape (N, 1), a plane (N, A).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.ops.ctc._rules import WHOLE_TARGETS

IMPOSSIBLE = -math.inf
END = 2**63 - 1
STASH = ("stash_type", "log_probs")
"""Attribute or input with the dtype of neg_log_likelihood and log_alpha."""
PLANE = TensorType(TensorProto.DOUBLE, (None, None))
MOMENT = TensorType(TensorProto.INT64, ())


def forward(b: Body) -> None:
    """log_alpha by a Scan over time, whose state ends as that of the last step of each sample."""
    b.widen()
    log_probs = b.load("log_probs")
    samples = _read_samples(b, log_probs)
    exists = samples.states.less_or_equal(samples.twice).named("exists")
    # A path may skip the blank between two different labels, from s - 2 to s.
    earlier_label = _moved(b, samples.extended, -2, b.constant(-1), "extended_earlier")
    differ = (~samples.extended.equal(earlier_label).named("same")).named("differ")
    skip = ((samples.is_label & differ).named("may_skip") & samples.states.greater(1).named("within")).named("skip")
    emitted_and_one = _padded_by_one_step(b, samples.emitted)
    impossible = b.constant(IMPOSSIBLE, name="impossible")

    def step(earlier: Value, now: Value) -> tuple[Value, Value]:
        emitted_now = b.op("Gather", emitted_and_one, now, name="emitted_now")
        before = _moved(b, earlier, -1, impossible, "before")
        skipped = b.op("Where", skip, _moved(b, earlier, -2, impossible, "two_before"), impossible, name="skipped")
        product = _log_product(b, _log_sum(b, earlier, before, skipped), emitted_now, "product")
        alpha_now = b.op("Where", exists, product, impossible, name="alpha_now")
        goes_on = now.less(samples.used).named("goes_on")
        return b.op("Where", goes_on, alpha_now, earlier, name="alpha_so_far"), alpha_now

    # Before the first step, paths are in state 0, from which states 0 and 1 are reachable.
    at_first_state = b.op("Where", samples.states.equal(0).named("is_first"), 0.0, impossible, name="at_first_state")
    start = b.op("Expand", at_first_state, b.op("Shape", samples.extended, name="plane"), name="start")
    time = b.op("Range", 0, (samples.steps + 1).named("steps_and_one"), 1, name="time_and_one")
    scan_body = b.subgraph(step, {"earlier": PLANE, "now": MOMENT}, (PLANE, PLANE))
    final, alpha_and_one = b.several(
        "Scan", start, time, names=("final", "alpha_and_one"), num_scan_inputs=1, body=scan_body
    )
    alpha = b.op("Slice", alpha_and_one, [0], [-1], [0], name="alpha")
    log_alpha = b.op("Where", _is_in_time(b, samples), alpha, impossible, name="alpha_in_time")
    b.store("log_alpha", b.op("Transpose", log_alpha, name="alpha_of_samples", perm=[1, 0, 2]), *STASH)

    # Paths end in one of the last two states, those of an empty target in the only one.
    last_label = b.op("Max", (samples.twice - 1).named("twice_less_one"), 0, name="last_label")
    in_blank = b.op("GatherElements", final, samples.twice, name="in_blank", axis=1)
    in_label = b.op("GatherElements", final, last_label, name="in_label", axis=1)
    has_label = samples.twice.greater(0).named("has_label")
    total = _log_sum(b, in_blank, b.op("Where", has_label, in_label, impossible, name="in_label_if_any"))
    found = b.op("Where", samples.fits, (0.0 - total).named("found"), np.nan, name="loss_column")
    losses = b.op("Squeeze", found, [1], name="losses")
    b.store("neg_log_likelihood", losses, *STASH)
    zeroes = b.value_of("zero_infinity").cast(TensorProto.BOOL).named("zeroes")
    is_lost = (b.op("IsInf", losses, name="is_infinite", detect_negative=0) & zeroes).named("is_lost")
    b.store("loss", b.op("Where", is_lost, 0.0, losses, name="given"), "log_probs")


def backward(b: Body) -> None:
    """log_beta by a Scan backwards over time; the rest is computed for all time steps at once."""
    b.widen()
    log_probs = b.load("log_probs")
    alpha = b.op("Transpose", b.load("log_alpha"), name="alpha", perm=[1, 0, 2])  # (T, N, A)
    states = b.op("Squeeze", b.op("Shape", b.inputs["log_alpha"], name="states_1d", start=2), [0], name="states")
    samples = _read_samples(b, log_probs, states)
    s, twice = samples.states, samples.twice
    exists = s.less_or_equal(twice).named("exists")
    twice_less_one = (twice - 1).named("twice_less_one")
    is_last = (s.greater_or_equal(twice_less_one).named("is_late") & exists).named("is_last")
    impossible = b.constant(IMPOSSIBLE, name="impossible")
    last = b.op("Where", is_last, 0.0, impossible, name="last")
    # A path may skip the blank between two different labels, from s to s + 2.
    extended_later = _moved(b, samples.extended, 2, b.value_of("blank"), "extended_later")
    differ = (~samples.extended.equal(extended_later).named("same")).named("differ")
    skip = ((samples.is_label & differ).named("may_skip") & s.less(twice_less_one).named("within")).named("skip")
    final_step = (samples.used - 1).named("final_step")
    emitted_and_one = _padded_by_one_step(b, samples.emitted)

    def step(later: Value, now: Value) -> tuple[Value, Value]:
        emitted_now = b.op("Gather", emitted_and_one, now, name="emitted_now")
        next = _moved(b, later, 1, impossible, "next")
        skipped = b.op("Where", skip, _moved(b, later, 2, impossible, "after_next"), impossible, name="skipped")
        summed = _log_sum(b, later, next, skipped)
        paths = b.op("Where", now.equal(final_step).named("is_final"), last, summed, name="paths")
        beta_now = _log_product(b, paths, emitted_now, "beta_now")
        return beta_now, beta_now

    scan_body = b.subgraph(step, {"later": PLANE, "now": MOMENT}, (PLANE, PLANE))
    start = b.op("Expand", impossible, b.op("Shape", samples.extended, name="plane"), name="start")
    time = b.op("Range", samples.steps, -1, -1, name="time_back")
    _, beta_back = b.several("Scan", start, time, names=("beta_at_0", "beta_back"), num_scan_inputs=1, body=scan_body)
    beta = b.op("Gather", beta_back, b.op("Range", samples.steps, 0, -1, name="order"), name="beta")

    # Posteriors exp(alpha + beta + loss - log_probs), summed by class.
    not_reached = alpha.equal(impossible).named("not_reached")
    not_left = beta.equal(impossible).named("not_left")  # including all states above 2*length
    no_term = (not_reached | not_left).named("no_term")
    loss = _as_column(b, samples.column, b.load("neg_log_likelihood"), "loss")
    relative = ((alpha + beta).named("paths_through") + loss).named("relative")
    posterior_of_path = b.op("Exp", (relative - samples.emitted).named("exponent"), name="posterior_of_path")
    posterior = b.op("Where", no_term, 0.0, posterior_of_path, name="posterior")
    no_occupation = b.op("Expand", 0.0, b.op("Shape", log_probs, name="log_probs_shape"), name="no_occupation")
    occupied = b.op(
        "ScatterElements", no_occupation, samples.extended_always, posterior, name="occupied", axis=2, reduction="add"
    )
    difference = (_direct_term(b, log_probs) - occupied).named("difference")
    is_known = (~b.op("IsNaN", loss, name="is_unknown_column")).named("is_known_column")
    grad = _as_column(b, samples.column, b.load("grad_out"), "grad")
    factor = b.op("Where", (samples.fits & is_known).named("tells"), grad, np.nan, name="factor")
    is_lost = b.op("IsInf", loss, name="is_lost_column", detect_negative=0)
    zeroes = b.value_of("zero_infinity").cast(TensorProto.BOOL).named("zeroes")
    for_lost = b.op("Where", zeroes, 0.0, np.nan, name="for_lost")
    found = b.op("Where", is_lost, for_lost, (factor * difference).named("gradient"), name="found")
    b.store("out", b.op("Where", _is_in_time(b, samples), found, 0.0, name="result"), "log_probs")


def _direct_term(b: Body, log_probs: Value) -> Value:
    """exp(log_probs) for the gradient through log_softmax, else 0."""
    through = b.attribute("through_log_softmax")
    if through == 0:
        return b.constant(0.0)
    probability = b.op("Exp", log_probs, name="probability")
    if through is not None:
        return probability
    goes_through = b.value_of("through_log_softmax").cast(TensorProto.BOOL).named("goes_through")
    return b.op("Where", goes_through, probability, 0.0, name="direct")


@dataclass(frozen=True)
class _Samples:
    """Lengths and states of all samples.

    Attributes:
        column: shape of a column.
        steps: T.
        used: column, time steps of each sample.
        twice: column, last state of each sample: twice its target length.
        states: (A,) indices of the states.
        is_label: plane, whether a state is a label.
        extended: plane, class of each state; blank for states that a sample does not have.
        fits: column, whether lengths and labels are in range.
        emitted: (T, N, A) log_probs of the class of each state.
        extended_always: (T, N, A) class of each state.
    """

    column: Value
    steps: Value
    used: Value
    twice: Value
    states: Value
    is_label: Value
    extended: Value
    fits: Value
    emitted: Value
    extended_always: Value


def _read_samples(b: Body, log_probs: Value, states: Value | None = None) -> _Samples:
    """Lengths and states.

    Args:
        b: the body.
        log_probs: (T, N, C) in double.
        states: scalar A; None for as many as the targets need.
    """
    steps_1d = b.op("Shape", log_probs, name="steps_1d", start=0, end=1)
    steps = b.op("Squeeze", steps_1d, [0], name="steps")
    batch_1d = b.op("Shape", log_probs, name="batch_1d", start=1, end=2)
    column = b.op("Concat", batch_1d, [1], name="column", axis=0)
    classes = b.op("Squeeze", b.op("Shape", log_probs, name="classes_1d", start=2), [0], name="classes")

    # Lengths, clipped to T and to the states; the concatenated labels, padded by one.
    input_lengths = _as_column(b, column, b.load_as("input_lengths", TensorProto.INT64), "input_lengths")
    used = b.op("Clip", input_lengths, 0, steps, name="used_column")
    fits_steps = used.equal(input_lengths).named("fits_steps")
    labels_flat = b.op("Reshape", _whole_targets(b), [-1], name="labels_flat")
    labels = b.op("Concat", labels_flat, [0], name="labels", axis=0)
    label_count = b.op("Size", labels_flat, name="label_count")
    target_lengths = _as_column(b, column, b.load_as("target_lengths", TensorProto.INT64), "target_lengths")
    places = _places_of_targets(b, batch_1d, label_count, target_lengths)
    longest = places.most
    if states is None:
        states = ((places.longest * 2).named("states_but_one") + 1).named("states")
    else:
        room = ((states - 1).named("states_but_one") / 2).named("room")
        longest = b.op("Min", room, longest, name="longest")
    length = b.op("Clip", target_lengths, 0, longest, name="length_column")
    fits_targets = length.equal(target_lengths).named("fits_targets")

    # States: blank for even s, label s // 2 for odd s; those of sample n are 0 to 2*length.
    s = b.op("Range", 0, states, 1, name="s")
    label_of_s = (s / 2).named("label_of_s")
    is_odd = b.op("Mod", s, 2, name="parity").cast(TensorProto.BOOL).named("is_odd")
    is_label = (is_odd & label_of_s.less(length).named("before_length")).named("is_label")
    place = (places.firsts + label_of_s).named("place")
    if places.adds_up is not None:
        place = b.op("Min", place, label_count, name="place_within")
    safe_place = b.op("Where", is_label, place, label_count, name="safe_place")
    label_given = b.op("Gather", labels, safe_place, name="label_given")
    label = b.op("Clip", label_given, 0, (classes - 1).named("last_class"), name="label")
    is_wrong = (label_given - label).named("is_no_class").cast(TensorProto.BOOL).named("is_wrong")
    wrong_labels = b.op("ReduceSum", is_wrong.cast(TensorProto.INT64).named("wrong"), [1], name="wrong_labels")
    has_classes = wrong_labels.equal(0).named("has_classes")
    fits = ((fits_steps & fits_targets).named("fits_lengths") & has_classes).named("fits_classes")
    if places.adds_up is not None:
        fits = (fits & places.adds_up).named("fits")
    extended = b.op("Where", is_label, label, b.value_of("blank"), name="extended")

    volume = b.op("Concat", steps_1d, b.op("Shape", extended, name="plane"), name="volume", axis=0)
    extended_always = b.op("Expand", extended, volume, name="extended_always")
    emitted = b.op("GatherElements", log_probs, extended_always, name="emitted", axis=2)
    twice = (length * 2).named("twice")
    return _Samples(column, steps, used, twice, s, is_label, extended, fits, emitted, extended_always)


def _as_column(b: Body, column: Value, value: Value, name: str) -> Value:
    """A value of shape (N,) as a column."""
    return b.op("Reshape", value, column, name=f"{name}_column", allowzero=1)


def _is_in_time(b: Body, samples: _Samples) -> Value:
    """(T, N, 1): whether t < input_lengths."""
    time = b.op("Unsqueeze", b.op("Range", 0, samples.steps, 1, name="time"), [1, 2], name="time_planes")
    return time.less(samples.used).named("is_used_columns")


def _padded_by_one_step(b: Body, emitted: Value) -> Value:
    """(T, N, A), padded by a time step, as onnxruntime rejects a Scan over none."""
    return b.op("Pad", emitted, [0, 0, 0, 1, 0, 0], 0.0, name="emitted_and_one")


def _moved(b: Body, plane: Value, by: int, fill: Value, name: str) -> Value:
    """A plane whose state s is state s + by of the given one; `fill` where there is none."""
    before, after = max(-by, 0), max(by, 0)
    longer = b.op("Pad", plane, [0, before, 0, after], fill, name=f"{name}_longer")
    return b.op("Slice", longer, [after], [END if after else -before], [1], name=name)


def _log_sum(b: Body, *paths: Value) -> Value:
    """Log-sum-exp."""
    # -inf - -inf is NaN, but -inf - lowest is -inf
    lowest = b.constant(float(np.finfo(np.float64).min), name="lowest")
    largest = b.constant(float(np.finfo(np.float64).max), name="largest")
    level = b.op("Clip", b.op("Max", *paths, name="highest"), lowest, largest, name="level")
    parts = [b.op("Exp", (path - level).named("relative"), name="part") for path in paths]
    return (b.op("Log", b.op("Sum", *parts, name="parts"), name="parts_log") + level).named("summed")


def _log_product(b: Body, paths: Value, emitted: Value, name: str) -> Value:
    """log(exp(paths) * exp(emitted)), with 0 * anything = 0."""
    no_path = paths.equal(IMPOSSIBLE).named("no_path")
    not_emitted = emitted.equal(IMPOSSIBLE).named("not_emitted")
    return b.op("Where", (no_path | not_emitted).named("is_impossible"), IMPOSSIBLE, paths + emitted, name=name)


def _whole_targets(b: Body) -> Value:
    """targets as int64; -1 for a value that is not integral."""
    if all(call.dtype("targets") in WHOLE_TARGETS for call in b.calls):
        return b.load_as("targets", TensorProto.INT64)
    given = b.inputs["targets"].cast(TensorProto.DOUBLE).named("targets_given")
    is_whole = given.equal(b.op("Floor", given, name="targets_down")).named("is_whole")
    return b.op("Where", is_whole, given.cast(TensorProto.INT64).named("targets_cast"), -1, name="targets_whole")


@dataclass(frozen=True)
class _Places:
    """Offsets of labels.

    Attributes:
        firsts: column, offset of each sample's labels in all labels.
        most: greatest possible target length of a sample.
        longest: greatest target length of the samples; S for padded targets.
        adds_up: whether the sum of target lengths is the number of labels; None for padded targets.
    """

    firsts: Value
    most: Value
    longest: Value
    adds_up: Value | None


def _places_of_targets(b: Body, batch_1d: Value, label_count: Value, target_lengths: Value) -> _Places:
    ranks = {None if shape is None else len(shape) for shape in (call.shape("targets") for call in b.calls)}
    targets = b.inputs["targets"]
    pitch = b.op("Squeeze", b.op("Shape", targets, name="pitch_1d", start=-1), [0], name="pitch")
    samples = b.op("Range", 0, b.op("Squeeze", batch_1d, [0], name="batch"), 1, name="samples")
    padded_firsts = (b.op("Unsqueeze", samples, [1], name="samples_column") * pitch).named("padded_firsts")
    if ranks == {2}:
        return _Places(padded_firsts, pitch, pitch, None)
    too_many = (label_count + 1).named("too_many")  # clipping to it keeps the sum from overflowing
    lengths_in_sum = b.op("Clip", target_lengths, 0, too_many, name="lengths_in_sum")
    joined_firsts = b.op("CumSum", lengths_in_sum, 0, name="joined_firsts", exclusive=1)
    total = b.op("ReduceSum", lengths_in_sum, name="total", keepdims=0)
    joined_adds_up = total.equal(label_count).named("joined_adds_up")
    of_any = b.op("Concat", b.op("Reshape", lengths_in_sum, [-1], name="lengths_flat"), [0], name="lengths", axis=0)
    longest = b.op("Min", b.op("ReduceMax", of_any, name="greatest", keepdims=0), label_count, name="longest_joined")
    if ranks == {1}:
        return _Places(joined_firsts, label_count, longest, joined_adds_up)
    is_padded = b.op("Size", b.op("Shape", targets, name="targets_shape"), name="targets_rank").equal(2)
    firsts = b.op("Where", is_padded.named("is_padded"), padded_firsts, joined_firsts, name="firsts")
    longest = b.op("Where", is_padded, pitch, longest, name="longest_target")
    return _Places(firsts, pitch, longest, (is_padded | joined_adds_up).named("adds_up"))
