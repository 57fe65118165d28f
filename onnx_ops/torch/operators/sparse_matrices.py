"""Sparse matrices as their indices and values: torch.sparse_coo_tensor, torch.sparse_csr_tensor, and products.

Products of two sparse matrices have their elements in the order of rows and columns; in PyTorch, the columns in a row
of those in CSR are in any order.

FakeTensors have no sparse layout with dynamic sizes, and no gradients of one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import TABLE, replaces

REMEDY = (
    "a capture has products of a sparse matrix with dense and sparse ones, its transpose, sum, softmax, index_select"
    " and to_dense(); write other functions with its indices and values, such as by index_select and index_add"
)


class SparseMatrix(Tensor):
    """A tensor whose elements are in two others; functions of PyTorch compute with these.

    Args:
        indices: (2, E) int64, rows and columns.
        values: (E,), those of the same place added up.
        size: rows and columns.
        coalesced: whether places are unique, and in the order of rows and columns.
        layout: torch.sparse_coo, torch.sparse_csr, or torch.sparse_csc, of the transpose of such a matrix.
    """

    _indices_: Tensor
    _values_: Tensor
    _coalesced_: bool
    _layout_: torch.layout

    @staticmethod
    def __new__(
        cls,
        indices: Tensor,
        values: Tensor,
        size: Sequence[Size],
        coalesced: bool = False,
        layout: torch.layout = torch.sparse_coo,
    ) -> SparseMatrix:
        with torch._C.DisableTorchFunctionSubclass():
            made = Tensor._make_wrapper_subclass(cls, tuple(size), dtype=values.dtype, device=values.device)
        made._indices_, made._values_, made._coalesced_, made._layout_ = indices, values, coalesced, layout
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        handler = HANDLERS.get(func)
        if handler is None:
            name = getattr(func, "__name__", str(func))
            raise CaptureError(f"{name} of a sparse matrix cannot be captured: {REMEDY}")
        return handler(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        raise CaptureError(f"{func} of a sparse matrix cannot be captured: {REMEDY}")

    @property
    def sizes(self) -> torch.Size:
        with torch._C.DisableTorchFunctionSubclass():
            return self.shape

    def with_values(self, values: Tensor, layout: torch.layout | None = None) -> SparseMatrix:
        return SparseMatrix(self._indices_, values, self.sizes, self._coalesced_, layout or self._layout_)


HANDLERS: dict[Any, Callable[..., Any]] = {}


def _handles(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(handler: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return enter


# Construction


def _elements(given: Tensor | npt.ArrayLike, dtype: torch.dtype | None = None) -> Tensor:
    return given if isinstance(given, Tensor) and dtype is None else torch.as_tensor(given, dtype=dtype)


@replaces(torch.sparse_coo_tensor)
def _coo(
    indices: Tensor | npt.ArrayLike,
    values: Tensor | npt.ArrayLike,
    size: Sequence[Size] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.types.Device = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseMatrix:
    places, elements = _elements(indices).long(), _elements(values, dtype)
    if size is None:
        raise CaptureError("a sparse tensor whose size depends on its indices cannot be captured: pass size")
    _check(len(size), elements)
    return SparseMatrix(places, elements, size, bool(is_coalesced))


@replaces(torch.sparse_csr_tensor)
def _csr(
    crow_indices: Tensor | npt.ArrayLike,
    col_indices: Tensor | npt.ArrayLike,
    values: Tensor | npt.ArrayLike,
    size: Sequence[Size] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.types.Device = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseMatrix:
    starts, columns = _elements(crow_indices).long(), _elements(col_indices).long()
    elements = _elements(values, dtype)
    if size is None:
        raise CaptureError("a sparse tensor whose size depends on its indices cannot be captured: pass size")
    _check(len(size), elements)
    # Each row adds 1 from its start on, so that the sum up to a place is the number of its row.
    marks = torch.zeros(columns.shape[0] + 1, dtype=torch.int64)
    rows = marks.index_add(0, starts[1:-1], torch.ones_like(starts[1:-1])).cumsum(0)[:-1]
    return SparseMatrix(torch.stack([rows, columns]), elements, size, True, torch.sparse_csr)


def _check(dims: int, values: Tensor) -> None:
    if dims != 2 or values.dim() != 1:
        raise CaptureError(
            f"a sparse tensor of {dims} dimensions with values of {values.dim()} cannot be captured, only a matrix"
        )


def _matrix(given: Tensor) -> SparseMatrix:
    """A sparse matrix; one that is not an input of the step as a constant."""
    if isinstance(given, SparseMatrix):
        return given
    with _disable_current_modes():
        kept = given.detach()
        layout, size = kept.layout, tuple(kept.shape)
        coalesced = kept.layout is not torch.sparse_coo or kept.is_coalesced()
        coo = kept.to_sparse_coo() if layout is not torch.sparse_coo else kept
        indices, values = coo._indices().clone(), coo._values().clone()
    _check(len(size), values)
    return SparseMatrix(indices, values, size, coalesced, layout)


def _is_sparse(given: object) -> bool:
    if isinstance(given, SparseMatrix):
        return True
    return isinstance(given, Tensor) and given.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


@_handles(Tensor.coalesce)
def _coalesced(self: SparseMatrix) -> SparseMatrix:
    """With the values of a place added up, in the order of rows and columns."""
    if self._coalesced_:
        return self
    width = self.sizes[1]
    places, inverse = torch.unique(self._indices_[0] * width + self._indices_[1], return_inverse=True)
    values = self._values_.new_zeros(places.shape).index_add(0, inverse, self._values_)
    indices = torch.stack([torch.div(places, width, rounding_mode="floor"), places % width])
    return SparseMatrix(indices, values, self.sizes, True)


# Properties

_handles(Tensor.indices)(lambda self: _require_coalesced(self)._indices_)
_handles(Tensor.values)(lambda self: (self if _is_csc(self) else _require_coalesced(self))._values_)
_handles(Tensor._indices)(lambda self: self._indices_)
_handles(Tensor._values)(lambda self: self._values_)
_handles(Tensor._nnz)(lambda self: self._values_.shape[0])
_handles(Tensor.is_coalesced)(lambda self: self._coalesced_)
_handles(Tensor.col_indices)(lambda self: self._indices_[1])
_handles(Tensor.row_indices)(lambda self: self._indices_[0])
_handles(Tensor.crow_indices)(lambda self: _starts(self._indices_[0], self.sizes[0]))
_handles(Tensor.ccol_indices)(lambda self: _starts(self._indices_[1], self.sizes[1]))
_handles(Tensor.shape.__get__, Tensor.size)(lambda self, dim=None: self.sizes if dim is None else self.sizes[dim])
_handles(Tensor.dim, Tensor.ndim.__get__, Tensor.sparse_dim)(lambda self: 2)
_handles(Tensor.dense_dim)(lambda self: 0)
_handles(Tensor.numel)(lambda self: math.prod(self.sizes))
_handles(Tensor.layout.__get__)(lambda self: self._layout_)
_handles(Tensor.is_sparse.__get__)(lambda self: self._layout_ is torch.sparse_coo)
_handles(Tensor.is_sparse_csr.__get__)(lambda self: self._layout_ is torch.sparse_csr)
for _name in ("dtype", "device", "requires_grad", "is_cuda"):
    _getter = getattr(Tensor, _name).__get__
    _handles(_getter)(lambda self, *_, _getter=_getter: _getter(self._values_))
for _method in (Tensor.is_floating_point, Tensor.is_complex, torch.is_floating_point, torch.is_complex):
    _handles(_method)(lambda self, _method=_method: _method(self._values_))


@_handles(Tensor._coalesced_)
def _declare_coalesced(self: SparseMatrix, coalesced: bool) -> SparseMatrix:
    self._coalesced_ = coalesced
    return self


def _is_csc(self: SparseMatrix) -> bool:
    return self._layout_ is torch.sparse_csc


def _starts(places: Tensor, count: Size) -> Tensor:
    """(count + 1,): the number of elements before each row, or column."""
    return functional.pad(_counts(places, count).cumsum(0), (1, 0))


def _counts(places: Tensor, count: Size) -> Tensor:
    return places.new_zeros(count).index_add(0, places, torch.ones_like(places))


def _require_coalesced(self: SparseMatrix) -> SparseMatrix:
    if not self._coalesced_:
        raise CaptureError("indices() and values() of a sparse matrix require coalesce(), as in PyTorch")
    return self


# Elements one by one


def _of_values(function: Callable[..., Any]) -> Callable[..., SparseMatrix]:
    return lambda self, *args, **kwargs: self.with_values(function(self._values_, *args, **kwargs))


for _function in (Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.detach, Tensor.clone):
    HANDLERS[_function] = _of_values(_function)
for _function in (Tensor.neg, Tensor.__neg__, torch.neg):
    HANDLERS[_function] = _of_values(_function)


def _by_number(function: Callable[..., Any], commutes: bool) -> Callable[..., SparseMatrix]:
    def scaled(self: Tensor | float, other: Tensor | float) -> SparseMatrix:
        if not _is_sparse(self) and commutes:
            self, other = other, self
        if not _is_sparse(self) or _is_sparse(other) or (isinstance(other, Tensor) and other.dim()):
            raise CaptureError(f"a product of a sparse matrix with elements of another cannot be captured: {REMEDY}")
        matrix = _matrix(self)
        return matrix.with_values(function(matrix._values_, other))

    return scaled


for _function in (Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul):
    HANDLERS[_function] = _by_number(torch.mul, True)
for _function in (Tensor.div, Tensor.__truediv__, torch.div):
    HANDLERS[_function] = _by_number(torch.div, False)


@_handles(Tensor.add, Tensor.__add__, torch.add)
def _added(self: Tensor, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    if _is_sparse(self) and _is_sparse(other):
        one, two = _matrix(self), _matrix(other)
        values = torch.cat([one._values_, two._values_ * alpha])
        return SparseMatrix(torch.cat([one._indices_, two._indices_], 1), values, one.sizes)
    if _is_sparse(self):
        raise CaptureError(f"the sum of a sparse matrix and a dense one cannot be captured: {REMEDY}")
    return self + _dense(_matrix(other)) * alpha


@_handles(Tensor.t, torch.t, Tensor.T.__get__, Tensor.mT.__get__)
def _transposed(self: SparseMatrix, *_: Any) -> SparseMatrix:
    layout = {torch.sparse_csr: torch.sparse_csc, torch.sparse_csc: torch.sparse_csr}.get(self._layout_, self._layout_)
    size = self.sizes[1], self.sizes[0]
    return SparseMatrix(self._indices_.flip(0), self._values_, size, layout is torch.sparse_csr, layout)


@_handles(Tensor.transpose, torch.transpose)
def _exchanged(self: SparseMatrix, dim0: int, dim1: int) -> SparseMatrix:
    return self if dim0 % 2 == dim1 % 2 else _transposed(self)


# Rows and columns


@_handles(Tensor.index_select, torch.index_select)
def _selected(self: SparseMatrix, dim: int, index: Tensor) -> SparseMatrix:
    """The rows, or columns, of an index, which may have some several times."""
    dim %= 2
    ordered, positions = index.sort(stable=True)
    first, second = _pairs(self._indices_[dim], ordered, self.sizes[dim])
    places = [self._indices_[1 - dim].index_select(0, first)]
    places.insert(dim, positions.index_select(0, second))
    size = [self.sizes[1 - dim]]
    size.insert(dim, index.shape[0])
    return SparseMatrix(torch.stack(places), self._values_.index_select(0, first), size)


def _pairs(one: Tensor, ordered: Tensor, count: Size) -> tuple[Tensor, Tensor]:
    """The indices i, j of all equal elements one[i] == ordered[j], integers below `count`; `ordered` ascends."""
    counts = _counts(ordered, count)
    found = counts.index_select(0, one)
    first = torch.repeat_interleave(found)
    before = (counts.cumsum(0) - counts).index_select(0, one) - (found.cumsum(0) - found)
    return first, before.index_select(0, first) + torch.arange(first.shape[0])


@_handles(Tensor.to_dense)
def _dense(self: SparseMatrix, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
    rows, columns = self.sizes
    whole = self._values_.new_zeros(rows * columns)
    found = whole.index_add(0, self._indices_[0] * columns + self._indices_[1], self._values_)
    dense = found.reshape(rows, columns)
    return dense if dtype is None else dense.to(dtype)


@_handles(torch.sparse.sum, torch._sparse_sum, Tensor.sum, torch.sum)
def _sum(input: SparseMatrix, dim: int | Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    values = input._values_ if dtype is None else input._values_.to(dtype)
    dims = () if dim is None else {axis % 2 for axis in ((dim,) if isinstance(dim, int) else dim)}
    if dim is None or len(dims) == 2:
        return values.sum()
    raise CaptureError(
        "the sum of a sparse matrix along an axis, which is sparse, cannot be captured: use the product with a vector"
        " of ones, `matrix @ torch.ones(columns)`"
    )


def _softmax(logarithm: bool) -> Callable[..., SparseMatrix]:
    def softmax(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> SparseMatrix:
        """Over the elements that there are in each row, or column."""
        matrix = _coalesced(_matrix(input))
        values = matrix._values_ if dtype is None else matrix._values_.to(dtype)
        groups, count = matrix._indices_[1 - dim % 2], matrix.sizes[1 - dim % 2]
        most = values.new_full((count,), -math.inf).scatter_reduce(0, groups, values.detach(), "amax")
        shifted = values - most.index_select(0, groups)
        total = values.new_zeros(count).index_add(0, groups, shifted.exp()).index_select(0, groups)
        return matrix.with_values(shifted - total.log() if logarithm else shifted.exp() / total)

    return softmax


HANDLERS[torch.sparse.softmax] = _softmax(False)
HANDLERS[torch.sparse.log_softmax] = _softmax(True)


# Products


def _times(matrix: SparseMatrix, dense: Tensor) -> Tensor:
    """(M, N) times (N, K), or (N,)."""
    rows, columns = matrix._indices_
    taken = dense.index_select(0, columns)
    terms = taken * (matrix._values_ if dense.dim() == 1 else matrix._values_.unsqueeze(1))
    return terms.new_zeros((matrix.sizes[0], *dense.shape[1:])).index_add(0, rows, terms)


@_handles(torch.sparse.mm, torch.mm, Tensor.mm, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mv, Tensor.mv)
def _product(first: Tensor, second: Tensor, *reduce: Any) -> Tensor:
    if reduce:
        raise CaptureError(f"a product of sparse matrices with reduce= cannot be captured: {REMEDY}")
    if _is_sparse(first) and _is_sparse(second):
        return _sparse_product(_matrix(first), _matrix(second))
    if _is_sparse(first):
        if second.dim() > 2:
            raise CaptureError(f"a product of a sparse matrix with a batch of dense ones cannot be captured: {REMEDY}")
        return _times(_matrix(first), second)
    matrix = _matrix(second)
    turned = SparseMatrix(matrix._indices_.flip(0), matrix._values_, (matrix.sizes[1], matrix.sizes[0]))
    return _times(turned, first if first.dim() == 1 else first.mT).mT if first.dim() > 1 else _times(turned, first)


def _sparse_product(one: SparseMatrix, two: SparseMatrix) -> SparseMatrix:
    """With elements where there is a term; their sum may be 0, as in PyTorch."""
    if two._layout_ is not torch.sparse_csr:
        two = _coalesced(two)
    first, second = _pairs(one._indices_[1], two._indices_[0], two.sizes[0])
    indices = torch.stack([one._indices_[0].index_select(0, first), two._indices_[1].index_select(0, second)])
    values = one._values_.index_select(0, first) * two._values_.index_select(0, second)
    found = _coalesced(SparseMatrix(indices, values, (one.sizes[0], two.sizes[1])))
    return found.with_values(found._values_, one._layout_)


HANDLERS[Tensor.__rmatmul__] = lambda self, other: _product(other, self)


@_handles(torch.sparse.addmm, torch.addmm, Tensor.addmm)
def _addmm(mat: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    return beta * mat + alpha * _product(mat1, mat2)


# Of dense tensors, and of constants


@_handles(Tensor.to_sparse, Tensor.to_sparse_coo)
def _to_sparse(self: Tensor, *args: Any, layout: torch.layout | None = None, **options: Any) -> SparseMatrix:
    if args or options or layout not in (None, torch.sparse_coo):
        raise CaptureError("to_sparse with arguments cannot be captured: make a matrix by torch.sparse_coo_tensor")
    if _is_sparse(self):
        matrix = _matrix(self)
        return matrix.with_values(matrix._values_, torch.sparse_coo)
    _check(self.dim(), self[0])
    indices = (self != 0).nonzero().t()
    return SparseMatrix(indices, self[indices[0], indices[1]], self.shape, True)


@_handles(Tensor.to_sparse_csr)
def _to_csr(self: Tensor, dense_dim: int | None = None) -> SparseMatrix:
    matrix = _coalesced(_to_sparse(self))
    return matrix.with_values(matrix._values_, torch.sparse_csr)


def _of_sparse(original: Callable[..., Any], handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of a sparse matrix, which may be a constant; of dense tensors, PyTorch's."""
    if not any(map(_is_sparse, args)):
        return original(*args, **kwargs)
    single = handler not in (_product, _addmm) and _is_sparse(args[0]) and not isinstance(args[0], SparseMatrix)
    return handler(*((_matrix(args[0]), *args[1:]) if single else args), **kwargs)


for _function, _handler in HANDLERS.items():
    if _function in (Tensor.to_sparse, Tensor.to_sparse_coo, Tensor.to_sparse_csr):
        replaces(_function)(_handler)
    elif getattr(_function, "__name__", "__get__") != "__get__" and _function not in TABLE.replacements:
        replaces(_function)(functools.partial(_of_sparse, _function, _handler))
