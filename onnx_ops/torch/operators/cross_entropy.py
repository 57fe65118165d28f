"""Cross entropy of logits and labels, with a gradient in three passes over the logits.

PyTorch materializes the gradient with respect to the log-probabilities, which is 0 but for one class of each sample:
seven passes to write, scale and sum it, and to combine it with the probabilities.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.autograd.function import FunctionCtx

from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.labels import checked, known_or_ignored, scaled

FEW_CLASSES = 16
"""Up to this number of classes, those of pixels are compared with the labels: ScatterElements takes longer."""


class _CrossEntropy(torch.autograd.Function):
    """From logits (N, C, ...), labels (N, ...) and weights of the samples (N, ...) to their losses (N, ...)."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        logarithms = logits.log_softmax(1)
        ctx.save_for_backward(logits, labels, weights, logarithms)
        return -logarithms.gather(1, labels[:, None])[:, 0] * weights

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        logits, labels, weights, logarithms = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            logarithms = logits.log_softmax(1)
        scale = (gradient * weights)[:, None]
        count = logits.shape[1]
        if logits.dim() > 2 and isinstance(count, int) and count <= FEW_CLASSES:
            classes = torch.arange(count).reshape(-1, *[1] * (logits.dim() - 2))
            return (logarithms.exp() - (labels[:, None] == classes).to(logits.dtype)) * scale, None, None
        return (logarithms.exp() * scale).scatter_add(1, labels[:, None], -scale), None, None


@replaces(functional.cross_entropy)
def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    transformed = within_transforms()  # which take no autograd function of this form
    plain = input.dim() >= 2 and not label_smoothing and (size_average, reduce) == (None, None)
    if target.is_floating_point() or transformed or not plain:
        options = size_average, ignore_index, reduce, reduction, label_smoothing
        if target.is_floating_point() or not (label_smoothing or transformed):
            return functional.cross_entropy(input, target, weight, *options)
        known, factor = known_or_ignored(target, input, ignore_index)  # smoothing looks weights up too
        return scaled(functional.cross_entropy(input, known, weight, *options), factor)
    counts = target != ignore_index
    labels, factor = checked(target, input.shape[1], input.dtype, ignore_index)
    weights = torch.where(counts, factor if weight is None else factor * weight[labels], 0.0)
    losses = torch.where(counts, _CrossEntropy.apply(input, labels, weights), 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / weights.sum() if reduction == "mean" else losses.sum()
