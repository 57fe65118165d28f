"""The Huber and the smooth L1 loss, and their gradients, by bounds in place of selections."""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.core.reduction import Reduction
from onnx_ops.torch.base.table import decomposes

aten = torch.ops.aten


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    if reduction == Reduction.NONE:
        return loss
    return aten.mean.default(loss) if reduction == Reduction.MEAN else aten.sum.default(loss)


@decomposes(aten.huber_loss.default)
def _huber_loss(self: Tensor, target: Tensor, reduction: int = Reduction.MEAN, delta: float = 1.0) -> Tensor:
    error = aten.abs(self - target)
    bounded = aten.clamp_max(error, delta)
    return _reduced(bounded * (error - bounded * 0.5), reduction)


@decomposes(aten.smooth_l1_loss.default)
def _smooth_l1_loss(self: Tensor, target: Tensor, reduction: int = Reduction.MEAN, beta: float = 1.0) -> Tensor:
    error = aten.abs(self - target)
    if beta == 0:
        return _reduced(error, reduction)
    bounded = aten.clamp_max(error, beta)
    slope = bounded if beta == 1 else bounded / beta
    return _reduced(slope * (error - bounded * 0.5), reduction)


@decomposes(aten.huber_loss_backward.default)
def _huber_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    return _scaled(grad_output, aten.clamp(self - target, -delta, delta), reduction)


@decomposes(aten.smooth_l1_loss_backward.default)
def _smooth_l1_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    error = self - target
    if beta == 0:
        return _scaled(grad_output, aten.sign(error), reduction)
    return _scaled(grad_output, aten.clamp(error if beta == 1 else error / beta, -1.0, 1.0), reduction)


def _scaled(grad_output: Tensor, slope: Tensor, reduction: int) -> Tensor:
    """The gradient of a reduced loss with these derivatives; a mean has one grad_output, which is divided first."""
    return (grad_output / slope.numel() if reduction == Reduction.MEAN else grad_output) * slope
