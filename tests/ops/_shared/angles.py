"""What the records of InplaceSin and InplaceCos share."""

from __future__ import annotations

import math

import numpy as np

from tests.ops._shared import accuracy
from tests.ops._shared.arrays import INF, NAN
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import DType, limits

SPECIAL = [NAN, -NAN, INF, -INF, 0.0, -0.0, *(k * math.pi / 2 for k in range(-40, 40)), 1e3, 2.0**20, 3e6, 1.1e9, 1e15]
ANGLES = accuracy.Operand(
    accuracy.factors, {"float16": (-24, 15), "bfloat16": (-40, 40), "float32": (-40, 40), "float64": (-60, 60)}
)
LIMITS = limits(single=0.51, double=1)
PORTABLE_LIMITS = limits(single=2, double=1)


def turned(x: Array) -> Array:
    """Normal numbers as angles: a few of them many turns, some beyond what range reduction reaches."""
    return np.where(np.abs(x) > 3, 1e7 * x, 5 * x)


def slack(angle: Array, dtype: DType, portable: bool) -> Array:
    """onnxruntime's Sin and Cos of float32 lose digits of large angles."""
    if not portable:
        return np.zeros(angle.shape)
    size = np.abs(np.asarray(angle, np.float64))
    return np.where(size > 1e3, 2.0, size * 2.0**-26)
