"""The coordinates of the elements of a sparse matrix: their checks, and which of them are in range."""

from __future__ import annotations

from onnx_ops.core.call import Call
from onnx_ops.core.types import MAX_RANK, Dim
from onnx_ops.graph.builder import Value


def check_coordinates(call: Call) -> Dim:
    """Refuse indices that are not one per element of the sparse matrix; returns the number of these."""
    row, column = call.shape("row"), call.shape("column")
    for name, shape in (("row", row), ("column", column)):
        if shape is not None and len(shape) != 1:
            raise call.shape_error(name, "one dimension")
    if row is not None:
        call.same_shape("column", row, "the shape of 'row'")
        return row[0]
    return None if column is None else column[0]


def check_dense(call: Call, name: str) -> None:
    """Refuse an input without an axis of rows and one of columns."""
    shape = call.shape(name)
    if shape is not None and len(shape) < 2:
        raise call.shape_error(name, f"2 to {MAX_RANK} dimensions")


def fits(indices: Value, size: Value, name: str) -> Value:
    """Which indices are in [0, size), in a function body."""
    return (indices.greater_or_equal(0) & indices.less(size)).named(f"{name}_fits")
