"""Digamma: the derivative of the logarithm of the gamma function."""

from __future__ import annotations

import numpy as np

from tests.ops._shared import accuracy, gamma_functions
from tests.ops._shared.arrays import INF, NAN
from tests.ops._shared.functions_of_one_number import record
from tests.ops._shared.record import limits

OP = "Digamma"

RECORD = record(
    OP,
    oracle=gamma_functions.digamma,
    values=lambda x: np.exp(2 * x),
    special=gamma_functions.ARGUMENTS,
    spread=(-9.0, 9.0),
    by_hand={0.0: -INF, -1.0: NAN, -2.0: NAN, INF: INF, -INF: NAN, NAN: NAN},
    operand=accuracy.POSITIVE,
    limits=limits(single=0.51, double=5),
    portable_limits=limits(single=0.51, double=5),
    slack=gamma_functions.slack_of(gamma_functions.digamma_terms),
    documented=("gamma'(self) / gamma(self)", "negative integers", "NaN"),
)
