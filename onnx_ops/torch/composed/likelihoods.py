"""Negative log-likelihoods of labels, as PyTorch takes them apart itself, but that a label out of range gives NaN.

The translation of torch.onnx makes up total_weight, which the gradient divides by.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.whole.labels import known_or_ignored, scaled

aten = torch.ops.aten


def _forward(operator: Any) -> Any:
    taken_apart = torch._decomp.decomposition_table[operator]

    def forward(
        self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
    ) -> tuple[Tensor, Tensor]:
        labels, factor = known_or_ignored(target, self, ignore_index)
        loss, total_weight = taken_apart(self, labels, weight, reduction, ignore_index)
        return scaled(loss, factor), total_weight

    return forward


def _backward(operator: Any) -> Any:
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


OPERATORS = {
    operator: taken_apart(operator)
    for operator, taken_apart in (
        (aten.nll_loss_forward.default, _forward),
        (aten.nll_loss_backward.default, _backward),
        (aten.nll_loss2d_forward.default, _forward),
        (aten.nll_loss2d_backward.default, _backward),
    )
}
