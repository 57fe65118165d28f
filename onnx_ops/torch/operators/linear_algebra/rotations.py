"""The one-sided Jacobi method: rotations of rows until they are orthogonal, as an operator of its own.

A rotation of two rows makes them orthogonal (Hestenes 1958). A step of the loop rotates all rows in pairs, and after as
many steps, a sweep, each row has met each other one (Brent and Luk 1985).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import Value, integer, integers, number, op, sizes

SWEEPS = 60
"""The largest number. Rows of random numbers take 8 where there are 64 of them."""
ROUNDING = 1e-16
"""The cosine between two orthogonal rows, as it is computed, divided by their length."""
FAILURE = 1000.0
"""A cosine that is left, relative to the largest one that is allowed, with which the result is not used."""
NEGLIGIBLE = 1e-44
"""The product of the squared norms of two rows that need not be orthogonal, relative to the square of their sum."""

INT64 = ir.DataType.INT64


def _order(rows: Value) -> tuple[Value, Value]:
    """The places from which the rows come in a step of a round robin, and for each row the place of its partner.

    Partners are half of the rows apart. The first row stays; each other one goes to the next place in
    1, 2, ..., n / 2 - 1, n - 1, ..., n / 2 + 1, n / 2.
    """
    size = sizes(rows)[-2]
    if size >= 0:
        half = (size + 1) // 2
        first, second = [0, half, *range(1, half - 1)], [*range(half + 1, 2 * half), max(half - 1, 1)]
        return integers([*first[:half], *second[:half]]), integers([*range(half, 2 * half), *range(half)])
    zero, one = integer(0), integer(1)
    half = op.Div(op.Add(_scalar(_size(rows)), one), integer(2))
    places = op.Range(zero, half, one)
    first = op.Where(op.Equal(places, zero), zero, op.Where(op.Equal(places, one), half, op.Sub(places, one)))
    next = op.Add(op.Add(places, half), one)
    second = op.Where(op.Equal(places, op.Sub(half, one)), op.Max(op.Sub(half, one), one), next)
    partner = op.Concat(op.Range(half, op.Add(half, half), one), places, axis=0)
    return op.Concat(first, second, axis=0), partner


def _scalar(vector: Value) -> Value:
    """The element of a vector (1,)."""
    return op.Squeeze(vector, integers([0]))


def _size(matrix: Value, axis: int = -2) -> Value:
    """(1,) int64."""
    rank = len(matrix.shape)
    return op.Shape(matrix, start=rank + axis, end=rank + axis + 1)


def _even(rows: Value) -> Value:
    """Rows with a row of zeros at their end if their number is odd."""
    size, rank = sizes(rows)[-2], len(rows.shape)
    if size >= 0 and size % 2 == 0:
        return rows
    before = integers([0] * (2 * rank - 2))
    return op.Pad(rows, op.Concat(before, op.Mod(_size(rows), integers([2])), integers([0]), axis=0))


def _orthogonal_nodes(rows: Value, tolerance: float) -> tuple[Value, Value]:
    name, rank = f"{rows.name}_orthogonal", len(rows.shape)
    zero, last = number(0.0, rows), integers([-1])
    width, (order, partner) = _size(rows, -1), _order(rows)
    exchanged = op.Gather(order, partner)
    limit = op.Max(number(tolerance, rows), op.Mul(_scalar(op.Cast(width, to=rows.dtype)), number(ROUNDING, rows)))
    squared = op.Mul(limit, limit)
    # One of two partners with equal norms has a positive tangent, the other one a negative one.
    is_second = op.Unsqueeze(op.Less(partner, op.Gather(partner, partner)), last)
    least = op.Where(is_second, number(np.finfo(np.float64).tiny, rows), zero)
    swap = [*range(rank - 2), rank - 1, rank - 2]

    def rotated(_: Value, values: Value) -> tuple[Value, ...]:
        row, other = op.Gather(values, order, axis=-2), op.Gather(values, exchanged, axis=-2)
        norm, product = op.ReduceSumSquare(row, last), op.ReduceSum(op.Mul(row, other), last)
        other_norm = op.Gather(norm, partner, axis=-2)
        difference, twice = op.Sub(other_norm, norm), op.Add(product, product)
        square = op.Mul(twice, twice)
        # Rows that are orthogonal up to rounding stay: rounding would turn those with equal norms by any angle.
        wanted = op.Greater(square, op.Mul(op.Mul(norm, other_norm), squared))
        root = op.Sqrt(op.Add(op.Mul(difference, difference), square))
        signed = op.Where(op.Less(difference, least), op.Neg(root), root)
        half = op.Where(wanted, op.Div(product, op.Add(difference, signed)), zero)
        # The sums of partners may be rounded to different numbers, their tangents have to be opposite.
        tangent = op.Sub(half, op.Gather(half, partner, axis=-2))
        cosine_inverse = op.Sqrt(op.Add(op.Mul(tangent, tangent), number(1.0, rows)))
        return (op.Div(op.Sub(row, op.Mul(other, tangent)), cosine_inverse),)

    def above(values: Value, factor: float) -> Value:
        """(), int64, the number of pairs with a larger cosine than the limit times the factor."""
        norms = op.ReduceSumSquare(values, last)
        total = op.ReduceSum(norms, integers([-2]))
        products = op.MatMul(values, op.Transpose(values, perm=swap))
        negligible = op.Mul(op.Mul(total, total), number(NEGLIGIBLE, rows))
        bounds = op.Add(op.Mul(norms, op.Transpose(norms, perm=swap)), negligible)
        found = op.Greater(op.Mul(products, products), op.Mul(bounds, op.Mul(squared, number(factor**2, rows))))
        # Without the diagonal.
        return op.ReduceSum(op.Trilu(op.Cast(found, to=INT64), integer(1), upper=1), keepdims=0)

    def sweep(_: Value, values: Value) -> tuple[Value, ...]:
        # As many steps as bring each row back to its place.
        steps = op.Sub(_scalar(op.Shape(values, start=rank - 2, end=rank - 1)), integer(1))
        (values,) = loop(f"{name}_step", steps, [(values, rows.dtype)], rotated)
        return op.Greater(above(values, 1.0), integer(0)), values

    states = [(_even(rows), rows.dtype)]
    (values,) = loop(name, integer(SWEEPS), states, sweep, conditional=True)
    return op.Slice(values, integers([0]), _size(rows), integers([-2])), above(values, FAILURE)


@custom_operator(
    _orthogonal_nodes, lambda rows, tolerance: (rows.new_empty(rows.shape), rows.new_empty((), dtype=torch.int64))
)
def orthogonal_rows(rows: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """The product of a rotation and of rows, which makes the rows orthogonal.

    Args:
        rows: (..., k, w), the squares of whose elements neither overflow nor vanish.
        tolerance: the largest cosine between two orthogonal rows, unless rounding makes a larger one.

    Returns:
        (..., k, w); (), int64, the number of pairs of rows that are far from orthogonal, as the rotations have not
        converged.
    """
    return torch.linalg.svd(rows).U.mT @ rows, torch.zeros((), dtype=torch.int64)
