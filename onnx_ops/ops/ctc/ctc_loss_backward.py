"""CtcLossBackward: gradient of the connectionist temporal classification loss (Graves et al., 2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType, dtype_name
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import address_of, allocate, free, item_size, number_at, read_numbers, record_at
from onnx_ops.loops.records import CHUNK, KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attributes_of
from onnx_ops.loops.shapes import give_shape
from onnx_ops.ops.ctc import _backward, _body
from onnx_ops.ops.ctc._native import LANES_FLOAT64, length_of, longest_target, read_labels, whole, write_offsets
from onnx_ops.ops.ctc._rules import (
    LENGTHS,
    TARGETS,
    check_batch,
    check_inputs,
    check_labels,
    extended_labels,
    is_narrower,
    labels_of_samples,
    log_product,
    skips_to,
)
from onnx_ops.ops.references import rounded

SIGNATURE = Signature(
    "CtcLossBackward",
    """
Gradient of the connectionist temporal classification (CTC) loss (aclnnCtcLossBackward; Graves et al. 2006, eq. 9-16).

For sample n with Tn = `input_lengths[n]`, labels t1..tS and extended labels l' = blank, t1, blank, ..., tS, blank:

    log_beta[t, s] = logsum of log_beta[t+1, s], log_beta[t+1, s+1] and, if l'[s] and l'[s+2]
                     differ, log_beta[t+1, s+2], plus log_probs[t, n, l'[s]];
                     it starts at t = Tn-1 in the last two states
    occupied[t, c] = logsum over s with l'[s] = c of log_alpha[n, t, s] + log_beta[t, s]
    out[t, n, c]   = grad_out[n] * (exp(log_probs[t, n, c])
                     - exp(occupied[t, c] + neg_log_likelihood[n] - log_probs[t, n, c]))

With `through_log_softmax` 1, the convention of aclnn and PyTorch, this is the gradient with respect to the logits of
log_probs = log_softmax(logits). With 0, the first term, `exp(log_probs)`, is dropped: this is the derivative with
respect to `log_probs` itself.

Shapes: T time steps, N samples, C classes, S labels, A >= `2*max(target_lengths) + 1` states. `grad_out` (N);
`log_probs` (T, N, C); `targets` padded (N, S), or concatenated (sum of `target_lengths`); `input_lengths` and
`target_lengths` (N); `neg_log_likelihood` (N); `log_alpha` (N, T, A); `out` (T, N, C).

Dtypes: `grad_out`, `log_probs` and `out` one of float16, bfloat16, float, double; `neg_log_likelihood` and `log_alpha`
the same or a wider one; `targets` int64, int32, bool, float or float16; lengths uint8, int8, int16, int32 or int64.
Computed in double and rounded once.

Edge rules: `out` is 0 for t >= Tn, for all inputs. `log_alpha` and `neg_log_likelihood` are used as given, also if no
forward pass could have computed them. Padding of `targets` is ignored. A `blank` or label outside [0, C), a label that
is not integral, and lengths that do not fit are errors.

A probability of 0 makes a product 0, whatever the other factors are: log_beta of a state is -inf where `log_probs` of
its class is, and where no path leads from the state to the end. A state whose `log_alpha` or log_beta is -inf does not
contribute to occupied, even if the other one is NaN or +inf; every other state does, whether or not a path could have
reached it. A class without such states has no second term in `out`: it has gradient 0 where its `log_probs` is -inf,
and the first term alone where it is NaN or +inf. Other NaN and infinities propagate as in the formula, for a state s
that contributes:

    log_alpha[n, t, s]      NaN   NaN in class l'[s] at t
                            +inf  -inf * grad_out in class l'[s] at t
    log_probs[t, n, l'[s]]  NaN   NaN in class l'[s] at t, and at earlier steps in the classes of states that lead to s
                            +inf  NaN in class l'[s] at t, and -inf * grad_out in those classes at earlier steps
    neg_log_likelihood[n]   NaN   NaN in all classes
                            +inf  NaN in all classes, or 0 if zero_infinity is 1
                            -inf  no second term, but NaN where occupied is +inf or NaN

Without a kernel: values cannot be rejected. A sample with a length or a label out of range gets NaN, except where its
gradient is 0 anyway; all samples do if the lengths of concatenated targets do not add up; other samples are unaffected.
Of shapes known only at run time, only those of the inputs of shape (N) are checked.
""",
    inputs=(
        Input("grad_out", "Gradient with respect to each sample's loss, (N).", like="log_probs"),
        Input("log_probs", "Log-probabilities of the classes, (T, N, C)."),
        Input("targets", "Labels, padded (N, S) or concatenated.", dtypes=TARGETS),
        Input("input_lengths", "Number of time steps of each sample, (N).", dtypes=LENGTHS),
        Input("target_lengths", "Number of labels of each sample, (N).", dtypes=LENGTHS),
        Input("neg_log_likelihood", "Loss of each sample, (N)."),
        Input("log_alpha", "Forward variables of CtcLoss, (N, T, A)."),
    ),
    outputs=(Output("out", "Gradient with respect to the logits or `log_probs`, (T, N, C).", "log_probs"),),
    attributes=(
        attribute("blank", 0, "Class of the blank."),
        attribute("zero_infinity", 0, "1: a sample with infinite loss has gradient 0."),
        attribute("through_log_softmax", 1, "0: drop the term `exp(log_probs)`."),
    ),
)


def reference(
    grad_out: np.ndarray,
    log_probs: np.ndarray,
    targets: np.ndarray,
    input_lengths: np.ndarray,
    target_lengths: np.ndarray,
    neg_log_likelihood: np.ndarray,
    log_alpha: np.ndarray,
    *,
    blank: int = 0,
    zero_infinity: int = 0,
    through_log_softmax: int = 1,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, in float64 and log space.

    Args:
        grad_out, neg_log_likelihood: (N).
        log_probs: (T, N, C).
        targets: (N, S) or concatenated.
        input_lengths, target_lengths: (N).
        log_alpha: (N, T, A), from CtcLoss.
        blank, zero_infinity, through_log_softmax: as in the schema.
        dtype: dtype of the result instead of log_probs'.

    Returns:
        Array (T, N, C).
    """
    lp = log_probs.astype(np.float64)
    out = np.zeros(lp.shape)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for n, labels in enumerate(labels_of_samples(targets, target_lengths)):
            steps, loss = int(input_lengths[n]), np.float64(neg_log_likelihood[n])
            if not loss < np.inf:
                out[:steps, n] = 0 if loss == np.inf and zero_infinity else np.nan
                continue
            extended = extended_labels(labels, blank)
            skips = np.roll(skips_to(extended), -2)  # from s to s + 2
            log_beta = np.full(extended.size + 2, -np.inf)
            for t in range(steps - 1, -1, -1):
                if t == steps - 1:
                    log_beta[max(extended.size - 2, 0) : extended.size] = 0
                else:
                    two_on = np.where(skips, log_beta[2:], -np.inf)
                    log_beta[:-2] = np.logaddexp(np.logaddexp(log_beta[:-2], log_beta[1:-1]), two_on)
                log_beta[:-2] = log_product(log_beta[:-2], lp[t, n, extended])
                paths = log_product(log_alpha[n, t, : extended.size].astype(np.float64), log_beta[:-2])
                occupied = np.full(lp.shape[2], -np.inf)
                np.logaddexp.at(occupied, extended, paths)
                expected = np.where(occupied == -np.inf, 0, np.exp(occupied + loss - lp[t, n]))
                direct = np.exp(lp[t, n]) if through_log_softmax else 0
                out[t, n] = np.float64(grad_out[n]) * (direct - expected)
    return rounded(out, log_probs.dtype, dtype)


# --- the kernel: one task per sample --------------------------------------------------------------------------------

GRAD_OUT, LOG_PROBS, _, INPUT_LENGTH, TARGET_LENGTH, LOSS, LOG_ALPHA = range(7)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
# Cody-Waite split of log(2**64): LOG_SCALE_HIGH times a small integer is exact.
LOG_SCALE_HIGH, LOG_SCALE_LOW = 44.36141949892044, 5.691605912887473e-08


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes, lengths and labels; one task per sample."""
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    longest = longest_target(kernel, job, LOG_PROBS, attributes.blank)
    if longest < 0 or job.rank[LOG_ALPHA] != 3:
        return REFUSED
    steps, batch = job.dims[LOG_PROBS, 0], job.dims[LOG_PROBS, 1]
    if job.dims[LOG_ALPHA, 0] != batch or job.dims[LOG_ALPHA, 1] != steps or job.dims[LOG_ALPHA, 2] < 2 * longest + 1:
        return REFUSED
    if job.rank[GRAD_OUT] != 1 or job.dims[GRAD_OUT, 0] != batch or job.rank[LOSS] != 1 or job.dims[LOSS, 0] != batch:
        return REFUSED
    give_shape(job, 0, LOG_PROBS)
    job.tasks = batch if steps > 0 else 0
    job.scratch_bytes = 8 * batch if job.tasks > 0 else 0
    return OK


def begin(kernel: Kernel, job: Job) -> None:
    """Compute the offsets of each sample's labels."""
    if job.tasks > 0:
        write_offsets(kernel, job, LOG_PROBS)


def task(job: Job, n: int) -> None:
    """Gradient of sample n."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    steps, batch, classes = job.dims[LOG_PROBS, 0], job.dims[LOG_PROBS, 1], job.dims[LOG_PROBS, 2]
    used = length_of(kernel, job, INPUT_LENGTH, n)
    length = length_of(kernel, job, TARGET_LENGTH, n)
    loss = number_at(job.data[LOSS], kernel.element_type[LOSS], n)
    grad = number_at(job.data[GRAD_OUT], kernel.element_type[GRAD_OUT], n)
    # If most classes are not in the target, the recursion runs over those that are.
    sparse = 2 * (length + 1) < classes

    # Padded to whole vectors, as a scalar remainder loop would take as long as all vectors.
    wide, wide_states = length + LANES_FLOAT64, 2 * length + 1 + LANES_FLOAT64
    wide_classes = (length + 1 if sparse else classes) + LANES_FLOAT64
    per_label, per_state, per_class = (wide, np.float64), (wide_states, np.float64), (wide_classes, np.float64)
    (
        memory,
        blanks, labelled, sums, label_sums, skips, emitted,
        labels,
        alpha, weights,
        row, probabilities, result,
        carried, chunk, numbers, places,
    ) = allocate(
        per_label, per_label, per_label, per_label, per_label, per_label,
        (wide, np.int64),
        per_state, per_state,
        per_class, per_class, per_class,
        (wide_classes, np.int64), (CHUNK, np.float64), (CHUNK, np.float64), (classes, np.int64),
    )  # fmt: skip
    if memory == 0:
        job.failed = NO_MEMORY
        return

    read_labels(kernel, job, LOG_PROBS, n, length, labels)
    for k in range(length):
        skips[k] = 1.0 if k + 1 < length and labels[k] != labels[k + 1] else 0.0
    blank, count = attributes.blank, classes
    if sparse:
        count = _backward.carried_classes(labels, length, blank, classes, places, carried)
        blank = places[blank]
    for k in range(LANES_FLOAT64):
        alpha[2 * length + 1 + k] = -np.inf
        row[count + k] = -np.inf

    probs_type, alpha_type = kernel.element_type[LOG_PROBS], kernel.element_type[LOG_ALPHA]
    probs_step, alpha_step = batch * classes * item_size(probs_type), job.dims[LOG_ALPHA, 2] * item_size(alpha_type)
    probs = job.data[LOG_PROBS] + n * classes * item_size(probs_type)
    alphas = job.data[LOG_ALPHA] + n * steps * alpha_step
    outs = job.output[0] + n * classes * item_size(probs_type)
    through = attributes.through_log_softmax

    determined = not loss < np.inf  # a loss of +inf or NaN alone determines the gradient
    if determined:
        value = 0.0 if loss == np.inf and attributes.zero_infinity != 0 else np.nan
        for t in range(used):
            _backward.write_constant(kernel, value, probs_type, classes, outs + t * probs_step, numbers)
    for t in range(used, steps):
        _backward.write_constant(kernel, 0.0, probs_type, classes, outs + t * probs_step, numbers)
    for k in range(wide):
        blanks[k] = 0.0
        labelled[k] = 0.0
    in_range, scalings, t = not determined, 0, used - 1
    while in_range and t >= 0:
        _backward.read_row(kernel, probs + t * probs_step, probs_type, sparse, carried, count, row)
        read_numbers(kernel.read, alphas + t * alpha_step, alpha_type, 2 * length + 1, address_of(alpha))
        _backward.exponentials(row, whole(count), probabilities)
        # loss - scalings * log(2**64) as an unevaluated sum of two (two-sum, Knuth): log_alpha cancels most of it
        product = scalings * LOG_SCALE_HIGH
        offset = loss - product
        back = offset - loss
        offset_lost = ((loss - (offset - back)) - (product + back)) - scalings * LOG_SCALE_LOW
        change = _backward.scaled_step(
            length, used, t, offset, offset_lost, labels, blank, skips, probabilities, alpha, blanks, labelled,
            sums, label_sums, emitted, weights, result, count,
        )  # fmt: skip
        in_range = change != _backward.LOST
        scalings += change
        for c in range(count):
            expected = 0.0 if row[c] == -np.inf else result[c]
            result[c] = grad * ((probabilities[c] if through else 0.0) - expected)
        _backward.write_row(
            kernel, probs + t * probs_step, probs_type, classes, outs + t * probs_step, grad, through, sparse,
            carried, count, result, chunk, numbers,
        )  # fmt: skip
        t -= 1
    if not in_range and not determined:
        beta = weights  # in log space, over interleaved states
        for s in range(2 * length + 3):
            beta[s] = -np.inf
        for t in range(used - 1, -1, -1):
            _backward.read_row(kernel, probs + t * probs_step, probs_type, sparse, carried, count, row)
            read_numbers(kernel.read, alphas + t * alpha_step, alpha_type, 2 * length + 1, address_of(alpha))
            _backward.log_step(length, t == used - 1, labels, blank, skips, row, alpha, beta, result, count)
            for c in range(count):
                expected = 0.0 if result[c] == -np.inf else np.exp(result[c] + loss - row[c])
                result[c] = grad * ((np.exp(row[c]) if through else 0.0) - expected)
            _backward.write_row(
                kernel, probs + t * probs_step, probs_type, classes, outs + t * probs_step, grad, through, sparse,
                carried, count, result, chunk, numbers,
            )  # fmt: skip
    free(memory)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, begin)


def infer(call: Call) -> tuple[TensorType, ...]:
    steps, batch, _ = check_inputs(call)
    call.check_choice("through_log_softmax", {0: "no", 1: "yes"})
    dtype = call.dtype("log_probs")
    if dtype is not None:
        if call.dtype("grad_out") not in (dtype, None):
            raise _dtype_error(call, "grad_out", "that of 'log_probs'")
        for name in ("neg_log_likelihood", "log_alpha"):
            own = call.dtype(name)
            if own is not None and is_narrower(own, dtype):
                raise _dtype_error(call, name, "that of 'log_probs' or a wider one")
    for name in ("grad_out", "neg_log_likelihood"):
        check_batch(call, name, batch)
    alpha = call.shape("log_alpha")
    if alpha is not None:
        call.same_shape("log_alpha", (batch, steps, alpha[-1] if alpha else None), "N and T as in 'log_probs'")
        if alpha[-1] == 0:
            raise call.shape_error("log_alpha", "at least one state (axis 2)")
    return (TensorType(dtype, call.shape("log_probs")),)


def _dtype_error(call: Call, name: str, expected: str) -> Exception:
    own, dtype = call.dtype(name), call.dtype("log_probs")
    assert own is not None
    assert dtype is not None
    return call.error(f"input '{name}' has dtype {dtype_name(own)}, expected {expected}, {dtype_name(dtype)}")


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    _, log_probs, targets, input_lengths, target_lengths, _, log_alpha = (np.asarray(a) for a in arrays)
    check_labels(call, log_probs, targets, input_lengths, target_lengths)
    for n, length in enumerate(target_lengths.tolist()):
        if 2 * length + 1 > log_alpha.shape[2]:
            raise call.error(
                f"input 'log_alpha' has {log_alpha.shape[2]} states, expected at least {2 * length + 1} for the"
                f" target length {length} at {n}"
            )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    _body.backward,
    Example(
        # Two time steps, blank and one label, both of probability 1/2: three of the four paths spell the label.
        {
            "grad_out": [1.0],
            "log_probs": [[[math.log(1 / 2)] * 2]] * 2,
            "targets": [[1]],
            "input_lengths": [2],
            "target_lengths": [1],
            "neg_log_likelihood": [-math.log(3 / 4)],
            "log_alpha": [
                [[math.log(1 / 2), math.log(1 / 2), -math.inf], [math.log(1 / 4), math.log(1 / 2), math.log(1 / 4)]]
            ],
        },
        {"out": [[[1 / 6, -1 / 6]]] * 2},
    ),
    check_values=check_values,
    body_opset=16,  # ScatterElements adds up from opset 16 on
)
