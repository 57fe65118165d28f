"""The Kullback-Leibler divergence as an operator of this domain."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.core.reduction import Reduction
from onnx_ops.torch.base.custom_ops import differentiable, domain_ops
from onnx_ops.torch.base.reduction import DEFAULT_REDUCTION, reduction_of
from onnx_ops.torch.base.table import replaces


def _formula(self: Tensor, target: Tensor, *, reduction: int, log_target: bool) -> Tensor:
    terms = torch.ops.aten.kl_div.default(self, target, Reduction.NONE, log_target=log_target)
    match reduction:
        case Reduction.NONE:
            return terms
        case Reduction.MEAN:
            return terms.mean()
        case Reduction.SUM:
            return terms.sum()
        case _:
            return terms.sum() / terms.shape[0]


differentiable("KlDiv", {"self": "KlDivBackward", "target": "KlDivTargetBackward"}, formula=_formula)


@replaces(functional.kl_div, within_transforms=False)
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


@replaces(torch.kl_div, within_transforms=False)
def _kl_div(input: Tensor, target: Tensor, reduction: int = DEFAULT_REDUCTION, *, log_target: bool = False) -> Tensor:
    if not (input.is_floating_point() and target.is_floating_point()):
        return torch.kl_div(input, target, reduction, log_target=log_target)  # which refuses them
    dtype = torch.result_type(input, target)
    return domain_ops.KlDiv(input.to(dtype), target.to(dtype), reduction=reduction, log_target=log_target)
