"""The CTC loss and its gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from onnx import TensorProto
from torch import Tensor

from onnx_ops.core.reduction import Reduction
from onnx_ops.torch.whole.operators import Table, aclnn, whole_operator
from onnx_ops.torch.whole.reductions import reduction_of

TABLE: Table = {}
aten = torch.ops.aten


def _forward(*arguments: Any) -> Any:
    *inputs, blank, zero_infinity = arguments
    # In double the forward variables of long sequences keep the digits that the gradient needs.
    stash = int(TensorProto.DOUBLE)
    return aclnn.CtcLoss(*inputs, blank=blank, zero_infinity=int(zero_infinity), stash_type=stash)


def _backward(*arguments: Any) -> Any:
    *inputs, blank, zero_infinity = arguments
    return aclnn.CtcLossBackward(*inputs, blank=blank, zero_infinity=int(zero_infinity))


def _shapes(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    steps, batch, _ = log_probs.shape
    # Those of targets one after another are as many as the longest of them needs.
    states = 2 * targets.shape[1] + 1 if targets.dim() == 2 else torch.library.get_ctx().new_dynamic_size()
    wide = {"dtype": torch.float64}
    return (
        log_probs.new_empty(batch, **wide),
        log_probs.new_empty(batch, steps, states, **wide),
        log_probs.new_empty(batch),
    )


@whole_operator(TABLE, _forward, _shapes)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Negative log-likelihoods, forward variables and losses of (T, N, C) log-probabilities."""
    likelihoods, log_alpha = aten._ctc_loss.Tensor(
        log_probs.double(), targets, input_lengths, target_lengths, blank, False
    )
    if targets.dim() == 2:
        log_alpha = functional.pad(log_alpha, (0, 2 * targets.shape[1] + 1 - log_alpha.shape[2]), value=-torch.inf)
    loss = likelihoods.where(likelihoods != torch.inf, 0.0) if zero_infinity else likelihoods
    return likelihoods.clone(), log_alpha.clone(), loss.to(log_probs.dtype, copy=True)


@whole_operator(TABLE, _backward, lambda grad, log_probs, *rest: log_probs.new_empty(log_probs.shape))
def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    likelihoods: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient by what a log_softmax made the log-probabilities of."""
    used = 2 * int(target_lengths.max()) + 1 if target_lengths.numel() else 1
    gradient = aten._ctc_loss_backward.Tensor(
        grad.double(),
        log_probs.double(),
        targets,
        input_lengths,
        target_lengths,
        likelihoods,
        log_alpha[:, :, :used].contiguous(),
        blank,
        zero_infinity,
    )
    return gradient.to(log_probs.dtype, copy=True)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output[:2])
    ctx.rest = inputs[4:]


def _gradient(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    return (ctc_loss_backward(grads[2], *ctx.saved_tensors, *ctx.rest), *(None,) * 5)


ctc_loss.register_autograd(_gradient, setup_context=_setup)


def _functional(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    return _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction_of(reduction), zero_infinity)


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = Reduction.MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    batched = log_probs.dim() == 3
    lengths = [_lengths(given) for given in (input_lengths, target_lengths)]
    if not batched:
        log_probs = log_probs.unsqueeze(1)
        targets = targets.unsqueeze(0) if targets.dim() == 1 else targets
    if targets.dtype not in (torch.int32, torch.int64):
        targets = targets.long()
    _, _, loss = ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    if reduction == Reduction.MEAN:
        return (loss / lengths[1].clamp_min(1).to(loss.dtype)).mean()
    if reduction == Reduction.SUM:
        return loss.sum()
    return loss if batched else loss.squeeze(0)


def _lengths(given: Any) -> Tensor:
    """The lengths of all samples; they may also be given as numbers."""
    return given.reshape(-1) if isinstance(given, Tensor) else torch.tensor(list(given), dtype=torch.int64)


FUNCTIONS = {functional.ctc_loss: _functional, torch.ctc_loss: _ctc_loss}
