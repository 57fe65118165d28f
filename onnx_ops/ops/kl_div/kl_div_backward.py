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
    covered = all(map(_covers, b.calls))
    if not covered or any(c.shape("target") != c.shape("self") for c in b.calls):
        b.emit("self_shape = Shape (self)")

    def terms() -> str:
        """d, where self and target have the same shape."""
        return _terms(b, b.load("target"))

    def broadcast_terms() -> str:
        return _terms(b, _over_space(b, b.load("target")))

    def sums() -> str:
        return _sums(b, broadcast_terms())

    if covered:
        alike = all(c.shape("target") == c.shape("self") for c in b.calls)
        result = terms() if alike else broadcast_terms()
    elif any(map(_may_be_alike, b.calls)):
        # A row of numbers that is as long for any rank, so that shapes of different ranks can be compared.
        b.emit(f"no_axes = Constant <value = int64[{MAX_RANK}] {{{', '.join(['-1'] * MAX_RANK)}}}> ()")
        b.emit("zero_to_end = Constant <value = int64[1] {0}> ()")
        b.emit(f"most_axes = Constant <value = int64[1] {{{MAX_RANK}}}> ()")
        b.emit("target_shape = Shape (target)")
        for name in ("self", "target"):
            b.emit(f"{name}_axes = Concat <axis = 0> ({name}_shape, no_axes)")
            b.emit(f"{name}_row = Slice ({name}_axes, zero_to_end, most_axes)")
        b.emit("same_axes = Equal (self_row, target_row)")
        b.emit(f"same_numbers = Cast <to = {TensorProto.INT32}> (same_axes)")
        b.emit("all_same = ReduceMin <keepdims = 0> (same_numbers)")
        b.emit(f"are_alike = Cast <to = {TensorProto.BOOL}> (all_same)")
        result = b.either("are_alike", terms, sums)
    else:
        b.widen()
        result = sums()
    b.store(result, "self")


def _over_space(b: Body, target: str) -> str:
    """The target over S."""
    if any(0 in (c.shape("self") or ()) for c in b.calls):
        # onnxruntime removes an Expand to 0 elements, as if it changed nothing.
        b.emit("everywhere = ConstantOfShape <value = bool[1] {1}> (self_shape)")
        b.emit(f"target_over_space = Where (everywhere, {target}, {target})")
    else:
        b.emit(f"target_over_space = Expand ({target}, self_shape)")
    return "target_over_space"


def _terms(b: Body, target: str) -> str:
    b.emit(
        f"minus_grad = Neg ({b.load('grad_output')})"
    )  # grad_output is one number in most models, so this is cheaper than a Neg of the terms
    if b.attribute("log_target") == 0:
        return b.scaled(target, "minus_grad")
    b.emit(f"weight = Exp ({target})")
    if b.attribute("log_target") is None:
        b.emit("log_target = Constant <value_int: int = @log_target> ()")
        b.emit(f"is_logarithm = Cast <to = {TensorProto.BOOL}> (log_target)")
        b.emit(f"weight_or_target = Where (is_logarithm, weight, {target})")
        return b.scaled("weight_or_target", "minus_grad")
    return b.scaled("weight", "minus_grad")


def _sums(b: Body, terms: str) -> str:
    """Terms summed over the axes along which self has one element; where S has one too, that changes nothing."""
    b.emit("zero = Constant <value = int64[1] {0}> ()")
    b.emit("one = Constant <value = int64[1] {1}> ()")
    b.emit(f"space = Shape ({terms})")
    b.emit("rank = Size (space)")
    b.emit("self_rank = Size (self_shape)")
    b.emit("lead = Sub (rank, self_rank)")
    b.emit("leads = Reshape (lead, one)")
    b.emit("padding = ConstantOfShape <value = int64[1] {1}> (leads)")
    # One more axis than S has: onnxruntime before 1.30 takes no axes for all of them if there are no elements.
    b.emit("padded_shape = Concat <axis = 0> (one, padding, self_shape)")
    b.emit("is_single = Equal (padded_shape, one)")
    b.emit("single = NonZero (is_single)")
    b.emit("axes = Squeeze (single, zero)")
    b.emit(f"terms_under_one = Unsqueeze ({terms}, zero)")
    b.emit("total = ReduceSum <keepdims = 1> (terms_under_one, axes)")
    b.emit("result = Reshape <allowzero = 1> (total, self_shape)")
    return "result"


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
