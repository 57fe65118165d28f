"""What the tests of the ops that normalize rows have in common."""

from __future__ import annotations

from tests.ops._shared.arrays import Shape

LEADING: dict[str, Shape] = {"rows": (2, 3), "none": (), "many": (2, 19), "one": (1,)}
"""The sizes of the axes before the normalized ones."""
NORMALIZED = (7, 5)

SHAPES: dict[str, tuple[Shape, Shape]] = {
    "vector": ((), (7,)),
    "wide": ((3,), (5000,)),
    "tall": ((5000,), (3,)),
    "rank_8": ((1, 2, 1, 3), (1, 2, 5, 2)),
    "all_axes": ((), (2, 3, 4, 1)),
    "single": ((9,), (1,)),
    "no_rows": ((0, 4), (3,)),
    "no_elements": ((3,), (0,)),
    "no_elements_of_two_axes": ((3,), (2, 0)),
    "nothing": ((0,), (0,)),
}
"""Those axes and the normalized ones."""

SIZES: dict[str, Shape] = {
    "12544x48": (12544, 48),
    "3136x256": (3136, 256),
    "8x197x768": (8, 197, 768),
    "256x4096": (256, 4096),
}
"""Of benchmarks, of which the last axis is normalized."""
ROWS_IN_FLOAT = 4
"""Rows whose terms are added in float; sums of more are in double."""


def axes(rank: int, normalized_shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The normalized axes, and those before them."""
    first = rank - len(normalized_shape)
    return tuple(range(first, rank)), tuple(range(first))
