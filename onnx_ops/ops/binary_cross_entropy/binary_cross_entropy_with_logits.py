"""BinaryCrossEntropyWithLogits: binary cross entropy of sigmoid(logits)."""

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
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Loop
from onnx_ops.ops.binary_cross_entropy import _loss
from onnx_ops.ops.binary_cross_entropy._bodies import written_softplus
from onnx_ops.ops.binary_cross_entropy._rules import LABELS, LOGITS, REDUCTIONS, WEIGHTS
from onnx_ops.ops.losses import (
    LossCores,
    has_narrow_inputs,
    loss_kernel,
    loss_type,
    reduction_attribute,
    reduction_choices,
)
from onnx_ops.ops.references import reduced, rounded

SIGNATURE = Signature(
    "BinaryCrossEntropyWithLogits",
    """
Binary cross entropy of sigmoid(logits). BinaryCrossEntropyWithLogitsBackward is its gradient with respect to `self`,
BinaryCrossEntropyWithLogitsTargetBackward with respect to `target`.

    x = self, y = target, w = weight, p = pos_weight
    softplus(x) = log(1 + exp(x)), computed as log1p(exp(-|x|)) + max(x, 0)
    l   = w * ((1 - y) * softplus(x) + p * y * softplus(-x))
    out = l                  reduction 0 (none)
          sum(l) / numel(x)  reduction 1 (mean)
          sum(l)             reduction 2 (sum)

Shapes: `target` has the shape of `self`; `weight` and `pos_weight` broadcast to it. Rank 0 to 8. `out` has the shape of
`self` with `reduction` 0, else it is a scalar.

Dtypes: each input float16, bfloat16, float or double; `out` has the dtype of `target`. Computed in double, or in float
if all inputs have 16 bits, and rounded once. Sums are accumulated in double.

Edge rules: an omitted `weight` or `pos_weight` is 1. A `target` outside [0, 1] is no special case. No logit overflows,
and the small loss of a confident correct logit keeps its relative precision. Where a factor `1 - y`, `p*y` or w is 0,
the term is 0 for any logit, infinite and NaN included; so an infinite correct logit has loss 0. Other NaN and
infinities propagate as in the formula. In double, `softplus(x)` or its product with `1 - y` or `p*y` may overflow to
infinity, or underflow, even if its product with w would not. The sum of no terms is 0, their mean is NaN.

Without a kernel: the results are the same up to the last place. Shapes known only at run time are not checked; they
broadcast as in ONNX operators.
""",
    inputs=(LOGITS, LABELS, *WEIGHTS),
    outputs=(Output("out", "The loss: a scalar, or the shape of `self` with `reduction` 0.", "target"),),
    attributes=(reduction_attribute(REDUCTIONS),),
    choices={"reduction": reduction_choices(REDUCTIONS)},
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
    """NumPy definition, computed in float64.

    Args:
        self, target: floating arrays of one shape.
        weight, pos_weight: floating arrays that broadcast to self; default 1.
        reduction: 0 none, 1 mean, 2 sum.
        dtype: dtype of the result instead of target's.

    Returns:
        Array of self's shape with reduction 0, else a scalar.
    """
    x, y = self.astype(np.float64), target.astype(np.float64)
    w, p = (np.ones(()) if a is None else a.astype(np.float64) for a in (weight, pos_weight))
    with np.errstate(all="ignore"):
        curved = np.log1p(np.exp(-np.abs(x)))
        terms = _weighted(1 - y, curved + np.maximum(x, 0)) + _weighted(p * y, curved + np.maximum(-x, 0))
        terms = np.asarray(_weighted(w, terms))
    return rounded(reduced(terms, reduction), target.dtype, dtype)


def _weighted(weight: np.ndarray, term: np.ndarray) -> np.ndarray:
    """weight * term; 0 where the weight is 0."""
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
    """weight * term; 0 where the weight is 0."""
    return b.op("Where", weight.equal(0.0).named(f"{name}_is_nothing"), 0.0, weight * term, name=name)


MOST_WEIGHT: dict[int | None, float] = {TensorProto.FLOAT16: 2.0**100, TensorProto.BFLOAT16: 8.0}
"""Bound of weights by dtype of the result, below which float32 underflow is negligible in the result."""


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = SIGNATURE.space.shape(call)
    return (loss_type(call, call.dtype("target"), shape),)


CORES = LossCores(_loss.terms, _loss.float32_terms, _loss.total_of_terms, _loss.total_of_float32_terms)
WEIGHTED_CORES = LossCores(
    _loss.weighted_terms,
    _loss.float32_weighted_terms,
    _loss.total_of_weighted_terms,
    _loss.total_of_float32_weighted_terms,
)


def kernel(call: Call) -> Loop:
    weighted = call.present("weight") or call.present("pos_weight")
    parameters = (MOST_WEIGHT[call.dtype("target")],) if has_narrow_inputs(call) else ()
    return loss_kernel(call, SIGNATURE.space, WEIGHTED_CORES if weighted else CORES, parameters)


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
