"""What the records of the LSTM's cell and its gradient share."""

from __future__ import annotations

import numpy as np

from tests.ops._shared.arrays import FLOATS
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import DType, Refusal, limits

GATES = 4
# Rounded once, of numbers whose own errors are in `slack`.
LIMITS = limits(single=1, double=1)
SIZES = {"32x32": (32, 32), "64x256": (64, 256), "256x1024": (256, 1024)}
FORMS = {"plain": (2, 3), "row": (1, 5), "wide": (3, 40), "no_rows": (0, 3), "vector": (4,), "deep": (2, 1, 3, 2)}


def same_dtypes(count: int) -> list[tuple[DType, ...]]:
    """All inputs have one dtype."""
    return [(dtype,) * count for dtype in FLOATS]


def epsilon(dtype: DType) -> float:
    """What numbers are off by that are computed for a result of a dtype: float32 but for float64."""
    return 2.0**-52 if dtype == np.float64 else 2.0**-23


def finite(slack: Array) -> Array:
    return np.where(np.isfinite(slack), slack, 0.0)


def wrong(name: str, shape: tuple[int, ...], *words: str, by_rank: bool = False) -> Refusal:
    text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    label = f"{name}_of_{'x'.join(map(str, shape))}"
    return Refusal(label, (f"'{name}'", text, "expected", *words), {name: np.zeros(shape, np.float32)}, by_rank=by_rank)
