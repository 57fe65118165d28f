"""The forward recursion of CTC over the states of a sample, native: log_alpha one time step after another.

A state s is a place in blank, t1, blank, ..., tS, blank. Arrays over the states begin with two more that no path comes
through, so that every state has two before it.
"""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import number_at
from onnx_ops.loops.primitives import NO_POWER, Array, exp_and_power, helper, log, power_of_two, value_and_power
from onnx_ops.ops.ctc._native import log_product, log_sum

BEFORE = 2
"""Padding before the first state."""
BARRED = 1e50 * NO_POWER
"""Added to the exponent of a state that must not be skipped from; below the exponent of any state."""
LARGEST = 1e12
"""Bound of abs(log_probs) for `scaled_step`."""
STEPS_WITHIN_RANGE = 16
"""Steps between two calls of `normalize`."""
# Cody-Waite split of log(2): LN2_HIGH times an integer below 2**20 is exact.
LN2_HIGH, LN2_LOW = 0.693147180369123816, 1.9082149292705877e-10


@helper
def read_row(row: int, element_type: int, labels: Array, length: int, blank: int, log_probs: Array) -> bool:
    """Read log_probs of the labels, followed by that of the blank; returns whether `scaled_step` supports them."""
    for k in range(length):
        log_probs[k] = number_at(row, element_type, labels[k])
    log_probs[length] = number_at(row, element_type, blank)
    outside = 0
    for k in range(length + 1):
        outside += 0 if abs(log_probs[k]) <= LARGEST or log_probs[k] == -np.inf else 1
    return outside == 0


@helper
def start(states: int, values: Array, powers: Array, next_values: Array, next_powers: Array) -> None:
    """Initialize alpha before the first step: state 0, from which states 0 and 1 are reachable."""
    for s in range(BEFORE + states):
        values[s], powers[s] = 0.0, NO_POWER
        next_values[s], next_powers[s] = 0.0, NO_POWER
    values[BEFORE], powers[BEFORE] = 1.0, 0.0


@helper
def scaled_step(
    length: int,
    log_probs: Array,
    probabilities: Array,
    probability_powers: Array,
    bars: Array,
    values: Array,
    powers: Array,
    emitted: Array,
    emitted_powers: Array,
    next_values: Array,
    next_powers: Array,
) -> None:
    """A step of alpha = values * 2**powers in linear space. bars: BARRED where no path skips, else 0."""
    states = 2 * length + 1
    for k in range(length + 1):
        value, power = exp_and_power(log_probs[k])
        probabilities[k] = value
        probability_powers[k] = power
    silence, silence_power = probabilities[length], probability_powers[length]
    for k in range(length):
        emitted[2 * k] = silence
        emitted[2 * k + 1] = probabilities[k]
    for k in range(length):
        emitted_powers[2 * k] = silence_power
        emitted_powers[2 * k + 1] = probability_powers[k]
    emitted[2 * length], emitted_powers[2 * length] = silence, silence_power
    for s in range(states):
        stay, step, skip = powers[s + 2], powers[s + 1], powers[s] + bars[s]
        highest = max(stay, max(step, skip))
        total = values[s + 2] * power_of_two(max(stay - highest, -1023.0))
        total += values[s + 1] * power_of_two(max(step - highest, -1023.0))
        total += values[s] * power_of_two(max(skip - highest, -1023.0))
        next_values[s + 2] = total * emitted[s]
        next_powers[s + 2] = highest + emitted_powers[s]


@helper
def normalize(states: int, values: Array, powers: Array) -> None:
    """Move the exponent of each value to `powers`."""
    for s in range(BEFORE, BEFORE + states):
        value, power = value_and_power(values[s])
        values[s] = value
        powers[s] += power


@helper
def logarithms(states: int, values: Array, powers: Array, log_alpha: Array) -> None:
    for s in range(states):
        power = powers[s + 2]
        log_alpha[s] = power * LN2_HIGH + (log(values[s + 2]) + power * LN2_LOW)


@helper
def log_step(length: int, log_probs: Array, bars: Array, log_alpha: Array) -> None:
    """A step of log_alpha in log space, in place, for any log_probs."""
    for s in range(2 * length, -1, -1):
        total = log_sum(log_alpha[s + 2], log_alpha[s + 1])
        if bars[s] == 0.0:
            total = log_sum(total, log_alpha[s])
        log_alpha[s + 2] = log_product(total, log_probs[s // 2] if s % 2 else log_probs[length])
