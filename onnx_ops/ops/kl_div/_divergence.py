"""The terms of the Kullback-Leibler divergence, and their sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnx_ops.loops.primitives import (
    LANES,
    ZERO,
    add_any_order,
    choose,
    exp_parts,
    fma,
    helper,
    inlined,
    log,
    near_exp,
    near_exp_parts,
    near_log,
    normal_exp,
    normal_log,
    short_log,
    wide,
)
from onnx_ops.loops.tables import log_parts
from onnx_ops.loops.vectors import QUAD, any_negative, bits, load, load_wide, prefetch, scratch, spread, store, total
from onnx_ops.ops.extremes import CACHED_SPAN, INFINITE, LEAST_NORMAL, NEAR, SHORT_SPAN, SPAN

DOUBT = np.float32(64)
"""Beside a difference of 1, the weight of what its logarithm is off by."""
LEAST_SHARE = np.float32(2.0**-10)
"""A sum in float32 is good to 16 bits if it is no less than this share of the doubt about its terms."""
LEAST = np.float32(2.0**-80)
"""And no less than this, as there may be subnormal targets, whose logarithms are wrong."""
LEAST_MEAN = 2.0**-4
"""The difference of logarithms, in the mean, from which on it is good to float32 though each is off by 2e-9."""
LEAST_LEFT = 2.0**-6
"""The share of the sizes of terms that may be left of their sum, for it to be good in float32 as terms are to 2e-10."""
LEAST_POWER, GREATEST_POWER = np.float32(-708), np.float32(709)
"""To these powers, and between them, e is a normal float64 number."""


@inlined
def term(x: Any, q: Any) -> Any:
    """One term in float64, of a target q."""
    return choose(q != 0, wide(q) * (log(q) - wide(x)), 0.0)


@inlined
def term_of_logarithm(x: Any, q: Any) -> Any:
    """The same of a target that is a logarithm."""
    value, first, second = exp_parts(wide(q))
    product = (((wide(q) - wide(x)) * first) * value) * second
    return choose(q != -math.inf, product, 0.0)


def divergence(operands: Any, out: Any, count: int, parameters: Any) -> None:
    x, target = operands[0], operands[1]
    for i in range(count):
        out[i] = term(x[i], target[i])


def divergence_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    x, target = operands[0], operands[1]
    for i in range(count):
        out[i] = term_of_logarithm(x[i], target[i])


def short_divergence(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """Terms in float32."""
    x, target = operands[0], operands[1]
    for start in range(0, count, SPAN):
        stop, extreme = min(start + SPAN, count), False
        for i in range(start, stop):
            q = target[i]
            out[i] = choose(q != 0, q * (normal_log(q) - x[i]), ZERO)
            extreme = extreme | ((q != 0) & ((not q >= LEAST_NORMAL) | (not q < INFINITE)))
        if extreme:
            for i in range(start, stop):
                q = target[i]
                out[i] = choose(q != 0, q * (short_log(q) - x[i]), ZERO)


@inlined
def short_term_of_logarithm(x: Any, q: Any) -> Any:
    """The same in float32, of a target that is NEAR."""
    excess, power = near_exp_parts(q)
    return fma((q - x) * power, excess, (q - x) * power)


def short_divergence_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """In float32, where no target is extreme."""
    x, target = operands[0], operands[1]
    for start in range(0, count, SPAN):
        stop, extreme = min(start + SPAN, count), False
        for i in range(start, stop):
            result = short_term_of_logarithm(x[i], target[i])
            out[i] = result
            extreme = extreme | (not abs(target[i]) < NEAR) | (not abs(result) < INFINITE)
        if extreme:
            for i in range(start, stop):
                out[i] = term_of_logarithm(x[i], target[i])


# --- sums --------------------------------------------------------------------------------------------------------


@helper
def total_of_any_span(operands: Any, start: int, stop: int) -> Any:
    """Sum of the terms of elements [start, stop), whatever they are."""
    x, target, total = operands[0], operands[1], 0.0
    for i in range(start, stop):
        total = add_any_order(total, term(x[i], target[i]))
    return total


@helper
def total_of_any_span_of_logarithms(operands: Any, start: int, stop: int) -> Any:
    """The same of targets that are logarithms."""
    x, target, total = operands[0], operands[1], 0.0
    for i in range(start, stop):
        total = add_any_order(total, term_of_logarithm(x[i], target[i]))
    return total


@helper
def total_of_span(operands: Any, start: int, stop: int) -> Any:
    """Of at most SHORT_SPAN elements, in vectors where terms do not cancel: logarithms are off by 2e-9."""
    x, target = operands[0], operands[1]
    high, low = scratch(SHORT_SPAN), scratch(SHORT_SPAN)
    whole = (stop - start) // LANES * LANES
    weight, seen = spread(ZERO), bits(spread(ZERO))
    for i in range(0, whole, LANES):
        prefetch(x, start + i + CACHED_SPAN)
        prefetch(target, start + i + CACHED_SPAN)
        q = load(target, start + i)
        first, second = log_parts(q)
        store(first, high, i)
        store(second, low, i)
        weight, seen = weight + q, seen | bits(q)
    a, b, c, d = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
    for i in range(0, whole, LANES):
        a = plus_terms(a, x, target, high, low, start, i)
        b = plus_terms(b, x, target, high, low, start, i + QUAD)
        c = plus_terms(c, x, target, high, low, start, i + 2 * QUAD)
        d = plus_terms(d, x, target, high, low, start, i + 3 * QUAD)
    part = total((a + b) + (c + d))
    least = max(LEAST_MEAN * total(weight), wide(LEAST))
    good = not any_negative(seen) and least <= abs(part) < math.inf
    if not good:
        return total_of_any_span(operands, start, stop)
    return part + total_of_any_span(operands, start + whole, stop)


@inlined
def plus_terms(total: Any, x: Any, target: Any, high: Any, low: Any, start: int, i: int) -> Any:
    """A vector of sums, and to each number of it a term more."""
    difference = (load_wide(high, i) - load_wide(x, start + i)) + load_wide(low, i)
    return total + load_wide(target, start + i) * difference


@helper
def total_of_span_of_logarithms(operands: Any, start: int, stop: int) -> Any:
    """In float32 the terms of targets below LEAST_POWER vanish, and those of LEAST_POWER do.

    A term is off by 2e-10 of itself, which is too much for float32 only where terms cancel.
    """
    x, target, large, total, size = operands[0], operands[1], False, 0.0, 0.0
    for i in range(start, stop):
        q = wide(choose(target[i] < LEAST_POWER, LEAST_POWER, target[i]))
        value = (q - wide(x[i])) * normal_exp(q)
        total = add_any_order(total, value)
        size = add_any_order(size, abs(value))
        large = large | (target[i] > GREATEST_POWER)
    good = not large and LEAST_LEFT * size <= abs(total) < math.inf
    return total if good else total_of_any_span_of_logarithms(operands, start, stop)


def total_divergence(operands: Any, out: Any, count: int, parameters: Any) -> None:
    total = 0.0
    for start in range(0, count, CACHED_SPAN):
        total += total_of_span(operands, start, min(start + CACHED_SPAN, count))
    out[0] = total


def total_divergence_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    total = 0.0
    for start in range(0, count, SPAN):
        total += total_of_span_of_logarithms(operands, start, min(start + SPAN, count))
    out[0] = total


# --- sums for results of 16 bits, of inputs of 16 bits -----------------------------------------------------------


@inlined
def if_good(total: Any, doubt: Any, extreme: Any) -> Any:
    """A sum of terms in float32, as a float64; NaN if it is not good to 16 bits."""
    good = not extreme and LEAST <= abs(total) < INFINITE and LEAST_SHARE * doubt <= abs(total)
    return wide(total) if good else math.nan


@helper
def short_total_of_span(operands: Any, start: int, stop: int) -> Any:
    """In float32; NaN if it is not good.

    A difference is off by 4e-6 at most, and by some roundings of its size, which is at most a sixteenth of what
    its square and DOUBT add up to. So a total is off by 7e-5 of itself at most.
    """
    x, target, negative, total, doubt = operands[0], operands[1], False, ZERO, ZERO
    for i in range(start, stop):
        q = target[i]
        difference = near_log(q) - x[i]
        total = add_any_order(total, q * difference)
        doubt = add_any_order(doubt, q * (difference * difference + DOUBT))
        negative = negative | (q < 0)
    return if_good(total, doubt, negative)


@helper
def short_total_of_span_of_logarithms(operands: Any, start: int, stop: int) -> Any:
    """The same of targets that are logarithms. A term is off by 4e-6 of itself."""
    x, target, extreme, total, size = operands[0], operands[1], False, ZERO, ZERO
    for i in range(start, stop):
        value = (target[i] - x[i]) * near_exp(target[i])
        total = add_any_order(total, value)
        size = add_any_order(size, abs(value))
        extreme = extreme | (not abs(target[i]) < NEAR)
    return if_good(total, DOUBT * size, extreme)


@helper
def near_total_of_span_of_logarithms(operands: Any, start: int, stop: int) -> Any:
    """Where they cancel, of targets that are NEAR: only the terms in float32."""
    x, target, extreme, total = operands[0], operands[1], False, 0.0
    for i in range(start, stop):
        total = add_any_order(total, wide(short_term_of_logarithm(x[i], target[i])))
        extreme = extreme | (not abs(target[i]) < NEAR)
    moderate = not extreme and abs(total) < math.inf
    return total if moderate else total_of_span_of_logarithms(operands, start, stop)


def total_of_short_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """Where one span needs more care, the rest is taken for like it."""
    total, careful = 0.0, False
    for start in range(0, count, SHORT_SPAN):
        stop = min(start + SHORT_SPAN, count)
        part = math.nan if careful else short_total_of_span(operands, start, stop)
        careful = not abs(part) < math.inf
        total += total_of_span(operands, start, stop) if careful else part
    out[0] = total


def total_of_short_terms_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """Likewise."""
    total, careful = 0.0, False
    for start in range(0, count, SHORT_SPAN):
        stop = min(start + SHORT_SPAN, count)
        part = math.nan if careful else short_total_of_span_of_logarithms(operands, start, stop)
        careful = not abs(part) < math.inf
        total += near_total_of_span_of_logarithms(operands, start, stop) if careful else part
    out[0] = total
