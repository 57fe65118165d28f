"""What the tests of the ops that rotate pairs of features have in common."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared.arrays import Shape
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Attribute, Refusal

HALF, INTERLEAVE, QUARTER, INTERLEAVE_HALF = range(4)
MODE = Attribute(HALF, (HALF, INTERLEAVE, QUARTER, INTERLEAVE_HALF), (-1, 4), ("expected one of 0 (half)",))

FORMS: dict[str, tuple[Shape, Shape]] = {
    "heads": ((2, 3, 5, 8), (2, 1, 5, 8)),
    "positions": ((2, 5, 3, 12), (5, 1, 12)),
    "same": ((3, 4), (3, 4)),
    "one_angle": ((3, 2, 4), (4,)),
    "vector": ((8,), (8,)),
    "rank_8": ((1, 2, 1, 3, 1, 2, 2, 4), (2, 1, 1, 1, 2, 1, 4)),
    "no_samples": ((0, 3, 4), (1, 3, 4)),
    "no_heads": ((2, 0, 4), (2, 1, 4)),
    "no_features": ((2, 3, 0), (3, 0)),
}
"""The shapes of features and of cosines."""

MORE_SHAPES: dict[str, tuple[Shape, Shape]] = {
    "last_axis_spread": ((3, 4, 8), (3, 1, 8)),
    "outer_axes_spread": ((3, 2, 4, 8), (1, 2, 1, 8)),
    "axes_of_size_1": ((1, 5, 1, 8), (1, 5, 1, 8)),
    "wide": ((3, 1028), (1, 1028)),
    "many": ((700, 4), (1, 4)),
}
LARGE: dict[str, tuple[Shape, Shape]] = {
    "heads": ((3, 5, 41, 128), (1, 1, 41, 128)),
    "positions": ((3, 41, 5, 128), (3, 41, 1, 128)),
}
"""Of several tasks."""

SIZES: dict[str, tuple[Shape, Shape]] = {
    "8x12x128x64": ((8, 12, 128, 64), (1, 1, 128, 64)),
    "2x32x512x128": ((2, 32, 512, 128), (1, 1, 512, 128)),
}
"""Of benchmarks: samples, heads, positions and features."""
BY_POSITION: dict[str, tuple[Shape, Shape]] = {"2x512x32x128": ((2, 512, 32, 128), (2, 512, 1, 128))}


def pairs(features: int, mode: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """The indices of the first and second features of all pairs in x, and those of the same in the result."""
    half, quarter = features // 2, features // 4
    even, odd = list(range(0, features, 2)), list(range(1, features, 2))
    if mode == INTERLEAVE:
        return even, odd, even, odd
    firsts, seconds = list(range(half)), list(range(half, features))
    if mode == QUARTER:
        firsts = [i for start in (0, half) for i in range(start, start + quarter)]
        seconds = [i + quarter for i in firsts]
    return (even, odd, firsts, seconds) if mode == INTERLEAVE_HALF else (firsts, seconds, firsts, seconds)


def in_torch(torch: ModuleType, x: Any, cos: Any, sin: Any, mode: int) -> Any:
    """As models write it."""
    features = x.shape[-1]
    if mode in (INTERLEAVE, INTERLEAVE_HALF):
        a, b = x[..., ::2], x[..., 1::2]
        if mode == INTERLEAVE:
            return x * cos + torch.stack((-b, a), -1).flatten(-2) * sin
        return torch.cat((a, b), -1) * cos + torch.cat((-b, a), -1) * sin
    count = 4 if mode == QUARTER else 2
    parts = x.split(max(features // count, 1), -1) if features else (x,) * count
    turned = [part for a, b in zip(parts[::2], parts[1::2], strict=True) for part in (-b, a)]
    return x * cos + torch.cat(turned, -1) * sin


def wrong_angles(name: str, given: dict[str, Array]) -> list[Refusal]:
    """Shapes that do not fit features of shape (2, 3, 5, 8).

    name: of the input with the features.
    """

    def angles(*shape: int) -> dict[str, Array | None]:
        return {"cos": np.ones(shape, np.float32), "sin": np.ones(shape, np.float32)}

    odd = {name: given[name][..., :7], **angles(2, 1, 5, 7)}
    rest = {key: value[..., :6] for key, value in given.items()}
    return [
        Refusal("odd", (f"'{name}'", "(2, 3, 5, 7)", "a multiple of 2", "'half'"), odd),
        Refusal("no_quarters", (f"'{name}'", "(2, 3, 5, 6)", "a multiple of 4", "'quarter'"), rest, {"mode": QUARTER}),
        Refusal("sin", ("'sin'", "(1, 1, 5, 8)", "(2, 1, 5, 8)", "'cos'"), {"sin": given["sin"][:1]}),
        Refusal("heads", ("'cos'", "(2, 2, 5, 8)", "(2, 3, 5, 8)", "broadcasts", f"'{name}'"), angles(2, 2, 5, 8)),
        Refusal("fewer_features", ("'cos'", "(5, 4)", "(2, 3, 5, 8)", "broadcasts", f"'{name}'"), angles(5, 4)),
        Refusal("one_feature", ("'cos'", "(5, 1)", "a multiple of 2"), angles(5, 1)),
        Refusal(
            "more_axes",
            ("'cos'", "(2, 2, 1, 5, 8)", "(2, 3, 5, 8)", "broadcasts"),
            angles(2, 2, 1, 5, 8),
            by_rank=True,
        ),
        Refusal("no_axes", ("'cos'", "()", "at least one"), angles(), by_rank=True),
    ]
