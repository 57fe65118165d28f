"""The one-sided Jacobi method: rotations of rows until they are orthogonal, as an operator of its own.

A rotation of two rows makes them orthogonal (Hestenes 1958). A step of the loop rotates all rows in pairs, and after as
many steps, a sweep, each row has met each other one (Brent and Luk 1985).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import integers, number, op, sizes

SWEEPS = 60
"""The largest number. Rows of random numbers take 8 where there are 64 of them."""
ROUNDING = 2e-16
"""The cosine between two orthogonal rows, as it is computed, divided by their length."""
NEGLIGIBLE = 1e-44
"""The product of the squared norms of two rows that need not be orthogonal, relative to the square of their sum."""

INT64 = ir.DataType.INT64


def _pairs(rows: Any) -> tuple[Any, Any]:
    """The places of the first rows of the pairs, and of the second ones, after a step of a round robin.

    Before it the pairs are those of the first and the second half. The first row stays; each other one goes to the next
    place in 1, 2, ..., n / 2 - 1, n - 1, ..., n / 2 + 1, n / 2.
    """
    size = sizes(rows)[-2]
    if size >= 0:
        half = max(size + size % 2, 2) // 2
        first = [0, half, *range(1, half - 1)][:half]
        second = [*range(half + 1, 2 * half), half - 1 if half > 1 else 1]
        return integers(first[: (size + 1) // 2]), integers(second[: (size + 1) // 2])
    zero, one = (op.Constant(value=ir.tensor(np.int64(value))) for value in (0, 1))
    half = op.Div(op.Add(op.Squeeze(_size(rows), integers([0])), one), op.Add(one, one))
    places = op.Range(zero, half, one)
    before = op.Sub(places, one)
    first = op.Where(op.Equal(places, zero), zero, op.Where(op.Equal(places, one), half, before))
    last = op.Where(op.Equal(half, one), one, op.Sub(half, one))
    second = op.Where(op.Equal(places, op.Sub(half, one)), last, op.Add(op.Add(places, half), one))
    return first, second


def _size(matrix: Any, axis: int = -2) -> Any:
    """(1,) int64."""
    rank = len(matrix.shape)
    return op.Shape(matrix, start=rank + axis, end=rank + axis + 1)


def _with_identity(rows: Any) -> Any:
    """Rows (..., k, w), beside those of the identity."""
    rank, size = len(rows.shape), _size(rows)
    zero, one = (op.Constant(value=ir.tensor(np.int64(value))) for value in (0, 1))
    places = op.Range(zero, op.Squeeze(size, integers([0])), one)
    equal = op.Equal(op.Unsqueeze(places, integers([1])), places)
    identity = op.Where(equal, number(1.0, rows), number(0.0, rows))
    shape = op.Concat(op.Shape(rows, end=rank - 2), size, size, axis=0)
    return op.Concat(rows, op.Expand(identity, shape), axis=-1)


def _even(rows: Any, given: Any) -> Any:
    """Rows with a row of zeros at their end if their number is odd; `given` has the same number, and a shape."""
    size = sizes(given)[-2]
    if size >= 0 and size % 2 == 0:
        return rows
    zeros = integers([0] * (len(given.shape) - 1))
    before = op.Concat(integers([0]), zeros, axis=0)
    return op.Pad(rows, op.Concat(before, integers([0] * (len(given.shape) - 2)), op.Mod(_size(given), integers([2])), integers([0]), axis=0))


def _sum(values: Any) -> Any:
    return op.ReduceSum(values, integers([-1]))


def _orthogonal_nodes(rows: Any, accumulated: bool, tolerance: float) -> tuple[Any, Any]:
    name, rank = f"{rows.name}_orthogonal", len(rows.shape)
    width, (first, second) = _size(rows, -1), _pairs(rows)
    least = op.Mul(op.Cast(width, to=rows.dtype), number(ROUNDING, rows))
    limit = op.Max(number(tolerance, rows), op.Squeeze(least, integers([0])))
    squared = op.Mul(limit, limit)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    one = op.Constant(value=ir.tensor(np.int64(1)))

    def own(joined: Any) -> Any:
        return op.Slice(joined, integers([0]), width, integers([-1])) if accumulated else joined

    def rotated(_: Any, joined: Any) -> tuple[Any, ...]:
        x, y = op.Gather(joined, first, axis=-2), op.Gather(joined, second, axis=-2)
        x_own, y_own = own(x), own(y)
        xx, yy, xy = _sum(op.Mul(x_own, x_own)), _sum(op.Mul(y_own, y_own)), _sum(op.Mul(x_own, y_own))
        difference, twice = op.Sub(yy, xx), op.Add(xy, xy)
        # Rows that are orthogonal up to rounding stay as they are. Those with equal norms would be rotated without end.
        wanted = op.Greater(op.Mul(twice, twice), op.Mul(op.Mul(xx, yy), squared))
        root = op.Sqrt(op.Add(op.Mul(difference, difference), op.Mul(twice, twice)))
        signed = op.Where(op.Less(difference, number(0.0, rows)), op.Neg(root), root)
        tangent = op.Where(wanted, op.Div(twice, op.Add(difference, signed)), number(0.0, rows))
        cosine = op.Div(number(1.0, rows), op.Sqrt(op.Add(op.Mul(tangent, tangent), number(1.0, rows))))
        sine = op.Mul(cosine, tangent)
        upper = op.Sub(op.Mul(x, cosine), op.Mul(y, sine))
        lower = op.Add(op.Mul(x, sine), op.Mul(y, cosine))
        return (op.Concat(upper, lower, axis=-2),)

    def sweep(_: Any, joined: Any, left: Any) -> tuple[Any, ...]:
        # As many steps as bring each row back to its place.
        steps = op.Sub(op.Squeeze(op.Shape(joined, start=rank - 2, end=rank - 1), integers([0])), one)
        (joined,) = loop(f"{name}_step", steps, [(joined, rows.dtype)], rotated)
        values = own(joined)
        norms = _sum(op.Mul(values, values))
        total = op.ReduceSum(norms, integers([-2]))
        allowed = op.Add(op.Mul(norms, op.Transpose(norms, perm=swap)), op.Mul(op.Mul(total, total), number(NEGLIGIBLE, rows)))
        products = op.MatMul(values, op.Transpose(values, perm=swap))
        above = op.Greater(op.Mul(products, products), op.Mul(allowed, squared))
        # A row that is not zero is counted as not orthogonal to itself.
        count = op.ReduceSum(op.Trilu(op.Cast(above, to=INT64), one, upper=1), keepdims=0)
        return op.Greater(count, op.Constant(value=ir.tensor(np.int64(0)))), joined, count

    joined = _even(_with_identity(rows) if accumulated else rows, rows)
    states = [(joined, rows.dtype), (op.Constant(value=ir.tensor(np.int64(0))), INT64)]
    most = op.Constant(value=ir.tensor(np.int64(SWEEPS)))
    joined, left = loop(name, most, states, sweep, conditional=True)
    return op.Slice(joined, integers([0]), _size(rows), integers([-2])), left


def _orthogonal_shapes(rows: Tensor, accumulated: bool, tolerance: float) -> tuple[Tensor, Tensor]:
    size, width = rows.shape[-2:]
    found = rows.new_empty((*rows.shape[:-1], width + size if accumulated else width))
    return found, rows.new_empty((), dtype=torch.int64)


@custom_operator(_orthogonal_nodes, _orthogonal_shapes)
def orthogonal_rows(rows: Tensor, accumulated: bool, tolerance: float) -> tuple[Tensor, Tensor]:
    """The product of a rotation and of rows, which makes the rows orthogonal.

    Args:
        rows: (..., k, w), the squares of whose elements neither overflow nor vanish.
        accumulated: whether the rotation is a result.
        tolerance: the largest cosine between two orthogonal rows, unless rounding makes a larger one.

    Returns:
        (..., k, w), beside it the rotation (..., k, k) if it is accumulated; (), int64, the number of pairs that have
        not become orthogonal.
    """
    rotation = torch.linalg.svd(rows).U.mT
    found = rotation @ rows
    return torch.cat([found, rotation], -1) if accumulated else found, torch.zeros((), dtype=torch.int64)
