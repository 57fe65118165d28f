"""How kernels that bring rows together by an index divide the rows of a result, and their columns, into tasks."""

from __future__ import annotations

from onnx_ops.loops.primitives import ceil_divide, helper

COLUMNS = 256
"""Numbers of a row that a task computes at most."""
WORK = 16384
"""Numbers that a task reads and writes, if all rows of the result have equally many terms."""
NARROW = 8
"""Up to this length of rows all sums are made at once, in the order of the terms, if there are few."""
FEW = 1 << 18
"""Numbers that are read and written, up to which one task makes all narrow sums."""


@helper
def rows_per_task(rows: int, width: int, count: int) -> int:
    """Rows of the result, of `rows` with `width` numbers each, that a task computes of `count` terms."""
    return max(WORK * rows // max((rows + count) * min(width, COLUMNS), 1), 1)


@helper
def tasks_of_rows(rows: int, width: int, count: int) -> int:
    return int(ceil_divide(rows, rows_per_task(rows, width, count)) * ceil_divide(width, COLUMNS))


@helper
def is_narrow(rows: int, width: int, count: int) -> bool:
    return bool(width <= NARROW and (rows + count) * width <= FEW)
