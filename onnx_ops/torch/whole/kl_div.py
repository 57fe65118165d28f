"""The Kullback-Leibler divergence and its gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.core.reduction import Divisor, Reduction
from onnx_ops.torch.whole.operators import Table, aclnn, whole_operator
from onnx_ops.torch.whole.reductions import reduction_of

TABLE: Table = {}


def _forward(self: Any, target: Any, reduction: int, log_target: bool) -> Any:
    return aclnn.KlDiv(self, target, reduction=reduction, log_target=int(log_target))


def _backward(grad: Any, self: Any, target: Any, reduction: int, log_target: bool) -> Any:
    return aclnn.KlDivBackward(grad, self, target, reduction=reduction, log_target=int(log_target))


def _target_backward(grad: Any, self: Any, target: Any, reduction: int, log_target: bool) -> Any:
    return aclnn.KlDivTargetBackward(grad, self, target, reduction=reduction, log_target=int(log_target))


@whole_operator(TABLE, _forward)
def kl_div(self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    """The divergence of tensors of one dtype; their shapes broadcast."""
    terms = functional.kl_div(self, target, reduction="none", log_target=log_target)
    if Reduction(reduction) is Reduction.NONE:
        return terms.clone()
    return _shared(terms.sum(), terms, reduction)


@whole_operator(TABLE, _backward)
def kl_div_backward(grad: Tensor, self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    gradient = -(target.exp() if log_target else target) * (grad + torch.zeros_like(self))
    return _shared(gradient, gradient, reduction).sum_to_size(self.shape).clone()


@whole_operator(TABLE, _target_backward)
def kl_div_target_backward(grad: Tensor, self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    if log_target:
        gradient = torch.where(target.isneginf(), 0.0, grad * target.exp() * (target - self + 1))
    else:
        gradient = grad * (target.log() - self + 1)
    return _shared(gradient, gradient, reduction).sum_to_size(target.shape).clone()


def _shared(value: Tensor, terms: Tensor, reduction: int) -> Tensor:
    """What the mean over all terms, or over the batch, makes of a sum or of a gradient."""
    parts = {Divisor.SIZE: terms.numel(), Divisor.BATCH: terms.shape[0] if terms.dim() else 1}
    divisor = Reduction(reduction).divisor
    return value / parts[divisor] if divisor in parts else value


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[2:]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad
    by_self = kl_div_backward(grad, *ctx.saved_tensors, *ctx.rest) if wanted[0] else None
    by_target = kl_div_target_backward(grad, *ctx.saved_tensors, *ctx.rest) if wanted[1] else None
    return by_self, by_target, None, None


kl_div.register_autograd(_gradients, setup_context=_setup)


def _functional(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    kind = reduction_of(reduction, size_average, reduce)
    if kind is not Reduction.BATCHMEAN or not input.dim():
        return _kl_div(input, target, Reduction.SUM if kind is Reduction.BATCHMEAN else kind, log_target=log_target)
    broadcast = torch.broadcast_shapes(input.shape, target.shape)
    if len(broadcast) == input.dim() and statically_known_true(broadcast[0] == input.shape[0]):
        return _kl_div(input, target, kind, log_target=log_target)
    # PyTorch divides by the batch of `input`, which is here not that of the terms.
    return _kl_div(input, target, Reduction.SUM, log_target=log_target) / input.shape[0]


def _kl_div(input: Tensor, target: Tensor, reduction: int = Reduction.MEAN, *, log_target: bool = False) -> Tensor:
    if not (input.is_floating_point() and target.is_floating_point()):
        return torch.kl_div(input, target, reduction, log_target=log_target)  # which refuses them
    dtype = torch.result_type(input, target)
    return kl_div(input.to(dtype), target.to(dtype), int(reduction), log_target)


FUNCTIONS = {functional.kl_div: _functional, torch.kl_div: _kl_div}
