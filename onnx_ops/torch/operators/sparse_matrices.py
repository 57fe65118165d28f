"""Products with constant sparse matrices of COO layout, as sums of rows: the adjacency of a graph is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from onnx_ops.torch.base.table import replaces


def _products(*functions: Callable[..., Any]) -> None:
    """Replace functions of two factors where the first one is a sparse matrix with known values."""
    for function in functions:
        replaces(function)(_product(function))


def _product(function: Callable[..., Any]) -> Callable[..., Any]:
    def product(input: Tensor, other: Tensor, *args: Any, **options: Any) -> Any:
        if args or options or not _is_constant_matrix(input) or not _is_dense(other):
            return function(input, other, *args, **options)
        return _multiplied(input, other)

    return product


def _is_constant_matrix(matrix: Any) -> bool:
    """Whether this is a sparse matrix that is neither an input of the step nor computed in it."""
    return (
        isinstance(matrix, Tensor)
        and not isinstance(matrix, FakeTensor)
        and matrix.layout is torch.sparse_coo
        and matrix.dim() == 2
        and matrix.dense_dim() == 0
        and not matrix.requires_grad
    )


def _is_dense(other: Any) -> bool:
    return isinstance(other, Tensor) and other.layout is torch.strided and other.dim() in (1, 2)


def _multiplied(matrix: Tensor, other: Tensor) -> Tensor:
    """(n, m) by (m, k) or (m,)."""
    with torch._C.DisableTorchFunction(), no_dispatch():
        elements = matrix.coalesce()
        rows, columns = elements.indices().clone().unbind()
        values = elements.values().clone()
    terms = other.index_select(0, columns)
    scaled = values.reshape([-1, *[1] * (other.dim() - 1)]) * terms
    return scaled.new_zeros(matrix.shape[0], *other.shape[1:]).index_add(0, rows, scaled)


_products(
    torch.mm,
    torch.mv,
    torch.matmul,
    torch.sparse.mm,
    torch.Tensor.mm,
    torch.Tensor.mv,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
)
