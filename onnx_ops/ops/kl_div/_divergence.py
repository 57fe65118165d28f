"""Terms of the Kullback-Leibler divergence, and their sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_ops.loops.loop import Operands
from onnx_ops.loops.memory import LANES
from onnx_ops.loops.primitives import (
    ZERO,
    Array,
    Number,
    add_any_order,
    choose,
    exp_approx,
    exp_excess_parts,
    exp_in_range,
    exp_parts,
    fma,
    helper,
    inlined,
    log,
    log_approx,
    log_float32,
    log_float32_normal,
    wide,
)
from onnx_ops.loops.tables import log_parts
from onnx_ops.loops.vectors import (
    any_negative,
    bits,
    load,
    load_wide,
    prefetch,
    scratch,
    spread,
    store,
    sum_terms,
    total,
)
from onnx_ops.ops.elementwise import elementwise, total_of
from onnx_ops.ops.extremes import BLOCK, CACHED_BLOCK, EXP_LIMIT, INFINITE, LEAST_NORMAL, SUM_BLOCK

Total = Callable[[Operands, int, int], Any]
"""total(operands, start, stop): the sum of the terms of elements [start, stop)."""
DOUBT = np.float32(64)
"""abs(error of sum(q * d)) <= 7e-8 * sum(q * (d**2 + DOUBT)) in float32, where d = log(q) - x."""
LEAST_SHARE = np.float32(2.0**-10)
"""Least ratio of abs(sum(q * d)) to sum(q * (d**2 + DOUBT)) for a float32 sum, whose relative error is then <= 7e-5."""
LEAST = np.float32(2.0**-80)
"""Least abs(sum) for which terms of subnormal targets, whose logarithms are wrong, are negligible."""
LEAST_MEAN = 2.0**-4
"""Least abs(sum(q * d)) / sum(q) for which a float32 result is accurate, as `log_parts` has an error <= 2e-9."""
LEAST_LEFT = 2.0**-6
"""Least abs(sum) / sum(abs) for which a float32 result is accurate, as terms have a relative error <= 2e-10."""
LEAST_POWER, GREATEST_POWER = np.float32(-708), np.float32(709)
"""exp(x) is in the normal range of float64 for x in between."""


@inlined
def term(x: Number, q: Number) -> Number:
    """q * (log(q) - x) in float64, 0 for q = 0."""
    return choose(q != 0, wide(q) * (log(q) - wide(x)), 0.0)


@inlined
def term_of_logarithm(x: Number, q: Number) -> Number:
    """exp(q) * (q - x) in float64, 0 for q = -inf."""
    value, first, second = exp_parts(wide(q))
    product = (((wide(q) - wide(x)) * first) * value) * second
    return choose(q != -math.inf, product, 0.0)


@elementwise(0, 1)
def divergence(x: Number, q: Number) -> Number:
    return term(x, q)


@elementwise(0, 1)
def divergence_of_logarithms(x: Number, q: Number) -> Number:
    return term_of_logarithm(x, q)


@inlined
def term_by_float32_logarithm(x: Number, q: Number) -> Number:
    """`term` in float32."""
    return choose(q != 0, q * (log_float32(q) - x), ZERO)


@elementwise(0, 1, exact=term_by_float32_logarithm)
def float32_divergence(x: Number, q: Number) -> tuple[Number, bool]:
    """Terms in float32."""
    is_normal = (q >= LEAST_NORMAL) & (q < INFINITE)
    return choose(q != 0, q * (log_float32_normal(q) - x), ZERO), (q != 0) & (not is_normal)


@inlined
def float32_term_of_logarithm(x: Number, q: Number) -> Number:
    """exp(q) * (q - x) in float32, for abs(q) < EXP_LIMIT."""
    excess, power = exp_excess_parts(q)
    return fma((q - x) * power, excess, (q - x) * power)


@elementwise(0, 1, exact=term_of_logarithm)
def float32_divergence_of_logarithms(x: Number, q: Number) -> tuple[Number, bool]:
    """Terms in float32."""
    result = float32_term_of_logarithm(x, q)
    return result, (not abs(q) < EXP_LIMIT) | (not abs(result) < INFINITE)


# --- sums --------------------------------------------------------------------------------------------------------


@helper
def total_of_block(operands: Operands, start: int, stop: int) -> Any:
    """Sum of the terms of at most SUM_BLOCK elements, in vectors with `log_parts`; exactly if terms cancel."""
    x, target = operands[0], operands[1]
    high, low = scratch(SUM_BLOCK), scratch(SUM_BLOCK)
    whole = (stop - start) // LANES * LANES
    weight, seen = spread(ZERO), bits(spread(ZERO))
    for i in range(0, whole, LANES):
        prefetch(x, start + i + CACHED_BLOCK)
        prefetch(target, start + i + CACHED_BLOCK)
        q = load(target, start + i)
        first, second = log_parts(q)
        store(first, high, i)
        store(second, low, i)
        weight, seen = weight + q, seen | bits(q)
    part = sum_terms(add_terms, (x, target, high, low), start, whole)
    least = max(LEAST_MEAN * total(weight), wide(LEAST))
    good = not any_negative(seen) and least <= abs(part) < math.inf
    if not good:
        return total_of(term, (x, target), start, stop)
    return part + total_of(term, (x, target), start + whole, stop)


@inlined
def add_terms(sums: Array, inputs: Operands, start: int, i: int) -> Any:
    """sums + q * (log(q) - x), elementwise in float64; inputs: x, q, and log(q) of the block in two parts."""
    x, target, high, low = inputs
    difference = (load_wide(high, i) - load_wide(x, start + i)) + load_wide(low, i)
    return sums + load_wide(target, start + i) * difference


@helper
def total_of_block_of_logarithms(operands: Operands, start: int, stop: int) -> Any:
    """Sum of the terms of elements [start, stop) for log-probabilities, in float64; exactly if terms cancel.

    Targets are clipped to LEAST_POWER, where exp is negligible in float32. Terms have a relative error <= 2e-10.
    """
    x, target, large, total, size = operands[0], operands[1], False, 0.0, 0.0
    for i in range(start, stop):
        q = wide(choose(target[i] < LEAST_POWER, LEAST_POWER, target[i]))
        value = (q - wide(x[i])) * exp_in_range(q)
        total = add_any_order(total, value)
        size = add_any_order(size, abs(value))
        large = large | (target[i] > GREATEST_POWER)
    good = not large and LEAST_LEFT * size <= abs(total) < math.inf
    return total if good else total_of(term_of_logarithm, (x, target), start, stop)


def total_divergence(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    total = 0.0
    for start in range(0, count, CACHED_BLOCK):
        total += total_of_block(operands, start, min(start + CACHED_BLOCK, count))
    out[0] = total


def total_divergence_of_logarithms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    total = 0.0
    for start in range(0, count, BLOCK):
        total += total_of_block_of_logarithms(operands, start, min(start + BLOCK, count))
    out[0] = total


# --- sums for results of 16 bits, of inputs of 16 bits -----------------------------------------------------------


@inlined
def if_good(total: Number, doubt: Number, extreme: bool) -> Any:
    """A float32 sum as float64; NaN if it is not accurate to 16 bits."""
    good = not extreme and LEAST <= abs(total) < INFINITE and LEAST_SHARE * doubt <= abs(total)
    return wide(total) if good else math.nan


@helper
def float32_total_of_block(operands: Operands, start: int, stop: int) -> Any:
    """Sum of the terms of elements [start, stop) in float32; NaN unless its relative error is <= 7e-5.

    The error of d = log(q) - x is at most 4e-6 plus some roundings of abs(d), and abs(d) <= (d**2 + DOUBT) / 16.
    """
    x, target, negative, total, doubt = operands[0], operands[1], False, ZERO, ZERO
    for i in range(start, stop):
        q = target[i]
        difference = log_approx(q) - x[i]
        total = add_any_order(total, q * difference)
        doubt = add_any_order(doubt, q * (difference * difference + DOUBT))
        negative = negative | (q < 0)
    return if_good(total, doubt, negative)


@helper
def float32_total_of_block_of_logarithms(operands: Operands, start: int, stop: int) -> Any:
    """As `float32_total_of_block`, for log-probabilities; terms have a relative error <= 4e-6."""
    x, target, extreme, total, size = operands[0], operands[1], False, ZERO, ZERO
    for i in range(start, stop):
        value = (target[i] - x[i]) * exp_approx(target[i])
        total = add_any_order(total, value)
        size = add_any_order(size, abs(value))
        extreme = extreme | (not abs(target[i]) < EXP_LIMIT)
    return if_good(total, DOUBT * size, extreme)


@helper
def float32_terms_total_of_block_of_logarithms(operands: Operands, start: int, stop: int) -> Any:
    """Sum of the terms of elements [start, stop) with float32 terms added in float64, for abs(target) < EXP_LIMIT."""
    x, target, extreme, total = operands[0], operands[1], False, 0.0
    for i in range(start, stop):
        total = add_any_order(total, wide(float32_term_of_logarithm(x[i], target[i])))
        extreme = extreme | (not abs(target[i]) < EXP_LIMIT)
    moderate = not extreme and abs(total) < math.inf
    return total if moderate else total_of_block_of_logarithms(operands, start, stop)


@helper
def total_of_blocks(in_float32: Total, in_float64: Total, operands: Operands, count: int) -> Any:
    """After a block that is not accurate in float32, the following ones are computed in float64."""
    total, careful = 0.0, False
    for start in range(0, count, SUM_BLOCK):
        stop = min(start + SUM_BLOCK, count)
        part = math.nan if careful else in_float32(operands, start, stop)
        careful = not abs(part) < math.inf
        total += in_float64(operands, start, stop) if careful else part
    return total


def total_of_float32_terms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    out[0] = total_of_blocks(float32_total_of_block, total_of_block, operands, count)


def total_of_float32_terms_of_logarithms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    in_float32, in_float64 = float32_total_of_block_of_logarithms, float32_terms_total_of_block_of_logarithms
    out[0] = total_of_blocks(in_float32, in_float64, operands, count)
