"""KlDivBackward: gradient of the Kullback-Leibler divergence loss by its (log-probability) input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.defs import OpSchema

from onnx_ops.body import Body
from onnx_ops.domain import DOMAIN, OPSET_VERSION
from onnx_ops.elementwise import Core, Elementwise
from onnx_ops.op import Example, Op
from onnx_ops.ops._numpy import computing_dtype, rounded
from onnx_ops.roles import Divisor, Reduction, Role
from onnx_ops.runtime.primitives import exp_parts
from onnx_ops.signature import FLOATS, Call, attribute, tensor_types

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
infinities go through the formula. Empty inputs give an empty output, a sum of no terms gives 0.

Without a kernel: all values are computed as above; an exp(target) below the smallest normal number may count as 0, and
a grad_output so small that grad_output / n is below it loses digits. Shapes that are known only at run time are not
checked: they broadcast as the operators do.
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
    """The definition in NumPy.

    Args:
        grad_output, self, target: floating arrays; self and target broadcast to S, grad_output to S.
        reduction: 0 none, 1 mean, 2 sum, 3 batchmean.
        log_target: 1 if target holds logarithms.
        dtype: compute and answer in this dtype instead of self's.

    Returns:
        Array of self's shape.
    """
    space = np.broadcast_shapes(self.shape, target.shape)
    lead = len(space) - self.ndim
    summed = tuple(a for a, n in enumerate(space) if a < lead or self.shape[a - lead] != n)
    compute = np.dtype(np.float64) if summed else computing_dtype((grad_output, self, target), dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        q, g = target.astype(compute), grad_output.astype(compute)
        d = np.broadcast_to(-(np.exp(q) if log_target else q) * g, space)
        if reduction == Reduction.MEAN:
            d = d / compute.type(np.prod(space, dtype=np.float64))
        elif reduction == Reduction.BATCHMEAN and space:
            d = d / compute.type(space[0])
        out = d.sum(axis=summed).reshape(self.shape) if summed else d
    return rounded(out, self.dtype, dtype)


def kernel(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """parameters: the divisor's reciprocal."""
    grad_output, target = operands[0], operands[2]
    share = parameters[0]
    for i in range(count):
        out[i] = -(target[i] * grad_output[i]) * share


def kernel_of_logarithms(operands: Any, out: Any, count: int, parameters: Any) -> None:
    """parameters: the divisor's reciprocal."""
    grad_output, target = operands[0], operands[2]
    share = parameters[0]
    for i in range(count):
        value, first, second = exp_parts(target[i])
        out[i] = -(((grad_output[i] * first) * value) * second) * share


def body(b: Body) -> None:
    sums = not all(map(_covers, b.calls))
    if sums:
        b.widen()
    grad, target = b.load("grad_output"), b.load("target")
    if b.attribute("log_target") != 0:
        b.emit(f"probability = Exp ({target})")
        if b.attribute("log_target") is None:
            b.emit("log_target = Constant <value_int: int = @log_target> ()")
            b.emit("is_logarithm = Cast <to = 9> (log_target)")
            b.emit(f"weight = Where (is_logarithm, probability, {target})")
        target = "probability" if b.attribute("log_target") else "weight"
    if sums or any(c.shape("target") != c.shape("self") for c in b.calls):
        b.emit("self_shape = Shape (self)")
        if any(0 in (c.shape("self") or ()) for c in b.calls):
            # onnxruntime takes an Expand to 0 elements for one that changes nothing.
            b.emit(f"ones = ConstantOfShape <value = {b.kind}[1] {{1.0}}> (self_shape)")
            b.emit(f"target_space = Mul ({target}, ones)")
        else:
            b.emit(f"target_space = Expand ({target}, self_shape)")
        target = "target_space"
    b.emit(f"minus_grad = Neg ({grad})")  # the sign goes with grad_output, which mostly is one number
    d = b.scaled(target, "minus_grad")
    if sums:
        # The axes of S along which self has one element; where S has one too, summing over it changes nothing.
        b.emit("zero = Constant <value_ints = [0]> ()")
        b.emit("one = Constant <value_ints = [1]> ()")
        b.emit(f"space = Shape ({d})")
        b.emit("rank = Size (space)")
        b.emit("self_rank = Size (self_shape)")
        b.emit("lead = Sub (rank, self_rank)")
        b.emit("leads = Reshape (lead, one)")
        b.emit("padding = ConstantOfShape <value = int64[1] {1}> (leads)")
        b.emit("padded_shape = Concat <axis = 0> (padding, self_shape)")
        b.emit("is_single = Equal (padded_shape, one)")
        b.emit("single = NonZero (is_single)")
        b.emit("axes = Squeeze (single, zero)")
        b.emit(f"total = ReduceSum <keepdims = 1, noop_with_empty_axes = 1> ({d}, axes)")
        b.emit("result = Reshape <allowzero = 1> (total, self_shape)")
        d = "result"
    b.store(d, "self")


def _covers(call: Call) -> bool:
    """Whether self already has the shape S, so that nothing is summed."""
    own, target = call.shape("self"), call.shape("target")
    return (
        own is not None
        and target is not None
        and len(own) >= len(target)
        and all(y == 1 or x == y is not None for x, y in zip(own[len(own) - len(target) :], target, strict=True))
    )


def _check(call: Call) -> None:
    call.check_choice("reduction", REDUCTIONS)
    call.check_choice("log_target", {0: "probabilities", 1: "logarithms"})


def _core(attributes: Mapping[str, Any]) -> Core:
    return kernel_of_logarithms if attributes["log_target"] else kernel


def _divisor(attributes: Mapping[str, Any]) -> Divisor:
    return Reduction(attributes["reduction"]).divisor


OP = Op(
    SCHEMA,
    Elementwise(
        roles={"grad_output": Role.INTO, "self": Role.SHAPE | Role.UNREAD, "target": Role.SHAPE},
        core=_core,
        output_dtype="self",
        output_like="self",
        divisor=_divisor,
        light=lambda attributes: not attributes["log_target"],
        check=_check,
    ),
    reference,
    body,
    Example(
        {"grad_output": 1.0, "self": [[-1.0, -2.0], [-1.0, -3.0]], "target": [[0.25, 0.75], [0.5, 0.5]]},
        [[-0.125, -0.375], [-0.25, -0.25]],
        {"reduction": int(Reduction.BATCHMEAN)},
    ),
)
