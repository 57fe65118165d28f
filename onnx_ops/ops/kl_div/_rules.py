"""What the ops of the Kullback-Leibler divergence share."""

from __future__ import annotations

import math

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.schema import attribute
from onnx_ops.ops.references import Scaled

REDUCTIONS = {int(r): r.name.lower() for r in Reduction}
LEAST = np.float32(2.0**-100)
"""A smaller number may have lost digits, in float32."""
LARGE = np.float32(2.0**100)
"""Times any e**NEAR or less a smaller number is a float32 number, or its product with e**NEAR is out of range."""


def attributes() -> list[OpSchema.Attribute]:
    """The attributes of all ops of the family, for their schemas."""
    return [
        attribute("reduction", int(Reduction.MEAN), "0 none, 1 mean, 2 sum, 3 batchmean."),
        attribute("log_target", 0, "1 if target holds logarithms of probabilities."),
    ]


def check_attributes(call: Call) -> None:
    """Refuse values that the attributes cannot have."""
    call.check_choice("reduction", REDUCTIONS)
    call.check_choice("log_target", {0: "probabilities", 1: "logarithms"})


def divisor(reduction: int, space: tuple[int, ...]) -> int:
    """What the terms over a space are divided by; a scalar counts as a batch of 1."""
    divisors = {Reduction.MEAN: math.prod(space), Reduction.BATCHMEAN: space[0] if space else 1}
    return divisors.get(Reduction(reduction), 1)


def sum_to(terms: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Terms summed over the axes along which an array of a shape was broadcast to theirs."""
    lead = terms.ndim - len(shape)
    summed = tuple(a for a, n in enumerate(terms.shape) if a < lead or shape[a - lead] != n)
    return terms.sum(axis=summed).reshape(shape) if summed else terms


def exponential(q: np.ndarray) -> Scaled:
    """e to a power; out of the square of float64's range it counts as 0 or as infinite, as it does in kernels."""
    return Scaled.exp(np.where(q < -1416, -np.inf, np.where(q > 1417, np.inf, q)))
