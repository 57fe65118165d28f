"""KlDivTargetBackward: gradient of the Kullback-Leibler divergence loss with respect to its target."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.bodies.broadcasting import sum_to_input
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import TensorType
from onnx_ops.loops.loop import Core, Kept, Loop, Operands, Sums
from onnx_ops.loops.primitives import (
    LAST_PARAMETER,
    ONE,
    Array,
    Number,
    choose,
    exp_excess_parts,
    exp_parts,
    fma,
    inlined,
    like,
    log,
    log_float32,
    log_float32_normal,
    wide,
)
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import SHARE, elementwise, exact_share
from onnx_ops.ops.extremes import BLOCK, EXP_LIMIT, INFINITE, LEAST_NORMAL
from onnx_ops.ops.kl_div._bodies import by_log_target, covers
from onnx_ops.ops.kl_div._rules import CHOICES, LARGE, LEAST, attributes, check_attributes, exponential
from onnx_ops.ops.references import Scaled, divisor, rounded, sum_to

SIGNATURE = Signature(
    "KlDivTargetBackward",
    """
Gradient of the Kullback-Leibler divergence loss, KlDiv, with respect to its target.

    S           = broadcast(self, target)
    d           = grad_output * (log(target) - self + 1)           if log_target is 0,      over S
                  grad_output * exp(target) * (target - self + 1)  if log_target is 1
    grad_target = d              reduction 0 (none) and 2 (sum)
                  d / numel(S)   reduction 1 (mean)
                  d / S[0]       reduction 3 (batchmean); a scalar counts as a batch of 1

`grad_target` is then summed over the axes along which `target` was broadcast.

Shapes: `self` and `target` broadcast to S, `grad_output` broadcasts to S; `grad_target` has the shape of `target`. Rank
0 to 8.

Dtypes: each input float16, bfloat16, float or double; `grad_target` has the dtype of `target`. Computed in double if an
input is double or if terms are summed, else in float.

Edge rules: a `target` of 0 gives `-inf * grad_output` and a negative one NaN, as in the formula; with `log_target` 1, a
`target` of -inf gives 0. Other NaN and infinities propagate as in the formula. Empty inputs give an empty output; the
sum of no terms is 0. `exp(target)` is 0 or infinite beyond the square of double's range. In double, the product
`grad_output * (target - self + 1) / n` may overflow or underflow even if its product with `exp(target)` would not.

Without a kernel: as above, except that `exp(target)` is 0 or infinite beyond the range of double. Shapes known only at
run time are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the loss. Broadcasts to S.", Role.INTO),
        Input("self", "Input of the loss: log-probabilities.", Role.SHAPE),
        Input("target", "Target probabilities, or their logarithms.", Role.SHAPE),
    ),
    outputs=(Output("grad_target", "Gradient with respect to `target`, of its shape.", "target"),),
    attributes=attributes(),
    choices=CHOICES,
)


def reference(
    grad_output: np.ndarray,
    self: np.ndarray,
    target: np.ndarray,
    *,
    reduction: int = Reduction.MEAN,
    log_target: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64; no intermediate product overflows or underflows.

    Args:
        grad_output, self, target: floating arrays; self and target broadcast to S, grad_output to S.
        reduction: 0 none, 1 mean, 2 sum, 3 batchmean.
        log_target: 1 if target holds log-probabilities.
        dtype: dtype of the result instead of target's.

    Returns:
        Array of target's shape.
    """
    x, q = np.broadcast_arrays(self.astype(np.float64), target.astype(np.float64))
    with np.errstate(all="ignore"):
        scale = Scaled(grad_output.astype(np.float64)) * Scaled(1 / np.float64(divisor(reduction, x.shape)))
        if log_target:
            terms = np.where(q == -np.inf, 0.0, (scale * exponential(q) * Scaled(q - x + 1)).value())
        else:
            terms = (scale * Scaled(np.log(q) - x + 1)).value()
        return rounded(sum_to(terms, target.shape), target.dtype, dtype)


@elementwise(0, 1, 2, parameters=SHARE)
def gradient(g: Number, x: Number, q: Number, share: Number, lost: Number) -> Number:
    """grad_output * share * (log(target) - self + 1) in float64."""
    return (wide(g) * exact_share(share, lost)) * ((log(q) - wide(x)) + 1.0)


@elementwise(0, 1, 2, parameters=SHARE)
def float32_gradient(g: Number, x: Number, q: Number, share: Number, lost: Number) -> Number:
    """`gradient` with logarithms in float32, for terms that are not summed."""
    return (wide(g) * exact_share(share, lost)) * wide((log_float32(q) - x) + ONE)


def float32_gradient_with_one_gradient(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`float32_gradient` for a scalar grad_output."""
    grad_output, x, target = operands[0][0], operands[1], operands[2]
    exact = wide(grad_output) * (wide(parameters[0]) + wide(parameters[LAST_PARAMETER]))
    scale = like(exact, parameters[0])
    moderate = LEAST < abs(scale) < LARGE
    for start in range(0, count, BLOCK):
        stop, extreme = min(start + BLOCK, count), not moderate
        for i in range(start, stop):
            q = target[i]
            out[i] = scale * ((log_float32_normal(q) - x[i]) + ONE)
            extreme = extreme | (not q >= LEAST_NORMAL) | (not q < INFINITE)
        if extreme:
            for i in range(start, stop):
                out[i] = exact * wide((log_float32(target[i]) - x[i]) + ONE)


@inlined
def slope_times_exp(scale: Number, x: Number, q: Number) -> Number:
    """scale * exp(q) * (q - x + 1) in float64."""
    value, first, second = exp_parts(wide(q))
    product = (((scale * ((wide(q) - wide(x)) + 1.0)) * first) * value) * second
    return choose(q != -math.inf, product, 0.0)


@elementwise(0, 1, 2, parameters=SHARE)
def gradient_of_logarithms(g: Number, x: Number, q: Number, share: Number, lost: Number) -> Number:
    """`gradient` for log-probabilities."""
    return slope_times_exp(wide(g) * exact_share(share, lost), x, q)


def float32_gradient_of_logarithms(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`gradient_of_logarithms` in float32, in float64 for blocks with an element out of range."""
    grad_output, x, target = operands[0], operands[1], operands[2]
    share = wide(parameters[0]) + wide(parameters[LAST_PARAMETER])
    for start in range(0, count, BLOCK):
        stop, extreme = min(start + BLOCK, count), False
        for i in range(start, stop):
            q, scale = target[i], grad_output[i] * parameters[0]
            excess, power = exp_excess_parts(q)
            product = scale * ((q - x[i]) + ONE)
            out[i] = fma(product * power, excess, product * power)
            small = (abs(scale) < LEAST) & (scale != 0)
            extreme = extreme | small | (not abs(q) < EXP_LIMIT) | (not abs(product) < LARGE)
        if extreme:
            for i in range(start, stop):
                out[i] = slope_times_exp(wide(grad_output[i]) * share, x[i], target[i])


def body(b: Body) -> None:
    b.widen()
    x, q = b.load("self"), b.load("target")
    probability = b.op("Exp", q, name="probability")
    logarithm = by_log_target(b, b.op("Log", q, name="target_log"), q, "logarithm")
    slope = ((logarithm - x).named("difference") + 1.0).named("slope")
    terms = b.scaled(slope, b.load("grad_output"))
    weighted = (terms * probability).named("weighted")
    of_logarithms = b.op("Where", q.equal(-math.inf).named("is_nothing"), 0.0, weighted, name="terms_of_logarithms")
    terms = by_log_target(b, terms, of_logarithms, "terms")
    is_whole = all(covers(c, "target", "self") for c in b.calls)
    b.store("grad_target", terms if is_whole else sum_to_input(b, terms, "target"), "target")


def infer(call: Call) -> tuple[TensorType, ...]:
    SIGNATURE.space.shape(call)
    check_attributes(call)
    return (TensorType(call.dtype("target"), call.shape("target")),)


def kernel(call: Call) -> Loop:
    compute = computing_type(call, light=True)
    core_uniform: Core | None = None
    in_double = compute == TensorProto.DOUBLE
    if call.attributes["log_target"]:
        summed: Core = gradient_of_logarithms
        core: Core = summed if in_double else float32_gradient_of_logarithms
    else:
        summed = gradient
        core = gradient if in_double else float32_gradient
        core_uniform = None if in_double else float32_gradient_with_one_gradient
    return Loop(
        SIGNATURE.space,
        compute,
        core,
        Sums(summed, TensorProto.DOUBLE if in_double else TensorProto.FLOAT, Kept.LIKE_INPUT, like="target"),
        Reduction(call.attributes["reduction"]).divisor,
        core_uniform=core_uniform,
        uniform=("grad_output",),
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": 2.0, "self": [[0.0, -1.0], [-2.0, 1.0]], "target": [[1.0, 1.0], [1.0, 1.0]]},
        {"grad_target": [[1.0, 2.0], [3.0, 0.0]]},
        {"reduction": int(Reduction.BATCHMEAN)},
    ),
)
