"""The metric that decides on the best epoch, and when a training ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onnx_ops.fitting.whole import whole_number
from onnx_ops.training.errors import StepError

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Monitor:
    """A metric of each epoch.

    Attributes:
        metric: its name.
        mode: whether lower or higher values are better. NaN is never better.
    """

    metric: str
    mode: Mode = "min"

    def best(self, values: Sequence[float]) -> int | None:
        """The first epoch with the best value, counted from 0; None if all are NaN."""
        known = [epoch for epoch, value in enumerate(values) if not math.isnan(value)]
        sign = 1 if self.mode == "min" else -1
        return min(known, key=lambda epoch: sign * values[epoch], default=None)

    def epochs_without_improvement(self, values: Sequence[float], min_delta: float) -> int:
        """The number of epochs since the last one whose value was better, by more than `min_delta`, than those before.

        An improvement by less does not move the value that later ones are compared with.
        """
        sign = 1 if self.mode == "min" else -1
        best, count = math.inf, 0
        for value in values:
            if sign * value < best - min_delta:
                best, count = sign * value, 0
            else:
                count += 1
        return count


@dataclass(frozen=True)
class Ending:
    """When a training ends.

    Attributes:
        epochs, patience, min_delta: as for `fit`.
    """

    epochs: int = 1
    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", whole_number("the number of epochs", self.epochs, 0))
        if self.patience is not None:
            object.__setattr__(self, "patience", whole_number("the patience", self.patience, 1))
        if not self.min_delta >= 0:
            raise StepError(f"min_delta is {self.min_delta}, expected a number of at least 0")

    def is_early(self, monitor: Monitor, values: Sequence[float]) -> bool:
        """Whether a training ends for lack of improvement, given the monitored metric of each finished epoch."""
        return self.patience is not None and monitor.epochs_without_improvement(values, self.min_delta) >= self.patience
