"""InplaceLog: the natural logarithm."""

from __future__ import annotations

import numpy as np

from tests.ops._shared import accuracy
from tests.ops._shared.arrays import INF, NAN
from tests.ops._shared.functions_of_one_number import WIDE, record
from tests.ops._shared.record import limits

OP = "InplaceLog"

RECORD = record(
    OP,
    # By another base, whose logarithm is 0.693... to 64 bits.
    oracle=lambda x: np.log2(x) * np.log(WIDE(2)),
    values=lambda x: np.exp(3 * x),
    special=[NAN, -NAN, INF, -INF, 0.0, -0.0, -1.0, -3e4, 1.0, 0.69905573, 1.1330702],
    spread=(0.0, 5.0),
    by_hand={1.0: 0.0, -0.0: -INF, -1.0: NAN, INF: INF, -INF: NAN, NAN: NAN},
    operand=accuracy.POSITIVE,
    limits=limits(single=0.9, double=1),
    portable_limits=limits(single=4, double=1.5),
    slack=lambda x, dtype, portable: np.zeros(x.shape),
    documented=("log(self)", "minus infinity", "NaN"),
)
