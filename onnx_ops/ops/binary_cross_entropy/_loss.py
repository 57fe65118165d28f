"""Terms of the binary cross entropy with logits, and their sums.

With L = log1p(exp(-abs(x))): softplus(abs(x)) = L + abs(x), softplus(-abs(x)) = L. Without weights, a term is
L + y*abs(x) for x < 0 and L + (1 - y)*abs(x) otherwise. For float32 results, sums of L are computed as
log(prod(1 + exp(-abs(x)))).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnx_ops.loops.loop import Operands
from onnx_ops.loops.memory import LANES
from onnx_ops.loops.primitives import (
    ONE,
    ZERO,
    Array,
    Number,
    abs_up_to,
    add_any_order,
    choose,
    exp_approx,
    helper,
    inlined,
    items_of,
    log,
    log1p_approx,
    multiply_any_order,
    one_plus_exp,
    softplus_of_nonpositive,
    wide,
)
from onnx_ops.loops.tables import softplus_approx, softplus_parts
from onnx_ops.loops.vectors import (
    any_negative,
    bits,
    by_sign,
    floats,
    greater,
    lesser,
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
from onnx_ops.ops.extremes import CACHED_BLOCK, EXP_LIMIT, INFINITE, SUM_BLOCK

FACTORS = 1024
"""Factors 1 + exp(-abs(x)) per logarithm; their product, starting from FIRST, does not overflow in float64."""
FIRST = 2.0**-512
LOG_FIRST = math.log(FIRST)
FAR = np.float32(708)
"""exp(-x) is in the normal range of float64 for x <= FAR."""
LEAST = 2.0**-10
"""Least logarithm of a product with a relative error <= 1e-9, where each factor has a relative error of 2**-52."""
LEAST_MEAN = 2.0**-7
"""Least ratio of the loss to the sum of the factors of softplus for a float32 result from `softplus_parts`."""
LEAST_SHORT = 2.0**-9
"""Least ratio of the loss to the sum of the factors of softplus for a relative error <= 1e-4 from `softplus_approx`."""


@inlined
def term(logit: Number, y: Number, w: Number, p: Number) -> Number:
    """A term in float64; a softplus with factor 0 contributes 0, infinite and NaN included."""
    curved = softplus_of_nonpositive(-abs(logit))
    negative, positive = 1.0 - wide(y), wide(p) * wide(y)
    far, near = choose(logit < 0, positive, negative), choose(logit < 0, negative, positive)
    far_term = choose(far != 0, far * (curved + abs(wide(logit))), 0.0)
    near_term = choose(near != 0, near * curved, 0.0)
    return choose(w != 0, wide(w) * (far_term + near_term), 0.0)


@elementwise(0, 1, 2, 3, parameters=(1,))
def weighted_terms(x: Number, y: Number, w: Number, p: Number, most: Number) -> Number:
    """Terms; `most` is for `float32_weighted_terms` only."""
    return term(x, y, w, p)


@helper
def total_of_positive_block(operands: Operands, start: int, stop: int) -> Any:
    """Sum of the terms of at most CACHED_BLOCK elements, in vectors if all factors are positive."""
    x, target, weight, pos_weight = inputs = items_of(operands, (0, 1, 2, 3))
    high, low = scratch(CACHED_BLOCK), scratch(CACHED_BLOCK)
    whole = (stop - start) // LANES * LANES
    factors, signs = spread(ZERO), bits(spread(ZERO))
    for i in range(0, whole, LANES):
        for operand in inputs:
            prefetch(operand, start + i + CACHED_BLOCK)
        y, w, p = load(target, start + i), load(weight, start + i), load(pos_weight, start + i)
        first, second = softplus_parts(abs(load(x, start + i)))
        store(first, high, i)
        store(second, low, i)
        negative = ONE - y
        factors, signs = factors + w * (negative + p * y), signs | bits(negative) | bits(y) | bits(p) | bits(w)
    part = sum_terms(add_weighted_terms, (*inputs, high, low), start, whole)
    if any_negative(signs) or not total(factors) * LEAST_MEAN <= part < math.inf:
        return total_of(term, inputs, start, stop)
    return part + total_of(term, inputs, start + whole, stop)


@inlined
def add_weighted_terms(sums: Array, inputs: Array, start: int, i: int) -> Any:
    """sums + w * ((1 - y)*x + (1 - y + p*y)*softplus(-x)), elementwise in float64.

    inputs: x, y, w, p, and softplus(-abs(x)) of the block in two parts.
    """
    x, y = load_wide(inputs[0], start + i), load_wide(inputs[1], start + i)
    w, p = load_wide(inputs[2], start + i), load_wide(inputs[3], start + i)
    softplus = (load_wide(inputs[4], i) + load_wide(inputs[5], i)) - lesser(x, 0.0)
    negative = 1.0 - y
    return sums + w * (negative * x + (negative + p * y) * softplus)


def total_of_weighted_terms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    loss = 0.0
    for start in range(0, count, CACHED_BLOCK):
        loss += total_of_positive_block(operands, start, min(start + CACHED_BLOCK, count))
    out[0] = loss


@inlined
def plain_term(logit: Number, y: Number) -> Number:
    """`term` for weights of 1; NaN where the formula has inf - inf."""
    far = choose(logit < 0, wide(y), 1.0 - wide(y))
    curved = softplus_of_nonpositive(-abs(logit)) + (wide(y) - wide(y))
    return curved + choose(far != 0, far * abs(wide(logit)), 0.0)


@elementwise(0, 1)
def terms(logit: Number, y: Number) -> Number:
    """Terms for weights of 1."""
    return plain_term(logit, y)


def total_of_terms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """Sum of the terms for weights of 1."""
    x, target, total = operands[0], operands[1], 0.0
    for start in range(0, count, FACTORS):
        stop, product, straight, extreme = min(start + FACTORS, count), FIRST, 0.0, False
        for i in range(start, stop):
            y, size = wide(target[i]), wide(abs(x[i]))
            product = multiply_any_order(product, one_plus_exp(-size))
            straight = add_any_order(straight, choose(x[i] > 0, 1.0 - y, y) * size)
            extreme = extreme | (not abs(x[i]) < FAR)
        curved = log(product) - LOG_FIRST
        if not extreme and curved >= LEAST and abs(straight) < math.inf:
            total += curved + straight
        else:
            total += total_of(plain_term, (x, target), start, stop)
    out[0] = total


# --- for results of 16 bits, of inputs of 16 bits ----------------------------------------------------------------


@inlined
def clipped_abs(x: Number) -> Number:
    """min(abs(x), EXP_LIMIT); EXP_LIMIT for NaN."""
    return abs_up_to(x, EXP_LIMIT)


@inlined
def straight_part(x: Number, y: Number) -> Number:
    """max(x, 0) - x*y, where the product of two 16-bit values is exact in float32."""
    return choose(x > 0, x, ZERO) - x * y


@elementwise(0, 1, exact=plain_term)
def float32_terms(x: Number, y: Number) -> tuple[Number, bool]:
    """Terms for weights of 1 in float32."""
    result = log1p_approx(exp_approx(-clipped_abs(x))) + straight_part(x, y)
    return result, (not abs(x) < EXP_LIMIT) | (not abs(result) < INFINITE)


def total_of_float32_terms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """Sum of the terms for weights of 1, in float32 if targets are in [0, 1] and the loss is not small."""
    x, target, loss = operands[0], operands[1], 0.0
    for start in range(0, count, SUM_BLOCK):
        stop = min(start + SUM_BLOCK, count)
        whole = stop - (stop - start) % LANES
        curved, straight, signs = spread(ZERO), spread(ZERO), bits(spread(ZERO))
        for i in range(start, whole, LANES):
            logit = load(x, i)
            upper = floats(greater(bits(logit), np.int32(0)))  # max(logit, 0): the sign bit makes an int32 negative
            own = upper - logit * load(target, i)  # the product of two 16-bit values is exact
            curved, straight, signs = curved + softplus_approx(abs(logit)), straight + own, signs | bits(own)
        part = total(curved) + total(straight)
        moderate = not any_negative(signs) and (whole - start) * LEAST_SHORT <= part < math.inf
        loss += total_of(plain_term, (x, target), whole if moderate else start, stop)
        loss += part if moderate else 0.0
    out[0] = loss


@elementwise(0, 1, 2, 3, parameters=(1,), exact=weighted_terms)
def float32_weighted_terms(x: Number, y: Number, w: Number, p: Number, most: Number) -> tuple[Number, bool]:
    """Terms in float32; most: bound of weights."""
    curved = log1p_approx(exp_approx(-clipped_abs(x)))
    negative, positive = ONE - y, p * y
    far, near = choose(x < 0, positive, negative), choose(x < 0, negative, positive)
    result = w * (far * (curved + abs(x)) + near * curved)
    return result, (not abs(x) < EXP_LIMIT) | (not abs(w) <= most) | (not abs(result) < INFINITE)


def total_of_float32_weighted_terms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """Sum of the terms in float32, if no factor of softplus is negative and the loss is not small relative to them."""
    x, target, weight, pos_weight = inputs = items_of(operands, (0, 1, 2, 3))
    loss = 0.0
    for start in range(0, count, SUM_BLOCK):
        stop = min(start + SUM_BLOCK, count)
        whole = stop - (stop - start) % LANES
        terms, factors, signs = spread(ZERO), spread(ZERO), bits(spread(ZERO))
        for i in range(start, whole, LANES):
            logit, y, w = load(x, i), load(target, i), load(weight, i)
            negative, positive, size = ONE - y, y * load(pos_weight, i), abs(logit)
            factor, far = w * (negative + positive), w * by_sign(logit, positive, negative)
            terms, factors = terms + (factor * softplus_approx(size) + far * size), factors + factor
            signs = signs | bits(negative) | bits(positive) | bits(w)
        part = total(terms)
        moderate = not any_negative(signs) and total(factors) * LEAST_SHORT <= part < math.inf
        loss += total_of(term, inputs, whole if moderate else start, stop)
        loss += part if moderate else 0.0
    out[0] = loss
