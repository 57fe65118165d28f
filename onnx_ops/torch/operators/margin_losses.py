"""Margin losses of labels."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.base.reduction import reduction_of
from onnx_ops.torch.base.table import decomposes, replaces
from onnx_ops.torch.operators.labels import checked


def _reduced(loss: Tensor, reduction: str, size_average: bool | None, reduce: bool | None) -> Tensor:
    kind = reduction_of(reduction, size_average, reduce).name
    return {"MEAN": loss.mean, "SUM": loss.sum, "NONE": loss.clone}[kind]()


@replaces(functional.multi_margin_loss)
def _multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    rows, labels = (input, target) if input.dim() == 2 else (input.unsqueeze(0), target.reshape(1))
    labels, factor = checked(labels, rows.shape[1], rows.dtype)
    own = rows.gather(1, labels.unsqueeze(1))
    terms = (margin - own + rows).relu()  # whose gradient at 0 is 0
    if p == 2:
        terms = terms.square()
    if weight is not None:
        terms = terms * weight.index_select(0, labels).unsqueeze(1)
    classes = torch.arange(rows.shape[1], device=rows.device)
    loss = torch.where(classes == labels.unsqueeze(1), 0.0, terms).sum(1) * factor / rows.shape[1]
    return _reduced(loss if input.dim() == 2 else loss.reshape(target.shape), reduction, size_average, reduce)


@replaces(functional.multilabel_margin_loss)
def _multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    rows, labels = (input, target) if input.dim() == 2 else (input.reshape(1, -1), target.reshape(1, -1))
    count = rows.shape[1]
    listed = (labels < 0).to(torch.int64).cumsum(1) == 0  # up to the first -1
    places, factor = checked(labels, count, rows.dtype, -1)
    classes = torch.arange(count, device=rows.device)
    is_label = ((places.unsqueeze(2) == classes) & listed.unsqueeze(2)).any(1)
    own = rows.gather(1, places)
    terms = (1 - own.unsqueeze(2) + rows.unsqueeze(1)).relu()
    wanted = listed.unsqueeze(2) & ~is_label.unsqueeze(1)
    loss = torch.where(wanted, terms, 0.0).sum((1, 2)) * factor.prod(1) / count
    return _reduced(loss if input.dim() == 2 else loss.reshape(()), reduction, size_average, reduce)


@decomposes(torch.ops.aten.soft_margin_loss_backward.default)
def _soft_margin_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """PyTorch's decomposition subtracts 1 from a sigmoid, which may be close to it."""
    grad = -target * grad_output / (1 + (target * self).exp())
    return grad / self.numel() if reduction == 1 else grad
