"""The loops of linear algebra, as operators of their own: factorizations by columns, and substitution by rows.

A loop over columns (rows) works on vectors. Matrices that are larger than a block, or of a dynamic size, are worked on
by blocks of columns (rows): a loop within one block, and products of matrices for the others (Golub and Van Loan,
Matrix Computations, sections 3.1, 3.2.11 and 4.2).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import Extent, Value, integer, integers, number, op, sizes

BLOCK = 32
"""Number of columns or rows of a block."""

INT64 = ir.DataType.INT64


# --- blocks -----------------------------------------------------------------------------------------------------------


def _scalar(vector: Value) -> Value:
    """The element of a vector (1,)."""
    return op.Squeeze(vector, integers([0]))


def _vector(scalar: Value) -> Value:
    return op.Reshape(scalar, integers([1]))


def _size(matrix: Value) -> Value:
    """(1,) int64, the number of rows."""
    return op.Shape(matrix, start=len(matrix.shape) - 2, end=len(matrix.shape) - 1)


def _is_one_block(matrix: Value) -> bool:
    return 0 <= sizes(matrix)[-2] <= BLOCK


def _places(size: Value) -> Value:
    """0, 1, 2, ... up to a size (1,)."""
    return op.Range(integer(0), _scalar(size), integer(1))


def _missing(size: Value) -> Value:
    """(1,), what a size (1,) lacks to a multiple of a block."""
    return op.Mod(op.Neg(size), integers([BLOCK]))


def _padded(matrix: Value, rows: Value, columns: Value) -> Value:
    """With zero rows and columns at its end; their numbers are vectors (1,)."""
    before = integers([0] * len(matrix.shape))
    return op.Pad(matrix, op.Concat(before, integers([0] * (len(matrix.shape) - 2)), rows, columns, axis=0))


def _bordered(matrix: Value) -> Value:
    """A square matrix with rows and columns of the identity at its end, so that it consists of whole blocks."""
    size = _size(matrix)
    missing = _missing(size)
    places = _places(op.Add(size, missing))
    rows = op.Unsqueeze(places, integers([1]))
    border = op.And(op.Equal(rows, places), op.GreaterOrEqual(rows, size))
    return op.Where(border, number(1.0, matrix), _padded(matrix, missing, missing))


def _blocks(size: Value) -> Value:
    """(), the number of blocks of a size (1,)."""
    return _scalar(op.Div(op.Add(size, integers([BLOCK - 1])), integers([BLOCK])))


def _part(matrix: Value, start: Value, end: Value | None, axis: int) -> Value:
    """Between two vectors (1,); without an end, to the last one."""
    return op.Slice(matrix, start, integers([np.iinfo(np.int64).max]) if end is None else end, integers([axis]))


def _first(matrix: Value, size: Value, *axes: int) -> Value:
    """The first rows and columns, of a number (1,)."""
    for axis in axes:
        matrix = _part(matrix, integers([0]), size, axis)
    return matrix


def _from_columns(stack: Value, rank: int) -> Value:
    """A matrix (..., n, b) of a stack of columns (b, ..., n, 1)."""
    return op.Transpose(op.Squeeze(stack, integers([-1])), perm=[*range(1, rank), 0])


def _from_rows(stack: Value, rank: int) -> Value:
    """A matrix (..., b, n) of a stack of rows (b, ..., 1, n)."""
    return op.Transpose(op.Squeeze(stack, integers([-2])), perm=[*range(1, rank - 1), 0, rank - 1])


def _joined(stack: Value, rank: int, axis: int) -> Value:
    """A matrix of a stack of blocks of its rows (axis -2) or columns (axis -1)."""
    place = rank + axis
    blocks = op.Transpose(stack, perm=[*range(1, place + 1), 0, *range(place + 1, rank + 1)])
    merged = [-1 if i == place else 0 for i in range(rank)]
    if axis == -1:
        return op.Reshape(blocks, integers(merged))
    # 0 in the shape of a Reshape copies the size of the same axis before, so that the last one needs a vector.
    leading = op.Shape(blocks, start=0, end=place)
    last = op.Shape(blocks, start=rank)
    return op.Reshape(blocks, op.Concat(leading, integers([-1]), last, axis=0))


def _transposed(matrix: Value, rank: int) -> Value:
    return op.Transpose(matrix, perm=[*range(rank - 2), rank - 1, rank - 2])


def _column(vector: Value) -> Value:
    return op.Unsqueeze(vector, integers([-1]))


def _row(vector: Value) -> Value:
    return op.Unsqueeze(vector, integers([-2]))


# --- Cholesky ---------------------------------------------------------------------------------------------------------


def _cholesky_columns(name: str, columns: Value, start: Value, count: Value, like: Value) -> Value:
    """Columns of the factor, from those of the matrix less the products of the factor's columns before them.

    Args:
        name: of the loop.
        columns: (..., N, count).
        start: (1,), the row of the first one's diagonal element.
        count: (1,).
        like: has dtype and rank of the matrix.
    """
    rank = len(like.shape)
    end = op.Add(start, count)

    def step(j: Value, rest: Value) -> tuple[Value, ...]:
        own = op.Gather(rest, _vector(j), axis=-1)
        root = op.Sqrt(op.Gather(own, op.Add(start, _vector(j)), axis=-2))
        # Elements above the diagonal are not read, nor are those in their rows.
        found = op.Div(own, root)
        return op.Sub(rest, op.Mul(found, _transposed(_part(found, start, end, -2), rank))), found

    _, stack = loop(name, _scalar(count), [(columns, like.dtype)], step, 1)
    return _from_columns(stack, rank)


def _cholesky_nodes(self: Value) -> Value:
    name, rank = f"{self.name}_cholesky", len(self.shape)
    size = _size(self)
    if _is_one_block(self):
        return op.Trilu(_cholesky_columns(name, self, integers([0]), size, self), upper=0)

    def block(k: Value, rest: Value) -> tuple[Value, ...]:
        start = _vector(op.Mul(k, integer(BLOCK)))
        columns = _part(rest, start, op.Add(start, integers([BLOCK])), -1)
        found = _cholesky_columns(f"{name}_block", columns, start, integers([BLOCK]), self)
        return op.Sub(rest, op.MatMul(found, _transposed(found, rank))), found

    _, stack = loop(name, _blocks(size), [(_bordered(self), self.dtype)], block, 1)
    return op.Trilu(_first(_joined(stack, rank, -1), size, -2, -1), upper=0)


@custom_operator(_cholesky_nodes, lambda self: self.new_empty(self.shape))
def cholesky_factor(self: Tensor) -> Tensor:
    """The lower triangular factor of a matrix (..., n, n), of which the lower triangle is read.

    The columns of a leading minor that is not positive definite, and those after it, are not finite or have a diagonal
    element that is not positive.
    """
    return torch.linalg.cholesky_ex(self)[0]


# --- LU ---------------------------------------------------------------------------------------------------------------


ORDER = "onnx_ops.row_order"
"""Key of the metadata of pivots: the rows that they bring to each place, which the elimination has found too."""


def _swapped(places: Value, one: Value, other: Value) -> Value:
    """The places of the rows after two of them have been swapped."""
    return op.Where(op.Equal(places, one), other, op.Where(op.Equal(places, other), one, places))


def _taken(matrix: Value, order: Value) -> Value:
    """The rows of a matrix (..., n, k) in an order (..., n)."""
    return op.GatherElements(matrix, op.Expand(_column(order), op.Shape(matrix)), axis=-2)


def _lu_columns(name: str, columns: Value, start: Value, count: Value, like: Value) -> tuple[Value, Value, Value]:
    """Columns of both factors by elimination with partial pivoting.

    Args:
        name: of the loop.
        columns: (..., N, count).
        start: (1,), the row of the first one's diagonal element.
        count: (1,).
        like: has dtype and rank of the matrix.

    Returns:
        The columns; (..., N) the order of their rows; (count, ..., 1) the row that each diagonal element comes from.
    """
    rank, zero = len(like.shape), number(0.0, like)
    rows = _column(_places(op.Shape(columns, start=rank - 2, end=rank - 1)))
    # Beside the columns of the matrix are those of the lower factor.
    both = op.Mul(count, integers([2]))
    across = _places(both)
    is_given = op.Less(across, count)
    added = op.Concat(integers([0] * (2 * rank - 1)), count, axis=0)
    negative = op.Where(op.Equal(op.Sub(across, count), _column(_places(count))), number(-1.0, like), zero)

    def step(j: Value, rest: Value, order: Value) -> tuple[Value, ...]:
        own_place = _vector(j)
        place = op.Add(start, own_place)
        own = op.Gather(rest, own_place, axis=-1)
        size = op.Where(op.IsNaN(own), number(np.inf, like), op.Abs(own))  # ArgMax ignores NaN
        pivot = op.ArgMax(op.Where(op.Less(rows, place), number(-1.0, like), size), axis=-2, keepdims=1)
        swapped = _swapped(rows, place, pivot)
        rest, order = (op.GatherND(each, swapped, batch_dims=rank - 2) for each in (rest, order))
        own, top = op.Gather(rest, own_place, axis=-1), op.Gather(rest, place, axis=-2)
        divisor = op.Gather(top, own_place, axis=-1)
        # Below a pivot of 0 there are zeros only.
        divisor = op.Where(op.Equal(divisor, zero), number(1.0, like), divisor)
        factors = op.Where(op.Greater(rows, place), op.Div(own, divisor), zero)
        eliminated = op.Where(is_given, top, op.Gather(negative, own_place, axis=0))
        return op.Sub(rest, op.Mul(factors, eliminated)), order, pivot

    order = op.Expand(rows, op.Concat(op.Shape(columns, end=rank - 1), integers([1]), axis=0))
    states = [(op.Pad(columns, added), like.dtype), (order, INT64)]
    found, order, pivots = loop(name, _scalar(count), states, step, 1)
    upper, lower = _first(found, count, -1), _part(found, count, both, -1)
    first = _scalar(op.Neg(start))
    lower, upper = op.Trilu(lower, op.Sub(first, integer(1)), upper=0), op.Trilu(upper, first, upper=1)
    return op.Add(lower, upper), op.Squeeze(order, integers([-1])), op.Squeeze(pivots, integers([-1]))


def _lu_nodes(self: Value) -> tuple[Value, Value]:
    name, rank = f"{self.name}_lu", len(self.shape)
    size = _size(self)
    if _is_one_block(self):
        found, order, pivots = _lu_columns(name, self, integers([0]), size, self)
        numbered = _numbered(pivots, rank)
        numbered.meta[ORDER] = order
        return found, numbered
    missing = _missing(size)

    def block(k: Value, rest: Value) -> tuple[Value, ...]:
        start = _vector(op.Mul(k, integer(BLOCK)))
        end = op.Add(start, integers([BLOCK]))
        columns = _part(rest, start, end, -1)
        found, order, pivots = _lu_columns(f"{name}_block", columns, start, integers([BLOCK]), self)
        rest = _taken(rest, order)
        own, under = _part(found, start, end, -2), _part(found, end, None, -2)
        left, top = _first(rest, start, -1), _part(rest, start, end, -2)
        right = _rows(f"{name}_rows", own, _part(top, end, None, -1), integers([BLOCK]), True, self)
        others = op.Sub(_part(_part(rest, end, None, -2), end, None, -1), op.MatMul(under, right))
        top = op.Concat(_first(top, start, -1), own, right, axis=-1)
        bottom = op.Concat(_part(left, end, None, -2), under, others, axis=-1)
        return op.Concat(_first(rest, start, -2), top, bottom, axis=-2), pivots

    whole, stack = loop(name, _blocks(size), [(_padded(self, missing, missing), self.dtype)], block, 1)
    # (blocks, BLOCK, ..., 1)
    pivots = op.Reshape(stack, op.Concat(integers([-1]), op.Shape(stack, start=2), axis=0))
    return _first(whole, size, -2, -1), _numbered(_first(pivots, size, 0), rank)


def _numbered(pivots: Value, rank: int) -> Value:
    """LAPACK's numbers (..., n) of rows (n, ..., 1), which begin at 1."""
    moved = op.Transpose(op.Squeeze(pivots, integers([-1])), perm=[*range(1, rank - 1), 0])
    return op.Cast(op.Add(moved, integer(1)), to=ir.DataType.INT32)


@custom_operator(
    _lu_nodes, lambda self: (self.new_empty(self.shape), self.new_empty(self.shape[:-1], dtype=torch.int32))
)
def lu_factors(self: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors of a square matrix (..., n, n) in one, and LAPACK's pivots (..., n), int32."""
    found, pivots, _ = torch.linalg.lu_factor_ex(self)
    return found, pivots


def _order_nodes(pivots: Value, count: int | Value) -> Value:
    if ORDER in pivots.meta:
        return op.Identity(pivots.meta[ORDER])
    rank = len(pivots.shape)
    rows = _places(Extent.given([count]).value)
    order = op.Expand(rows, op.Concat(op.Shape(pivots, end=rank - 1), Extent.given([count]).value, axis=0))
    numbers = op.Sub(op.Cast(pivots, to=INT64), integer(1))

    def step(j: Value, order: Value) -> tuple[Value, ...]:
        other = op.Gather(numbers, _vector(j), axis=-1)
        return (op.GatherElements(order, _swapped(rows, j, other), axis=-1),)

    steps = _scalar(op.Shape(pivots, start=rank - 1))
    return loop(f"{pivots.name}_order", steps, [(order, INT64)], step)[0]


@custom_operator(_order_nodes, lambda pivots, count: pivots.new_empty((*pivots.shape[:-1], count), dtype=torch.int64))
def row_order(pivots: Tensor, count: int) -> Tensor:
    """The rows (..., count), int64, that LAPACK's pivots (..., n) bring to each place."""
    order = torch.arange(count).expand(*pivots.shape[:-1], count).clone()
    for j in range(pivots.shape[-1]):
        other = pivots[..., j : j + 1].long() - 1
        one, two = order[..., j : j + 1].clone(), order.gather(-1, other)
        order.scatter_(-1, other, one)
        order[..., j : j + 1] = two
    return order


# --- substitution -----------------------------------------------------------------------------------------------------


def _rows(name: str, matrix: Value, given: Value, count: Value, unit: bool, like: Value) -> Value:
    """Forward substitution by rows, of which there are a number (1,)."""
    rank = len(like.shape)

    def step(j: Value, rest: Value) -> tuple[Value, ...]:
        place = _vector(j)
        own, below = op.Gather(rest, place, axis=-2), op.Gather(matrix, place, axis=-1)
        found = own if unit else op.Div(own, op.Gather(below, place, axis=-2))
        # Rows up to this one are not read again.
        return op.Sub(rest, op.Mul(below, found)), found

    _, stack = loop(name, _scalar(count), [(given, like.dtype)], step, 1)
    return _from_rows(stack, rank)


def _substitution_nodes(matrix: Value, given: Value, unit: bool) -> Value:
    name, rank = f"{given.name}_by_{matrix.name}", len(given.shape)
    size = _size(matrix)
    if _is_one_block(matrix):
        return _rows(name, matrix, given, size, unit, given)
    whole = _bordered(matrix)

    def block(k: Value, rest: Value) -> tuple[Value, ...]:
        start = _vector(op.Mul(k, integer(BLOCK)))
        end = op.Add(start, integers([BLOCK]))
        columns = _part(whole, start, end, -1)
        own = _part(columns, start, end, -2)
        found = _rows(f"{name}_rows", own, _part(rest, start, end, -2), integers([BLOCK]), unit, given)
        return op.Sub(rest, op.MatMul(columns, found)), found

    states = [(_padded(given, _missing(size), integers([0])), given.dtype)]
    _, stack = loop(name, _blocks(size), states, block, 1)
    return _first(_joined(stack, rank, -2), size, -2)


@custom_operator(_substitution_nodes, lambda matrix, given, unit: given.new_empty(given.shape))
def substitution(matrix: Tensor, given: Tensor, unit: bool) -> Tensor:
    """The solution of matrix @ x = given, by the lower triangle of the matrix.

    Args:
        matrix: (..., n, n).
        given: (..., n, k), with the same leading sizes.
        unit: whether the diagonal elements are 1 and not read.
    """
    return torch.linalg.solve_triangular(matrix.tril(), given, upper=False, unitriangular=unit)


# --- Householder reflections ------------------------------------------------------------------------------------------


def _reflected(rest: Value, vector: Value, factor: Value) -> Value:
    """A matrix (..., m, n) less the product factor * vector * (vector.T @ matrix)."""
    across = op.MatMul(_row(vector), rest)
    return op.Sub(rest, op.Mul(_column(op.Mul(vector, factor)), across))


def _qr(name: str, matrix: Value, like: Value) -> tuple[Value, Value]:
    rank = len(like.shape)
    zero, one = number(0.0, like), number(1.0, like)
    height, width = (op.Shape(matrix, start=rank + axis, end=rank + axis + 1) for axis in (-2, -1))
    rows, across = _places(height), _places(width)

    def step(j: Value, rest: Value) -> tuple[Value, ...]:
        own = op.Gather(rest, j, axis=-1)
        below, here = op.Greater(rows, j), op.Equal(rows, j)
        is_reduced = op.Equal(op.ReduceMax(op.Where(below, op.Abs(own), zero), integers([-1])), zero)
        # Divided by its largest element: squares neither overflow, nor do they vanish where columns are parallel.
        part = op.Where(op.Less(rows, j), zero, own)
        largest = op.ReduceMax(op.Abs(part), integers([-1]))
        divisor = op.Where(op.Equal(largest, zero), one, largest)
        scaled = op.Div(part, divisor)
        diagonal = op.Gather(scaled, _vector(j), axis=-1)
        size = op.Sqrt(op.ReduceSum(op.Mul(scaled, scaled), integers([-1])))
        opposite = op.Where(op.Less(diagonal, zero), size, op.Neg(size))
        difference = op.Where(is_reduced, one, op.Sub(diagonal, opposite))
        tail = op.Where(below, op.Div(scaled, difference), zero)
        factor = op.Where(is_reduced, zero, op.Div(op.Neg(difference), op.Where(is_reduced, one, opposite)))
        found = op.Where(is_reduced, op.Gather(own, _vector(j), axis=-1), op.Mul(opposite, divisor))
        others = _reflected(rest, op.Where(here, one, tail), factor)
        kept = _column(op.Where(below, tail, op.Where(here, found, own)))
        changed = op.Where(op.Equal(across, j), kept, rest)
        return op.Where(op.Greater(across, j), others, changed), op.Squeeze(factor, integers([-1]))

    count = _scalar(op.Min(height, width))
    factors, stack = loop(name, count, [(matrix, like.dtype)], step, 1)
    return factors, op.Transpose(stack, perm=[*range(1, rank - 1), 0])


def _qr_shapes(self: Tensor) -> tuple[Tensor, Tensor]:
    return self.new_empty(self.shape), self.new_empty((*self.shape[:-2], torch.sym_min(*self.shape[-2:])))


@custom_operator(lambda self: _qr(f"{self.name}_qr", self, self), _qr_shapes)
def reflections(self: Tensor) -> tuple[Tensor, Tensor]:
    """LAPACK's form of the QR factorization of a matrix (..., m, n).

    Returns:
        (..., m, n), R in the upper triangle and below it the Householder vectors, whose first element 1 is not stored;
        (..., min(m, n)), their factors.
    """
    factors, tau = torch.geqrf(self)
    return factors, tau


def _product(name: str, vectors: Value, factors: Value, given: Value, like: Value) -> Value:
    rank = len(like.shape)
    zero, one = number(0.0, like), number(1.0, like)
    rows = _places(op.Shape(vectors, start=rank - 2, end=rank - 1))
    count = _scalar(op.Shape(factors, start=rank - 2))

    def step(i: Value, rest: Value) -> tuple[Value, ...]:
        j = op.Sub(op.Sub(count, i), integer(1))
        own = op.Where(op.Greater(rows, j), op.Gather(vectors, j, axis=-1), zero)
        factor = op.Gather(factors, _vector(j), axis=-1)
        return (_reflected(rest, op.Where(op.Equal(rows, j), one, own), factor),)

    return loop(name, count, [(given, like.dtype)], step)[0]


def _product_nodes(vectors: Value, factors: Value, given: Value) -> Value:
    return _product(f"{vectors.name}_reflections_of_{given.name}", vectors, factors, given, given)


@custom_operator(_product_nodes, lambda vectors, factors, given: given.new_empty(given.shape))
def reflected(vectors: Tensor, factors: Tensor, given: Tensor) -> Tensor:
    """The product of the reflections I - factor * v * v.T, and of a matrix.

    Args:
        vectors: (..., m, n), below whose diagonal the Householder vectors are.
        factors: (..., k), for the first k columns.
        given: (..., m, p), with the same leading sizes.
    """
    found = given.clone()
    for j in reversed(range(factors.shape[-1])):
        vector = vectors[..., j : j + 1].tril(-1 - j)
        vector[..., j, :] = 1
        found -= factors[..., j, None, None] * vector @ (vector.mT @ found)
    return found


def _orthonormal_nodes(vectors: Value, wanted: Value) -> Value:
    name, rank = f"{vectors.name}_orthonormal", len(vectors.shape)
    zero, one = number(0.0, vectors), number(1.0, vectors)
    rows, across = (_places(op.Shape(vectors, start=rank + axis, end=rank + axis + 1)) for axis in (-2, -1))
    identity = op.Where(op.Equal(op.Unsqueeze(rows, integers([1])), across), one, zero)

    def step(_: Value, given: Value) -> tuple[Value, ...]:
        factors, tau = _qr(f"{name}_qr", given, vectors)
        found = _product(f"{name}_product", factors, tau, op.Expand(identity, op.Shape(given)), vectors)
        diagonal = op.ReduceSum(op.Mul(factors, identity), integers([-2]))
        return (op.Where(op.Less(diagonal, zero), op.Neg(found), found),)

    return loop(name, op.Cast(wanted, to=INT64), [(vectors, vectors.dtype)], step)[0]


@custom_operator(_orthonormal_nodes, lambda vectors, wanted: vectors.new_empty(vectors.shape))
def orthonormal(vectors: Tensor, wanted: Tensor) -> Tensor:
    """Orthonormal columns (..., m, k), k <= m, which span what the first columns of a matrix span, in their directions.

    Columns of zeros become vectors that are orthogonal to the others.

    Args:
        vectors: the matrix.
        wanted: (), bool; if it is false, the result is the matrix.
    """
    found, upper = torch.linalg.qr(vectors)
    return torch.where(wanted, torch.where(upper.diagonal(0, -2, -1).unsqueeze(-2) < 0, -found, found), vectors)
