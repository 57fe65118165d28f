"""Products, extremes, order statistics and norms along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.return_types import kthvalue, median

from onnx_ops.torch.base.nodes import integers, op
from onnx_ops.torch.base.table import decomposed_by_pytorch, replaces, translates

aten = torch.ops.aten

decomposed_by_pytorch(aten.logsumexp.default)  # onnxruntime's ReduceLogSumExp takes -inf, -450 for -inf
decomposed_by_pytorch(aten.linalg_vector_norm.default, only=torch.float64)  # onnxruntime has no float64 ReduceL2


def _extreme(name: str) -> Callable[..., Any]:
    """amax or amin, without axes over all of them, which the translation of torch.onnx refuses."""

    def translated(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        return getattr(op, name)(x, integers(dim) if dim else None, keepdims=int(keepdim))

    return translated


translates(aten.amax.default)(_extreme("ReduceMax"))
translates(aten.amin.default)(_extreme("ReduceMin"))


@replaces(torch.kthvalue, torch.Tensor.kthvalue)
def _kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, indices = input.sort(dim)
    found = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return kthvalue(found if keepdim else tuple(part.squeeze(dim) for part in found))


@replaces(torch.median, torch.Tensor.median)
def _median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Of an even number of elements the lower median, as PyTorch."""
    if dim is None:
        flat = input.flatten()
        return _kthvalue(flat, (int(flat.shape[0]) + 1) // 2, 0)[0]
    size = int(input.shape[dim]) if input.dim() else 1
    return median(tuple(_kthvalue(input, (size + 1) // 2, dim, keepdim)))


@replaces(torch.prod, torch.Tensor.prod)
def _prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Pairwise, so that the gradient with respect to an element that is 0 is the product of the others."""
    rows = input if dtype is None else input.to(dtype)
    if not rows.is_floating_point() and not rows.is_complex():
        rows = rows.to(torch.int64)
    if dim is None:
        rows, dim = rows.flatten(), 0
    if input.dim() == 0:
        return rows.clone()
    rows = rows.movedim(dim, -1)
    size = int(rows.shape[-1])
    if size == 0:
        rows, size = rows.sum(-1, keepdim=True) + 1, 1
    while size > 1:
        half = size // 2
        products = rows.narrow(-1, 0, half) * rows.narrow(-1, half, half)
        rows = products if size % 2 == 0 else torch.cat([products, rows.narrow(-1, size - 1, 1)], -1)
        size -= half
    return rows.movedim(-1, dim) if keepdim else rows.squeeze(-1).clone()
