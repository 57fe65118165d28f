"""Gradients by a derivative d with d(a) + d(-a) = 1, as those of GELU and SiLU.

For a >= 0, d(-a) = decay * slope is computed, whose decay is an exponential, and d(a) = 1 - d(-a). So the terms of d do
not cancel for negative arguments, where it is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.graph.builder import Value
from onnx_ops.loops.primitives import ONE, Number, choose, inlined
from onnx_ops.ops.references import promoted, rounded


@inlined
def gradient(grad: Number, x: Number, value: Number, first: Number, second: Number, slope: Number) -> Any:
    """grad * d(x); the decay is value * first * second, kept in parts, as it may be subnormal."""
    part = (value * first) * slope
    return choose(x < 0, (grad * part) * second, grad * (ONE - part * second))


@inlined
def bounded(x: Number, far: Number) -> Any:
    """min(abs(x), far); NaN where x is NaN."""
    size = abs(x)
    return choose(size > far, far, size)


def reference_gradient(
    grad_output: np.ndarray,
    self: np.ndarray,
    mirrored: Callable[[np.ndarray], np.ndarray],
    far: float,
    dtype: npt.DTypeLike | None,
) -> np.ndarray:
    """grad_output * d(self) in NumPy, computed in float64, or for float64 results in long double.

    Args:
        grad_output, self: floating arrays whose shapes broadcast.
        mirrored: d(-a) for an array a in [0, far].
        far: abs(self) above which d(-a) counts as 0.
        dtype: dtype of the result instead of the promoted one.
    """
    result = promoted(grad_output, self)
    wide: type[np.floating[Any]] = np.longdouble if np.float64 in (result, dtype) else np.float64
    grad, x = (array.astype(np.float64).astype(wide) for array in (grad_output, self))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        is_far = np.abs(x) > far
        opposite = np.where(is_far, 0.0, mirrored(np.where(is_far, wide(far), np.abs(x))))
        return rounded(grad * np.where(x < 0, opposite, 1 - opposite), result, dtype)


def bounded_size(b: Body, far: float) -> Value:
    """`bounded` of the input `self` in a function body; not by Min, which does not pass NaN in all versions of
    onnxruntime."""
    size = b.op("Abs", b.load("self"), name="size")
    return b.op("Where", size.greater(far).named("is_far"), far, size, name="bounded")


def store_gradient(b: Body, mirrored: Value) -> None:
    """Store the output `grad_input` in a function body, by d(-a)."""
    is_negative = b.load("self").less(0.0).named("is_negative")
    derivative = b.op("Where", is_negative, mirrored, 1.0 - mirrored, name="derivative")
    b.store("grad_input", b.load("grad_output") * derivative, "grad_output", "self")
