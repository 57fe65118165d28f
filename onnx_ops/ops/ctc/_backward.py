"""The backward recursion of CTC for a sample: beta and the posteriors of the classes.

With `sparse`, only the blank and the classes of the target take part; `carried` lists them in ascending order.
"""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import DOUBLE, FLOAT, address_of, array_at, item_size, number_at, read_numbers, write_numbers
from onnx_ops.loops.primitives import Array, exp_of_float32, exp_parts, helper, total_of
from onnx_ops.loops.records import CHUNK, Kernel
from onnx_ops.ops.ctc._native import log_product, log_sum, whole

LOST = 2
"""Result of a step that float64 cannot represent, in place of the change of the scale."""
LARGEST_EXPONENT = 650.0
"""Bound of log_alpha + loss: beyond it beta may overflow; below, the error of underflow is < 1e-20."""
SMALL, LARGE = 2.0**-64, 2.0**64


@helper
def carried_classes(labels: Array, length: int, blank: int, classes: int, places: Array, carried: Array) -> int:
    """Collect the classes of the blank and the labels, ascending; returns their number.

    Sets places[c] to the index of class c among them, and labels[k] to that of its class.
    """
    for c in range(classes):
        places[c] = -1
    places[blank] = 0
    for k in range(length):
        places[labels[k]] = 0
    count = 0
    for c in range(classes):
        if places[c] == 0:
            places[c] = count
            carried[count] = c
            count += 1
    for k in range(length):
        labels[k] = places[labels[k]]
    return count


@helper
def read_row(
    kernel: Kernel, source: int, element_type: int, sparse: bool, carried: Array, count: int, row: Array
) -> None:
    """Read log_probs of the classes that take part."""
    if sparse:
        for i in range(count):
            row[i] = number_at(source, element_type, carried[i])
    else:
        read_numbers(kernel.read, source, element_type, count, address_of(row))


@helper
def write_row(
    kernel: Kernel,
    source: int,
    element_type: int,
    classes: int,
    target: int,
    grad: float,
    through: int,
    sparse: bool,
    carried: Array,
    count: int,
    result: Array,
    exponents: Array,
    numbers: Array,
) -> None:
    """Write a row of the gradient: `result` for the classes that take part, grad * exp(log_probs) for the others."""
    if not sparse:
        write_numbers(kernel.write, address_of(result), element_type, classes, target)
        return
    if element_type == FLOAT and through:  # in place
        given, written = array_at(source, classes, np.float32), array_at(target, classes, np.float32)
        for k in range(classes):
            written[k] = np.float32(grad * exp_of_float32(given[k]))
        for i in range(count):
            written[carried[i]] = np.float32(result[i])
        return
    i = 0
    for first in range(0, classes, CHUNK):
        size, offset = min(CHUNK, classes - first), first * item_size(element_type)
        if through:
            read_numbers(kernel.read, source + offset, element_type, size, address_of(exponents))
            if element_type == DOUBLE:
                exponentials(exponents, whole(size), numbers)
            else:
                for k in range(whole(size)):
                    numbers[k] = exp_of_float32(np.float32(exponents[k]))
            for k in range(size):
                numbers[k] *= grad
        else:
            for k in range(size):
                numbers[k] = 0.0 * grad
        while i < count and carried[i] < first + size:
            numbers[carried[i] - first] = result[i]
            i += 1
        write_numbers(kernel.write, address_of(numbers), element_type, size, target + offset)


@helper
def write_constant(kernel: Kernel, value: float, element_type: int, classes: int, target: int, numbers: Array) -> None:
    """Write a row of the gradient with one value for all classes."""
    for k in range(min(CHUNK, classes)):
        numbers[k] = value
    for first in range(0, classes, CHUNK):
        address = target + first * item_size(element_type)
        write_numbers(kernel.write, address_of(numbers), element_type, min(CHUNK, classes - first), address)


@helper
def exponentials(x: Array, count: int, out: Array) -> None:
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
    labels: Array,
    blank: int,
    skips: Array,
    probabilities: Array,
    alpha: Array,
    blanks: Array,
    labelled: Array,
    sums: Array,
    label_sums: Array,
    emitted: Array,
    weights: Array,
    result: Array,
    classes: int,
) -> int:
    """Step of beta from t + 1 to t in linear float64, and the posteriors of the classes at t, into `result`.

    beta[t, s] is blanks[k] (s = 2k) or labelled[k] (s = 2k + 1), times a power of 2**64 that keeps the values near 1;
    offset + offset_lost is the logarithm of its reciprocal, plus the loss. Beta of states that no path can reach by t,
    or from which no path ends in time, is not computed.

    Returns:
        The change of the power; LOST if beta may have left the range of float64, a value is NaN or +inf, or log_alpha
        is above -inf in a state that no path can reach by t.
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
    # A loop per array: LLVM vectorizes all but the sum over labels, whose indices may coincide.
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
    fair, large = 0, 0  # counts, since LLVM does not vectorize a maximum with NaN semantics
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
def log_step(
    length: int, last: bool, labels: Array, blank: int, skips: Array, row: Array, alpha: Array, beta: Array,
    result: Array, classes: int,
) -> None:  # fmt: skip
    """Step of log_beta from t + 1 to t in log space, and log(sum(alpha * beta)) of each class at t, into `result`."""
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
