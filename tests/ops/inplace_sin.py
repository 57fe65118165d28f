"""InplaceSin: the sine of angles in radians."""

from __future__ import annotations

import numpy as np

from tests.ops._shared.angles import ANGLES, LIMITS, PORTABLE_LIMITS, SPECIAL, slack, turned
from tests.ops._shared.arrays import INF, NAN
from tests.ops._shared.functions_of_one_number import record

OP = "InplaceSin"

RECORD = record(
    OP,
    oracle=lambda x: np.exp(1j * x).imag,
    values=turned,
    special=SPECIAL,
    spread=(-9.0, 9.0),
    by_hand={-0.0: -0.0, INF: NAN, -INF: NAN, NAN: NAN},
    operand=ANGLES,
    limits=LIMITS,
    portable_limits=PORTABLE_LIMITS,
    slack=slack,
    documented=("sin(self)", "keeps its sign", "multiples of pi", "Infinity"),
)
