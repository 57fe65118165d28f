"""QR factorizations, and products of Householder reflections."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.linear_algebra.loops import reflected, reflections
from onnx_ops.torch.operators.linear_algebra.solving import is_empty

aten = torch.ops.aten
Tensors: TypeAlias = tuple[Tensor, ...]


@decomposes(aten.geqrf.default)
def _geqrf(self: Tensor) -> Tensors:
    return NotImplemented if self.is_complex() else reflections(self)


@decomposes(aten.linalg_householder_product.default)
def _householder_product(input: Tensor, tau: Tensor) -> Tensor:
    return NotImplemented if input.is_complex() else _product(input, tau, input.shape[-1])


@decomposes(aten.ormqr.default)
def _ormqr(self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    if self.is_complex():
        return NotImplemented
    if not left:
        return _ormqr(self, input2, input3.mT, True, not transpose).mT
    if transpose:
        return _product(self, input2, self.shape[-2]).mT @ input3
    found: Tensor = reflected(self, input2, input3)
    return found


@decomposes(aten.linalg_qr.default)
def _qr(A: Tensor, mode: str = "reduced") -> Tensors:
    if A.is_complex():
        return NotImplemented
    rows, columns = A.shape[-2:]
    kept = rows if mode == "complete" else torch.sym_min(rows, columns)
    if is_empty(A):
        identity = torch.eye(rows, kept, dtype=A.dtype).expand(*A.shape[:-2], rows, kept)
        return A.new_empty(0) if mode == "r" else identity, A.new_zeros((*A.shape[:-2], kept, columns))
    factors, tau = reflections(A)
    upper = factors[..., : torch.sym_min(rows, columns), :].triu()
    if mode == "r":
        return A.new_empty(0), upper
    if mode == "complete":
        upper = torch.nn.functional.pad(upper, (0, 0, 0, rows - upper.shape[-2]))
    return _product(factors, tau, kept), upper


def _product(vectors: Tensor, factors: Tensor, columns: int) -> Tensor:
    """The first columns of the product of the reflections."""
    rows = vectors.shape[-2]
    identity = torch.eye(rows, columns, dtype=vectors.dtype).expand(*vectors.shape[:-2], rows, columns)
    found: Tensor = reflected(vectors, factors, identity)
    return found
