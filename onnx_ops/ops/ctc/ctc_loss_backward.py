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
from onnx_ops.graph.builder import Value
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
    log_probs = b.load("log_probs")
    alpha = b.op("Transpose", b.load("log_alpha"), name="alpha", perm=[1, 0, 2])  # (T, N, A)
    blank = b.value_of("blank")
    steps_1d = b.op("Shape", log_probs, name="steps_1d", start=0, end=1)
    steps = b.op("Squeeze", steps_1d, [0], name="steps")
    batch_1d = b.op("Shape", log_probs, name="batch_1d", start=1, end=2)
    classes = b.op("Squeeze", b.op("Shape", log_probs, name="classes_1d", start=2), [0], name="classes")
    states = b.op("Squeeze", b.op("Shape", b.inputs["log_alpha"], name="states_1d", start=2), [0], name="states")
    column = b.op("Concat", batch_1d, [1], name="column", axis=0)

    def as_column(value: Value, name: str) -> Value:
        """(N) to (N, 1)."""
        return b.op("Reshape", value, column, name=f"{name}_column", allowzero=1)

    # Lengths within T, and within the states; the labels one after another, one more at the end.
    input_lengths = as_column(b.load_as("input_lengths", TensorProto.INT64), "input_lengths")
    used = b.op("Clip", input_lengths, 0, steps, name="used_column")
    fits_steps = used.equal(input_lengths).named("fits_steps")
    labels_flat = b.op("Reshape", _whole_targets(b), [-1], name="labels_flat")
    labels = b.op("Concat", labels_flat, [0], name="labels", axis=0)
    label_count = b.op("Size", labels_flat, name="label_count")
    target_lengths = as_column(b.load_as("target_lengths", TensorProto.INT64), "target_lengths")
    room = ((states - 1).named("states_but_one") / 2).named("room")
    firsts, limit, adds_up = _places_of_targets(b, batch_1d, label_count, target_lengths)
    longest = b.op("Min", room, limit, name="longest")
    length = b.op("Clip", target_lengths, 0, longest, name="length_column")
    fits_targets = length.equal(target_lengths).named("fits_targets")

    # States: the blanks at even s, label s // 2 at odd s; of sample n those up to 2*length exist.
    s = b.op("Range", 0, states, 1, name="s")
    label_of_s = (s / 2).named("label_of_s")
    is_odd = b.op("Mod", s, 2, name="parity").cast(TensorProto.BOOL).named("is_odd")
    is_label = (is_odd & label_of_s.less(length).named("before_length")).named("is_label")
    place = (firsts + label_of_s).named("place")
    if adds_up is not None:
        place = b.op("Min", place, label_count, name="place_within")
    safe_place = b.op("Where", is_label, place, label_count, name="safe_place")
    label_given = b.op("Gather", labels, safe_place, name="label_given")
    label = b.op("Clip", label_given, 0, (classes - 1).named("last_class"), name="label")
    is_wrong = (label_given - label).named("is_no_class").cast(TensorProto.BOOL).named("is_wrong")
    wrong_labels = b.op("ReduceSum", is_wrong.cast(TensorProto.INT64).named("wrong"), [1], name="wrong_labels")
    has_classes = wrong_labels.equal(0).named("has_classes")
    extended = b.op("Where", is_label, label, blank, name="extended")
    twice = (length * 2).named("twice")
    exists = s.less_or_equal(twice).named("exists")
    twice_less_one = (twice - 1).named("twice_less_one")
    is_last = (s.greater_or_equal(twice_less_one).named("is_late") & exists).named("is_last")
    last = b.op("Where", is_last, 0.0, IMPOSSIBLE, name="last")
    # The skip from s to s + 2 leaves out a blank between different labels.
    extended_longer = b.op("Pad", extended, TWO_STATES_MORE, blank, name="extended_longer")
    extended_later = b.op("Slice", extended_longer, [2], [END], [1], name="extended_later")
    differ = (~extended.equal(extended_later).named("same")).named("differ")
    skip = ((is_label & differ).named("may_skip") & s.less(twice_less_one).named("within")).named("skip")

    plane = b.op("Shape", extended, name="plane")
    volume = b.op("Concat", steps_1d, plane, name="volume", axis=0)
    extended_always = b.op("Expand", extended, volume, name="extended_always")
    emitted = b.op("GatherElements", log_probs, extended_always, name="emitted", axis=2)
    final_step = (used - 1).named("final_step")
    # One extra step, in which no state is reached: onnxruntime refuses a Scan over no steps.
    emitted_and_one = b.op("Pad", emitted, [0, 0, 0, 1, 0, 0], 0.0, name="emitted_and_one")
    impossible = b.constant(IMPOSSIBLE, name="impossible")
    lowest = b.constant(float(np.finfo(np.float64).min), name="lowest")  # -inf - -inf is NaN, -inf - lowest is -inf
    largest = b.constant(float(np.finfo(np.float64).max), name="largest")

    def step(later: Value, now: Value) -> tuple[Value, Value]:
        emitted_now = b.op("Gather", emitted_and_one, now, name="emitted_now")
        later_longer = b.op("Pad", later, TWO_STATES_MORE, impossible, name="later_longer")
        next = b.op("Slice", later_longer, [1], [-1], [1], name="next")
        after_next = b.op("Slice", later_longer, [2], [END], [1], name="after_next")
        skipped = b.op("Where", skip, after_next, impossible, name="skipped")
        level = b.op("Clip", b.op("Max", later, next, skipped, name="highest"), lowest, largest, name="level")
        parts = [b.op("Exp", (paths - level).named("relative"), name="part") for paths in (later, next, skipped)]
        summed = (b.op("Log", b.op("Sum", *parts, name="parts"), name="parts_log") + level).named("summed")
        paths = b.op("Where", now.equal(final_step).named("is_final"), last, summed, name="paths")
        no_path = paths.equal(impossible).named("no_path")
        not_emitted = emitted_now.equal(impossible).named("not_emitted")
        is_impossible = (no_path | not_emitted).named("is_impossible")
        beta_now = b.op("Where", is_impossible, impossible, paths + emitted_now, name="beta_now")
        return beta_now, beta_now

    states_of_all = TensorType(TensorProto.DOUBLE, (None, None))
    body = b.subgraph(
        step, {"later": states_of_all, "now": TensorType(TensorProto.INT64, ())}, (states_of_all, states_of_all)
    )
    start = b.op("Expand", impossible, plane, name="start")
    time_back = b.op("Range", steps, -1, -1, name="time_back")
    _, beta_back = b.several("Scan", start, time_back, names=("beta_at_0", "beta_back"), num_scan_inputs=1, body=body)
    beta = b.op("Gather", beta_back, b.op("Range", steps, 0, -1, name="order"), name="beta")

    # Posteriors: exp(alpha + beta + loss - log_probs), added up by class.
    not_reached = alpha.equal(impossible).named("not_reached")
    not_left = beta.equal(impossible).named("not_left")  # which is so of all states above 2*length
    no_term = (not_reached | not_left).named("no_term")
    loss = as_column(b.load("neg_log_likelihood"), "loss")
    relative = ((alpha + beta).named("paths_through") + loss).named("relative")
    posterior_of_path = b.op("Exp", (relative - emitted).named("exponent"), name="posterior_of_path")
    posterior = b.op("Where", no_term, 0.0, posterior_of_path, name="posterior")
    no_occupation = b.op("Expand", 0.0, b.op("Shape", log_probs, name="log_probs_shape"), name="no_occupation")
    occupied = b.op(
        "ScatterElements", no_occupation, extended_always, posterior, name="occupied", axis=2, reduction="add"
    )
    difference = (_direct_term(b, log_probs) - occupied).named("difference")
    fits = ((fits_steps & fits_targets).named("fits_lengths") & has_classes).named("fits_classes")
    if adds_up is not None:
        fits = (fits & adds_up).named("fits")
    is_known = (~b.op("IsNaN", loss, name="is_unknown_column")).named("is_known_column")
    grad = as_column(b.load("grad_out"), "grad")
    factor = b.op("Where", (fits & is_known).named("tells"), grad, np.nan, name="factor")
    is_lost = b.op("IsInf", loss, name="is_lost_column", detect_negative=0)
    zeroes = b.value_of("zero_infinity").cast(TensorProto.BOOL).named("zeroes")
    for_lost = b.op("Where", zeroes, 0.0, np.nan, name="for_lost")
    found = b.op("Where", is_lost, for_lost, (factor * difference).named("gradient"), name="found")
    time_planes = b.op("Unsqueeze", b.op("Range", 0, steps, 1, name="time"), [1, 2], name="time_planes")
    is_used = time_planes.less(used).named("is_used_columns")
    b.store("out", b.op("Where", is_used, found, 0.0, name="result"), "log_probs")


IMPOSSIBLE = -math.inf
TWO_STATES_MORE = [0, 0, 0, 2]
"""The pads of (N, A), two at the end of its second axis."""
END = 2**63 - 1


def _direct_term(b: Body, log_probs: Value) -> Value:
    """exp(log_probs) if the gradient goes through log_softmax, else 0."""
    through = b.attribute("through_log_softmax")
    if through == 0:
        return b.constant(0.0)
    probability = b.op("Exp", log_probs, name="probability")
    if through is not None:
        return probability
    goes_through = b.value_of("through_log_softmax").cast(TensorProto.BOOL).named("goes_through")
    return b.op("Where", goes_through, probability, 0.0, name="direct")


def _whole_targets(b: Body) -> Value:
    """targets as int64; -1 for one that is no whole number."""
    if all(call.dtype("targets") in WHOLE_TARGETS for call in b.calls):
        return b.load_as("targets", TensorProto.INT64)
    given = b.inputs["targets"].cast(TensorProto.DOUBLE).named("targets_given")
    is_whole = given.equal(b.op("Floor", given, name="targets_down")).named("is_whole")
    return b.op("Where", is_whole, given.cast(TensorProto.INT64).named("targets_cast"), -1, name="targets_whole")


def _places_of_targets(
    b: Body, batch_1d: Value, label_count: Value, target_lengths: Value
) -> tuple[Value, Value, Value | None]:
    """Where each sample's labels begin among all (N, 1), how many it can have, and whether the lengths add up."""
    ranks = {None if shape is None else len(shape) for shape in (call.shape("targets") for call in b.calls)}
    targets = b.inputs["targets"]
    pitch = b.op("Squeeze", b.op("Shape", targets, name="pitch_1d", start=-1), [0], name="pitch")
    samples = b.op("Range", 0, b.op("Squeeze", batch_1d, [0], name="batch"), 1, name="samples")
    padded_firsts = (b.op("Unsqueeze", samples, [1], name="samples_column") * pitch).named("padded_firsts")
    if ranks == {2}:
        return padded_firsts, pitch, None
    too_many = (label_count + 1).named("too_many")  # whatever exceeds the count, for sums that do not overflow
    lengths_in_sum = b.op("Clip", target_lengths, 0, too_many, name="lengths_in_sum")
    joined_firsts = b.op("CumSum", lengths_in_sum, 0, name="joined_firsts", exclusive=1)
    total = b.op("ReduceSum", lengths_in_sum, name="total", keepdims=0)
    joined_adds_up = total.equal(label_count).named("joined_adds_up")
    if ranks == {1}:
        return joined_firsts, label_count, joined_adds_up
    is_padded = b.op("Size", b.op("Shape", targets, name="targets_shape"), name="targets_rank").equal(2)
    firsts = b.op("Where", is_padded.named("is_padded"), padded_firsts, joined_firsts, name="firsts")
    return firsts, pitch, (is_padded | joined_adds_up).named("adds_up")


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
