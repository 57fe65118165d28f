"""Covariances and correlations, of whose sizes PyTorch's own functions make numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.base.table import replaces


@replaces(torch.cov, torch.Tensor.cov)
def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Of variables (V, observations), or of one variable."""
    if not any(map(is_symbolic, input.shape)):
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = torch.atleast_2d(input)
    given = [weights for weights in (fweights, aweights) if weights is not None]
    if not given:
        count = rows.shape[1]
        centered = rows - rows.sum(1, keepdim=True) / count
        found = centered @ centered.mH / torch.full((), count - correction).clamp(min=0)
    else:
        weights = math.prod(given[1:], start=given[0])
        total = weights.sum()
        centered = rows - (rows * weights).sum(1, keepdim=True) / total
        per_weight = 1 if aweights is None else (weights * aweights).sum() / total
        found = centered @ (centered * weights).mH / (total - correction * per_weight).clamp(min=0)
    return found.squeeze() if not is_symbolic(rows.shape[0]) else found


@replaces(torch.corrcoef, torch.Tensor.corrcoef)
def _corrcoef(input: Tensor) -> Tensor:
    if not any(map(is_symbolic, input.shape)) or input.is_complex():
        return torch.corrcoef(input)
    found = _cov(input)
    if not found.dim():
        return found / found
    deviations = found.diagonal().sqrt()
    return (found / deviations.unsqueeze(1) / deviations).clamp(-1, 1)
