"""BinaryCrossEntropyWithLogitsBackward: gradient of the binary cross entropy with respect to its logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.signature import Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Loop, Operands
from onnx_ops.loops.primitives import LAST_PARAMETER, ONE, Array, Number, exp_approx, exp_parts, fma, helper, like, wide
from onnx_ops.ops.binary_cross_entropy._rules import GRAD_OUTPUT, LABELS, LOGITS, REDUCTIONS, WEIGHTS
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.extremes import BLOCK, EXP_LIMIT
from onnx_ops.ops.losses import reduction_attribute, reduction_choices
from onnx_ops.ops.references import Scaled, divisor, rounded

SIGNATURE = Signature(
    "BinaryCrossEntropyWithLogitsBackward",
    """
Gradient of the binary cross entropy of sigmoid(logits) with respect to the logits
(aclnnBinaryCrossEntropyWithLogitsBackward).

    x = self, y = target, w = weight, p = pos_weight, s = 1 / (1 + exp(-x))
    d   = grad_output * w * ((p*y + 1 - y) * s - p*y)
    out = d              reduction 0 (none) and 2 (sum)
          d / numel(x)   reduction 1 (mean)

Shapes: `target` and `out` have the shape of `self`; `grad_output`, `weight` and `pos_weight` broadcast to it. Rank 0 to
8.

Dtypes: each input float16, bfloat16, float or double; `out` has the dtype of `target`. Computed in double if an input
is double, else in float; rounded once.

Edge rules: an omitted `weight` or `pos_weight` is 1. A `target` outside [0, 1] is no special case. No logit overflows,
and the small gradient of a confident correct logit keeps its relative precision. Intermediate products do not overflow
or underflow where the result does not. NaN and infinities propagate as in the formula: an infinite `target` or
`pos_weight` gives NaN. Empty inputs give an empty output.

Without a kernel: as above, except that a sigmoid below the smallest normal number may be 0, and that precision is lost
where `grad_output / n` is below it. In double an intermediate product that overflows, such as `pos_weight * target`,
gives an infinity or NaN, as does a `target` within a factor 1 - 1e-6 of the largest number. Shapes known only at run
time are not checked; they broadcast as in ONNX operators.
""",
    inputs=(GRAD_OUTPUT, LOGITS, LABELS, *WEIGHTS),
    outputs=(Output("out", "Gradient with respect to `self`, of its shape.", "target"),),
    attributes=(reduction_attribute(REDUCTIONS),),
    choices={"reduction": reduction_choices(REDUCTIONS)},
)


def reference(
    grad_output: np.ndarray,
    self: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None = None,
    pos_weight: np.ndarray | None = None,
    *,
    reduction: int = Reduction.MEAN,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64; no intermediate product overflows or underflows.

    (p*y + 1 - y)*s - p*y is written (1 - y)*s - p*y*(1 - s), whose terms do not cancel, with 1 - s = sigmoid(-x).

    Args:
        grad_output, weight, pos_weight: floating arrays that broadcast to self; weights default to 1.
        self, target: floating arrays of one shape.
        reduction: 0 none, 1 mean, 2 sum.
        dtype: dtype of the result instead of target's.

    Returns:
        Array of self's shape.
    """
    g, x, y = (a.astype(np.float64) for a in (grad_output, self, target))
    w, p = (np.ones(()) if a is None else a.astype(np.float64) for a in (weight, pos_weight))
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        side = Scaled(1 / (1 + np.exp(-np.abs(x))))
        s, rest = Scaled.exp(np.minimum(x, 0)) * side, Scaled.exp(np.minimum(-x, 0)) * side
        infinite = Scaled((y - y) + (p - p))  # NaN where the formula has inf - inf, else 0
        scale = Scaled(g) * Scaled(w) * Scaled(1 / np.float64(divisor(reduction, x.shape)))
        out = scale * (Scaled(1 - y) * s + Scaled(-p) * Scaled(y) * rest + infinite)
        return rounded(out.value(), target.dtype, dtype)


LEAST, LIMIT, LARGE = np.float32(2.0**-100), np.float32(2.0**50), np.float32(2.0**100)
"""Bounds of products that are far from over- and underflow."""
SPREAD, SQUARE = np.float32(2.0**60), np.float32(2.0**-50)
"""Check of an element: near**2 + far**2 + SQUARE < SPREAD * abs(scale * positive_scale) for moderate products."""
LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693147180369123816, 1.9082149292705877e-10
NO_EXPONENT = 8000.0
"""exp(-NO_EXPONENT) times the largest product of float64 factors is 0."""


@helper
def gradient_of_any_size(grad_output: Number, x: Number, y: Number, weight: Number, p: Number, share: Number) -> float:
    """One element in float64, with separate exponents of all factors, so that no product over- or underflows."""
    unknown = (y - y) + (p - p) + x  # NaN where the formula has inf - inf
    if unknown != unknown:
        return math.nan
    size = min(abs(x), NO_EXPONENT)
    power = math.floor(size * LOG2E + 0.5)
    e = math.exp((power * LN2_HIGH - size) + power * LN2_LOW) if abs(x) < math.inf else 0.0
    side = 1.0 / (1.0 + np.ldexp(e, -power))

    label, label_exponent = math.frexp(y)
    factor, factor_exponent = math.frexp(p)
    positive, positive_exponent = -(factor * label), factor_exponent + label_exponent
    negative, negative_exponent = math.frexp(1.0 - y)
    if x < 0:
        near, near_exponent, far, far_exponent = positive, positive_exponent, negative, negative_exponent
    else:
        near, near_exponent, far, far_exponent = negative, negative_exponent, positive, positive_exponent
    far, far_exponent = far * e, far_exponent - power
    exponent = near_exponent if far == 0 or (near != 0 and near_exponent > far_exponent) else far_exponent
    difference = np.ldexp(near, near_exponent - exponent) + np.ldexp(far, far_exponent - exponent)

    grad, grad_exponent = math.frexp(grad_output)
    scale, scale_exponent = math.frexp(weight)
    return np.ldexp(grad * scale * share * side * difference, grad_exponent + scale_exponent + exponent)


@helper
def compute_again(operands: Operands, step: int, out: Array, start: int, stop: int, parameters: Array) -> None:
    """Elements [start, stop) by `gradient_of_any_size`; step: 0 for scalar factors, else 1."""
    grad_output, x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3], operands[4]
    share = wide(parameters[0]) + wide(parameters[LAST_PARAMETER])
    for i in range(start, stop):
        g, w, p = wide(grad_output[i * step]), wide(weight[i * step]), wide(pos_weight[i * step])
        result = gradient_of_any_size(g, wide(x[i]), wide(target[i]), w, p, share)
        out[i] = like(result, parameters[0])


@helper
def is_extreme(operands: Operands, start: int, stop: int, share: Number) -> bool:
    """Whether a product of nonzero factors may over- or underflow."""
    grad_output, target, weight, pos_weight = operands[0], operands[2], operands[3], operands[4]
    extreme = False
    for i in range(start, stop):
        g, w, p = grad_output[i], weight[i], pos_weight[i]
        scale = (g * w) * share
        small = (abs(scale) < LEAST) | ((abs(scale * p) < LEAST) & (p != 0))
        large = not (abs(scale) + LEAST) * (abs(p) + ONE) * (abs(target[i]) + ONE) < LARGE
        extreme = extreme | large | (small & (g != 0) & (w != 0))
    return extreme


def gradient(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """The gradient, with compensated rounding errors of the products and the quotient.

    With e = exp(-abs(x)): sigmoid(abs(x)) = 1/(1 + e), sigmoid(-abs(x)) = e/(1 + e). The factor e of one of the terms
    is multiplied last and in parts, so that the result keeps its precision even if e is subnormal.
    """
    grad_output, x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3], operands[4]
    share, share_lost = parameters[0], parameters[LAST_PARAMETER]
    for start in range(0, count, BLOCK):
        stop, suspect = min(start + BLOCK, count), False
        for i in range(start, stop):
            g, y, w = grad_output[i], target[i], weight[i]
            value, first, second = exp_parts(-abs(x[i]))
            e = (value * first) * second
            side = ONE / (ONE + e)
            side_lost = fma(-side, e, ONE - side)

            product = g * w
            product_lost = fma(g, w, -product)
            scale = product * share
            lost = fma(product, share, -scale) + fma(product, share_lost, product_lost * share)
            scale = fma(scale, side, fma(scale, side_lost, lost) * side)

            positive_scale = -scale * pos_weight[i]
            negative, positive = scale * (ONE - y), positive_scale * y
            near, far = (positive, negative) if x[i] < 0 else (negative, positive)
            out[i] = fma(far * (value * first), second, near)
            suspect = suspect | (not near * near + (far * far + SQUARE) < abs(scale * positive_scale) * SPREAD)
        if suspect and is_extreme(operands, start, stop, share):
            compute_again(operands, 1, out, start, stop, parameters)


@helper
def scales(operands: Operands, parameters: Array) -> tuple[Any, Any, Any, Any]:
    """Scales of the terms of class 0 and class 1, followed by their rounding errors, for scalar factors."""
    grad_output, weight, p = operands[0][0], operands[3][0], operands[4][0]
    share = wide(parameters[0]) + wide(parameters[LAST_PARAMETER])
    exact = (wide(grad_output) * wide(weight)) * share
    scale, positive_scale = like(exact, parameters[0]), like(-exact * wide(p), parameters[0])
    lost, positive_lost = exact - wide(scale), -exact * wide(p) - wide(positive_scale)
    return scale, positive_scale, like(lost, parameters[0]), like(positive_lost, parameters[0])


@helper
def are_extreme(scale: Number, positive_scale: Number, operands: Operands) -> bool:
    """Whether a product of a scale with nonzero factors may over- or underflow."""
    small = abs(scale) < LEAST or abs(positive_scale) < LEAST
    if small and operands[0][0] != 0 and operands[3][0] != 0:
        return True
    return not (abs(scale) < LIMIT and abs(positive_scale) < LIMIT)


@helper
def compute_block(
    operands: Operands, scaled: tuple[Number, ...], out: Array, start: int, stop: int, parameters: Array
) -> None:
    """Elements [start, stop) for scalar factors that are not extreme; scaled: the result of `scales`."""
    x, target = operands[1], operands[2]
    scale, positive_scale, lost, positive_lost = scaled
    suspect = False
    for i in range(start, stop):
        y = target[i]
        value, first, second = exp_parts(-abs(x[i]))
        e = (value * first) * second
        side = ONE / (ONE + e)
        side_lost = fma(-side, e, ONE - side)
        negative = fma(scale, side, fma(scale, side_lost, lost) * side) * (ONE - y)
        positive = fma(positive_scale, side, fma(positive_scale, side_lost, positive_lost) * side) * y
        near, far = (positive, negative) if x[i] < 0 else (negative, positive)
        result = fma(far * (value * first), second, near)
        out[i] = result
        suspect = suspect | (result - result != 0)
    if suspect:
        compute_again(operands, 0, out, start, stop, parameters)


def gradient_of_scalars(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`gradient` for scalar grad_output, weight and pos_weight, as with the reduction mean."""
    scaled = scales(operands, parameters)
    if are_extreme(scaled[0], scaled[1], operands):
        compute_again(operands, 0, out, 0, count, parameters)
        return
    for start in range(0, count, BLOCK):
        compute_block(operands, scaled, out, start, min(start + BLOCK, count), parameters)


def gradient_of_scalars_in_16_bits(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`gradient_of_scalars` without compensation of rounding errors."""
    x, target = operands[1], operands[2]
    scaled = scales(operands, parameters)
    scale, positive_scale = scaled[0], scaled[1]
    if are_extreme(scale, positive_scale, operands):
        compute_again(operands, 0, out, 0, count, parameters)
        return
    for start in range(0, count, BLOCK):
        stop, suspect = min(start + BLOCK, count), False
        for i in range(start, stop):
            y, size = target[i], abs(x[i])
            e = exp_approx(-size)
            negative, positive = scale * (ONE - y), positive_scale * y
            near, far = (positive, negative) if x[i] < 0 else (negative, positive)
            result = (far * e + near) * (ONE / (ONE + e))
            out[i] = result
            suspect = suspect | (not size < EXP_LIMIT) | (result - result != 0)
        if suspect:
            compute_block(operands, scaled, out, start, stop, parameters)


@helper
def compute_block_of_16_bits(operands: Operands, out: Array, start: int, stop: int, parameters: Array) -> bool:
    """Elements [start, stop) for all logits; returns whether a product may be extreme."""
    grad_output, x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3], operands[4]
    share, suspect = parameters[0], False
    for i in range(start, stop):
        y = target[i]
        value, first, second = exp_parts(-abs(x[i]))
        side = ONE / (ONE + (value * first) * second)
        scale = (grad_output[i] * weight[i]) * share * side
        positive_scale = -scale * pos_weight[i]
        negative, positive = scale * (ONE - y), positive_scale * y
        near, far = (positive, negative) if x[i] < 0 else (negative, positive)
        out[i] = fma(far * (value * first), second, near)
        suspect = suspect | (not near * near + (far * far + SQUARE) < abs(scale * positive_scale) * SPREAD)
    return suspect


def gradient_of_16_bits(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`gradient` without compensation of rounding errors, which are negligible in 16-bit results."""
    grad_output, x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3], operands[4]
    share = parameters[0]
    for start in range(0, count, BLOCK):
        stop, suspect, far_off = min(start + BLOCK, count), False, False
        for i in range(start, stop):
            y, size = target[i], abs(x[i])
            e = exp_approx(-size)
            scale = (grad_output[i] * weight[i]) * share * (ONE / (ONE + e))
            positive_scale = -scale * pos_weight[i]
            negative, positive = scale * (ONE - y), positive_scale * y
            near, far = (positive, negative) if x[i] < 0 else (negative, positive)
            out[i] = far * e + near
            suspect = suspect | (not near * near + (far * far + SQUARE) < abs(scale * positive_scale) * SPREAD)
            far_off = far_off | (not size < EXP_LIMIT)
        if far_off:
            suspect = compute_block_of_16_bits(operands, out, start, stop, parameters)
        if suspect and is_extreme(operands, start, stop, share):
            compute_again(operands, 1, out, start, stop, parameters)


MODERATE = 2.0**50
"""Bound of a sum of squares of factors: whatever underflowed remains negligible after multiplication by them."""


def body(b: Body) -> None:
    """(1 - y)/(1 + exp(-x)) - p*y/(1 + exp(x)): terms do not cancel, and an infinite exp gives 0.

    The operator Sigmoid of runtimes saturates for large abs(x). A product of two float factors may over- or underflow
    where a third factor would compensate, so products are in double unless the first ones are moderate.
    """
    x, y, grad = b.load("self"), b.load("target"), b.load("grad_output")
    p, w = (b.load(name) if b.has(name) else None for name in ("pos_weight", "weight"))
    divisor = b.divisor(x)
    positive, weighted = _factors(y, grad, p, w)

    def zero_or_unknown(positive: Value) -> Value:
        """NaN where the formula has inf - inf."""
        return (positive - positive).named("zero_or_unknown")

    def in_float() -> Value:
        return _gradient(b, x, -x, y, positive, scale)

    def in_double() -> Value:
        wide_x, wide_y, wide_grad = (value.cast(TensorProto.DOUBLE) for value in (x, y, grad))
        wide_p, wide_w, wide_divisor = (
            None if value is None else value.cast(TensorProto.DOUBLE) for value in (p, w, divisor)
        )
        wide_positive, wide_weighted = _factors(wide_y, wide_grad, wide_p, wide_w)
        wide_scale = _share(wide_weighted, wide_divisor)
        return _gradient(b, wide_x, -wide_x, wide_y, wide_positive, wide_scale) + zero_or_unknown(wide_positive)

    scale = _share(weighted, divisor)
    if b.compute == TensorProto.DOUBLE or (p is None and w is None):
        opposite = (zero_or_unknown(positive) - x).named("opposite")
        result = _gradient(b, x, opposite, y, positive, scale)
    else:
        squares = [b.op("ReduceSumSquare", factor, name="squares", keepdims=0) for factor in (positive, weighted)]
        are_moderate = b.op("Sum", *squares, name="sum_of_squares").less(MODERATE).named("are_moderate")
        result = b.either(are_moderate, in_float, in_double)
    b.store("out", result, "target")


def _factors(y: Value, grad: Value, p: Value | None, w: Value | None) -> tuple[Value, Value]:
    """p*y and grad_output*w."""
    positive = y if p is None else (p * y).named("positive")
    return positive, grad if w is None else (grad * w).named("weighted_grad")


def _share(scale: Value, divisor: Value | None) -> Value:
    return scale if divisor is None else (scale / divisor).named("share")


def _gradient(b: Body, x: Value, opposite: Value, y: Value, positive: Value, scale: Value) -> Value:
    """scale * ((1 - y)/(1 + exp(opposite)) - positive/(1 + exp(x))), opposite = -x."""
    negative_divisor = (b.op("Exp", opposite, name="negative_exp") + 1.0).named("negative_divisor")
    positive_divisor = (b.op("Exp", x, name="positive_exp") + 1.0).named("positive_divisor")
    negative_term = ((1.0 - y).named("negative") / negative_divisor).named("negative_term")
    positive_term = (positive / positive_divisor).named("positive_term")
    return ((negative_term - positive_term).named("difference") * scale).named("scaled")


def infer(call: Call) -> tuple[TensorType, ...]:
    SIGNATURE.space.shape(call)
    return (TensorType(call.dtype("target"), call.shape("self")),)


def kernel(call: Call) -> Loop:
    narrow = call.dtype("target") not in (TensorProto.FLOAT, TensorProto.DOUBLE)
    compute = computing_type(call, light=narrow)
    short = narrow and compute != TensorProto.DOUBLE
    return Loop(
        SIGNATURE.space,
        compute,
        gradient_of_16_bits if short else gradient,
        divisor=Reduction(call.attributes["reduction"]).divisor,
        core_uniform=gradient_of_scalars_in_16_bits if short else gradient_of_scalars,
        uniform=("grad_output", "weight", "pos_weight"),
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # logits of probability 1/2, 3/4, 1/4
        {"grad_output": 1.0, "self": [0.0, math.log(3), -math.log(3)], "target": [1.0, 0.0, 1.0]},
        {"out": [-1 / 6, 1 / 4, -1 / 4]},
    ),
)
