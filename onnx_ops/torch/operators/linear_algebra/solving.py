"""Linear equations, inverses and determinants, in operators of triangular systems and factorizations.

The factors and pivots that PyTorch's operators return are those of LAPACK, which their gradients read.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.torch.base.table import decomposes, replaces
from onnx_ops.torch.operators.linear_algebra.loops import cholesky_factor, lu_factors, row_order, substitution

aten = torch.ops.aten
Tensors: TypeAlias = tuple[Tensor, ...]


def _identity(like: Tensor) -> Tensor:
    """Square matrices with the sizes of the columns of others."""
    size = like.shape[-1]
    return torch.eye(size, dtype=like.dtype).expand(*like.shape[:-2], size, size)


def is_empty(*tensors: Tensor) -> bool:
    """Whether one of them has no element, as far as that is known."""
    return any(statically_known_true(size == 0) for tensor in tensors for size in tensor.shape)


def same_batches(*matrices: Tensor) -> list[Tensor]:
    shape = torch.broadcast_shapes(*(matrix.shape[:-2] for matrix in matrices))
    return [matrix.expand(*shape, *matrix.shape[-2:]) for matrix in matrices]


# --- triangular systems -----------------------------------------------------------------------------------------------


@decomposes(aten.linalg_solve_triangular.default)
def _solve_triangular(
    self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if not left:
        return _solve_triangular(self.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    if upper:  # from the last row to the first
        return _solve_triangular(self.flip(-2, -1), B.flip(-2), upper=False, unitriangular=unitriangular).flip(-2)
    matrix, given = same_batches(self, B)
    if is_empty(matrix, given):
        return given.new_zeros(given.shape)
    found: Tensor = substitution(matrix, given, unitriangular)
    return found


@decomposes(aten.triangular_solve.default)
def _triangular_solve(
    self: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Tensors:
    matrix, other = (A.mT, not upper) if transpose else (A, upper)
    return _solve_triangular(matrix, self, upper=other, unitriangular=unitriangular), A.clone()


# --- Cholesky ---------------------------------------------------------------------------------------------------------


replaces(torch.cholesky, torch.Tensor.cholesky)(lambda input, upper=False: torch.linalg.cholesky(input, upper=upper))


def _first_place(found: Tensor) -> Tensor:
    """The number of the first place that is true, beginning at 1; 0 if there is none: LAPACK's info."""
    return torch.where(found.any(-1), found.int().argmax(-1) + 1, 0).int()


@decomposes(aten.linalg_cholesky_ex.default)
def _cholesky_ex(self: Tensor, *, upper: bool = False, check_errors: bool = False) -> Tensors:
    if is_empty(self):
        return self.new_zeros(self.shape), self.new_zeros(self.shape[:-2], dtype=torch.int32)
    factor = cholesky_factor(self.mT if upper else self)
    info = _first_place(~(factor.diagonal(0, -2, -1) > 0))
    return factor.mT if upper else factor, info


@decomposes(aten.cholesky_solve.default)
def _cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    lower = input2.mT if upper else input2
    return _solve_triangular(lower.mT, _solve_triangular(lower, self, upper=False), upper=True)


@decomposes(aten.cholesky_inverse.default)
def _cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(_identity(self), self, upper)


# --- LU ---------------------------------------------------------------------------------------------------------------


def _factorized(matrix: Tensor) -> Tensors:
    """Both factors (..., m, n) in one, and the pivots."""
    rows, columns = matrix.shape[-2:]
    least, most = torch.sym_min(rows, columns), torch.sym_max(rows, columns)
    if is_empty(matrix):
        return matrix.new_zeros(matrix.shape), matrix.new_zeros((*matrix.shape[:-2], least), dtype=torch.int32)
    if statically_known_true(rows == columns):
        return lu_factors(matrix)
    factors, pivots = lu_factors(torch.nn.functional.pad(matrix, (0, most - columns, 0, most - rows)))
    return factors[..., :rows, :columns], pivots[..., :least]


@decomposes(aten.linalg_lu_factor_ex.default)
def _lu_factor_ex(self: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Tensors:
    factors, pivots = _factorized(self)
    if is_empty(self):
        return factors, pivots, self.new_zeros(self.shape[:-2], dtype=torch.int32)
    return factors, pivots, _first_place(factors.diagonal(0, -2, -1) == 0)


@decomposes(aten.lu_unpack.default)
def _lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Tensors:
    rows, columns = LU_data.shape[-2:]
    least = torch.sym_min(rows, columns)
    if is_empty(LU_data):
        identity = torch.eye(rows, dtype=LU_data.dtype).expand(*LU_data.shape[:-2], rows, rows)
        return identity, identity[..., :least], LU_data[..., :least, :]
    order = row_order(LU_pivots, rows)
    permutation = (torch.arange(rows).unsqueeze(-1) == order.unsqueeze(-2)).to(LU_data.dtype)
    identity = torch.eye(rows, least, dtype=LU_data.dtype)
    return permutation, LU_data[..., :least].tril(-1) + identity, LU_data[..., :least, :].triu()


@decomposes(aten.linalg_lu.default)
def _lu(A: Tensor, *, pivot: bool = True) -> Tensors:
    return _lu_unpack(*_factorized(A))


@decomposes(aten.linalg_lu_solve.default)
def _lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(LU, pivots, B.mT, adjoint=not adjoint).mT
    factors, given = same_batches(LU, B)
    if is_empty(factors, given):
        return given.new_zeros(given.shape)
    order = row_order(pivots, LU.shape[-1]).unsqueeze(-1).expand_as(given)
    if adjoint:
        inner = _solve_triangular(factors.mT, given, upper=False)
        permuted = _solve_triangular(factors.mT, inner, upper=True, unitriangular=True)
        return torch.zeros_like(permuted).scatter(-2, order, permuted)
    inner = _solve_triangular(factors, given.gather(-2, order), upper=False, unitriangular=True)
    return _solve_triangular(factors, inner, upper=True)


@decomposes(aten._linalg_solve_ex.default)
def _solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Tensors:
    factors, pivots, info = _lu_factor_ex(A)
    is_vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    given = B.unsqueeze(-1) if is_vector else B
    found = _lu_solve(factors, pivots, given, left=left)
    return found.squeeze(-1) if is_vector else found, factors, pivots, info


@decomposes(aten.linalg_inv_ex.default)
def _inv_ex(A: Tensor, *, check_errors: bool = False) -> Tensors:
    factors, pivots, info = _lu_factor_ex(A)
    return _lu_solve(factors, pivots, _identity(A)), info


def _sign(pivots: Tensor) -> Tensor:
    """Of the permutation: -1 for an odd number of swaps."""
    swaps = (pivots != torch.arange(1, pivots.shape[-1] + 1)).sum(-1)
    return 1 - 2 * (swaps % 2)


def _factorized_for_determinant(matrix: Tensor) -> Tensors:
    """As in PyTorch, whose gradients depend on it, of the transpose if the matrix is contiguous."""
    return _factorized(matrix.mT if matrix.is_contiguous() else matrix)


@decomposes(aten._linalg_det.default)
def _det(A: Tensor) -> Tensors:
    factors, pivots = _factorized_for_determinant(A)
    return factors.diagonal(0, -2, -1).prod(-1) * _sign(pivots), factors, pivots


@decomposes(aten._linalg_slogdet.default)
def _slogdet(A: Tensor) -> Tensors:
    factors, pivots = _factorized_for_determinant(A)
    diagonal = factors.diagonal(0, -2, -1)
    return diagonal.sign().prod(-1) * _sign(pivots), diagonal.abs().log().sum(-1), factors, pivots
