"""CtcLoss: the connectionist temporal classification loss (Graves et al., 2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.types import TensorType, dtype_name
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import address_of, allocate, array_at, free, item_size, record_at, write_numbers
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attributes_of
from onnx_ops.ops.ctc import _body, _forward
from onnx_ops.ops.ctc._native import LANES_FLOAT64, length_of, log_sum, longest_target, read_labels, write_offsets
from onnx_ops.ops.ctc._rules import (
    LENGTHS,
    TARGETS,
    check_inputs,
    check_labels,
    extended_labels,
    is_narrower,
    labels_of_samples,
    log_product,
    skips_to,
)
from onnx_ops.ops.references import rounded

STASHED = OutputType("The type given by `stash_type`.", inputs=("log_probs",), by_attribute=True)
SIGNATURE = Signature(
    "CtcLoss",
    """
Connectionist temporal classification (CTC) loss (aclnnCtcLoss; Graves et al. 2006, eq. 5-8), and the forward variables
that CtcLossBackward needs.

For sample n with Tn = `input_lengths[n]`, labels t1..tS and extended labels l' = blank, t1, blank, ..., tS, blank:

    log_alpha[n, t, s]    = logsum of log_alpha[n, t-1, s], log_alpha[n, t-1, s-1] and, if l'[s] and l'[s-2]
                            differ, log_alpha[n, t-1, s-2], plus log_probs[t, n, l'[s]];
                            it starts at t = 0 in the first two states
    neg_log_likelihood[n] = -logsum of log_alpha[n, Tn-1, s] over the last two states s
    loss[n]               = 0 if zero_infinity is 1 and neg_log_likelihood[n] is +inf, else neg_log_likelihood[n]

The loss of each sample; there is no reduction.

Shapes: T time steps, N samples, C classes, S labels. `log_probs` (T, N, C); `targets` padded (N, S), or concatenated
(sum of `target_lengths`); `input_lengths` and `target_lengths` (N); `neg_log_likelihood` and `loss` (N); `log_alpha`
(N, T, A) with A = `2*S + 1` states, and A = `2*max(target_lengths) + 1` for concatenated targets.

Dtypes: `log_probs` and `loss` one of float16, bfloat16, float, double; `neg_log_likelihood` and `log_alpha` as given by
`stash_type`; `targets` int64, int32, bool, float or float16; lengths uint8, int8, int16, int32 or int64. Computed in
double and rounded once.

Edge rules: `log_alpha` is -inf in states that no path has reached, for t >= Tn, and in states past the end of a shorter
target, for all inputs. If no path yields the target, because Tn is too small or probabilities are 0,
`neg_log_likelihood` is +inf whatever `zero_infinity` is. Tn = 0 gives 0 for an empty target and +inf for any other.
Padding of `targets` is ignored. A label equal to `blank` is no special case. A `blank` or label outside [0, C), a label
that is not integral, and lengths that do not fit are errors.

A probability of 0 makes a product 0: `log_alpha` is -inf where `log_probs` of the class is, and where only such states
lead to the state, even if other factors are NaN or +inf. Other NaN and infinities propagate as in the formulas.

For float32 `log_probs` of thousands of time steps, a float32 `log_alpha` has few digits after the decimal point;
`stash_type = 11` keeps them for CtcLossBackward.

Without a kernel: values cannot be rejected. A sample with a length or a label out of range gets NaN in
`neg_log_likelihood` and `loss`, all samples if the lengths of concatenated targets do not add up; other samples are
unaffected. Of shapes known only at run time, only those of the lengths are checked.
""",
    inputs=(
        Input("log_probs", "Log-probabilities of the classes, (T, N, C)."),
        Input("targets", "Labels, padded (N, S) or concatenated.", dtypes=TARGETS),
        Input("input_lengths", "Number of time steps of each sample, (N).", dtypes=LENGTHS),
        Input("target_lengths", "Number of labels of each sample, (N).", dtypes=LENGTHS),
    ),
    outputs=(
        Output("neg_log_likelihood", "Loss of each sample, +inf if there is no path, (N).", STASHED),
        Output("log_alpha", "Logarithms of the forward variables, (N, T, A).", STASHED),
        Output("loss", "`neg_log_likelihood`, with `zero_infinity` applied, (N).", "log_probs", optional=True),
    ),
    attributes=(
        attribute("blank", 0, "Class of the blank."),
        attribute("zero_infinity", 0, "1: an infinite `loss` becomes 0; `neg_log_likelihood` stays +inf."),
        attribute(
            "stash_type",
            0,
            "Type of `neg_log_likelihood` and `log_alpha`: 0 that of `log_probs`, 1 float, 11 double; none narrower.",
        ),
    ),
)

STASH_TYPES = {0: "that of 'log_probs'", int(TensorProto.FLOAT): "float", int(TensorProto.DOUBLE): "double"}


def reference(
    log_probs: np.ndarray,
    targets: np.ndarray,
    input_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    blank: int = 0,
    zero_infinity: int = 0,
    stash_type: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition, in float64 and log space.

    Args:
        log_probs: (T, N, C).
        targets: (N, S) or concatenated.
        input_lengths, target_lengths: (N).
        blank, zero_infinity, stash_type: as in the schema.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        neg_log_likelihood (N), log_alpha (N, T, A) and loss (N).
    """
    lp = log_probs.astype(np.float64)
    steps, batch, _ = lp.shape
    longest = targets.shape[1] if targets.ndim == 2 else max(target_lengths.tolist(), default=0)
    log_alpha = np.full((batch, steps, 2 * longest + 1), -np.inf)
    losses = np.empty(batch)
    with np.errstate(invalid="ignore"):
        for n, labels in enumerate(labels_of_samples(targets, target_lengths)):
            extended = extended_labels(labels, blank)
            skips = skips_to(extended)
            alpha = np.full(extended.size + 2, -np.inf)  # with two states before the first
            alpha[2] = 0
            for t in range(int(input_lengths[n])):
                skipped = np.where(skips, alpha[:-2], -np.inf)
                total = np.logaddexp(np.logaddexp(alpha[2:], alpha[1:-1]), skipped)
                alpha[2:] = log_product(total, lp[t, n, extended])
                log_alpha[n, t, : extended.size] = alpha[2:]
            losses[n] = 0 - np.logaddexp(alpha[-1], alpha[-2])
    given = np.where((losses == np.inf) & (zero_infinity == 1), 0, losses)
    stashes: dict[int, npt.DTypeLike] = {1: np.float32, 11: np.float64}  # TensorProto.FLOAT, TensorProto.DOUBLE
    stash = stashes.get(stash_type, log_probs.dtype)
    return rounded(losses, stash, dtype), rounded(log_alpha, stash, dtype), rounded(given, log_probs.dtype, dtype)


# --- the kernel: one task per sample --------------------------------------------------------------------------------

LOG_PROBS, TARGETS_GIVEN, INPUT_LENGTH, TARGET_LENGTH = range(4)
LOSS, LOG_ALPHA, GIVEN_LOSS = range(3)
ATTRIBUTES = attributes_of(SIGNATURE.schema)


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes, lengths and labels; one task per sample."""
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    longest = longest_target(kernel, job, LOG_PROBS, attributes.blank)
    if longest < 0:
        return REFUSED
    if job.rank[TARGETS_GIVEN] == 2:
        longest = job.dims[TARGETS_GIVEN, 1]
    steps, batch = job.dims[LOG_PROBS, 0], job.dims[LOG_PROBS, 1]
    job.output_rank[LOSS], job.output_rank[LOG_ALPHA], job.output_rank[GIVEN_LOSS] = 1, 3, 1
    job.output_dims[LOSS, 0] = batch
    job.output_dims[GIVEN_LOSS, 0] = batch
    job.output_dims[LOG_ALPHA, 0] = batch
    job.output_dims[LOG_ALPHA, 1] = steps
    job.output_dims[LOG_ALPHA, 2] = 2 * longest + 1
    job.tasks = batch
    job.scratch_bytes = 8 * batch
    return OK


def begin(kernel: Kernel, job: Job) -> None:
    """Compute the offsets of each sample's labels."""
    if job.tasks > 0:
        write_offsets(kernel, job, LOG_PROBS)


def task(job: Job, n: int) -> None:
    """Loss and log_alpha of sample n."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    steps, batch, classes = job.dims[LOG_PROBS, 0], job.dims[LOG_PROBS, 1], job.dims[LOG_PROBS, 2]
    used = length_of(kernel, job, INPUT_LENGTH, n)
    length = length_of(kernel, job, TARGET_LENGTH, n)
    states, columns = 2 * length + 1, job.output_dims[LOG_ALPHA, 2]

    # Padded to whole vectors, as a scalar remainder loop would take as long as all vectors.
    wide, wide_states = length + 1 + LANES_FLOAT64, states + _forward.BEFORE + LANES_FLOAT64
    per_label, per_state = (wide, np.float64), (wide_states, np.float64)
    (
        memory,
        labels, log_probs, probabilities, probability_powers,
        bars, values, powers, next_values, next_powers, emitted, emitted_powers,
        log_alpha,
    ) = allocate(
        (wide, np.int64), per_label, per_label, per_label,
        per_state, per_state, per_state, per_state, per_state, per_state, per_state,
        (_forward.BEFORE + columns, np.float64),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return
    row_address = address_of(log_alpha) + 8 * _forward.BEFORE
    row = array_at(row_address, columns, np.float64)

    read_labels(kernel, job, LOG_PROBS, n, length, labels)
    for s in range(states):
        bars[s] = _forward.BARRED
    for k in range(length):
        if k > 0 and labels[k] != labels[k - 1]:
            bars[2 * k + 1] = 0.0

    probs_type, alpha_type = kernel.element_type[LOG_PROBS], kernel.output_type[LOG_ALPHA]
    probs_step, alpha_step = batch * classes * item_size(probs_type), columns * item_size(alpha_type)
    probs = job.data[LOG_PROBS] + n * classes * item_size(probs_type)
    alphas = job.output[LOG_ALPHA] + n * steps * alpha_step

    for s in range(columns):
        row[s] = -np.inf
    for t in range(used, steps):
        write_numbers(kernel.write, row_address, alpha_type, columns, alphas + t * alpha_step)
    _forward.start(states, values, powers, next_values, next_powers)
    t, in_range = 0, True
    while in_range and t < used:
        in_range = _forward.read_row(probs + t * probs_step, probs_type, labels, length, attributes.blank, log_probs)
        _forward.scaled_step(
            length, log_probs, probabilities, probability_powers, bars, values, powers, emitted, emitted_powers,
            next_values, next_powers,
        )  # fmt: skip
        values, next_values = next_values, values
        powers, next_powers = next_powers, powers
        if t % _forward.STEPS_WITHIN_RANGE == 0:
            _forward.normalize(states, values, powers)
        _forward.logarithms(states, values, powers, row)
        write_numbers(kernel.write, row_address, alpha_type, columns, alphas + t * alpha_step)
        t += 1
    if not in_range:
        for s in range(columns + _forward.BEFORE):
            log_alpha[s] = -np.inf
        log_alpha[_forward.BEFORE] = 0.0
        for t in range(used):
            _forward.read_row(probs + t * probs_step, probs_type, labels, length, attributes.blank, log_probs)
            _forward.log_step(length, log_probs, bars, log_alpha)
            write_numbers(kernel.write, row_address, alpha_type, columns, alphas + t * alpha_step)

    loss = 0.0 - (log_sum(row[states - 1], row[states - 2]) if length > 0 else row[0])
    if used == 0:
        loss = np.inf if length > 0 else 0.0
    row[0] = loss
    loss_type, given_type = kernel.output_type[LOSS], kernel.output_type[GIVEN_LOSS]
    write_numbers(kernel.write, row_address, loss_type, 1, job.output[LOSS] + n * item_size(loss_type))
    if job.output[GIVEN_LOSS] != 0:
        row[0] = 0.0 if loss == np.inf and attributes.zero_infinity != 0 else loss
        write_numbers(kernel.write, row_address, given_type, 1, job.output[GIVEN_LOSS] + n * item_size(given_type))
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, begin)


def infer(call: Call) -> tuple[TensorType, ...]:
    steps, batch, _ = check_inputs(call)
    call.check_choice("stash_type", STASH_TYPES)
    dtype = call.dtype("log_probs")
    stash: int | None = call.attributes["stash_type"] or dtype
    if dtype is not None and stash is not None and is_narrower(stash, dtype):
        raise call.error(
            f"attribute 'stash_type' is {stash} ({dtype_name(stash)}), expected the dtype of 'log_probs' or a wider"
            f" one, {dtype_name(dtype)}"
        )
    targets = call.shape("targets")
    padded = targets[1] if targets is not None and len(targets) == 2 else None
    states = 2 * padded + 1 if isinstance(padded, int) else None
    return TensorType(stash, (batch,)), TensorType(stash, (batch, steps, states)), TensorType(dtype, (batch,))


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    check_labels(call, *(np.asarray(a) for a in arrays))


_HALF = math.log(1 / 2)

OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    _body.forward,
    Example(
        # Two time steps, blank and one label, both of probability 1/2: three of the four paths spell the label.
        {
            "log_probs": [[[_HALF] * 2]] * 2,
            "targets": [[1]],
            "input_lengths": [2],
            "target_lengths": [1],
        },
        {
            "neg_log_likelihood": [-math.log(3 / 4)],
            "log_alpha": [[[_HALF, _HALF, -math.inf], [2 * _HALF, _HALF, 2 * _HALF]]],
            "loss": [-math.log(3 / 4)],
        },
    ),
    check_values=check_values,
    body_opset=16,
)
