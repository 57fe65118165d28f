"""KlDivBackward: gradient of the Kullback-Leibler divergence loss by its (log-probability) input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.op import Example, Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.schema import attribute, tensor_types
from onnx_ops.core.types import FLOATS, MAX_RANK, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Kept, Loop, Sums
from onnx_ops.loops.primitives import exp_parts, like, wide
from onnx_ops.loops.space import IndexSpace, Role
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import Scaled, rounded

SCHEMA = OpSchema(
    "KlDivBackward",
    DOMAIN,
    OPSET_VERSION,
    """
Gradient of the Kullback-Leibler divergence loss by its input (aclnnKlDivBackward).

    S   = broadcast(self, target)
    d   = -target * grad_output       if log_target is 0,      over S
          -exp(target) * grad_output  if log_target is 1
    out = d              reduction 0 (none) and 2 (sum)
          d / numel(S)   reduction 1 (mean)
          d / S[0]       reduction 3 (batchmean); a scalar counts as a batch of 1

Then out is summed over the axes along which self was broadcast.

Shapes: self and target broadcast with each other to S, grad_output broadcasts to S; out has self's shape. Rank 0 to 8.

Dtypes: each input float16, bfloat16, float or double; out has self's dtype. Computed in double if an input is double or
if terms are summed, else in float; rounded once.

Edge rules: self sets shapes only, its values do not enter. A target of 0 or below has no special case. NaN and
infinities go through the formula. Empty inputs give an empty output, a sum of no terms gives 0. With log_target = 1 a
mean loses digits where grad_output * exp(target / 2) / n is below the smallest normal number.

Without a kernel: all values are computed as above; an exp(target) below the smallest normal number may count as 0, one
above the largest number counts as infinite, and a grad_output so small that grad_output / n is below the smallest
normal number loses digits. Shapes that are known only at run time are not checked: they broadcast as the operators do.
""",
    inputs=[
        OpSchema.FormalParameter("grad_output", "TGrad", "Gradient with respect to the loss. Broadcasts to S."),
        OpSchema.FormalParameter("self", "T", "Input of the loss; only its shape and dtype enter."),
        OpSchema.FormalParameter("target", "TTarget", "Target probabilities, or their logarithms."),
    ],
    outputs=[OpSchema.FormalParameter("out", "T", "Gradient by self, of its shape.")],
    type_constraints=[
        ("TGrad", tensor_types(FLOATS), "Floating types."),
        ("T", tensor_types(FLOATS), "Floating types."),
        ("TTarget", tensor_types(FLOATS), "Floating types."),
    ],
    attributes=[
        attribute("reduction", int(Reduction.MEAN), "0 none, 1 mean, 2 sum, 3 batchmean."),
        attribute("log_target", 0, "1 if target holds logarithms of probabilities."),
    ],
)

REDUCTIONS = {int(r): r.name.lower() for r in Reduction}


def reference(
    grad_output: np.ndarray,
    self: np.ndarray,
    target: np.ndarray,
    *,
    reduction: int = Reduction.MEAN,
    log_target: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """The definition in NumPy, computed in float64; no product on the way overflows or loses digits.

    Args:
        grad_output, self, target: floating arrays; self and target broadcast to S, grad_output to S.
        reduction: 0 none, 1 mean, 2 sum, 3 batchmean.
        log_target: 1 if target holds logarithms.
        dtype: answer in this dtype instead of self's.

    Returns:
        Array of self's shape.
    """
    space = np.broadcast_shapes(self.shape, target.shape)
    lead = len(space) - self.ndim
    summed = tuple(a for a, n in enumerate(space) if a < lead or self.shape[a - lead] != n)
    divisors = {Reduction.MEAN: math.prod(space), Reduction.BATCHMEAN: space[0] if space else 1}
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        q = target.astype(np.float64)
        share = Scaled(1 / np.float64(divisors.get(Reduction(reduction), 1)))
        d = Scaled(np.exp(q) if log_target else q) * Scaled(-grad_output.astype(np.float64)) * share
        out = np.broadcast_to(d.value(), space)
        if summed:
            out = out.sum(axis=summed).reshape(self.shape)
    return rounded(out, self.dtype, dtype)


LEAST = np.float32(2.0**-100)
"""A smaller number may have lost digits, in float32."""


def product(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """parameters: the divisor's reciprocal, which goes with the larger factor: so no product is out of range alone."""
    grad_output, target = operands[0], operands[2]
    share = parameters[0]
    for i in range(count):
        q, g = target[i], grad_output[i]
        larger, smaller = (q, g) if abs(q) > abs(g) else (g, q)
        out[i] = -(larger * share) * smaller


def product_with_one_gradient(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """The same for a grad_output of one value."""
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


HIGH = np.float32(88)
"""To this power e is a float32 number."""


def product_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """parameters: the divisor's reciprocal."""
    grad_output, target = operands[0], operands[2]
    share, high = parameters[0], False
    for i in range(count):
        value, first, second = exp_parts(target[i])
        out[i] = -((grad_output[i] * first) * share) * (value * second)
        high = high | (target[i] > HIGH)
    if high:  # a gradient may be so small, or 0, that the product is in range, and a part of the exponential is not
        for i in range(count):
            value, first, second = exp_parts(wide(target[i]))
            result = -((wide(grad_output[i]) * first) * wide(share)) * (value * second)
            out[i] = like(result, share)


def body(b: Body) -> None:
    """Only where self may have to be summed is that looked into, at run time if the model does not tell."""

    def terms() -> Value:
        """d, where self and target have the same shape."""
        return _terms(b, b.load("target"))

    def broadcast_terms() -> Value:
        return _terms(b, _over_space(b, b.load("target"), self_shape))

    def sums() -> Value:
        return _sums(b, broadcast_terms(), self_shape)

    self_shape = b.op("Shape", b.inputs["self"], name="self_shape")
    if all(map(_covers, b.calls)):
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
        """A row of numbers that is as long for any rank, so that shapes of different ranks can be compared."""
        axes = b.op("Concat", shape, [-1] * MAX_RANK, name=f"{name}_axes", axis=0)
        return b.op("Slice", axes, [0], [MAX_RANK], name=f"{name}_row")

    target_shape = b.op("Shape", b.inputs["target"], name="target_shape")
    same_axes = row("self", self_shape).equal(row("target", target_shape)).named("same_axes")
    same_numbers = same_axes.cast(TensorProto.INT32).named("same_numbers")
    all_same = b.op("ReduceMin", same_numbers, name="all_same", keepdims=0)
    return all_same.cast(TensorProto.BOOL).named("are_alike")


def _over_space(b: Body, target: Value, self_shape: Value) -> Value:
    """The target over S."""
    if any(0 in (c.shape("self") or ()) for c in b.calls):
        # onnxruntime removes an Expand to 0 elements, as if it changed nothing.
        everywhere = b.op("ConstantOfShape", self_shape, name="everywhere", value=b.array([True]))
        return b.op("Where", everywhere, target, target, name="target_over_space")
    return b.op("Expand", target, self_shape, name="target_over_space")


def _terms(b: Body, target: Value) -> Value:
    # grad_output is one number in most models, so this is cheaper than a Neg of the terms.
    minus_grad = (-b.load("grad_output")).named("minus_grad")
    log_target = b.attribute("log_target")
    if log_target == 0:
        return b.scaled(target, minus_grad)
    weight = b.op("Exp", target, name="weight")
    if log_target is None:
        is_logarithm = b.value_of("log_target").cast(TensorProto.BOOL).named("is_logarithm")
        weight = b.op("Where", is_logarithm, weight, target, name="weight_or_target")
    return b.scaled(weight, minus_grad)


def _sums(b: Body, terms: Value, self_shape: Value) -> Value:
    """Terms summed over the axes along which self has one element; where S has one too, that changes nothing."""
    rank = b.op("Size", b.op("Shape", terms, name="space"), name="rank")
    lead = (rank - b.op("Size", self_shape, name="self_rank")).named("lead")
    leads = b.op("Reshape", lead, [1], name="leads")
    padding = b.op("ConstantOfShape", leads, name="padding", value=b.array([1]))
    # One more axis than S has: onnxruntime before 1.30 takes no axes for all of them if there are no elements.
    padded_shape = b.op("Concat", [1], padding, self_shape, name="padded_shape", axis=0)
    is_single = padded_shape.equal([1]).named("is_single")
    axes = b.op("Squeeze", b.op("NonZero", is_single, name="single"), [0], name="axes")
    terms_under_one = b.op("Unsqueeze", terms, [0], name="terms_under_one")
    total = b.op("ReduceSum", terms_under_one, axes, name="total", keepdims=1)
    return b.op("Reshape", total, self_shape, name="result", allowzero=1)


def _covers(call: Call) -> bool:
    """Whether self is sure to have the shape S already, so that nothing is summed; equal names are no equal sizes."""
    own, target = call.shape("self"), call.shape("target")
    return (
        own is not None
        and target is not None
        and len(own) >= len(target)
        and all(
            y == 1 or (isinstance(x, int) and x != 1)
            for x, y in zip(own[len(own) - len(target) :], target, strict=True)
        )
    )


def _may_be_alike(call: Call) -> bool:
    """Whether self and target may have the same shape."""
    own, target = call.shape("self"), call.shape("target")
    if own is None or target is None:
        return True
    pairs = zip(own, target, strict=False)
    return len(own) == len(target) and all(x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in pairs)


SPACE = IndexSpace({"grad_output": Role.INTO, "self": Role.SHAPE | Role.UNREAD, "target": Role.SHAPE})


def infer(call: Call) -> tuple[TensorType, ...]:
    SPACE.shape(call)
    call.check_choice("reduction", REDUCTIONS)
    call.check_choice("log_target", {0: "probabilities", 1: "logarithms"})
    return (TensorType(call.dtype("self"), call.shape("self")),)


def kernel(call: Call) -> Loop:
    logarithms = bool(call.attributes["log_target"])
    core = product_of_logarithms if logarithms else product
    return Loop(
        SPACE,
        computing_type(call, light=not logarithms),
        core,
        Sums(core, TensorProto.DOUBLE, Kept.LIKE_INPUT, like="self"),
        Reduction(call.attributes["reduction"]).divisor,
        core_uniform=None if logarithms else product_with_one_gradient,
        uniform=("grad_output",),
    )


OP = Op(
    SCHEMA,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"grad_output": 1.0, "self": [[-1.0, -2.0], [-1.0, -3.0]], "target": [[0.25, 0.75], [0.5, 0.5]]},
        {"out": [[-0.125, -0.375], [-0.25, -0.25]]},
        {"reduction": int(Reduction.BATCHMEAN)},
    ),
    typed_inputs=("self",),
)
