"""CtcLossBackward: gradient of the connectionist temporal classification loss (Graves et al., 2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute, tensor_types
from onnx_ops.core.types import FLOATS, TensorType, dtype_name
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.primitives import (
    array_at,
    exp_parts,
    free,
    helper,
    item_size,
    malloc,
    number_at,
    read_numbers,
    record_at,
    total_of,
    write_numbers,
)
from onnx_ops.loops.records import JOB, KERNEL, NO_MEMORY, OK, REFUSED, attributes_of
from onnx_ops.ops.references import rounded

DOUBLE = TensorProto.DOUBLE
WHOLE_TARGETS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
TARGETS = (*WHOLE_TARGETS, TensorProto.FLOAT, TensorProto.FLOAT16)
LENGTHS = (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)

SCHEMA = OpSchema(
    "CtcLossBackward",
    DOMAIN,
    OPSET_VERSION,
    """
Gradient of the connectionist temporal classification (CTC) loss (aclnnCtcLossBackward; Graves et al., 2006, eq. 9-16).

For sample n with Tn = input_lengths[n], t1..tS its targets and l' = blank, t1, blank, ..., tS, blank:

    log_beta[t, s] = logsum of log_beta[t+1, s], log_beta[t+1, s+1] and, if l'[s] and l'[s+2]
                     differ, log_beta[t+1, s+2], plus log_probs[t, n, l'[s]];
                     it starts at t = Tn-1 in the last two states
    occupied[t, c] = logsum over s with l'[s] = c of log_alpha[n, t, s] + log_beta[t, s]
    out[t, n, c]   = grad_out[n] * (exp(log_probs[t, n, c])
                     - exp(occupied[t, c] + neg_log_likelihood[n] - log_probs[t, n, c]))

With through_log_softmax = 1 (the convention of aclnn and of PyTorch) this is the gradient with respect to the logits,
where log_probs = log_softmax(logits). With through_log_softmax = 0 the first term, exp(log_probs), is dropped: this is
the derivative with respect to log_probs itself.

Shapes: T time, N batch, C classes, S target length, A >= 2*max(target_lengths)+1 states. grad_out (N); log_probs
(T, N, C); targets (N, S), or (sum of target_lengths) for the targets one after another; input_lengths and
target_lengths (N); neg_log_likelihood (N); log_alpha (N, T, A); out (T, N, C).

Dtypes: grad_out, log_probs and out one of float16, bfloat16, float, double; neg_log_likelihood and log_alpha that one
or a wider one; targets int64, int32, bool, float or float16; lengths uint8, int8, int16, int32 or int64. All is
computed in double and rounded once.

Edge rules: out is 0 for t >= Tn, whatever the inputs hold. log_alpha and neg_log_likelihood are taken as they are, also
where no forward pass could have made them. Entries of padded targets beyond the target length are ignored. A blank or a
target outside [0, C), a target that is no whole number, and lengths that do not fit are errors.

A probability of 0 makes a product 0, whatever the other factors are. So log_beta of a state is -inf where log_probs of
its class is, and where nothing leads from the state to the end. A state whose log_alpha or log_beta is -inf has no term
in occupied, even if the other one is NaN or +inf; every other state has one, whether or not a path could have reached
it from the start. A class without terms has no second term in out, so a class whose log_probs is -inf has gradient 0,
and one whose log_probs is NaN or +inf has the first term alone. Otherwise NaN and infinities give what the formula
gives, here for a state s that has a term:

    log_alpha[n, t, s]      NaN   NaN in class l'[s] at t
                            +inf  -inf * grad_out in class l'[s] at t
    log_probs[t, n, l'[s]]  NaN   NaN in class l'[s] at t, and at earlier steps in the classes of states that lead to s
                            +inf  NaN in class l'[s] at t, and -inf * grad_out in those classes at earlier steps
    neg_log_likelihood[n]   NaN   NaN in all classes
                            +inf  NaN in all classes, or 0 if zero_infinity is 1
                            -inf  no second term, but NaN where occupied is +inf or NaN

Without a kernel: values cannot be refused. A sample with a length or a label beyond its range gets NaN, or zeros where
it would have them anyway; concatenated targets whose lengths do not add up give NaN to all samples. The gradients of
all other samples are right. Of shapes that are known only at run time those of the inputs (N) alone are checked.
""",
    inputs=[
        OpSchema.FormalParameter("grad_out", "T", "Gradient with respect to each sample's loss, (N)."),
        OpSchema.FormalParameter("log_probs", "T", "Logarithms of the class probabilities, (T, N, C)."),
        OpSchema.FormalParameter("targets", "TTargets", "Labels, (N, S) padded or concatenated to one dimension."),
        OpSchema.FormalParameter("input_lengths", "TInputLengths", "Time steps of each sample, (N)."),
        OpSchema.FormalParameter("target_lengths", "TTargetLengths", "Labels of each sample, (N)."),
        OpSchema.FormalParameter("neg_log_likelihood", "TLoss", "Loss of each sample, (N)."),
        OpSchema.FormalParameter("log_alpha", "TAlpha", "Forward variables of the forward pass, (N, T, A)."),
    ],
    outputs=[OpSchema.FormalParameter("out", "T", "Gradient, (T, N, C).")],
    type_constraints=[
        ("T", tensor_types(FLOATS), "Floating types."),
        ("TTargets", tensor_types(TARGETS), "Types of labels."),
        ("TInputLengths", tensor_types(LENGTHS), "Types of lengths."),
        ("TTargetLengths", tensor_types(LENGTHS), "Types of lengths."),
        ("TLoss", tensor_types(FLOATS), "T or a wider floating type."),
        ("TAlpha", tensor_types(FLOATS), "T or a wider floating type."),
    ],
    attributes=[
        attribute("blank", 0, "The class that stands for no label."),
        attribute("zero_infinity", 0, "1: a sample whose loss is infinite gets a gradient of 0."),
        attribute("through_log_softmax", 1, "0: drop the term exp(log_probs)."),
    ],
)

WIDTHS: dict[int, int] = {TensorProto.FLOAT16: 1, TensorProto.BFLOAT16: 1, TensorProto.FLOAT: 2, TensorProto.DOUBLE: 3}


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
    """The definition in NumPy, in float64 and in log space throughout.

    Args:
        grad_out: (N). log_probs: (T, N, C). targets: (N, S) or concatenated. input_lengths, target_lengths: (N).
        neg_log_likelihood: (N). log_alpha: (N, T, A), as the forward op gives them.
        blank, zero_infinity, through_log_softmax: as in the schema.
        dtype: answer in this dtype instead of log_probs'.

    Returns:
        Array (T, N, C).
    """
    lp = log_probs.astype(np.float64)
    out = np.zeros(lp.shape)
    offsets = np.concatenate([[0], np.cumsum(target_lengths, dtype=np.int64)])
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for n, (steps, length) in enumerate(zip(input_lengths.tolist(), target_lengths.tolist(), strict=True)):
            loss = np.float64(neg_log_likelihood[n])
            if not loss < np.inf:
                out[:steps, n] = 0 if loss == np.inf and zero_infinity else np.nan
                continue
            labels = targets[n, :length] if targets.ndim == 2 else targets[offsets[n] : offsets[n + 1]]
            extended = np.full(2 * length + 1, blank, np.int64)
            extended[1::2] = labels
            skips = np.zeros(extended.size, bool)  # from s to s + 2
            skips[:-2] = (extended[2:] != extended[:-2]) & (np.arange(extended.size - 2) % 2 == 1)
            log_beta = np.full(extended.size + 2, -np.inf)
            for t in range(steps - 1, -1, -1):
                if t == steps - 1:
                    log_beta[max(extended.size - 2, 0) : extended.size] = 0
                else:
                    two_on = np.where(skips, log_beta[2:], -np.inf)
                    log_beta[:-2] = np.logaddexp(np.logaddexp(log_beta[:-2], log_beta[1:-1]), two_on)
                log_beta[:-2] = _log_product(log_beta[:-2], lp[t, n, extended])
                paths = _log_product(log_alpha[n, t, : extended.size].astype(np.float64), log_beta[:-2])
                occupied = np.full(lp.shape[2], -np.inf)
                np.logaddexp.at(occupied, extended, paths)
                expected = np.where(occupied == -np.inf, 0, np.exp(occupied + loss - lp[t, n]))
                direct = np.exp(lp[t, n]) if through_log_softmax else 0
                out[t, n] = np.float64(grad_out[n]) * (direct - expected)
    return rounded(out, log_probs.dtype, dtype)


def _log_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(exp(a) * exp(b)), where 0 times anything is 0."""
    return np.where((a == -np.inf) | (b == -np.inf), -np.inf, a + b)


# --- the kernel: one task per sample --------------------------------------------------------------------------------

GRAD_OUT, LOG_PROBS, TARGET, INPUT_LENGTH, TARGET_LENGTH, LOSS, LOG_ALPHA = range(7)
ATTRIBUTES = attributes_of(SCHEMA)
LOST = 2
"""What a step returns if float64 cannot hold its results, instead of the change of the scale."""
LANES = 8
"""float64 numbers in the widest vector."""

LARGEST_EXPONENT = 650.0
"""Where exp(log_alpha + loss) exceeds e**650, beta may have left the range of float64; below, it lost < 1e-20."""
SMALL, LARGE = 2.0**-64, 2.0**64
# log(2**64) in two parts; a count of them times the first is exact
LOG_SCALE_HIGH, LOG_SCALE_LOW = 44.36141949892044, 5.691605912887473e-08


def plan(kernel_address: int, job_address: int) -> int:
    """Check shapes, lengths and labels; one task for each sample."""
    kernel, job = record_at(kernel_address, KERNEL), record_at(job_address, JOB)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    if job.rank[LOG_PROBS] != 3 or job.rank[LOG_ALPHA] != 3:
        return REFUSED
    steps, batch, classes = job.dims[LOG_PROBS, 0], job.dims[LOG_PROBS, 1], job.dims[LOG_PROBS, 2]
    states = job.dims[LOG_ALPHA, 2]
    if job.dims[LOG_ALPHA, 0] != batch or job.dims[LOG_ALPHA, 1] != steps:
        return REFUSED
    for i in (GRAD_OUT, INPUT_LENGTH, TARGET_LENGTH, LOSS):
        if job.rank[i] != 1 or job.dims[i, 0] != batch:
            return REFUSED
    padded = job.rank[TARGET] == 2
    if not padded and job.rank[TARGET] != 1:
        return REFUSED
    if padded and job.dims[TARGET, 0] != batch:
        return REFUSED
    if attributes.blank < 0 or attributes.blank >= classes:
        return REFUSED
    longest = job.dims[TARGET, 1] if padded else job.dims[TARGET, 0]
    total = 0
    for n in range(batch):
        length = number_at(job.data[INPUT_LENGTH], kernel.element_type[INPUT_LENGTH], n)
        if length < 0 or length > steps:
            return REFUSED
        length = number_at(job.data[TARGET_LENGTH], kernel.element_type[TARGET_LENGTH], n)
        if length < 0 or length > longest or 2 * length + 1 > states:
            return REFUSED
        first = n * longest if padded else total
        total += int(length)
        if not padded and total > longest:
            return REFUSED
        for k in range(int(length)):
            label = number_at(job.data[TARGET], kernel.element_type[TARGET], first + k)
            if not (label >= 0 and label < classes and label == np.floor(label)):
                return REFUSED
    if not padded and total != longest:
        return REFUSED
    job.output_rank[0] = 3
    for axis in range(3):
        job.output_dims[0, axis] = job.dims[LOG_PROBS, axis]
    job.tasks = batch if steps > 0 else 0
    job.scratch_bytes = 8 * batch if job.tasks > 0 else 0
    return OK


def begin(kernel_address: int, job_address: int) -> None:
    """Where each sample's targets begin, into the scratch memory."""
    kernel, job = record_at(kernel_address, KERNEL), record_at(job_address, JOB)
    batch = job.dims[GRAD_OUT, 0]
    if job.tasks == 0:
        return
    firsts, total = array_at(job.scratch, batch, np.int64), 0
    for n in range(batch):
        firsts[n] = n * job.dims[TARGET, 1] if job.rank[TARGET] == 2 else total
        total += int(number_at(job.data[TARGET_LENGTH], kernel.element_type[TARGET_LENGTH], n))


def task(job_address: int, n: int) -> None:
    """Gradient of sample n."""
    job = record_at(job_address, JOB)
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    steps, batch, classes = job.dims[LOG_PROBS, 0], job.dims[LOG_PROBS, 1], job.dims[LOG_PROBS, 2]
    used = int(number_at(job.data[INPUT_LENGTH], kernel.element_type[INPUT_LENGTH], n))
    length = int(number_at(job.data[TARGET_LENGTH], kernel.element_type[TARGET_LENGTH], n))
    loss = number_at(job.data[LOSS], kernel.element_type[LOSS], n)
    grad = number_at(job.data[GRAD_OUT], kernel.element_type[GRAD_OUT], n)

    # Room for whole vectors: the exponentials of what is left over one by one would take as long as all the others.
    wide, wide_states, wide_classes = length + LANES, 2 * length + 1 + LANES, classes + LANES
    memory = malloc(8 * (8 * wide + 2 * wide_states + 3 * wide_classes))
    if memory == 0:
        job.failed = NO_MEMORY
        return
    blanks = array_at(memory, wide, np.float64)
    labelled = array_at(memory + 8 * wide, wide, np.float64)
    sums = array_at(memory + 16 * wide, wide, np.float64)
    label_sums = array_at(memory + 24 * wide, wide, np.float64)
    skips = array_at(memory + 32 * wide, wide, np.float64)
    emitted = array_at(memory + 40 * wide, wide, np.float64)
    labels = array_at(memory + 48 * wide, wide, np.int64)
    alpha_address = memory + 64 * wide
    alpha = array_at(alpha_address, wide_states, np.float64)
    weights = array_at(alpha_address + 8 * wide_states, wide_states, np.float64)
    row_address = alpha_address + 16 * wide_states
    row = array_at(row_address, wide_classes, np.float64)
    probabilities = array_at(row_address + 8 * wide_classes, wide_classes, np.float64)
    result_address = row_address + 16 * wide_classes
    result = array_at(result_address, wide_classes, np.float64)
    for k in range(LANES):
        alpha[2 * length + 1 + k] = -np.inf
        row[classes + k] = -np.inf

    first = array_at(job.scratch, batch, np.int64)[n]
    for k in range(length):
        labels[k] = int(number_at(job.data[TARGET], kernel.element_type[TARGET], first + k))
    for k in range(length):
        skips[k] = 1.0 if k + 1 < length and labels[k] != labels[k + 1] else 0.0

    probs_type, alpha_type, out_type = (
        kernel.element_type[LOG_PROBS],
        kernel.element_type[LOG_ALPHA],
        kernel.output_type[0],
    )
    probs_step, alpha_step = batch * classes * item_size(probs_type), job.dims[LOG_ALPHA, 2] * item_size(alpha_type)
    probs = job.data[LOG_PROBS] + n * classes * item_size(probs_type)
    alphas = job.data[LOG_ALPHA] + n * steps * alpha_step
    outs = job.output[0] + n * classes * item_size(out_type)
    blank, through = attributes.blank, attributes.through_log_softmax

    settled = not loss < np.inf  # a loss of +inf or NaN alone says what the sample gets
    zeros = not settled or (loss == np.inf and attributes.zero_infinity != 0)
    for c in range(classes):
        result[c] = 0.0 if zeros else np.nan
    for t in range(steps):
        if t == used:
            for c in range(classes):
                result[c] = 0.0
        if settled or t >= used:
            write_numbers(kernel.write, result_address, out_type, classes, outs + t * probs_step)
    in_range = not settled
    for k in range(wide):
        blanks[k] = 0.0
        labelled[k] = 0.0
    scalings, t = 0, used - 1
    while in_range and t >= 0:
        read_numbers(kernel.read, probs + t * probs_step, probs_type, classes, row_address)
        read_numbers(kernel.read, alphas + t * alpha_step, alpha_type, 2 * length + 1, alpha_address)
        exponentials(row, whole(classes), probabilities)
        # loss - scalings * log(2**64), unevaluated in two parts: log_alpha takes most of it away again
        product = scalings * LOG_SCALE_HIGH
        offset = loss - product
        back = offset - loss
        offset_lost = ((loss - (offset - back)) - (product + back)) - scalings * LOG_SCALE_LOW
        change = scaled_step(
            length, used, t, offset, offset_lost, labels, blank, skips, probabilities, alpha, blanks, labelled,
            sums, label_sums, emitted, weights, result, classes,
        )  # fmt: skip
        in_range = change != LOST
        scalings += change
        for c in range(classes):
            expected = 0.0 if row[c] == -np.inf else result[c]
            result[c] = grad * ((probabilities[c] if through else 0.0) - expected)
        write_numbers(kernel.write, result_address, out_type, classes, outs + t * probs_step)
        t -= 1
    if not in_range and not settled:
        # Beta in log space, over the states as they are interleaved; `sums` and what follows are free for it.
        beta = array_at(memory, 2 * length + 3, np.float64)
        for s in range(2 * length + 3):
            beta[s] = -np.inf
        for t in range(used - 1, -1, -1):
            read_numbers(kernel.read, probs + t * probs_step, probs_type, classes, row_address)
            read_numbers(kernel.read, alphas + t * alpha_step, alpha_type, 2 * length + 1, alpha_address)
            log_step(length, t == used - 1, labels, blank, skips, row, alpha, beta, result, classes)
            for c in range(classes):
                expected = 0.0 if result[c] == -np.inf else np.exp(result[c] + loss - row[c])
                result[c] = grad * ((np.exp(row[c]) if through else 0.0) - expected)
            write_numbers(kernel.write, result_address, out_type, classes, outs + t * probs_step)
    free(memory)


@helper
def whole(count: int) -> int:
    """A count rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@helper
def exponentials(x: Any, count: int, out: Any) -> None:
    for i in range(count):
        value, first, second = exp_parts(x[i])
        out[i] = (value * first) * second


@helper
def scaled_step(
    length: int,
    used: int,
    t: int,
    offset: float,
    offset_lost: float,
    labels: Any,
    blank: int,
    skips: Any,
    probabilities: Any,
    alpha: Any,
    blanks: Any,
    labelled: Any,
    sums: Any,
    label_sums: Any,
    emitted: Any,
    weights: Any,
    result: Any,
    classes: int,
) -> int:
    """Step of beta from t + 1 to t in linear float64, and the posteriors of the classes at t, into `result`.

    beta[t, s] is held as blanks[k] (s = 2k) or labelled[k] (s = 2k + 1), times a power of 2**64 that keeps the numbers
    near 1; offset + offset_lost is what takes it back, plus the loss. The answer is how the power changes, or LOST
    where this cannot give the result: float64 may not have held all of beta, there is NaN or +inf, or log_alpha is
    above -inf in a state that no path can have reached by t. Beta of those is not worked out, nor that of states that
    none can leave for the end in time.
    """
    unreached = 0
    for s in range(2 * t + 2, 2 * length + 1):
        unreached += 0 if alpha[s] == -np.inf else 1
    if unreached > 0:
        return LOST
    rest = used - t
    blank_low, blank_high = max(0, length - rest + 1), min(length, t)
    label_low, label_high = max(0, length - rest), min(length - 1, t)
    low, high = min(2 * blank_low, 2 * label_low + 1), max(2 * blank_high, 2 * label_high + 1)
    if t == used - 1:
        sums[length] = 1.0
        if length > 0:
            label_sums[length - 1] = 1.0
    else:
        for k in range(blank_low, blank_high + 1):
            sums[k] = blanks[k] + labelled[k]
        for k in range(label_low, label_high + 1):
            label_sums[k] = (labelled[k] + blanks[k + 1]) + skips[k] * labelled[k + 1]

    outside = 0
    for s in range(low, low + whole(high + 1 - low)):
        exponent = (alpha[s] + offset) + offset_lost
        outside += 0 if exponent <= LARGEST_EXPONENT else 1
        value, first, second = exp_parts(exponent)
        weights[s] = (value * first) * second
    # One loop for each array: LLVM vectorises all but the one that adds up labels, whose indices may coincide.
    silence = probabilities[blank]
    for c in range(classes):
        result[c] = 0.0
    for k in range(label_low, label_high + 1):
        emitted[k] = weights[2 * k + 1] * label_sums[k]
    for k in range(label_low, label_high + 1):
        result[labels[k]] += emitted[k]
    for k in range(blank_low, blank_high + 1):
        emitted[k] = weights[2 * k] * sums[k]
    result[blank] += total_of(emitted, blank_low, blank_high + 1 - blank_low)

    for k in range(label_low, label_high + 1):
        emitted[k] = probabilities[labels[k]]
    for k in range(blank_low, blank_high + 1):
        blanks[k] = sums[k] * silence
    for k in range(label_low, label_high + 1):
        labelled[k] = label_sums[k] * emitted[k]
    fair, large = 0, 0  # counts: LLVM does not vectorise a maximum that respects NaN
    for k in range(blank_low, blank_high + 1):
        fair += 1 if blanks[k] >= SMALL else 0
        large += 0 if blanks[k] <= LARGE else 1
    for k in range(label_low, label_high + 1):
        fair += 1 if labelled[k] >= SMALL else 0
        large += 0 if labelled[k] <= LARGE else 1
    if outside > 0:
        return LOST
    if fair > 0 and large == 0:
        return 0
    factor, total = SMALL if large > 0 else LARGE, 0.0
    for k in range(blank_low, blank_high + 1):
        blanks[k] *= factor
        total += blanks[k]
    for k in range(label_low, label_high + 1):
        labelled[k] *= factor
        total += labelled[k]
    if not 0.0 < total < np.inf:
        return LOST
    return -1 if large > 0 else 1


@helper
def log_sum(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = (a, b) if a > b else (b, a)
    if np.isinf(low):
        return high
    return high + np.log1p(np.exp(low - high))


@helper
def log_product(a: float, b: float) -> float:
    """log(exp(a) * exp(b)), where 0 times anything is 0."""
    return -np.inf if a == -np.inf or b == -np.inf else a + b


@helper
def log_step(
    length: int, last: bool, labels: Any, blank: int, skips: Any, row: Any, alpha: Any, beta: Any, result: Any,
    classes: int,
) -> None:  # fmt: skip
    """Step of log beta from t + 1 to t, and log(sum of alpha*beta) of each class at t, into `result`."""
    for c in range(classes):
        result[c] = -np.inf
    for s in range(2 * length + 1):
        label = labels[s // 2] if s % 2 else blank
        if last:
            beta[s] = 0.0 if s >= 2 * length - 1 else -np.inf
        else:
            beta[s] = log_sum(beta[s], beta[s + 1])
            if s % 2 and skips[s // 2] > 0:
                beta[s] = log_sum(beta[s], beta[s + 2])
        beta[s] = log_product(beta[s], row[label])
        result[label] = log_sum(result[label], log_product(alpha[s], beta[s]))


def body(b: Body) -> None:
    """log_beta by a Scan backwards over time; all else at once for all time steps. (N, A) states of all samples.

    A graph cannot refuse values: lengths and labels are brought into their range, and a sample that needed it gets NaN.
    """
    b.widen()
    lp, nll, grad = b.load("log_probs"), b.load("neg_log_likelihood"), b.load("grad_out")
    b.emit(f"alpha = Transpose <perm = [1, 0, 2]> ({b.load('log_alpha')})")  # (T, N, A)
    impossible, nothing = b.constant("impossible", -np.inf), b.constant("nothing", 0.0)
    unknown = b.constant("unknown", np.nan)
    b.constant("lowest", float(np.finfo(np.float64).min))  # -inf - -inf is NaN, -inf - lowest is -inf
    b.constant("largest", float(np.finfo(np.float64).max))
    for name, value in (("zero", 0), ("one", 1), ("two", 2), ("minus_one", -1)):
        b.emit(f"{name} = Constant <value_int = {value}> ()")
    _integers(b, "zero_1d", 0)
    _integers(b, "one_1d", 1)
    _integers(b, "two_1d", 2)
    _integers(b, "one_and_two", 1, 2)
    _integers(b, "all", -1)
    _integers(b, "end", 9223372036854775807)
    b.emit(f"blank = Constant <{_integer(b, 'blank')}> ()")
    b.emit(f"steps_1d = Shape <start = 0, end = 1> ({lp})")
    b.emit("steps = Squeeze (steps_1d, zero_1d)")
    b.emit(f"batch_1d = Shape <start = 1, end = 2> ({lp})")
    b.emit(f"classes_1d = Shape <start = 2> ({lp})")
    b.emit("classes = Squeeze (classes_1d, zero_1d)")
    b.emit("states_1d = Shape <start = 2> (log_alpha)")
    b.emit("states = Squeeze (states_1d, zero_1d)")
    b.emit("column = Concat <axis = 0> (batch_1d, one_1d)")

    # Lengths within T, and within the states; the labels one after another, one more at the end.
    b.emit(f"input_lengths_column = Reshape <allowzero = 1> ({_whole(b, 'input_lengths')}, column)")
    b.emit("used_column = Clip (input_lengths_column, zero, steps)")
    b.emit("fits_steps = Equal (used_column, input_lengths_column)")
    b.emit(f"labels_flat = Reshape ({_whole_targets(b)}, all)")
    b.emit("labels = Concat <axis = 0> (labels_flat, zero_1d)")
    b.emit("label_count = Size (labels_flat)")
    b.emit(f"target_lengths_column = Reshape <allowzero = 1> ({_whole(b, 'target_lengths')}, column)")
    b.emit("states_but_one = Sub (states, one)")
    b.emit("room = Div (states_but_one, two)")
    firsts, limit, adds_up = _places_of_targets(b)
    b.emit(f"longest = Min (room, {limit})")
    b.emit("length_column = Clip (target_lengths_column, zero, longest)")
    b.emit("fits_targets = Equal (length_column, target_lengths_column)")

    # States: the blanks at even s, label s // 2 at odd s; of sample n those up to 2*length exist.
    b.emit("s = Range (zero, states, one)")
    b.emit("label_of_s = Div (s, two)")
    b.emit("parity = Mod (s, two)")
    b.emit("is_odd = Cast <to = 9> (parity)")
    b.emit("before_length = Less (label_of_s, length_column)")
    b.emit("is_label = And (is_odd, before_length)")
    b.emit(f"place = Add ({firsts}, label_of_s)")
    if adds_up:
        b.emit("place_within = Min (place, label_count)")
    b.emit(f"safe_place = Where (is_label, {'place_within' if adds_up else 'place'}, label_count)")
    b.emit("label_given = Gather (labels, safe_place)")
    b.emit("last_class = Sub (classes, one)")
    b.emit("label = Clip (label_given, zero, last_class)")
    b.emit("is_no_class = Sub (label_given, label)")
    b.emit("is_wrong = Cast <to = 9> (is_no_class)")
    b.emit("wrong = Cast <to = 7> (is_wrong)")
    b.emit("wrong_labels = ReduceSum (wrong, one_1d)")
    b.emit("has_classes = Equal (wrong_labels, zero)")
    b.emit("extended = Where (is_label, label, blank)")
    b.emit("twice = Mul (length_column, two)")
    b.emit("exists = LessOrEqual (s, twice)")
    b.emit("twice_less_one = Sub (twice, one)")
    b.emit("is_late = GreaterOrEqual (s, twice_less_one)")
    b.emit("is_last = And (is_late, exists)")
    b.emit(f"last = Where (is_last, {nothing}, {impossible})")
    # The skip from s to s + 2 leaves out a blank between different labels.
    _integers(b, "no_states", 0, 0, 0, 2)
    b.emit("extended_longer = Pad (extended, no_states, blank)")
    b.emit("extended_later = Slice (extended_longer, two_1d, end, one_1d)")
    b.emit("same = Equal (extended, extended_later)")
    b.emit("differ = Not (same)")
    b.emit("within = Less (s, twice_less_one)")
    b.emit("may_skip = And (is_label, differ)")
    b.emit("skip = And (may_skip, within)")

    b.emit("time = Range (zero, steps, one)")
    b.emit("time_back = Range (steps, minus_one, minus_one)")
    b.emit("order = Range (steps, zero, minus_one)")
    b.emit("plane = Shape (extended)")
    b.emit("volume = Concat <axis = 0> (steps_1d, plane)")
    b.emit("extended_always = Expand (extended, volume)")
    b.emit(f"emitted = GatherElements <axis = 2> ({lp}, extended_always)")
    b.emit("final_step = Sub (used_column, one)")
    # One extra step, in which no state is reached: onnxruntime refuses a Scan over no steps.
    _integers(b, "one_step", 0, 0, 0, 1, 0, 0)
    b.emit(f"emitted_and_one = Pad (emitted, one_step, {nothing})")
    b.emit(f"start = Expand ({impossible}, plane)")
    b.emit("""
        beta_at_0, beta_back = Scan <
            num_scan_inputs = 1,
            body = step (double[?, ?] later, int64 now) => (double[?, ?] beta_now, double[?, ?] beta_out) {
                emitted_now = Gather (emitted_and_one, now)
                later_longer = Pad (later, no_states, impossible)
                next = Slice (later_longer, one_1d, all, one_1d)
                after_next = Slice (later_longer, two_1d, end, one_1d)
                skipped = Where (skip, after_next, impossible)
                highest = Max (later, next, skipped)
                level = Clip (highest, lowest, largest)
                later_low = Sub (later, level)
                next_low = Sub (next, level)
                skipped_low = Sub (skipped, level)
                later_part = Exp (later_low)
                next_part = Exp (next_low)
                skipped_part = Exp (skipped_low)
                parts = Sum (later_part, next_part, skipped_part)
                parts_log = Log (parts)
                summed = Add (parts_log, level)
                is_final = Equal (now, final_step)
                paths = Where (is_final, last, summed)
                product = Add (paths, emitted_now)
                no_path = Equal (paths, impossible)
                not_emitted = Equal (emitted_now, impossible)
                is_impossible = Or (no_path, not_emitted)
                beta_now = Where (is_impossible, impossible, product)
                beta_out = Identity (beta_now)
            }> (start, time_back)""")
    b.emit("beta = Gather (beta_back, order)")

    # Posteriors: exp(alpha + beta + loss - log_probs), added up by class.
    b.emit("paths_through = Add (alpha, beta)")
    b.emit("not_reached = Equal (alpha, impossible)")
    b.emit("not_left = Equal (beta, impossible)")  # which is so of all states above 2*length
    b.emit("no_term = Or (not_reached, not_left)")
    b.emit(f"loss_column = Reshape <allowzero = 1> ({nll}, column)")
    b.emit("relative = Add (paths_through, loss_column)")
    b.emit("exponent = Sub (relative, emitted)")
    b.emit("posterior_of_path = Exp (exponent)")
    b.emit(f"posterior = Where (no_term, {nothing}, posterior_of_path)")
    b.emit(f"log_probs_shape = Shape ({lp})")
    b.emit(f"no_occupation = Expand ({nothing}, log_probs_shape)")
    b.emit('occupied = ScatterElements <axis = 2, reduction = "add"> (no_occupation, extended_always, posterior)')
    through = b.attribute("through_log_softmax")
    if through != 0:
        b.emit(f"probability = Exp ({lp})")
    if through is None:
        b.emit("through = Constant <value_int: int = @through_log_softmax> ()")
        b.emit("goes_through = Cast <to = 9> (through)")
        b.emit(f"direct = Where (goes_through, probability, {nothing})")
    direct = {None: "direct", 0: nothing}.get(through, "probability")
    b.emit(f"difference = Sub ({direct}, occupied)")
    b.emit(f"grad_column = Reshape <allowzero = 1> ({grad}, column)")
    b.emit("fits_lengths = And (fits_steps, fits_targets)")
    b.emit("fits_classes = And (fits_lengths, has_classes)")
    fits = "fits_classes"
    if adds_up:
        b.emit(f"fits = And (fits_classes, {adds_up})")
        fits = "fits"
    b.emit("is_unknown_column = IsNaN (loss_column)")
    b.emit("is_known_column = Not (is_unknown_column)")
    b.emit(f"tells = And ({fits}, is_known_column)")
    b.emit(f"factor = Where (tells, grad_column, {unknown})")
    b.emit("gradient = Mul (factor, difference)")
    b.emit("is_lost_column = IsInf <detect_negative = 0> (loss_column)")
    b.emit(f"zero_infinity = Constant <{_integer(b, 'zero_infinity')}> ()")
    b.emit("zeroes = Cast <to = 9> (zero_infinity)")
    b.emit(f"for_lost = Where (zeroes, {nothing}, {unknown})")
    b.emit("found = Where (is_lost_column, for_lost, gradient)")
    b.emit("time_planes = Unsqueeze (time, one_and_two)")
    b.emit("is_used_columns = Less (time_planes, used_column)")
    b.emit(f"result = Where (is_used_columns, found, {nothing})")
    b.store("result", "log_probs")


def _whole_targets(b: Body) -> str:
    """targets as int64; -1 for one that is no whole number."""
    if all(call.dtype("targets") in WHOLE_TARGETS for call in b.calls):
        return _whole(b, "targets")
    b.emit("targets_given = Cast <to = 11> (targets)")
    b.emit("targets_down = Floor (targets_given)")
    b.emit("is_whole = Equal (targets_given, targets_down)")
    b.emit("targets_cast = Cast <to = 7> (targets_given)")
    b.emit("targets_whole = Where (is_whole, targets_cast, minus_one)")
    return "targets_whole"


def _places_of_targets(b: Body) -> tuple[str, str, str | None]:
    """Where each sample's labels begin among all (N, 1), how many it can have, and whether the lengths add up."""
    ranks = {None if shape is None else len(shape) for shape in (call.shape("targets") for call in b.calls)}
    if ranks != {1}:
        b.emit("pitch_1d = Shape <start = -1> (targets)")
        b.emit("pitch = Squeeze (pitch_1d, zero_1d)")
        b.emit("batch = Squeeze (batch_1d, zero_1d)")
        b.emit("samples = Range (zero, batch, one)")
        b.emit("samples_column = Unsqueeze (samples, one_1d)")
        b.emit("padded_firsts = Mul (samples_column, pitch)")
    if ranks == {2}:
        return "padded_firsts", "pitch", None
    b.emit("too_many = Add (label_count, one)")  # whatever exceeds the count, for sums that do not overflow
    b.emit("lengths_in_sum = Clip (target_lengths_column, zero, too_many)")
    b.emit("joined_firsts = CumSum <exclusive = 1> (lengths_in_sum, zero)")
    b.emit("total = ReduceSum <keepdims = 0> (lengths_in_sum)")
    b.emit("joined_adds_up = Equal (total, label_count)")
    if ranks == {1}:
        return "joined_firsts", "label_count", "joined_adds_up"
    b.emit("targets_shape = Shape (targets)")
    b.emit("targets_rank = Size (targets_shape)")
    b.emit("is_padded = Equal (targets_rank, two)")
    b.emit("firsts = Where (is_padded, padded_firsts, joined_firsts)")
    b.emit("adds_up = Or (is_padded, joined_adds_up)")
    return "firsts", "pitch", "adds_up"


def _whole(b: Body, name: str) -> str:
    """An input as int64."""
    if all(call.dtype(name) == TensorProto.INT64 for call in b.calls):
        return name
    b.emit(f"{name}_whole = Cast <to = 7> ({name})")
    return f"{name}_whole"


def _integers(b: Body, name: str, *values: int) -> None:
    """A 1-D constant of int64, as a tensor: onnxruntime 1.24 refuses a Pad whose pads come from value_ints."""
    b.emit(f"{name} = Constant <value = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()")


def _integer(b: Body, name: str) -> str:
    """An integer attribute for a Constant: the value that all uses agree on, or a reference."""
    value = b.attribute(name)
    return f"value_int: int = @{name}" if value is None else f"value_int = {value}"


def infer(call: Call) -> tuple[TensorType, ...]:
    call.check()
    for flag in ("zero_infinity", "through_log_softmax"):
        call.check_choice(flag, {0: "no", 1: "yes"})
    dtype = call.dtype("log_probs")
    if dtype is not None:
        if call.dtype("grad_out") not in (dtype, None):
            raise _dtype_error(call, "grad_out", "that of 'log_probs'")
        for name in ("neg_log_likelihood", "log_alpha"):
            own = call.dtype(name)
            if own is not None and own != dtype and WIDTHS[own] <= WIDTHS[dtype]:
                raise _dtype_error(call, name, "that of 'log_probs' or a wider one")
    shape = call.shape("log_probs")
    if shape is not None and len(shape) != 3:
        raise call.shape_error("log_probs", "(T, N, C)")
    steps, batch, classes = shape or (None, None, None)
    for name in ("grad_out", "input_lengths", "target_lengths", "neg_log_likelihood"):
        call.same_shape(name, (batch,), "the batch size N of 'log_probs'")
    targets = call.shape("targets")
    if targets is not None:
        if len(targets) not in (1, 2):
            raise call.shape_error("targets", "(N, S), or one dimension")
        if len(targets) == 2:
            call.same_shape("targets", (batch, targets[1]), "N as in 'log_probs'")
    alpha = call.shape("log_alpha")
    if alpha is not None:
        call.same_shape("log_alpha", (batch, steps, alpha[-1] if alpha else None), "N and T as in 'log_probs'")
        if alpha[-1] == 0:
            raise call.shape_error("log_alpha", "at least one state (axis 2)")
    blank = call.attributes["blank"]
    if blank < 0 or (isinstance(classes, int) and blank >= classes):
        raise call.error(f"attribute 'blank' is {blank}, expected a class in [0, {classes or 'C'})")
    return (TensorType(dtype, shape),)


def _dtype_error(call: Call, name: str, expected: str) -> Exception:
    own, dtype = call.dtype(name), call.dtype("log_probs")
    assert own is not None
    assert dtype is not None
    return call.error(f"input '{name}' has dtype {dtype_name(own)}, expected {expected}, {dtype_name(dtype)}")


def check_values(call: Call, arrays: Sequence[np.ndarray | None]) -> None:
    _, log_probs, targets, input_lengths, target_lengths, _, log_alpha = (np.asarray(a) for a in arrays)
    steps, _, classes = log_probs.shape
    for n, value in enumerate(input_lengths.tolist()):
        if not 0 <= value <= steps:
            raise call.error(f"input 'input_lengths' has {value} at {n}, expected 0 to T = {steps}")
    for n, value in enumerate(target_lengths.tolist()):
        if value < 0:
            raise call.error(f"input 'target_lengths' has {value} at {n}, expected at least 0")
        if targets.ndim == 2 and value > targets.shape[1]:
            raise call.error(
                f"input 'target_lengths' has {value} at {n}, expected at most S = {targets.shape[1]} of 'targets'"
            )
        if 2 * value + 1 > log_alpha.shape[2]:
            raise call.error(
                f"input 'log_alpha' has {log_alpha.shape[2]} states, expected at least {2 * value + 1} for the"
                f" target length {value} at {n}"
            )
    total = sum(target_lengths.tolist())
    if targets.ndim == 1 and total != targets.shape[0]:
        raise call.error(
            f"input 'targets' has {targets.shape[0]} labels, expected the sum of 'target_lengths', {total}"
        )
    offset = 0
    for n, length in enumerate(target_lengths.tolist()):
        labels = targets[n, :length] if targets.ndim == 2 else targets[offset : offset + length]
        offset += length
        for label in labels.tolist():
            if not (0 <= label < classes and float(label).is_integer()):
                raise call.error(f"input 'targets' has {label} in sample {n}, expected whole numbers in [0, {classes})")


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task, begin)


OP = Op(
    SCHEMA,
    infer,
    kernel,
    reference,
    body,
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
    typed_inputs=("log_probs",),
    check_values=check_values,
    body_opset=16,  # ScatterElements adds up from opset 16 on
)
