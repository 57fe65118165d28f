"""The Kullback-Leibler divergence and its gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.whole import reductions
from onnx_ops.torch.whole.domain import aclnn

NAMES = ("none", "mean", "sum", "batchmean")


@torch.library.custom_op("onnx_ops::kl_div", mutates_args=())
def kl_div(self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    return functional.kl_div(self, target, reduction=NAMES[reduction], log_target=log_target).clone()


@kl_div.register_fake
def _(self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    shape = torch.broadcast_shapes(self.shape, target.shape) if reduction == 0 else ()
    return self.new_empty(shape)


@torch.library.custom_op("onnx_ops::kl_div_backward", mutates_args=())
def kl_div_backward(grad: Tensor, self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    gradient = -(target.exp() if log_target else target) * grad
    return _shared(gradient, reduction)


@torch.library.custom_op("onnx_ops::kl_div_target_backward", mutates_args=())
def kl_div_target_backward(grad: Tensor, self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    if log_target:
        gradient = grad * target.exp() * (target - self + 1)
    else:
        gradient = torch.where(target == 0, 0.0, grad * (target.log() - self + 1))
    return _shared(gradient, reduction)


def _shared(gradient: Tensor, reduction: int) -> Tensor:
    """A gradient through the mean over all elements, or over the batch."""
    parts = {1: gradient.numel(), 3: gradient.shape[0] if gradient.dim() else 1}
    return gradient / parts[reduction] if reduction in parts else gradient.clone()


@kl_div_backward.register_fake
@kl_div_target_backward.register_fake
def _(grad: Tensor, self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    return self.new_empty(torch.broadcast_shapes(self.shape, target.shape))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[2:]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    self, target = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    by_self = kl_div_backward(grad, self, target, *ctx.rest).sum_to_size(self.shape) if wanted[0] else None
    by_target = kl_div_target_backward(grad, self, target, *ctx.rest).sum_to_size(target.shape) if wanted[1] else None
    return by_self, by_target, None, None


kl_div.register_autograd(_gradients, setup_context=_setup)


def _kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    return kl_div(input, target, reductions.number(reduction, size_average, reduce), log_target)


FUNCTIONS = {functional.kl_div: _kl_div}


def _forward(self: Any, target: Any, reduction: int, log_target: bool) -> Any:
    return aclnn.KlDiv(self, target, reduction=reduction, log_target=int(log_target))


def _backward(grad: Any, self: Any, target: Any, reduction: int, log_target: bool) -> Any:
    return aclnn.KlDivBackward(grad, self, target, reduction=reduction, log_target=int(log_target))


def _target_backward(grad: Any, self: Any, target: Any, reduction: int, log_target: bool) -> Any:
    return aclnn.KlDivTargetBackward(grad, self, target, reduction=reduction, log_target=int(log_target))


TABLE = {
    torch.ops.onnx_ops.kl_div.default: _forward,
    torch.ops.onnx_ops.kl_div_backward.default: _backward,
    torch.ops.onnx_ops.kl_div_target_backward.default: _target_backward,
}
