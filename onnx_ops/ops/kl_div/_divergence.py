"""The terms of the Kullback-Leibler divergence, and their sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnx_ops.loops.primitives import (
    ZERO,
    add_any_order,
    choose,
    exp_parts,
    fma,
    helper,
    inlined,
    log,
    near_exp_parts,
    normal_exp,
    normal_log,
    short_log,
    wide,
)
from onnx_ops.ops.extremes import INFINITE, LEAST_NORMAL, NEAR, SPAN

LEAST_SHARE = np.float32(2.0**-7)
"""A sum of terms that cancel to less than this share of their parts needs more digits than float32 has."""
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
def total_of_span(operands: Any, start: int, stop: int) -> Any:
    """Sum of the terms of elements [start, stop), whatever they are."""
    x, target, total = operands[0], operands[1], 0.0
    for i in range(start, stop):
        total = add_any_order(total, term(x[i], target[i]))
    return total


@helper
def total_of_span_of_logarithms(operands: Any, start: int, stop: int) -> Any:
    """The same of targets that are logarithms."""
    x, target, total = operands[0], operands[1], 0.0
    for i in range(start, stop):
        total = add_any_order(total, term_of_logarithm(x[i], target[i]))
    return total


def total_divergence(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """Without a look at each target: 0 times some number is 0, and what is infinite or NaN shows in the sum."""
    x, target, total = operands[0], operands[1], 0.0
    for start in range(0, count, SPAN):
        stop, negative, part = min(start + SPAN, count), False, 0.0
        for i in range(start, stop):
            q = wide(target[i])
            part = add_any_order(part, q * (normal_log(q) - wide(x[i])))
            negative = negative | (target[i] < 0)
        total += total_of_span(operands, start, stop) if negative or not abs(part) < math.inf else part
    out[0] = total


def total_divergence_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """In float32 the terms of targets below LEAST_POWER vanish, and those of LEAST_POWER do."""
    x, target, total = operands[0], operands[1], 0.0
    for start in range(0, count, SPAN):
        stop, large, part = min(start + SPAN, count), False, 0.0
        for i in range(start, stop):
            q = wide(choose(target[i] < LEAST_POWER, LEAST_POWER, target[i]))
            part = add_any_order(part, (q - wide(x[i])) * normal_exp(q))
            large = large | (target[i] > GREATEST_POWER)
        exact = large or not abs(part) < math.inf
        total += total_of_span_of_logarithms(operands, start, stop) if exact else part
    out[0] = total


def total_of_short_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """Terms in float32, for results of 16 bits."""
    x, target, total = operands[0], operands[1], 0.0
    for start in range(0, count, SPAN):
        stop, extreme, part, size = min(start + SPAN, count), False, 0.0, ZERO
        for i in range(start, stop):
            q, logarithm = target[i], normal_log(target[i])
            part = add_any_order(part, wide(q * (logarithm - x[i])))
            size = add_any_order(size, abs(q) * (abs(logarithm) + abs(x[i])))
            extreme = extreme | ((q != 0) & (q < LEAST_NORMAL))
        moderate = not extreme and LEAST_SHARE * size <= abs(part) < math.inf
        total += part if moderate else total_of_span(operands, start, stop)
    out[0] = total


def total_of_short_terms_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """The same of targets that are logarithms."""
    x, target, total = operands[0], operands[1], 0.0
    for start in range(0, count, SPAN):
        stop, extreme, part = min(start + SPAN, count), False, 0.0
        for i in range(start, stop):
            part = add_any_order(part, wide(short_term_of_logarithm(x[i], target[i])))
            extreme = extreme | (not abs(target[i]) < NEAR)
        moderate = not extreme and abs(part) < math.inf
        total += part if moderate else total_of_span_of_logarithms(operands, start, stop)
    out[0] = total
