"""KlDivBackward: gradient of the Kullback-Leibler divergence loss with respect to its (log-probability) input."""

from __future__ import annotations

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
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Core, Kept, Loop, Operands, Sums
from onnx_ops.loops.primitives import (
    LAST_PARAMETER,
    Array,
    Number,
    exp_approx,
    exp_excess_parts,
    exp_of_float32,
    exp_parts,
    fma,
    inlined,
    like,
    wide,
)
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.elementwise import SHARE, elementwise, exact_share
from onnx_ops.ops.extremes import BLOCK, EXP_LIMIT, INFINITE
from onnx_ops.ops.kl_div._bodies import covers
from onnx_ops.ops.kl_div._rules import CHOICES, LEAST, attributes, check_attributes
from onnx_ops.ops.references import Scaled, divisor, rounded, sum_to

SIGNATURE = Signature(
    "KlDivBackward",
    """
Gradient of the Kullback-Leibler divergence loss with respect to its input (aclnnKlDivBackward).

    S   = broadcast(self, target)
    d   = -target * grad_output       if log_target is 0,      over S
          -exp(target) * grad_output  if log_target is 1
    out = d              reduction 0 (none) and 2 (sum)
          d / numel(S)   reduction 1 (mean)
          d / S[0]       reduction 3 (batchmean); a scalar counts as a batch of 1

`out` is then summed over the axes along which `self` was broadcast.

Shapes: `self` and `target` broadcast to S, `grad_output` broadcasts to S; `out` has the shape of `self`. Rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; `out` has the dtype of `self`. Computed in double if an input is
double or if terms are summed, else in float; rounded once.

Edge rules: of `self` only the shape is used. A `target` of 0 or below is no special case. NaN and infinities propagate
as in the formula. Empty inputs give an empty output; the sum of no terms is 0. With `log_target` 1 a mean loses
precision where `grad_output * exp(target / 2) / n` is below `2**-126` (float) or `2**-1022` (double).

Without a kernel: as above, except that `exp(target)` may be 0 below the smallest normal number and is infinite above
the largest number, and that precision is lost where `grad_output / n` is below the smallest normal number. Shapes known
only at run time are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_output", "Gradient with respect to the loss. Broadcasts to S.", Role.INTO),
        Input("self", "Input of the loss; only its shape and dtype are used.", Role.SHAPE | Role.UNREAD),
        Input("target", "Target probabilities, or their logarithms.", Role.SHAPE),
    ),
    outputs=(Output("out", "Gradient with respect to `self`, of its shape.", "self"),),
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
        dtype: dtype of the result instead of self's.

    Returns:
        Array of self's shape.
    """
    space = np.broadcast_shapes(self.shape, target.shape)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        q = target.astype(np.float64)
        share = Scaled(1 / np.float64(divisor(reduction, space)))
        d = Scaled(np.exp(q) if log_target else q) * Scaled(-grad_output.astype(np.float64)) * share
        out = sum_to(np.broadcast_to(d.value(), space), self.shape)
    return rounded(out, self.dtype, dtype)


@elementwise(0, 2, parameters=(0,))
def product(g: Number, q: Number, share: Number) -> Number:
    """-target * grad_output * share; scales the larger factor first, so that no product under- or overflows alone."""
    larger, smaller = (q, g) if abs(q) > abs(g) else (g, q)
    return -(larger * share) * smaller


def product_with_one_gradient(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`product` for a scalar grad_output."""
    grad_output, target = operands[0][0], operands[2]
    scale = -grad_output * parameters[0]
    if abs(scale) < LEAST:
        for i in range(count):
            q = target[i]
            larger, smaller = (q, grad_output) if abs(q) > abs(grad_output) else (grad_output, q)
            out[i] = -(larger * parameters[0]) * smaller
        return
    for i in range(count):
        out[i] = target[i] * scale


@inlined
def exact_product(g: Number, q: Number, share: Number, lost: Number) -> Number:
    """-exp(target) * grad_output * share in float64."""
    return (wide(g) * -exact_share(share, lost)) * exp_of_float32(q)


@elementwise(0, 2, parameters=SHARE, exact=exact_product)
def product_of_logarithms(g: Number, q: Number, share: Number, lost: Number) -> tuple[Number, bool]:
    """-exp(target) * grad_output * share in float32."""
    scale = g * -share
    excess, power = exp_excess_parts(q)
    result = fma(scale * power, excess, scale * power)
    small = (abs(scale) < LEAST) & (g != 0)
    return result, (not abs(q) < EXP_LIMIT) | small | (not abs(result) < INFINITE)


def product_of_logarithms_with_one_gradient(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`product_of_logarithms` for a scalar grad_output."""
    grad_output, target = operands[0][0], operands[2]
    share = wide(parameters[0]) + wide(parameters[LAST_PARAMETER])
    scale = like(-wide(grad_output) * share, parameters[0])
    small = abs(scale) < LEAST and grad_output != 0
    for start in range(0, count, BLOCK):
        stop, extreme = min(start + BLOCK, count), small
        for i in range(start, stop):
            q = target[i]
            excess, power = exp_excess_parts(q)
            result = fma(scale * power, excess, scale * power)
            out[i] = result
            extreme = extreme | (not abs(q) < EXP_LIMIT) | (not abs(result) < INFINITE)
        if extreme:
            for i in range(start, stop):
                out[i] = exact_product(grad_output, target[i], parameters[0], parameters[LAST_PARAMETER])


@elementwise(0, 2, parameters=SHARE, exact=exact_product)
def product_of_logarithms_in_16_bits(g: Number, q: Number, share: Number, lost: Number) -> tuple[Number, bool]:
    """`product_of_logarithms` for 16-bit results."""
    scale = g * -share
    return scale * exp_approx(q), (not abs(q) < EXP_LIMIT) | ((abs(scale) < LEAST) & (g != 0))


def product_of_logarithms_with_one_gradient_in_16_bits(
    operands: Operands, out: Array, count: int, parameters: Array
) -> None:
    grad_output, target = operands[0][0], operands[2]
    scale = -grad_output * parameters[0]
    small = abs(scale) < LEAST and grad_output != 0
    for start in range(0, count, BLOCK):
        stop, extreme = min(start + BLOCK, count), small
        for i in range(start, stop):
            q = target[i]
            out[i] = scale * exp_approx(q)
            extreme = extreme | (not abs(q) < EXP_LIMIT)
        if extreme:
            for i in range(start, stop):
                out[i] = exact_product(grad_output, target[i], parameters[0], parameters[LAST_PARAMETER])


@elementwise(0, 2, parameters=(0,))
def double_product_of_logarithms(g: Number, q: Number, share: Number) -> Number:
    """-exp(target) * grad_output * share in float64, where exp(target) alone may over- or underflow."""
    value, first, second = exp_parts(wide(q))
    return -((wide(g) * first) * share) * (value * second)


def body(b: Body) -> None:
    """Sums over broadcast axes only where `self` may be broadcast; decided at run time if shapes are unknown."""

    def terms() -> Value:
        """d, if self and target have the same shape."""
        return _terms(b, b.load("target"))

    def broadcast_terms() -> Value:
        return _terms(b, _over_space(b, b.load("target"), self_shape))

    def sums() -> Value:
        return sum_to_input(b, broadcast_terms(), "self")

    self_shape = b.op("Shape", b.inputs["self"], name="self_shape")
    if all(covers(c, "self", "target") for c in b.calls):
        alike = all(c.shape("target") == c.shape("self") for c in b.calls)
        result = terms() if alike else broadcast_terms()
    elif any(map(_may_be_alike, b.calls)):
        result = b.either(_are_alike(b, self_shape), terms, sums)
    else:
        b.widen()
        result = sums()
    b.store("out", result, "self")


def _are_alike(b: Body, self_shape: Value) -> Value:
    """Whether self and target have the same shape."""

    def row(name: str, shape: Value) -> Value:
        """A shape, padded to a fixed length so that shapes of different ranks can be compared."""
        axes = b.op("Concat", shape, [-1] * MAX_RANK, name=f"{name}_axes", axis=0)
        return b.op("Slice", axes, [0], [MAX_RANK], name=f"{name}_row")

    target_shape = b.op("Shape", b.inputs["target"], name="target_shape")
    same_axes = row("self", self_shape).equal(row("target", target_shape)).named("same_axes")
    same_numbers = same_axes.cast(TensorProto.INT32).named("same_numbers")
    all_same = b.op("ReduceMin", same_numbers, name="all_same", keepdims=0)
    return all_same.cast(TensorProto.BOOL).named("are_alike")


def _over_space(b: Body, target: Value, self_shape: Value) -> Value:
    """The target, broadcast to S."""
    if any(0 in (c.shape("self") or ()) for c in b.calls):
        # onnxruntime removes an Expand to 0 elements.
        everywhere = b.op("ConstantOfShape", self_shape, name="everywhere", value=b.array([True]))
        return b.op("Where", everywhere, target, target, name="target_over_space")
    return b.op("Expand", target, self_shape, name="target_over_space")


def _terms(b: Body, target: Value) -> Value:
    # grad_output is a scalar in most models, so negating it is cheaper than negating the terms.
    minus_grad = (-b.load("grad_output")).named("minus_grad")
    log_target = b.attribute("log_target")
    if log_target == 0:
        return b.scaled(target, minus_grad)
    weight = b.op("Exp", target, name="weight")
    if log_target is None:
        is_logarithm = b.value_of("log_target").cast(TensorProto.BOOL).named("is_logarithm")
        weight = b.op("Where", is_logarithm, weight, target, name="weight_or_target")
    return b.scaled(weight, minus_grad)


def _may_be_alike(call: Call) -> bool:
    """Whether self and target may have the same shape."""
    own, target = call.shape("self"), call.shape("target")
    if own is None or target is None:
        return True
    pairs = zip(own, target, strict=False)
    return len(own) == len(target) and all(x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in pairs)


def infer(call: Call) -> tuple[TensorType, ...]:
    SIGNATURE.space.shape(call)
    check_attributes(call)
    return (TensorType(call.dtype("self"), call.shape("self")),)


def kernel(call: Call) -> Loop:
    logarithms = bool(call.attributes["log_target"])
    compute = computing_type(call, light=True)
    core: Core = product
    core_uniform: Core | None = product_with_one_gradient
    summed: Core = product
    if logarithms:
        core = summed = double_product_of_logarithms
        core_uniform = None
        if compute == TensorProto.FLOAT:
            core, core_uniform = product_of_logarithms, product_of_logarithms_with_one_gradient
        elif compute != TensorProto.DOUBLE:
            core = product_of_logarithms_in_16_bits
            core_uniform = product_of_logarithms_with_one_gradient_in_16_bits
    return Loop(
        SIGNATURE.space,
        compute,
        core,
        Sums(summed, TensorProto.DOUBLE, Kept.LIKE_INPUT, like="self"),
        Reduction(call.attributes["reduction"]).divisor,
        core_uniform=core_uniform,
        uniform=("grad_output",),
        memory_bound=not logarithms,
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": 1.0, "self": [[-1.0, -2.0], [-1.0, -3.0]], "target": [[0.25, 0.75], [0.5, 0.5]]},
        {"out": [[-0.125, -0.375], [-0.25, -0.25]]},
        {"reduction": int(Reduction.BATCHMEAN)},
    ),
)
