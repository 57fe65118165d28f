"""Eigenvalues of symmetric matrices, singular values, and what PyTorch makes of them.

They are computed in float64, by the one-sided Jacobi method with a QR factorization before (Drmac and Veselic 2008).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.return_types import svd

from onnx_ops.torch.base.table import checks, decomposes, replaces
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.linear_algebra.loops import orthonormal, reflected, reflections
from onnx_ops.torch.operators.linear_algebra.rotations import orthogonal_rows
from onnx_ops.torch.operators.linear_algebra.solving import same_batches

aten = torch.ops.aten
Tensors: TypeAlias = tuple[Tensor, ...]

TOLERANCES = {torch.float32: 1e-13, torch.float64: 4e-15}
"""The cosine of the angle between two rows that are orthogonal."""
ORTHOGONAL = 1e-10
"""Rows with smaller norms, relative to the largest one, need not be orthogonal to each other."""
PRECISE = {torch.float32: 1e-5, torch.float64: 0.5}
"""Columns with smaller norms, relative to the largest one, have larger errors than the tolerance over this."""


def _identity(rows: int, columns: int, like: Tensor) -> Tensor:
    """The first columns of an identity for each matrix."""
    return torch.eye(rows, columns, dtype=like.dtype).expand(*like.shape[:-2], rows, columns)


def _not_finite(matrix: Tensor) -> Tensor:
    return (~matrix.isfinite()).sum()


def _scaled(matrix: Tensor) -> Tensors:
    """In float64, divided by a power of 2 so that squares of its elements neither overflow nor vanish.

    Returns:
        (..., m, n), zeros for matrices that are not finite; (..., 1), the power of 2, NaN for these.
    """
    finite = matrix.isfinite().all(-1).all(-1, keepdim=True)
    wide = torch.where(finite.unsqueeze(-1), matrix, 0.0).double()
    if matrix.dtype is torch.float32:
        return wide, torch.where(finite, 1.0, math.nan).double()
    largest = _largest(wide.abs().flatten(-2)).unsqueeze(-1)
    # The exponents of subnormal numbers would overflow as those of a factor.
    scale = torch.exp2(torch.where(largest > 0, largest, 1.0).clamp(min=2.0**-1000).log2().floor())
    return wide / scale.unsqueeze(-1), torch.where(finite, scale, math.nan)


def _orthogonal(rows: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`orthogonal_rows`, NaN if they have not become orthogonal, and where the scale is."""
    found, left = orthogonal_rows(rows, TOLERANCES[dtype])
    return torch.where((left == 0) & ~scale.isnan().unsqueeze(-1), found, math.nan)


def _norm(rows: Tensor) -> Tensor:
    return rows.square().sum(-1).sqrt()


def _largest(values: Tensor) -> Tensor:
    """(...) of values (..., k) that are not negative; 0 if there is none."""
    return torch.nn.functional.pad(values, (0, 1)).amax(-1)


def _taken(rows: Tensor, order: Tensor) -> Tensor:
    """The rows of matrices (..., k, w) in an order (..., k)."""
    return rows.gather(-2, order.unsqueeze(-1).expand_as(rows))


# --- eigenvalues ------------------------------------------------------------------------------------------------------


def _symmetric(matrix: Tensor, uplo: str) -> Tensor:
    """The symmetric matrix whose lower (L) or upper (U) triangle is given."""
    lower = matrix.mT.tril() if uplo.upper() == "U" else matrix.tril()
    return lower + lower.tril(-1).mT


@checks(aten._linalg_eigh.default)
def _eigh_check(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, str]:
    return _not_finite(A.tril() if UPLO.upper() == "L" else A.triu()), "the info of linalg.eigh"


@decomposes(aten._linalg_eigh.default)
def _eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> Tensors:
    """By rotations of the rows of A + c * I, where c is larger than the absolute values of the eigenvalues.

    Its orthogonal rows are its eigenvectors times its eigenvalues.
    """
    if A.is_complex():
        return NotImplemented
    size = A.shape[-1]
    if statically_known_true(size == 0):
        return A.new_empty(A.shape[:-1]), A.new_empty(A.shape if compute_v else 0)
    matrix, scale = _scaled(_symmetric(A, UPLO))
    largest = torch.minimum(_largest(matrix.abs().sum(-1)), matrix.square().sum((-2, -1)).sqrt())
    shift = torch.where(largest > 0, 1.25 * largest, 1.0)[..., None, None]
    rows = _orthogonal(matrix + shift * torch.eye(size, dtype=matrix.dtype), scale, A.dtype)
    vectors = rows / _norm(rows).unsqueeze(-1)
    # Of approximate eigenvectors, the errors of these are squares of the vectors' (Rayleigh quotients).
    values, order = ((vectors @ matrix) * vectors).sum(-1).sort(-1)
    values = (values * scale).to(A.dtype)
    return values, _taken(vectors, order).mT.to(A.dtype) if compute_v else A.new_empty(0)


# --- singular values --------------------------------------------------------------------------------------------------


@checks(aten._linalg_svd.default)
def _svd_check(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, str]:
    return _not_finite(A), "the info of linalg.svd"


@decomposes(aten._linalg_svd.default)
def _svd(A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Tensors:
    """By rotations of the rows of the factor R of A = Q @ R, which make them multiples of the right vectors, V.

    A @ V has orthogonal columns, multiples of the left vectors. Where their norms are small, its rounding errors are
    not, and the factor Q of A @ V has the vectors.
    """
    if A.is_complex():
        return NotImplemented
    if statically_known_true(A.shape[-2] < A.shape[-1]):
        left, values, right = _svd(A.mT, full_matrices, compute_uv)
        return (right.mT, values, left.mT) if compute_uv else (left, values, right)
    rows, columns = A.shape[-2:]
    least = torch.sym_min(rows, columns)
    if statically_known_true(least == 0):
        left, right = (_identity(size, size if full_matrices else 0, A) for size in (rows, columns))
        values = A.new_empty((*A.shape[:-2], 0))
        return (left, values, right.mT) if compute_uv else (A.new_empty(0), values, A.new_empty(0))
    matrix, scale = _scaled(A)
    turned = _orthogonal(reflections(matrix)[0][..., :least, :].triu(), scale, A.dtype)
    norms, order = _norm(turned).sort(-1, descending=True)
    right = _taken(turned, order).mT / _divisor(norms)
    if not compute_uv:
        values = _norm((matrix @ right).mT).sort(-1, descending=True).values
        return A.new_empty(0), (values * scale).to(A.dtype), A.new_empty(0)
    if full_matrices and not statically_known_true(columns == least):
        right = _completed(right, columns)
    else:
        right = orthonormal(right, _has_small(norms, ORTHOGONAL))
    multiples = matrix @ right[..., :least]
    norms = _norm(multiples.mT)
    left = multiples / _divisor(norms)
    if full_matrices and not statically_known_true(rows == least):
        left = _completed(left, rows)
    else:
        left = orthonormal(left, _has_small(norms, PRECISE[A.dtype]))
    values = (left[..., :least] * multiples).sum(-2).clamp(min=0).sort(-1, descending=True).values
    return left.to(A.dtype), (values * scale).to(A.dtype), right.mT.to(A.dtype)


class _SingularValues(torch.autograd.Function):
    """Whose gradient, unlike PyTorch's own, does not compare the numbers of rows and columns."""

    @staticmethod
    def forward(ctx: FunctionCtx, matrix: Tensor) -> Tensor:
        left, values, transposed = torch.linalg.svd(matrix, full_matrices=False)
        ctx.save_for_backward(matrix, left, transposed)
        return values

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        matrix, left, transposed = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            left, _, transposed = torch.linalg.svd(matrix, full_matrices=False)
        return (left * gradient.unsqueeze(-2)) @ transposed


@replaces(torch.linalg.svdvals)
def singular_values(input: Tensor, *, driver: str | None = None) -> Tensor:
    """As torch.linalg.svdvals."""
    rows, columns = input.shape[-2:]
    compared = statically_known_true(rows < columns) or statically_known_true(rows >= columns)
    differentiated = torch.is_grad_enabled() and input.requires_grad
    if compared or not differentiated or input.is_complex() or within_transforms():
        return torch.linalg.svdvals(input)
    found: Tensor = _SingularValues.apply(input)
    return found


@replaces(torch.svd, torch.Tensor.svd)
def _old_svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> svd:
    if compute_uv:
        return torch.svd(input, some)
    rows, columns = input.shape[-2:]
    left, right = (input.new_zeros((*input.shape[:-2], size, size)) for size in (rows, columns))
    return svd((left, singular_values(input), right))


def _divisor(norms: Tensor) -> Tensor:
    """(..., 1, k), infinite for norms whose squares are not normal numbers: those vectors become zeros."""
    return torch.where(norms > 1e-150, norms, math.inf).unsqueeze(-2)


def _has_small(norms: Tensor, limit: float) -> Tensor:
    """Whether a norm is small relative to the largest one of its matrix."""
    return (norms <= limit * _largest(norms).unsqueeze(-1)).any()


def _completed(vectors: Tensor, columns: int) -> Tensor:
    """Orthonormal columns, of which the first ones are given up to rounding; those given as zeros are new ones."""
    factors, tau = reflections(vectors)
    size, given = vectors.shape[-2:]
    found: Tensor = reflected(factors, tau, _identity(size, columns, vectors))
    signs = torch.where(factors.diagonal(0, -2, -1) < 0, -1.0, 1.0).to(vectors.dtype)
    return found * torch.nn.functional.pad(signs, (0, columns - given), value=1.0).unsqueeze(-2)


# --- pseudoinverses and least squares ---------------------------------------------------------------------------------


@checks(aten.linalg_pinv.atol_rtol_tensor)
def _pinv_check(
    self: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> tuple[Tensor, str]:
    return _eigh_check(self) if hermitian else _svd_check(self)


@decomposes(aten.linalg_pinv.atol_rtol_tensor)
def _pinv(self: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    if self.is_complex():
        return NotImplemented
    least, relative = _tolerances(self, atol, rtol)
    if hermitian:
        values, vectors = _eigh(self)
        left = right = vectors
    else:
        left, values, transposed = _svd(self)
        right = transposed.mT
    size = values.abs()
    kept = size > torch.maximum(least, relative * _largest(size)).unsqueeze(-1)
    inverse = torch.where(kept, 1 / torch.where(kept, values, 1.0), 0.0)
    return (right * inverse.unsqueeze(-2)) @ left.mT


def _tolerances(matrix: Tensor, atol: Tensor | None, rtol: Tensor | None) -> Tensors:
    """As in PyTorch: relative to the largest singular value a unit in the last place times the size of the matrix."""
    zero = torch.zeros((), dtype=matrix.dtype)
    default = torch.finfo(matrix.dtype).eps * torch.sym_max(*matrix.shape[-2:])
    least = zero if atol is None else atol.to(matrix.dtype)
    if rtol is not None:
        return least, rtol.to(matrix.dtype)
    relative = torch.full((), default, dtype=matrix.dtype)
    return least, relative if atol is None else torch.where(least > 0, zero, relative)


@replaces(torch.linalg.lstsq)
def _lstsq_with_residuals(input: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """With residuals that are differentiated here, as the gradient in PyTorch knows no dynamic sizes.

    The solution minimizes them, so that they do not change with it.
    """
    found = torch.linalg.lstsq(input, b, rcond, driver=driver)
    if found.residuals.dim() < input.dim() - 1 or found.residuals.shape == (0,):  # of fewer equations than unknowns
        return found
    is_vector = found.solution.dim() < input.dim()
    solution, given = (part.unsqueeze(-1) if is_vector else part for part in (found.solution.detach(), b))
    squares = (input @ solution - given).square().sum(-2)
    residuals = torch.where(found.residuals.detach().isnan(), math.nan, squares)
    return type(found)((found.solution, residuals, found.rank, found.singular_values))


@checks(aten.linalg_lstsq.default)
def _lstsq_check(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, str]:
    return _not_finite(self), "the info of linalg.lstsq"


@decomposes(aten.linalg_lstsq.default)
def _lstsq(self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Tensors:
    """The solution with the least norm; LAPACK's driver gels assumes that the matrix has full rank."""
    if self.is_complex():
        return NotImplemented
    is_vector = b.dim() == 1 or (b.dim() == self.dim() - 1 and b.shape == self.shape[:-1])
    matrix, given = same_batches(self, b.unsqueeze(-1) if is_vector else b)
    rows, columns = matrix.shape[-2:]
    left, values, transposed = _svd(matrix)
    if driver == "gels":
        kept = torch.ones_like(values, dtype=torch.bool)
    else:
        limit = torch.finfo(matrix.dtype).eps * torch.sym_max(rows, columns) if rcond is None else rcond
        limit = torch.finfo(matrix.dtype).eps if limit < 0 else limit
        kept = values > torch.full((), limit, dtype=matrix.dtype) * _largest(values).unsqueeze(-1)
    parts = torch.where(kept.unsqueeze(-1), (left.mT @ given) / values.unsqueeze(-1), 0.0)
    solution = transposed.mT @ parts
    residuals = given.new_empty(0)
    if driver not in (None, "gelsy") and rows > columns:
        # PyTorch has no residuals if a matrix of the batch lacks full rank, which depends on data.
        residuals = torch.where(kept.all(), (given - matrix @ solution).square().sum(-2), math.nan)
    found = solution.squeeze(-1) if is_vector else solution
    rank = given.new_empty(0, dtype=torch.int64) if driver == "gels" else kept.sum(-1)
    return found, residuals, rank, values if driver in ("gelsd", "gelss") else given.new_empty(0)
