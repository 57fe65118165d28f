"""Negative log-likelihoods, of labels and of a normal distribution.

Those of labels are PyTorch's decompositions, but a label out of range gives NaN: the translation of torch.onnx makes up
total_weight, which the gradient divides by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch._ops import OpOverload

from onnx_ops.torch.base.table import decomposes, replaces
from onnx_ops.torch.operators.labels import known_or_ignored, scaled

aten = torch.ops.aten


def _forward(operator: OpOverload) -> Callable[..., Any]:
    taken_apart = torch._decomp.decomposition_table[operator]

    def forward(
        self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
    ) -> tuple[Tensor, Tensor]:
        labels, factor = known_or_ignored(target, self, ignore_index)
        loss, total_weight = taken_apart(self, labels, weight, reduction, ignore_index)
        return scaled(loss, factor), total_weight

    return forward


def _backward(operator: OpOverload) -> Callable[..., Any]:
    taken_apart = torch._decomp.decomposition_table[operator]

    def backward(
        grad_output: Tensor,
        self: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
        total_weight: Tensor,
    ) -> Any:
        labels, factor = known_or_ignored(target, self, ignore_index)
        return taken_apart(scaled(grad_output, factor), self, labels, weight, reduction, ignore_index, total_weight)

    return backward


for _operator in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
    decomposes(_operator)(_forward(_operator))
for _operator in (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default):
    decomposes(_operator)(_backward(_operator))


@replaces(functional.gaussian_nll_loss)
def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Without PyTorch's check for negative variances, which a graph cannot refuse."""
    variance = var if isinstance(var, Tensor) else torch.full_like(input, var)
    if variance.shape != input.shape and input.shape[:-1] == variance.shape:
        variance = variance.unsqueeze(-1)
    # The gradient ignores the floor.
    variance = torch.where(variance < eps, variance - variance.detach() + eps, variance)
    loss = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return {"mean": loss.mean, "sum": loss.sum, "none": loss.clone}[reduction]()
