"""KlDiv: the Kullback-Leibler divergence loss."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.bodies.losses import loss_of
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Loop
from onnx_ops.ops.kl_div import _divergence
from onnx_ops.ops.kl_div._bodies import by_log_target
from onnx_ops.ops.kl_div._rules import CHOICES, attributes, check_attributes, exponential
from onnx_ops.ops.losses import LossCores, loss_kernel, loss_type
from onnx_ops.ops.references import Scaled, reduced, rounded

SIGNATURE = Signature(
    "KlDiv",
    """
Kullback-Leibler divergence loss. KlDivBackward is its gradient with respect to `self`, KlDivTargetBackward with respect
to `target`.

    S   = broadcast(self, target)
    l   = target * (log(target) - self)   if log_target is 0,      over S
          exp(target) * (target - self)   if log_target is 1
    out = l                 reduction 0 (none)
          sum(l) / numel(S) reduction 1 (mean)
          sum(l)            reduction 2 (sum)
          sum(l) / S[0]     reduction 3 (batchmean); a scalar counts as a batch of 1

Shapes: `self` and `target` broadcast to S, rank 0 to 8. `out` has shape S with `reduction` 0, else it is a scalar.

Dtypes: each input float16, bfloat16, float or double; `out` has the dtype of `self`. Sums are accumulated in double and
rounded once.

Edge rules: a `target` of weight 0, which is 0, or -inf with `log_target` 1, contributes 0 for any `self`, infinite and
NaN included. A negative `target` gives NaN. The sum of no terms is 0, their mean is NaN. `exp(target)` is 0 or
infinite beyond the square of double's range. Other NaN and infinities propagate as in the formula.

Without a kernel: as above, except that `exp(target)` is 0 or infinite beyond the range of double. Shapes known only at
run time are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("self", "Log-probabilities to compare with `target`.", Role.SHAPE),
        Input("target", "Target probabilities, or their logarithms.", Role.SHAPE),
    ),
    outputs=(Output("out", "The loss: a scalar, or of shape S with `reduction` 0.", "self"),),
    attributes=attributes(),
    choices=CHOICES,
)


def reference(
    self: np.ndarray,
    target: np.ndarray,
    *,
    reduction: int = Reduction.MEAN,
    log_target: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64.

    Args:
        self, target: floating arrays that broadcast to S.
        reduction: 0 none, 1 mean, 2 sum, 3 batchmean.
        log_target: 1 if target holds log-probabilities.
        dtype: dtype of the result instead of self's.

    Returns:
        Array of shape S with reduction 0, else a scalar.
    """
    x, q = np.broadcast_arrays(self.astype(np.float64), target.astype(np.float64))
    with np.errstate(all="ignore"):
        if log_target:
            terms = np.where(q == -np.inf, 0.0, (exponential(q) * Scaled(q - x)).value())
        else:
            terms = np.where(q == 0, 0.0, q * (np.log(q) - x))
    return rounded(reduced(terms, reduction), self.dtype, dtype)


def body(b: Body) -> None:
    b.widen()
    x, q = b.load("self"), b.load("target")
    probability = b.op("Exp", q, name="probability")
    weight = by_log_target(b, q, probability, "weight")
    logarithm = by_log_target(b, b.op("Log", q, name="target_log"), q, "logarithm")
    nothing = by_log_target(b, b.constant(0.0), b.constant(-math.inf), "nothing")
    products = (weight * (logarithm - x).named("difference")).named("products")
    b.store("out", loss_of(b, b.op("Where", q.equal(nothing).named("is_nothing"), 0.0, products, name="terms")), "self")


def infer(call: Call) -> tuple[TensorType, ...]:
    space = SIGNATURE.space.shape(call)
    check_attributes(call)
    return (loss_type(call, call.dtype("self"), space),)


CORES = LossCores(
    _divergence.divergence,
    _divergence.float32_divergence,
    _divergence.total_divergence,
    _divergence.total_of_float32_terms,
    is_float32=True,
)
CORES_OF_LOGARITHMS = LossCores(
    _divergence.divergence_of_logarithms,
    _divergence.float32_divergence_of_logarithms,
    _divergence.total_divergence_of_logarithms,
    _divergence.total_of_float32_terms_of_logarithms,
    is_float32=True,
)


def kernel(call: Call) -> Loop:
    return loss_kernel(call, SIGNATURE.space, CORES_OF_LOGARITHMS if call.attributes["log_target"] else CORES)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        # logarithms of halves, in a batch of 2
        {"self": [[-math.log(2), -math.log(2)]] * 2, "target": [[0.5, 0.5], [1.0, 0.0]]},
        {"out": math.log(2) / 2},
        {"reduction": int(Reduction.BATCHMEAN)},
    ),
)
