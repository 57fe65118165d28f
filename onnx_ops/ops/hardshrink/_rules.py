"""The attribute `lambd` of Hardshrink and its gradient."""

from __future__ import annotations

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.core.schema import attribute


def lambd_attribute() -> OpSchema.Attribute:
    """The attribute `lambd`."""
    return attribute("lambd", 0.5, "Half-width of the interval in which the output of hardshrink is 0.")


def threshold_of(lambd: float) -> float:
    """lambd as it is compared: a float32, not below 0; NaN is kept."""
    return float(np.maximum(np.float32(lambd), np.float32(0)))
