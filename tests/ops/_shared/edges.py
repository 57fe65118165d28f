"""Calls with the edges of a graph: the coordinates of the elements of sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.ops._shared.arrays import Shape, rng
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import DType

WHOLE = (np.dtype(np.int64), np.dtype(np.int32))


@dataclass(frozen=True)
class Graph:
    """Sizes of a call.

    Attributes:
        rows, columns: of the sparse matrices.
        edges: their elements.
        heads: the axes between those of rows and of their numbers.
        length: of a row.
    """

    rows: int
    columns: int
    edges: int
    heads: Shape = ()
    length: int = 3

    def indices(self, size: int, kind: DType, name: str) -> Array:
        """Indices in [0, size), not all of which occur."""
        return np.asarray(rng(name, self).integers(0, max(size - 1, 1), self.edges)).astype(kind)

    def row(self, kind: DType = WHOLE[0]) -> Array:
        return self.indices(self.rows, kind, "row")

    def column(self, kind: DType = WHOLE[0]) -> Array:
        return self.indices(self.columns, kind, "column")


FORMS = {
    "narrow": Graph(6, 6, 20),
    "heads": Graph(6, 6, 15, (2,), 4),
    "numbers": Graph(6, 6, 9, (), 1),
    "wide": Graph(6, 6, 31, (), 40),
    "deep": Graph(6, 6, 7, (1, 2, 1, 2, 1, 3), 2),
    "one_edge": Graph(6, 6, 1, (3,), 9),
}
LARGE = (Graph(700, 700, 5000, (), 48), Graph(40, 3000, 9000, (2, 3), 50), Graph(3000, 3000, 20_000, (), 9))
LAYERS = {
    "2000x12000x64": Graph(2000, 2000, 12_000, (), 64),
    "2000x12000x8x8": Graph(2000, 2000, 12_000, (8,), 8),
    "2000x12000x7": Graph(2000, 2000, 12_000, (), 7),
    "20000x200000x128": Graph(20_000, 20_000, 200_000, (), 128),
}
"""Nodes, edges, heads if there are several, and features of layers of graph networks."""
