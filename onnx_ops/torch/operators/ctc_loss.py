"""The CTC loss as an operator of this domain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from onnx import TensorProto
from torch import Tensor

from onnx_ops.core.reduction import Reduction
from onnx_ops.torch.base.custom_ops import differentiable, domain_ops
from onnx_ops.torch.base.reduction import DEFAULT_REDUCTION, reduction_of
from onnx_ops.torch.base.table import replaces
from onnx_ops.torch.operators.sizes_as_data import tensor

differentiable("CtcLoss", {"log_probs": "CtcLossBackward"}, output="loss")


@replaces(functional.ctc_loss)
def _functional(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    return _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction_of(reduction), zero_infinity)


@replaces(torch.ctc_loss)
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = DEFAULT_REDUCTION,
    zero_infinity: bool = False,
) -> Tensor:
    batched = log_probs.dim() == 3
    lengths = [_lengths(given) for given in (input_lengths, target_lengths)]
    if not batched:
        log_probs = log_probs.unsqueeze(1)
        targets = targets.unsqueeze(0) if targets.dim() == 1 else targets
    if targets.dtype not in (torch.int32, torch.int64):
        targets = targets.long()
    # In double the forward variables of long sequences keep the digits that the gradient needs.
    settings = {"blank": blank, "zero_infinity": zero_infinity, "stash_type": TensorProto.DOUBLE}
    _, _, loss = domain_ops.CtcLoss(log_probs, targets, *lengths, **settings)
    if reduction == Reduction.MEAN:
        return (loss / lengths[1].clamp_min(1).to(loss.dtype)).mean()
    if reduction == Reduction.SUM:
        return loss.sum()
    return loss if batched else loss.squeeze(0)


def _lengths(given: Tensor | Sequence[int]) -> Tensor:
    """The lengths of all samples; they may also be given as numbers."""
    return given.reshape(-1) if isinstance(given, Tensor) else tensor(list(given), dtype=torch.int64)
