"""Lgamma: the logarithm of the gamma function."""

from __future__ import annotations

import numpy as np

from tests.ops._shared import accuracy, gamma_functions
from tests.ops._shared.arrays import INF, NAN
from tests.ops._shared.functions_of_one_number import record
from tests.ops._shared.record import limits

OP = "Lgamma"

RECORD = record(
    OP,
    oracle=gamma_functions.lgamma,
    values=lambda x: np.exp(2 * x),
    special=gamma_functions.ARGUMENTS,
    spread=(-9.0, 9.0),
    by_hand={0.0: INF, -1.0: INF, -2.0: INF, INF: INF, -INF: INF, NAN: NAN},
    operand=accuracy.POSITIVE,
    limits=limits(single=0.51, double=5),
    portable_limits=limits(single=0.51, double=5),
    slack=gamma_functions.slack_of(gamma_functions.lgamma_terms),
    documented=("log(abs(gamma(self)))", "negative integers", "NaN"),
)
