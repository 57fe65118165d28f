"""BinaryCrossEntropyWithLogits: the binary cross entropy of a sigmoid."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.bodies.losses import loss_of
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.signature import Output, Signature
from onnx_ops.core.types import NARROW, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Core, Kept, Loop, Sums
from onnx_ops.ops.binary_cross_entropy import _loss
from onnx_ops.ops.binary_cross_entropy._bodies import written_softplus
from onnx_ops.ops.binary_cross_entropy._rules import LABELS, LOGITS, WEIGHTS, check_reduction, reduction_attribute
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import reduced, rounded

SIGNATURE = Signature(
    "BinaryCrossEntropyWithLogits",
    """
Binary cross entropy of a sigmoid, as a loss of its logits. Its gradient by self is
BinaryCrossEntropyWithLogitsBackward, and by target BinaryCrossEntropyWithLogitsTargetBackward.

    x = self, y = target, w = weight, p = pos_weight
    softplus(x) = log(1 + exp(x)), computed as log1p(exp(-|x|)) + max(x, 0)
    l   = w * ((1 - y) * softplus(x) + p * y * softplus(-x))
    out = l                  reduction 0 (none)
          sum(l) / numel(x)  reduction 1 (mean)
          sum(l)             reduction 2 (sum)

Shapes: target has self's shape; weight and pos_weight each broadcast to it. Rank 0 to 8. out has self's shape with
reduction 0, else it is a scalar.

Dtypes: each input float16, bfloat16, float or double; out has target's dtype. Computed in double, or in float if all
inputs have 16 bits, and rounded once. Sums are taken in double.

Edge rules: a missing weight or pos_weight stands for ones. A target outside [0, 1] is computed like any other. No logit
overflows, and the small loss of a logit that is right by far keeps its digits. A term of weight 0 is 0 whatever the
logit is: where 1 - y, p * y or w is 0, the softplus that it would multiply does not count, be it infinite or NaN. So an
infinite logit that is right has loss 0. Other NaN and infinities go through the formula. In double a softplus, or its
product with 1 - y or p * y, that overflows on the way gives infinity, and below the smallest normal number it loses
digits or vanishes, though w would bring it back. A sum of no terms is 0, a mean of no terms is NaN.

Without a kernel: the results are the same, up to the last place. Shapes that are known only at run time are not
checked: they broadcast as the operators do.
""",
    inputs=(LOGITS, LABELS, *WEIGHTS),
    outputs=(Output("out", "The loss: a scalar, or of self's shape with reduction 0.", "target"),),
    attributes=(reduction_attribute(),),
)


def reference(
    self: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None = None,
    pos_weight: np.ndarray | None = None,
    *,
    reduction: int = Reduction.MEAN,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """The definition in NumPy, computed in float64.

    Args:
        self, target: floating arrays of one shape.
        weight, pos_weight: floating arrays that broadcast to self; None stands for ones.
        reduction: 0 none, 1 mean, 2 sum.
        dtype: answer in this dtype instead of target's.

    Returns:
        Array of self's shape with reduction 0, else of no dimensions.
    """
    x, y = self.astype(np.float64), target.astype(np.float64)
    w, p = (np.ones(()) if a is None else a.astype(np.float64) for a in (weight, pos_weight))
    with np.errstate(all="ignore"):
        curved = np.log1p(np.exp(-np.abs(x)))
        terms = _weighted(1 - y, curved + np.maximum(x, 0)) + _weighted(p * y, curved + np.maximum(-x, 0))
        terms = np.asarray(_weighted(w, terms))
    return rounded(reduced(terms, reduction, x.size if reduction == Reduction.MEAN else 1), target.dtype, dtype)


def _weighted(weight: np.ndarray, term: np.ndarray) -> np.ndarray:
    """A term times its weight; 0 where that is 0."""
    return np.where(weight == 0, 0.0, weight * term)


def body(b: Body) -> None:
    b.widen()
    x, y = b.load("self"), b.load("target")
    curved = written_softplus(b, x)
    positive = (y * b.load("pos_weight")).named("positive") if b.has("pos_weight") else y

    def term(weight: Value, power: Value, name: str) -> Value:
        softplus = (curved + b.op("Max", power, 0.0, name=f"{name}_part")).named(f"softplus_of_{name}")
        return _without_nothing(b, weight, softplus, f"{name}_term")

    terms = (term((1.0 - y).named("negative"), x, "logit") + term(positive, -x, "opposite")).named("terms")
    if b.has("weight"):
        terms = _without_nothing(b, b.load("weight"), terms, "weighted_terms")
    b.store("out", loss_of(b, terms), "target")


def _without_nothing(b: Body, weight: Value, term: Value, name: str) -> Value:
    """A term times its weight; 0 where that is 0."""
    return b.op("Where", weight.equal(0.0).named(f"{name}_is_nothing"), 0.0, weight * term, name=name)


MOST_WEIGHT: dict[int | None, float] = {TensorProto.FLOAT16: 2.0**100, TensorProto.BFLOAT16: 8.0}
"""By dtype of the result: times this or less, what a float32 product loses where it is subnormal is lost anyway."""


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = SIGNATURE.space.shape(call)
    check_reduction(call)
    return (TensorType(call.dtype("target"), shape if call.attributes["reduction"] == Reduction.NONE else ()),)


def kernel(call: Call) -> Loop:
    reduction = Reduction(call.attributes["reduction"])
    given = [call.dtype(name) for name in call.inputs if call.present(name)]
    short, weighted = all(dtype in NARROW for dtype in given), len(given) > 2
    compute = computing_type(call, light=short)
    parameters = (MOST_WEIGHT[call.dtype("target")],) if short else ()
    core = _loss.weighted_terms if weighted else _loss.terms
    if reduction is Reduction.NONE:
        if short:
            core = _loss.short_weighted_terms if weighted else _loss.short_terms
        return Loop(SIGNATURE.space, compute, core, parameters=parameters)
    # Terms that are added up in any order are good to the last place of float32, but not of double.
    if short:
        total: Core | None = _loss.total_of_short_weighted_terms if weighted else _loss.total_of_short_terms
    elif compute != TensorProto.DOUBLE:
        total = _loss.total_of_weighted_terms if weighted else _loss.total_of_terms
    else:
        total = None
    sums = Sums(core, compute, Kept.NOTHING, totals=total, divided=True)
    return Loop(SIGNATURE.space, compute, sums=sums, divisor=reduction.divisor, parameters=parameters)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # logits of probability 1/2, 3/4, 1/4
        {"self": [0.0, math.log(3), -math.log(3)], "target": [1.0, 0.0, 1.0]},
        {"out": [math.log(2), math.log(4), math.log(4)]},
        {"reduction": int(Reduction.NONE)},
    ),
)
