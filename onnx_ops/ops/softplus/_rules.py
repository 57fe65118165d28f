"""What SoftplusV2 and SoftplusBackward share.

Both compute at t = beta*x, whose rounding error corrects the result: the exponential of t multiplies it by t.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnx_ops.core.schema import attribute
from onnx_ops.loops.primitives import Number, choose, fma, inlined

ATTRIBUTES = (
    attribute("beta", 1.0, "Factor of `self`; the function is divided by it."),
    attribute("threshold", 20.0, "The function is the identity where `beta * self` is above it."),
)


def scale_and_limit(attributes: Mapping[str, Any]) -> tuple[float, float]:
    """beta and threshold, as read."""
    return float(np.float32(attributes["beta"])), float(np.float32(attributes["threshold"]))


def is_linear(self: np.ndarray, beta: float, threshold: float, compute: np.dtype) -> np.ndarray:
    """Where t, rounded to the computing dtype, is above the threshold; for the NumPy definitions."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        t = self.astype(compute) * compute.type(np.float32(beta))
        return np.asarray(t > compute.type(np.float32(threshold)))


@inlined
def lost(x: Number, beta: Number, product: Number) -> Any:
    """beta*x - product in float64, the rounding error of the product; 0 where it is infinite or NaN."""
    return choose(abs(product) < np.inf, fma(x, beta, -product), 0.0)
