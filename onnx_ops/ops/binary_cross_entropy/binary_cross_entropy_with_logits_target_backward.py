"""BinaryCrossEntropyWithLogitsTargetBackward: gradient of the binary cross entropy with respect to its target."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop, Operands
from onnx_ops.loops.primitives import (
    LAST_PARAMETER,
    ONE,
    Array,
    Number,
    choose,
    exp_approx,
    like,
    log1p_approx,
    softplus_of_nonpositive,
    wide,
)
from onnx_ops.ops.binary_cross_entropy._bodies import written_softplus
from onnx_ops.ops.binary_cross_entropy._loss import clipped_abs
from onnx_ops.ops.binary_cross_entropy._rules import GRAD_OUTPUT, LOGITS, REDUCTIONS, WEIGHTS
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import SHARE, elementwise, exact_share
from onnx_ops.ops.extremes import EXP_LIMIT, INFINITE
from onnx_ops.ops.losses import has_narrow_inputs, reduction_attribute, reduction_choices
from onnx_ops.ops.references import Scaled, divisor, rounded

SIGNATURE = Signature(
    "BinaryCrossEntropyWithLogitsTargetBackward",
    """
Gradient of the binary cross entropy of sigmoid(logits), BinaryCrossEntropyWithLogits, with respect to `target`.

    x = self, w = weight, p = pos_weight, softplus(x) = log(1 + exp(x))
    d           = grad_output * w * (p * softplus(-x) - softplus(x)), which is -x * w * grad_output for p = 1
    grad_target = d              reduction 0 (none) and 2 (sum)
                  d / numel(x)   reduction 1 (mean)

Shapes: `target` and `grad_target` have the shape of `self`; `grad_output`, `weight` and `pos_weight` broadcast to it.
Rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_target` has the dtype of `target`. Computed in double, or
in float if all inputs have 16 bits, and rounded once.

Edge rules: of `target` only shape and dtype are used. An omitted `weight` or `pos_weight` is 1. No logit overflows, and
terms do not cancel where p is 0 or 1. NaN and infinities propagate as in the formula: an infinite logit gives NaN where
its factor is 0. In double, the product `grad_output * w / n` may overflow or underflow even if its product with x would
not. Empty inputs give an empty output.

Without a kernel: the results are the same up to the last place. Shapes known only at run time are not checked; they
broadcast as in ONNX operators.
""",
    inputs=(
        GRAD_OUTPUT,
        LOGITS,
        Input("target", "Labels, in [0, 1] by convention; shape of `self`.", Role.SAME | Role.UNREAD),
        *WEIGHTS,
    ),
    outputs=(Output("grad_target", "Gradient with respect to `target`, of its shape.", "target"),),
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
    """NumPy definition, computed in float64; no product of factors overflows or underflows.

    With L = log1p(exp(-abs(x))): p*softplus(-x) - softplus(x) is (p - 1)*L - x for x > 0, (p - 1)*L - p*x for x < 0.

    Args:
        grad_output, weight, pos_weight: floating arrays that broadcast to self; weights default to 1.
        self, target: floating arrays of one shape.
        reduction: 0 none, 1 mean, 2 sum.
        dtype: dtype of the result instead of target's.

    Returns:
        Array of self's shape.
    """
    g, x = grad_output.astype(np.float64), self.astype(np.float64)
    w, p = (np.ones(()) if a is None else a.astype(np.float64) for a in (weight, pos_weight))
    with np.errstate(all="ignore"):
        scale = Scaled(g) * Scaled(w) * Scaled(1 / np.float64(divisor(reduction, x.shape)))
        curved = (p - 1) * np.log1p(np.exp(-np.abs(x)))
        straight = np.where(x < 0, p * -x, -x)
        # At -inf the formula has p * inf - 0, also for an infinite p.
        return rounded((scale * Scaled(np.where(x == -np.inf, 0.0, curved) + straight)).value(), target.dtype, dtype)


LEAST, LARGE = 2.0**-100, 2.0**100
"""Bounds of products in the normal range of float32."""
SHORT_LEAST, SHORT_LARGE = np.float32(2.0**-60), np.float32(2.0**60)
"""Bounds of factors that keep a normal float32 accurate enough for 16-bit results."""


@elementwise(0, 1, 3, 4, parameters=SHARE)
def gradient(g: Number, x: Number, w: Number, p: Number, share: Number, lost: Number) -> Number:
    """The gradient in float64."""
    curved = (wide(p) - 1.0) * softplus_of_nonpositive(-abs(x)) if x != -math.inf else 0.0
    straight = wide(p) * wide(x) if x < 0 else wide(x)
    return (wide(g) * wide(w)) * exact_share(share, lost) * (curved - straight)


@elementwise(0, 1, 3, 4, parameters=SHARE, exact=gradient)
def gradient_of_16_bits(g: Number, x: Number, w: Number, p: Number, share: Number, lost: Number) -> tuple[Number, bool]:
    """The gradient of 16-bit inputs in float32."""
    scale = (g * w) * share
    straight = choose(x < 0, p * x, x)
    result = scale * ((p - ONE) * log1p_approx(exp_approx(-clipped_abs(x))) - straight)
    unusual = (not abs(scale) < SHORT_LARGE) | ((abs(scale) < SHORT_LEAST) & (g != 0) & (w != 0))
    return result, unusual | (not abs(x) < EXP_LIMIT) | (not abs(result) < INFINITE)


@elementwise(0, 1, 3, parameters=SHARE)
def gradient_without_pos_weight(g: Number, x: Number, w: Number, share: Number, lost: Number) -> Number:
    """`gradient` for a pos_weight of 1."""
    return (wide(g) * wide(w)) * exact_share(share, lost) * -wide(x)


def gradient_of_scalars(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`gradient_without_pos_weight` for scalar grad_output and weight."""
    grad_output, logits, weight = operands[0][0], operands[1], operands[3][0]
    share = wide(parameters[0]) + wide(parameters[LAST_PARAMETER])
    exact = -(wide(grad_output) * wide(weight)) * share
    scale = like(exact, parameters[0])
    if LEAST < abs(exact) < LARGE:
        for i in range(count):
            out[i] = logits[i] * scale
    else:
        for i in range(count):
            out[i] = wide(logits[i]) * exact


def body(b: Body) -> None:
    b.widen()
    x, scale = b.load("self"), b.load("grad_output")
    if b.has("weight"):
        scale = (scale * b.load("weight")).named("weighted_grad")
    slope = (-x).named("minus_x")
    if b.has("pos_weight"):
        p = b.load("pos_weight")
        product = ((p - 1.0).named("excess") * written_softplus(b, x)).named("product")
        curved = b.op("Where", x.equal(-math.inf).named("is_least"), 0.0, product, name="curved")
        straight = b.op("Where", x.less(0.0).named("is_negative"), p * x, x, name="straight")
        slope = (curved - straight).named("slope")
    b.store("grad_target", b.scaled(slope, scale), "target")


def infer(call: Call) -> tuple[TensorType, ...]:
    SIGNATURE.space.shape(call)
    return (TensorType(call.dtype("target"), call.shape("self")),)


def kernel(call: Call) -> Loop:
    divisor = Reduction(call.attributes["reduction"]).divisor
    if call.present("pos_weight"):
        short = has_narrow_inputs(call)
        core = gradient_of_16_bits if short else gradient
        return Loop(SIGNATURE.space, computing_type(call, light=short), core, divisor=divisor)
    return Loop(
        SIGNATURE.space,
        computing_type(call, light=True),
        gradient_without_pos_weight,
        divisor=divisor,
        core_uniform=gradient_of_scalars,
        uniform=("grad_output", "weight"),
        memory_bound=True,
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": 1.0, "self": [0.0, 2.0, -3.0], "target": [1.0, 0.0, 0.5], "weight": [1.0, 2.0, 0.5]},
        {"grad_target": [0.0, -4.0, 1.5]},
        {"reduction": int(Reduction.SUM)},
    ),
)
