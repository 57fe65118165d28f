"""Compares training steps with PyTorch's, relative to what rounding does to PyTorch's own.

The code is independent of the verification of captures. Rounding changes the sign of some inputs of ReLUs, and thereby
gradients by much more than rounding does. So errors are compared with those of two other runs of PyTorch: in float32,
and in float64 with parameters that are changed by more than float32 rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]

FACTOR = 10.0
"""Allowed error of a step in float32, relative to PyTorch's in float32."""
FLOOR = 1e-4
"""Allowed error relative to the largest entry of a tensor, and ZERO relative to that of all tensors: a gradient that is
0 but for rounding, such as that of a bias before a batch norm, is as large as the rounding errors of others."""
ZERO = 1e-5
CEILING = 0.3
"""A larger error is never due to rounding."""


def error(got: Arrays, exact: Arrays) -> tuple[float, str]:
    """The largest error relative to the largest entry of its tensor, and the tensor's name.

    Args:
        got: what is compared; arrays that `exact` lacks are ignored.
        exact: what they should be. Arrays of integers must be equal.

    Returns:
        Infinity for a missing array, another shape, or NaN or infinities in other places.
    """
    floor = ZERO * max((largest(array) for array in exact.values() if array.dtype.kind == "f"), default=0.0)
    worst = 0.0, ""
    for name, array in exact.items():
        worst = max(worst, (_error(got.get(name), array, floor), name))
    return worst


def _error(got: np.ndarray | None, exact: np.ndarray, floor: float) -> float:
    if got is None or got.shape != exact.shape:
        return float("inf")
    if exact.dtype.kind != "f":
        return 0.0 if np.array_equal(got, exact) else float("inf")
    finite = np.isfinite(exact)
    if not np.array_equal(got[~finite].astype(np.float64), exact[~finite].astype(np.float64), equal_nan=True):
        return float("inf")
    if not np.isfinite(got[finite]).all():
        return float("inf")
    off = np.abs(got[finite].astype(np.float64) - exact[finite]).max(initial=0.0)
    return float(off / (largest(exact) + floor)) if off else 0.0


def largest(array: np.ndarray) -> float:
    """The largest absolute value of the finite entries, 0 if there is none."""
    sizes = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(sizes.max(initial=0.0))


def allowed(single: Arrays, near: Iterable[Arrays], exact: Arrays) -> float:
    """The allowed error of a step in float32.

    Args:
        single: PyTorch's results in float32.
        near: in float64, with other parameters each.
        exact: in float64.
    """
    changes = [error(results, exact)[0] for results in near]
    return min(max(FLOOR, FACTOR * error(single, exact)[0], *changes), CEILING)
