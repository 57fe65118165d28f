"""The terms of the binary cross entropy of a sigmoid, and their sums.

With L = log1p(exp(-|x|)), softplus(|x|) = L + |x| and softplus(-|x|) = L. Without weights a term is L + y*|x| where
x < 0, and L + (1 - y)*|x| else. For results in float32, sums of L are logarithms of products of 1 + exp(-|x|).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnx_ops.loops.primitives import (
    LANES,
    ONE,
    ZERO,
    add_any_order,
    choose,
    helper,
    inlined,
    log,
    multiply_any_order,
    near_exp,
    near_log1p,
    one_plus_exp,
    size_up_to,
    softplus_of_falling,
    wide,
)
from onnx_ops.loops.tables import near_softplus, softplus_parts
from onnx_ops.loops.vectors import (
    QUAD,
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
    total,
)
from onnx_ops.ops.extremes import CACHED_SPAN, INFINITE, NEAR, SHORT_SPAN, SPAN

FACTORS = 1024
"""Elements whose logarithms are taken together; their product is a float64 number if it begins with FIRST."""
FIRST = 2.0**-512
LOG_FIRST = math.log(FIRST)
FAR = np.float32(708)
"""To minus this power e is a normal float64 number."""
LEAST = 2.0**-10
"""A logarithm from here up is good to 1e-9, though each factor of the product was off by 2**-52."""
LEAST_MEAN = 2.0**-7
"""Times the factors of its softplus, the loss from which on softpluses that are off by 1e-10 do for float32."""
LEAST_SHORT = 2.0**-9
"""Times the factors of its softplus, the loss from which on it is good to 1e-4."""


@inlined
def term(logit: Any, y: Any, w: Any, p: Any) -> Any:
    """In float64. What a factor of 0 stands before does not count."""
    curved = softplus_of_falling(-abs(logit))
    negative, positive = 1.0 - wide(y), wide(p) * wide(y)
    far, near = choose(logit < 0, positive, negative), choose(logit < 0, negative, positive)
    far_term = choose(far != 0, far * (curved + abs(wide(logit))), 0.0)
    near_term = choose(near != 0, near * curved, 0.0)
    return choose(w != 0, wide(w) * (far_term + near_term), 0.0)


def weighted_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3]
    for i in range(count):
        out[i] = term(x[i], target[i], weight[i], pos_weight[i])


@helper
def total_of_weighted_span(operands: Any, start: int, stop: int) -> Any:
    """Sum of the terms of elements [start, stop), each by itself."""
    x, target, weight, pos_weight, total = operands[0], operands[1], operands[2], operands[3], 0.0
    for i in range(start, stop):
        total = add_any_order(total, term(x[i], target[i], weight[i], pos_weight[i]))
    return total


@helper
def total_of_positive_span(operands: Any, start: int, stop: int) -> Any:
    """The same of at most CACHED_SPAN elements, in vectors where weights are positive and softpluses not all tiny."""
    x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3]
    high, low = scratch(CACHED_SPAN), scratch(CACHED_SPAN)
    whole = (stop - start) // LANES * LANES
    factors, signs = spread(ZERO), bits(spread(ZERO))
    for i in range(0, whole, LANES):
        for operand in (x, target, weight, pos_weight):
            prefetch(operand, start + i + CACHED_SPAN)
        y, w, p = load(target, start + i), load(weight, start + i), load(pos_weight, start + i)
        first, second = softplus_parts(abs(load(x, start + i)))
        store(first, high, i)
        store(second, low, i)
        negative = ONE - y
        factors, signs = factors + w * (negative + p * y), signs | bits(negative) | bits(y) | bits(p) | bits(w)
    a, b, c, d = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
    for i in range(0, whole, LANES):
        a = plus_weighted_terms(a, operands, high, low, start, i)
        b = plus_weighted_terms(b, operands, high, low, start, i + QUAD)
        c = plus_weighted_terms(c, operands, high, low, start, i + 2 * QUAD)
        d = plus_weighted_terms(d, operands, high, low, start, i + 3 * QUAD)
    part = total((a + b) + (c + d))
    if any_negative(signs) or not total(factors) * LEAST_MEAN <= part < math.inf:
        return total_of_weighted_span(operands, start, stop)
    return part + total_of_weighted_span(operands, start + whole, stop)


@inlined
def plus_weighted_terms(total: Any, operands: Any, high: Any, low: Any, start: int, i: int) -> Any:
    """A vector of sums, and to each number of it a term more: (1 - y)*x + (1 - y + p*y)*softplus(-x)."""
    x, y = load_wide(operands[0], start + i), load_wide(operands[1], start + i)
    w, p = load_wide(operands[2], start + i), load_wide(operands[3], start + i)
    softplus = (load_wide(high, i) + load_wide(low, i)) - lesser(x, 0.0)
    negative = 1.0 - y
    return total + w * (negative * x + (negative + p * y) * softplus)


def total_of_weighted_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    loss = 0.0
    for start in range(0, count, CACHED_SPAN):
        loss += total_of_positive_span(operands, start, min(start + CACHED_SPAN, count))
    out[0] = loss


@inlined
def plain_term(logit: Any, y: Any) -> Any:
    """`term` for weights of ones; NaN where the formula has inf - inf."""
    far = choose(logit < 0, wide(y), 1.0 - wide(y))
    curved = softplus_of_falling(-abs(logit)) + (wide(y) - wide(y))
    return curved + choose(far != 0, far * abs(wide(logit)), 0.0)


def terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """For weights of ones."""
    x, target = operands[0], operands[1]
    for i in range(count):
        out[i] = plain_term(x[i], target[i])


@helper
def total_of_span(operands: Any, start: int, stop: int) -> Any:
    """`total_of_weighted_span` for weights of ones."""
    x, target, total = operands[0], operands[1], 0.0
    for i in range(start, stop):
        total = add_any_order(total, plain_term(x[i], target[i]))
    return total


def total_of_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """For weights of ones."""
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
            total += total_of_span(operands, start, stop)
    out[0] = total


# --- for results of 16 bits, of inputs of 16 bits ----------------------------------------------------------------


@inlined
def near_size(x: Any) -> Any:
    """|x|, or NEAR if that is less or x is NaN."""
    return size_up_to(x, NEAR)


@inlined
def straight_part(x: Any, y: Any) -> Any:
    """max(x, 0) - y*x, where the product of two 16-bit numbers is exact."""
    return choose(x > 0, x, ZERO) - x * y


def short_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """For weights of ones, in float32 where no logit is extreme and no target infinite."""
    x, target = operands[0], operands[1]
    for start in range(0, count, SPAN):
        stop, extreme = min(start + SPAN, count), False
        for i in range(start, stop):
            result = near_log1p(near_exp(-near_size(x[i]))) + straight_part(x[i], target[i])
            out[i] = result
            extreme = extreme | (not abs(x[i]) < NEAR) | (not abs(result) < INFINITE)
        if extreme:
            for i in range(start, stop):
                out[i] = plain_term(x[i], target[i])


def total_of_short_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """For weights of ones, in float32 where targets are from 0 to 1 and the loss is not small."""
    x, target, loss = operands[0], operands[1], 0.0
    for start in range(0, count, SHORT_SPAN):
        stop = min(start + SHORT_SPAN, count)
        whole = stop - (stop - start) % LANES
        curved, straight, signs = spread(ZERO), spread(ZERO), bits(spread(ZERO))
        for i in range(start, whole, LANES):
            logit = load(x, i)
            upper = floats(greater(bits(logit), np.int32(0)))  # its bits as an integer are below 0 where it is
            own = upper - logit * load(target, i)  # the product of two 16-bit numbers is exact
            curved, straight, signs = curved + near_softplus(abs(logit)), straight + own, signs | bits(own)
        part = total(curved) + total(straight)
        moderate = not any_negative(signs) and (whole - start) * LEAST_SHORT <= part < math.inf
        loss += total_of_span(operands, whole if moderate else start, stop)
        loss += part if moderate else 0.0
    out[0] = loss


@inlined
def short_term(x: Any, y: Any, w: Any, p: Any) -> Any:
    """In float32, of an x that is less than NEAR."""
    curved = near_log1p(near_exp(-near_size(x)))
    negative, positive = ONE - y, p * y
    far, near = choose(x < 0, positive, negative), choose(x < 0, negative, positive)
    return w * (far * (curved + abs(x)) + near * curved)


def short_weighted_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """In float32 where no logit and no weight is extreme; parameters[1]: see `most_weight`."""
    x, target, weight, pos_weight, most = operands[0], operands[1], operands[2], operands[3], parameters[1]
    for start in range(0, count, SPAN):
        stop, extreme = min(start + SPAN, count), False
        for i in range(start, stop):
            result = short_term(x[i], target[i], weight[i], pos_weight[i])
            out[i] = result
            extreme = extreme | (not abs(x[i]) < NEAR) | (not abs(weight[i]) <= most) | (not abs(result) < INFINITE)
        if extreme:
            for i in range(start, stop):
                out[i] = term(x[i], target[i], weight[i], pos_weight[i])


def total_of_short_weighted_terms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """In float32 where no factor of the softplus is negative, and the loss not small beside them."""
    x, target, weight, pos_weight, loss = operands[0], operands[1], operands[2], operands[3], 0.0
    for start in range(0, count, SHORT_SPAN):
        stop = min(start + SHORT_SPAN, count)
        whole = stop - (stop - start) % LANES
        terms, factors, signs = spread(ZERO), spread(ZERO), bits(spread(ZERO))
        for i in range(start, whole, LANES):
            logit, y, w = load(x, i), load(target, i), load(weight, i)
            negative, positive, size = ONE - y, y * load(pos_weight, i), abs(logit)
            factor, far = w * (negative + positive), w * by_sign(logit, positive, negative)
            terms, factors = terms + (factor * near_softplus(size) + far * size), factors + factor
            signs = signs | bits(negative) | bits(positive) | bits(w)
        part = total(terms)
        moderate = not any_negative(signs) and total(factors) * LEAST_SHORT <= part < math.inf
        loss += total_of_weighted_span(operands, whole if moderate else start, stop)
        loss += part if moderate else 0.0
    out[0] = loss
