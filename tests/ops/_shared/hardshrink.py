"""What hardshrink and its gradient share."""

from __future__ import annotations

import numpy as np

from tests.ops._shared.arrays import INF, NAN
from tests.ops._shared.masked_gradient import neighbours
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Attribute, DType

LAMBDS = (0.5, 0.0, -1.0, 0.123456789)
LAMBD = Attribute(0.5, LAMBDS)
EDGES = (0.0, -0.0, -1.0, -INF, 0.3, 0.123456789, 1e-45, 1e-30, 3.4e38, INF)


def threshold(lambd: float) -> np.float64:
    """lambd rounded to float32, at least 0, widened exactly."""
    return np.float64(max(np.float32(lambd), np.float32(0)))


def around(lambd: float, dtype: DType) -> Array:
    """Both thresholds, their neighbours in float32 and in float64, and numbers that are far from them."""
    near = neighbours(np.float32(threshold(lambd)))
    with np.errstate(over="ignore", under="ignore"):
        x = np.concatenate([near, [0.0, 1.0, INF]]).astype(dtype)
    return np.concatenate([x, -x, np.array([NAN], dtype)])
