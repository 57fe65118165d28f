"""BinaryCrossEntropyWithLogitsBackward: gradient of the binary cross entropy of a sigmoid by its logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.defs import OpSchema

from onnx_ops.body import Body
from onnx_ops.domain import DOMAIN, OPSET_VERSION
from onnx_ops.elementwise import Elementwise
from onnx_ops.op import Example, Op
from onnx_ops.ops._numpy import computing_dtype, rounded
from onnx_ops.roles import Reduction, Role
from onnx_ops.runtime.primitives import LAST_PARAMETER, ONE, falling_exp_parts, fma, like, wide
from onnx_ops.signature import FLOATS, Call, attribute, tensor_types

SCHEMA = OpSchema(
    "BinaryCrossEntropyWithLogitsBackward",
    DOMAIN,
    OPSET_VERSION,
    """
Gradient of the binary cross entropy of a sigmoid by its logits (aclnnBinaryCrossEntropyWithLogitsBackward).

    x = self, y = target, w = weight, p = pos_weight, s = 1 / (1 + exp(-x))
    d   = grad_output * w * ((p*y + 1 - y) * s - p*y)
    out = d              reduction 0 (none) and 2 (sum)
          d / numel(x)   reduction 1 (mean)

Shapes: target and out have self's shape; grad_output, weight and pos_weight each broadcast to it. Rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; out has target's dtype. Computed in double if an input is double,
else in float; rounded once.

Edge rules: a missing weight or pos_weight stands for ones. A target outside [0, 1] is computed like any other. No logit
overflows, and the small gradient of a logit that is right by far keeps its digits. NaN and infinities go through the
formula: an infinite target or pos_weight gives NaN. Empty inputs give an empty output.

Without a kernel: all values are computed as above; a sigmoid below the smallest normal number counts as 0, and a
grad_output so small that grad_output / n is below it loses digits. Shapes that are known only at run time are not
checked: they broadcast as the operators do.
""",
    inputs=[
        OpSchema.FormalParameter("grad_output", "TGrad", "Gradient with respect to the loss. Broadcasts to self."),
        OpSchema.FormalParameter("self", "TSelf", "Logits."),
        OpSchema.FormalParameter("target", "T", "Labels, meant to be in [0, 1]; self's shape."),
        OpSchema.FormalParameter(
            "weight",
            "TWeight",
            "Factor of each element's loss. Broadcasts to self.",
            param_option=OpSchema.FormalParameterOption.Optional,
        ),
        OpSchema.FormalParameter(
            "pos_weight",
            "TPosWeight",
            "Factor of the positive class. Broadcasts to self.",
            param_option=OpSchema.FormalParameterOption.Optional,
        ),
    ],
    outputs=[OpSchema.FormalParameter("out", "T", "Gradient by self, of its shape.")],
    type_constraints=[
        (name, tensor_types(FLOATS), "Floating types.") for name in ("TGrad", "TSelf", "T", "TWeight", "TPosWeight")
    ],
    attributes=[attribute("reduction", int(Reduction.MEAN), "0 none, 1 mean, 2 sum.")],
)

REDUCTIONS = {int(r): r.name.lower() for r in (Reduction.NONE, Reduction.MEAN, Reduction.SUM)}


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
    """The definition in NumPy.

    (p*y + 1 - y)*s - p*y is written (1 - y)*s - p*y*(1 - s), whose terms do not cancel, with 1 - s = sigmoid(-x).

    Args:
        grad_output, weight, pos_weight: floating arrays that broadcast to self; None stands for ones.
        self, target: floating arrays of one shape.
        reduction: 0 none, 1 mean, 2 sum.
        dtype: compute and answer in this dtype instead of target's.

    Returns:
        Array of self's shape.
    """
    compute = computing_dtype((grad_output, self, target, weight, pos_weight), dtype)
    one = compute.type(1)
    g, x, y = (a.astype(compute) for a in (grad_output, self, target))
    w, p = (one if a is None else a.astype(compute) for a in (weight, pos_weight))
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        e = np.exp(-np.abs(x))
        s, rest = np.where(x < 0, e, one) / (one + e), np.where(x < 0, one, e) / (one + e)
        infinite = (y - y) + (p - p)  # NaN where the formula has inf - inf, else 0
        d = g * w * ((one - y) * s - p * y * rest + infinite)
        out = d / compute.type(x.size) if reduction == Reduction.MEAN else d
    return rounded(out, target.dtype, dtype)


def kernel(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """parameters: the divisor's reciprocal, and last what that lost to rounding.

    With e = exp(-|x|), sigmoid(|x|) = 1/(1 + e) and sigmoid(-|x|) = e/(1 + e). One of the formula's two terms has
    the factor e. It is multiplied in last and in parts, so that the result keeps its digits even if e alone would be
    subnormal. What the quotient and the products before it lose to rounding is put back.
    """
    grad_output, x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3], operands[4]
    share, share_lost = parameters[0], parameters[LAST_PARAMETER]
    for i in range(count):
        y, p = target[i], pos_weight[i]
        value, first, second = falling_exp_parts(-abs(x[i]))
        e = value * first * second
        denominator = ONE + e
        side = ONE / denominator
        side = fma(side, fma(-denominator, side, ONE) - (e - (denominator - ONE)) * side, side)

        product = grad_output[i] * weight[i]
        product_lost = fma(grad_output[i], weight[i], -product)
        scale = product * share
        lost = fma(product, share, -scale) + fma(product, share_lost, product_lost * share)
        scale_of_side = fma(scale, side, lost * side)

        labelled = p * y
        positive, negative = (labelled - labelled) - labelled, ONE - y  # NaN where the formula has inf - inf
        near, far = (positive, negative) if x[i] < 0 else (negative, positive)
        small = ((scale_of_side * far) * first) * value
        result = fma(small, second, scale_of_side * near)
        # An infinite scale has made inf - inf of its loss, or of the two terms.
        out[i] = result if result == result else scale * fma(far, e, near)


def kernel_of_scalars(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """The same for a grad_output, weight and pos_weight of one value each, as a loss that is a mean has them."""
    grad_output, x, target, weight, p = operands[0][0], operands[1], operands[2], operands[3][0], operands[4][0]
    exact = (wide(grad_output) * wide(weight)) * (wide(parameters[0]) + wide(parameters[LAST_PARAMETER]))
    scale = like(exact, parameters[0])
    lost = like(exact - wide(scale), parameters[0])
    if scale - scale != 0:
        for i in range(count):
            value, first, second = falling_exp_parts(-abs(x[i]))
            labelled = p * target[i]
            positive, negative = (labelled - labelled) - labelled, ONE - target[i]
            near, far = (positive, negative) if x[i] < 0 else (negative, positive)
            out[i] = scale * fma(far, value * first * second, near)
        return
    for i in range(count):
        y = target[i]
        value, first, second = falling_exp_parts(-abs(x[i]))
        e = value * first * second
        denominator = ONE + e
        side = ONE / denominator
        side = fma(side, fma(-denominator, side, ONE) - (e - (denominator - ONE)) * side, side)
        scale_of_side = fma(scale, side, lost * side)
        labelled = p * y
        positive, negative = (labelled - labelled) - labelled, ONE - y
        near, far = (positive, negative) if x[i] < 0 else (negative, positive)
        small = ((scale_of_side * far) * first) * value
        out[i] = fma(small, second, scale_of_side * near)


def kernel_of_16_bits(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """The same without what is put back: rounding in float32 is nothing to a result of 16 bits."""
    grad_output, x, target, weight, pos_weight = operands[0], operands[1], operands[2], operands[3], operands[4]
    share = parameters[0]
    for i in range(count):
        y, logit = target[i], x[i]
        value, first, second = falling_exp_parts(-abs(logit))
        e = value * first * second
        scale = (grad_output[i] * weight[i]) * share
        scale_of_side = scale * (ONE / (ONE + e))
        labelled = pos_weight[i] * y
        positive, negative = (labelled - labelled) - labelled, ONE - y
        near, far = (positive, negative) if logit < 0 else (negative, positive)
        result = (((scale_of_side * far) * first) * value) * second + scale_of_side * near
        out[i] = result if result == result else scale * (far * e + near)


def body(b: Body) -> None:
    """(1 - y)/(1 + exp(-x)) - p*y/(1 + exp(x)): no term cancels, and an exp that is infinite gives the 0 it should.

    The operator Sigmoid of runtimes is cut off far from 0.
    """
    grad, x, y = b.load("grad_output"), b.load("self"), b.load("target")
    one = b.constant("one", 1.0)
    positive = y
    if b.has("pos_weight"):
        b.emit(f"positive = Mul ({b.load('pos_weight')}, {y})")
        positive = "positive"
    b.emit(f"negative = Sub ({one}, {y})")
    b.emit(f"zero_or_unknown = Sub ({positive}, {positive})")  # NaN where the formula has inf - inf
    b.emit(f"opposite = Sub (zero_or_unknown, {x})")
    b.emit("exp_opposite = Exp (opposite)")
    b.emit(f"negative_divisor = Add (exp_opposite, {one})")
    b.emit("negative_term = Div (negative, negative_divisor)")
    b.emit(f"exp_logit = Exp ({x})")
    b.emit(f"positive_divisor = Add (exp_logit, {one})")
    b.emit(f"positive_term = Div ({positive}, positive_divisor)")
    b.emit("difference = Sub (negative_term, positive_term)")
    if b.has("weight"):
        b.emit(f"weighted_grad = Mul ({grad}, {b.load('weight')})")
        b.store(b.scaled("difference", "weighted_grad", "grad_output", "weight"), "target")
    else:
        b.store(b.scaled("difference", grad, "grad_output"), "target")


def _check(call: Call) -> None:
    call.check_choice("reduction", REDUCTIONS)


OP = Op(
    SCHEMA,
    Elementwise(
        roles={
            "grad_output": Role.INTO,
            "self": Role.SHAPE,
            "target": Role.SAME,
            "weight": Role.INTO,
            "pos_weight": Role.INTO,
        },
        core=lambda attributes: kernel,
        core_narrow=kernel_of_16_bits,
        core_uniform=kernel_of_scalars,
        uniform=("grad_output", "weight", "pos_weight"),
        output_dtype="target",
        divisor=lambda attributes: Reduction(attributes["reduction"]).divisor,
        check=_check,
    ),
    reference,
    body,
    Example(
        # logits of probability 1/2, 3/4, 1/4
        {"grad_output": 1.0, "self": [0.0, math.log(3), -math.log(3)], "target": [1.0, 0.0, 1.0]},
        [-1 / 6, 1 / 4, -1 / 4],
    ),
)
