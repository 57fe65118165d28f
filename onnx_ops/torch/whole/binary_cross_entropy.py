"""Binary cross entropy with logits, and its gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.core.reduction import Divisor, Reduction
from onnx_ops.torch.whole.operators import Table, aclnn, whole_operator
from onnx_ops.torch.whole.reductions import reduction_of

TABLE: Table = {}
aten = torch.ops.aten


def _forward(self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    return aclnn.BinaryCrossEntropyWithLogits(self, target, weight, pos_weight, reduction=reduction)


def _backward(grad: Any, self: Any, target: Any, weight: Any, pos_weight: Any, reduction: int) -> Any:
    inputs = (grad, self, target, weight, pos_weight)
    return aclnn.BinaryCrossEntropyWithLogitsBackward(*inputs, reduction=reduction)


def _target_backward(grad: Any, self: Any, target: Any, weight: Any, pos_weight: Any, reduction: int) -> Any:
    inputs = (grad, self, target, weight, pos_weight)
    return aclnn.BinaryCrossEntropyWithLogitsTargetBackward(*inputs, reduction=reduction)


TABLE[aten.binary_cross_entropy_with_logits.default] = _forward


@whole_operator(TABLE, _forward)
def binary_cross_entropy_with_logits(
    self: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    """The loss of logits and labels of one shape, and the dtype of the labels; the weights broadcast to that shape."""
    positive = target if pos_weight is None else pos_weight * target
    terms = (1 - target) * functional.softplus(self) + positive * functional.softplus(-self)
    terms = (terms if weight is None else weight * terms).to(target.dtype)
    if Reduction(reduction) is Reduction.NONE:
        return terms.clone()
    return terms.mean() if Reduction(reduction) is Reduction.MEAN else terms.sum()


@whole_operator(TABLE, _backward)
def binary_cross_entropy_with_logits_backward(
    grad: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    positive = target if pos_weight is None else pos_weight * target
    gradient = (positive + 1 - target) * torch.sigmoid(self) - positive
    return _through(gradient, grad, weight, reduction).to(target.dtype)


@whole_operator(TABLE, _target_backward)
def binary_cross_entropy_with_logits_target_backward(
    grad: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    right, wrong = functional.softplus(-self), functional.softplus(self)
    gradient = (right if pos_weight is None else pos_weight * right) - wrong
    return _through(gradient, grad, weight, reduction).to(target.dtype)


def _through(gradient: Tensor, grad: Tensor, weight: Tensor | None, reduction: int) -> Tensor:
    """The gradient of a term, times what comes from above."""
    gradient = gradient * grad if weight is None else gradient * grad * weight
    return gradient / gradient.numel() if Reduction(reduction).divisor is Divisor.SIZE else gradient


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.reduction = inputs[4]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    inputs, wanted = ctx.saved_tensors, ctx.needs_input_grad
    by_self = by_target = None
    if wanted[0]:
        by_self = binary_cross_entropy_with_logits_backward(grad, *inputs, ctx.reduction).to(inputs[0].dtype)
    if wanted[1]:
        by_target = binary_cross_entropy_with_logits_target_backward(grad, *inputs, ctx.reduction)
    return by_self, by_target, None, None, None


binary_cross_entropy_with_logits.register_autograd(_gradients, setup_context=_setup)


def _functional(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    kind = reduction_of(reduction, size_average, reduce)
    if target.shape != input.shape or kind is Reduction.BATCHMEAN:
        return functional.binary_cross_entropy_with_logits(  # which refuses them
            input, target, weight, reduction=kind.name.lower(), pos_weight=pos_weight
        )
    return _binary_cross_entropy(input, target, weight, pos_weight, kind)


def _binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = Reduction.MEAN,
) -> Tensor:
    weights = (weight, pos_weight)
    if not target.is_floating_point() or any(w is not None and w.requires_grad for w in weights):
        return torch.binary_cross_entropy_with_logits(input, target, *weights, reduction)  # which refuses them
    weight, pos_weight = (None if w is None else w.to(target.dtype) for w in weights)
    return binary_cross_entropy_with_logits(input, target, weight, pos_weight, int(reduction))


FUNCTIONS = {
    functional.binary_cross_entropy_with_logits: _functional,
    torch.binary_cross_entropy_with_logits: _binary_cross_entropy,
}
