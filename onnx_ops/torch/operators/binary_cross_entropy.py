"""Binary cross entropy with logits as an operator of this domain."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.core.reduction import Reduction
from onnx_ops.torch.base.custom_ops import differentiable, domain_ops
from onnx_ops.torch.base.nodes import Value, aclnn
from onnx_ops.torch.base.reduction import DEFAULT_REDUCTION, reduction_of
from onnx_ops.torch.base.table import replaces, translates

differentiable(
    "BinaryCrossEntropyWithLogits",
    {"self": "BinaryCrossEntropyWithLogitsBackward", "target": "BinaryCrossEntropyWithLogitsTargetBackward"},
    formula=torch.ops.aten.binary_cross_entropy_with_logits.default,
)


@translates(torch.ops.aten.binary_cross_entropy_with_logits.default)
def _node(
    self: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None, reduction: int = 1
) -> Value:
    return aclnn.BinaryCrossEntropyWithLogits(self, target, weight, pos_weight, reduction=reduction)


@replaces(functional.binary_cross_entropy_with_logits, within_transforms=False)
def _functional(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    kind = reduction_of(reduction, size_average, reduce)
    if target.shape != input.shape or kind is Reduction.BATCHMEAN:
        return functional.binary_cross_entropy_with_logits(  # which refuses them
            input, target, weight, reduction=kind.name.lower(), pos_weight=pos_weight
        )
    return _binary_cross_entropy(input, target, weight, pos_weight, kind)


@replaces(torch.binary_cross_entropy_with_logits, within_transforms=False)
def _binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = DEFAULT_REDUCTION,
) -> Tensor:
    weights = (weight, pos_weight)
    if not target.is_floating_point() or any(w is not None and w.requires_grad for w in weights):
        return torch.binary_cross_entropy_with_logits(input, target, *weights, reduction)  # which refuses them
    weight, pos_weight = (None if w is None else w.to(target.dtype) for w in weights)
    return domain_ops.BinaryCrossEntropyWithLogits(input, target, weight, pos_weight, reduction=reduction)
