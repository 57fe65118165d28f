"""Options that are whole numbers."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from onnx_ops.training.errors import StepError


def whole_number(what: str, given: object, least: int) -> int:
    """An option that is a whole number, also one of NumPy; StepError for any other, and for less than `least`."""
    number = operator.index(given) if isinstance(given, SupportsIndex) else None
    if number is None or number < least:
        raise StepError(f"{what} is {given!r}, expected a whole number of at least {least}")
    return number
