"""Learning rates, which are settings in the state of a step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from onnx_ops.graph.stored import Source
from onnx_ops.training.errors import StepError


def rates_of_groups(rate: float | Sequence[float] | np.ndarray, groups: int) -> Sequence[Any]:
    """The learning rate of each parameter group: a sequence as it is, a single number for all.

    Raises:
        StepError: a sequence of another length.
    """
    given = rate.tolist() if isinstance(rate, np.ndarray) else rate
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given] * groups
    if len(given) != groups:
        raise StepError(f"{len(given)} learning rates are given, expected {groups}, one for each group")
    return given


def cast_rate(rate: float, dtype: np.dtype) -> np.ndarray:
    """A learning rate as an array of shape () and dtype; StepError unless it is finite and at least 0 in that dtype."""
    expected = "expected a finite number of at least 0"
    try:
        finite = math.isfinite(rate)
    except (TypeError, OverflowError) as error:  # what is no number; an int that no float can hold
        raise StepError(f"a learning rate is {rate!r}, {expected}") from error
    with np.errstate(over="ignore"):
        cast = np.asarray(float(rate)).astype(dtype)
    if not math.isfinite(cast) or cast < 0:
        came = f"{rate}, which is {cast} in {dtype}" if finite and not math.isfinite(cast) else f"{rate}"
        raise StepError(f"a learning rate is {came}, {expected}")
    return cast


def check_rates(names: Collection[str], state: Mapping[str, Source]) -> None:
    """Raise StepError for a state with learning rates that are not finite numbers of at least 0."""
    for name in names:
        try:
            cast_rate(float(np.asarray(state[name])), state[name].dtype)
        except StepError as error:
            raise StepError(f"'{name}': {error}") from None
