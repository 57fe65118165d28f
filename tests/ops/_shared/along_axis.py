"""Ops along an axis: forms, shapes of calls, and wrong axes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.ops._shared.arrays import Shape
from tests.ops._shared.record import Attribute, Refusal

FORMS: dict[str, Shape] = {"small": (2, 3, 4), "lines": (3, 21, 37), "one": (1, 1, 1), "pixels": (2, 5, 16)}
AXES = Attribute(-1, (-1, 0, 1, -2))

SHAPES: dict[str, tuple[Shape, int]] = {
    "vector": ((7,), 0),
    "long": ((3, 5000), -1),
    "tall": ((5000, 3), 0),
    "rank_8": ((1, 2, 1, 3, 1, 2, 5, 2), 6),
    "empty": ((3, 0), 0),
    "empty_axis": ((3, 0), 1),
    "no_rows": ((0, 4), 1),
}
"""Shapes of calls, and axes."""

LARGE: dict[str, tuple[Shape, int]] = {"rows": ((700, 129), -1), "columns": ((9, 70, 151), 1)}
"""Of several tasks."""

SIZES = {
    "8x4x16x16": (8, 4, 16, 16),
    "256x3x49x49": (256, 3, 49, 49),
    "8x8x128x128": (8, 8, 128, 128),
    "16x1000": (16, 1000),
    "4x32000": (4, 32000),
}
"""Shapes of benchmarks, along the last axis."""


def wrong_axes() -> Iterator[Refusal]:
    """Of the plain call, whose inputs have three axes."""
    for dim in (3, -4, 2**62):
        words = ("'dim'", f" {dim},", "at least -3", "at most 2")
        yield Refusal(f"dim_{dim}", words, attributes={"dim": dim}, by_rank=True)
