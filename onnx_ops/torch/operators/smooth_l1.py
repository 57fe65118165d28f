"""The gradient of the smooth L1 loss."""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.core.reduction import Reduction
from onnx_ops.torch.base.table import decomposes

aten = torch.ops.aten


@decomposes(aten.smooth_l1_loss_backward.default)
def _smooth_l1_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """NaN for NaN, for which PyTorch's decomposition is 0."""
    difference = self - target
    slope = torch.where(difference.abs() >= beta, torch.sign(difference), difference / beta)
    factor = 1.0 / self.numel() if reduction == Reduction.MEAN else 1.0
    return factor * grad_output * slope
