"""Attributes and references of the Kullback-Leibler divergence."""

from __future__ import annotations

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.schema import attribute
from onnx_ops.ops.losses import reduction_attribute, reduction_choices
from onnx_ops.ops.references import Scaled

LEAST = np.float32(2.0**-100)
"""Smaller float32 products may lose precision to underflow."""
LARGE = np.float32(2.0**100)
"""Bound of factors whose product with the power of 2 of exp(x), abs(x) < EXP_LIMIT, overflows only with the result."""


CHOICES = {"reduction": reduction_choices(Reduction)}


def attributes() -> list[OpSchema.Attribute]:
    """Attributes of all ops of the family."""
    return [
        reduction_attribute(Reduction),
        attribute("log_target", 0, "1 if `target` holds log-probabilities."),
    ]


def check_attributes(call: Call) -> None:
    """Raise OpError for values that the attributes cannot have."""
    call.check_choice("log_target", {0: "probabilities", 1: "logarithms"})


def exponential(q: np.ndarray) -> Scaled:
    """exp(q), with 0 or infinity beyond the square of float64's range, as in kernels."""
    return Scaled.exp(np.where(q < -1416, -np.inf, np.where(q > 1417, np.inf, q)))
