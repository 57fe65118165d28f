"""Combinations of values in which every few parameters meet in all their values: far fewer than all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

Places = tuple[int, ...]


def covering(axes: Sequence[Sequence[Any]], strength: int) -> list[tuple[Any, ...]]:
    """Rows, one value of each axis, in which any `strength` axes meet in all their values.

    Greedy: a row starts with values that have not met yet, and takes on each other axis the value by which most of
    those that are left meet.
    """
    groups = list(itertools.combinations(range(len(axes)), min(strength, len(axes))))
    left = {(group, values) for group in groups for values in itertools.product(*(range(len(axes[a])) for a in group))}
    rows = []
    for start, values in sorted(left):
        if (start, values) not in left:
            continue
        row = dict(zip(start, values, strict=True))
        for axis in range(len(axes)):
            if axis not in row:
                row[axis] = _best(axis, len(axes[axis]), row, groups, left)
        left -= {(group, tuple(row[axis] for axis in group)) for group in groups}
        rows.append(tuple(axes[axis][row[axis]] for axis in range(len(axes))))
    return rows


def _best(
    axis: int, count: int, row: dict[int, int], groups: Sequence[Places], left: set[tuple[Places, Places]]
) -> int:
    """The value of an axis by which most of those that are left meet; of equal ones, one that changes with the row."""
    known = [group for group in groups if axis in group and all(a == axis or a in row for a in group)]
    gains = [sum((g, tuple((row | {axis: value})[a] for a in g)) in left for g in known) for value in range(count)]
    return max(range(count), key=lambda value: (gains[value], (value + len(left)) % count))
