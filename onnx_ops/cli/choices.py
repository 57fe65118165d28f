"""The values of options that are one of several words."""

from __future__ import annotations

import enum


class ScheduleName(enum.StrEnum):
    """The learning rate schedules."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    ONE_CYCLE = "one-cycle"
    PLATEAU = "plateau"


class Better(enum.StrEnum):
    """Which values of a metric are better."""

    MIN = "min"
    MAX = "max"


class EvaluationMode(enum.StrEnum):
    """The loss that is evaluated."""

    EVAL = "eval"
    TRAIN = "train"
