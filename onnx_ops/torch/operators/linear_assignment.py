"""The linear assignment problem, by which DETR and other detectors match predictions and targets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import loop
from onnx_ops.torch.base.nodes import Value, double, integer, integers, op
from onnx_ops.torch.base.table import checks

MODULE, NAME = "scipy.optimize._lsap", "linear_sum_assignment"
"""Of SciPy's function, which code mostly imports under its name."""


def scipys_function() -> Callable[..., Any] | None:
    """SciPy's function, if SciPy has been imported."""
    return getattr(sys.modules.get(MODULE), NAME, None)


def _nodes(cost: Value) -> Value:
    """Shortest augmenting paths from one row after the other (Kuhn 1955, Jonker and Volgenant 1987).

    A step of the loop adds to a search the column that is nearest, or turns a column of the path that has been found
    over to the row before. Column 0 is not one of the matrix: it has the row of the search.
    """
    one, infinity = integer(1), double(float("inf"))
    rows, columns = (op.Squeeze(op.Shape(cost, start=axis, end=axis + 1), integers([0])) for axis in (0, 1))
    padded = op.Pad(cost, integers([0, 1, 0, 0]), infinity)  # (rows, 1 + columns)
    of_rows = op.Range(integer(0), rows, one)
    of_columns = op.Range(integer(0), op.Add(columns, one), one)
    is_first = op.Equal(of_columns, integer(0))
    extents = op.Shape(of_rows), op.Shape(of_columns)

    def full(value: Value, axis: int) -> Value:
        return op.Expand(value, extents[axis])

    def step(
        _: Value, row: Value, column: Value, searches: Value, by_row: Value, by_column: Value, owners: Value,
        before: Value, distances: Value, reached: Value, in_tree: Value,
    ) -> Sequence[Value]:  # fmt: skip
        here, owner = op.Equal(of_columns, column), op.Gather(owners, column)
        reached, in_tree = op.Or(reached, here), op.Or(in_tree, op.Equal(of_rows, owner))
        reduced = op.Sub(op.Sub(op.Gather(padded, owner), op.Gather(by_row, owner)), by_column)
        nearer = op.And(op.Not(reached), op.Less(reduced, distances))
        distances = op.Where(nearer, reduced, distances)
        left = op.Where(reached, infinity, distances)
        nearest, least = op.ArgMin(left, axis=0, keepdims=0), op.ReduceMin(left, keepdims=0)
        is_free = op.Less(op.Gather(owners, nearest), integer(0))

        earlier = op.Gather(before, column)
        ends = op.And(op.Not(searches), op.Equal(earlier, integer(0)))
        turned = op.Where(op.And(op.Not(searches), here), op.Gather(owners, earlier), owners)
        row = op.Add(row, op.Cast(ends, to=ir.DataType.INT64))
        return [
            op.Less(row, rows),
            row,
            op.Where(searches, nearest, earlier),
            op.Or(ends, op.And(searches, op.Not(is_free))),
            op.Where(op.And(searches, in_tree), op.Add(by_row, least), by_row),
            op.Where(op.And(searches, reached), op.Sub(by_column, least), by_column),
            op.Where(op.And(ends, is_first), row, turned),
            op.Where(op.And(searches, nearer), column, before),
            op.Where(searches, op.Where(reached, distances, op.Sub(distances, least)), infinity),
            op.And(searches, reached),
            op.And(searches, in_tree),
        ]

    false, true = (op.Constant(value=ir.tensor(value)) for value in (False, True))
    states = [
        (integer(0), ir.DataType.INT64),
        (integer(0), ir.DataType.INT64),
        (true, ir.DataType.BOOL),
        (full(double(0.0), 0), ir.DataType.DOUBLE),
        (full(double(0.0), 1), ir.DataType.DOUBLE),
        (op.Where(is_first, integer(0), integer(-1)), ir.DataType.INT64),
        (full(integer(0), 1), ir.DataType.INT64),
        (full(infinity, 1), ir.DataType.DOUBLE),
        (full(false, 1), ir.DataType.BOOL),
        (full(false, 0), ir.DataType.BOOL),
    ]
    # A search reaches at most the columns of the rows before it and a free one.
    steps = op.Mul(op.Mul(rows, integer(2)), op.Add(rows, one))
    owners = loop(f"{cost.name}_assignment", steps, states, step, conditional=True)[5]
    owned = op.Equal(op.Unsqueeze(of_rows, integers([1])), op.Slice(owners, integers([1]), integers([2**63 - 1])))
    return op.ArgMax(op.Cast(owned, to=ir.DataType.INT32), axis=1, keepdims=0)


def _shape(cost: Tensor) -> Tensor:
    return cost.new_empty((cost.shape[0],), dtype=torch.int64)


@custom_operator(_nodes, _shape)
def assigned_columns(cost: Tensor) -> Tensor:
    """A column of each row, with the least sum of costs: (rows, columns) float64 to (rows,), of no more rows."""
    function = scipys_function()
    assert function is not None  # what runs here is called in its place
    return torch.from_numpy(function(cost.numpy())[1])


@checks(torch.ops.onnx_ops.assigned_columns.default)
def _invalid(cost: Tensor) -> tuple[Tensor, str]:
    """SciPy refuses NaN and -inf, and matrices in which there is no finite sum."""
    return cost.isfinite().logical_not().sum(), f"the count of entries of {NAME} that are not finite"
