"""Labels of classes. PyTorch refuses one that is out of range; in a graph the loss of its sample is NaN.

Trainers refuse it too, where `onnx_ops.torch.indices` finds that the labels are an input of the step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator, domain_ops
from onnx_ops.torch.base.nodes import Value, integer, op
from onnx_ops.torch.base.table import replaces


def _clipped(target: Value, classes: int | Value, ignore_index: int | None = None) -> Value:
    return op.Clip(target, integer(0), integer(classes - 1) if isinstance(classes, int) else op.Sub(classes, 1))


@custom_operator(_clipped)
def label(target: Tensor, classes: int, ignore_index: int | None = None) -> Tensor:
    """The class nearest to each label (int64).

    An operator, so that `index_ranges` finds the labels of a graph, and their ignore_index.
    """
    return target.clamp(0, classes - 1)


LABEL = domain_ops.label.default
label.register_vmap(lambda info, in_dims, target, *settings: (label(target, *settings), in_dims[0]))


def checked(target: Tensor, classes: int, dtype: torch.dtype, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
    """Labels that can be looked up, and a factor for each: 1, or NaN where it is out of range and not ignored."""
    target = target.to(torch.int64)
    labels = label(target, classes, ignore_index)
    right = labels == target
    if ignore_index is not None:
        right = right | (target == ignore_index)
    return labels, torch.where(right, torch.ones((), dtype=dtype, device=target.device), math.nan)


def known_or_ignored(target: Tensor, scores: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """As `checked`, for scores (N, C, ...) or (C); labels equal to ignore_index remain."""
    labels, factor = checked(target, scores.shape[1 if scores.dim() > 1 else 0], scores.dtype, ignore_index)
    return torch.where(target == ignore_index, target, labels), factor


@replaces(functional.one_hot)
def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes == -1:
        num_classes = tensor.max().item() + 1  # PyTorch reads the smallest one before it, but not while it traces
    elif num_classes < 0:
        return functional.one_hot(tensor, num_classes)
    classes = torch.arange(num_classes, device=tensor.device)
    found = classes.index_select(0, tensor.reshape(-1)).reshape(tensor.shape)  # refuses labels that are out of range
    return (found.unsqueeze(-1) == classes).to(torch.int64)


def scaled(value: Tensor, factor: Tensor) -> Tensor:
    """Losses of samples, or gradients with respect to them, times their factors; a scalar times the product of all."""
    return value * (factor if value.shape == factor.shape else factor.prod())
