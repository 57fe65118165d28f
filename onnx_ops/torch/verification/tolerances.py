"""Compares outputs of a captured graph with those of PyTorch, and bounds what rounding may explain."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from onnx_ops.core.step_format import LOSS
from onnx_ops.torch.base.errors import CaptureError

# Errors of sums in another order, relative to the largest entry of a tensor; wrong graphs are off by far more. The
# second number is relative to the largest entry of all tensors compared: gradients that are 0 but for rounding, such as
# that of a bias in front of a batch norm, are as large as the rounding of the others.
Tolerance = tuple[float, float]
TOLERANCES: Mapping[np.dtype, Tolerance] = {np.dtype(np.float64): (1e-8, 1e-11), np.dtype(np.float32): (1e-3, 1e-5)}
SIXTEEN_BITS: Tolerance = (5e-2, 5e-3)
# In a graph of float32 that computes in float64 the constants are those of float32.
WIDENED: Tolerance = (1e-5, 1e-7)
# What rounding can do to float32 where the same graph is right in float64: ten times what it does to PyTorch's results,
# or what a change of the inputs does that is some hundred times as large as rounding, but not everything.
ROUNDING, LARGEST_ROUNDING = 10.0, 0.5


def compare(
    what: str,
    got: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    tolerance: Tolerance | None = None,
) -> None:
    """Refuse, with a CaptureError that has the figures, values that are not those of PyTorch.

    Args:
        what: names the values in the error.
        got, wanted: arrays by name; those that PyTorch does not have are ignored.
        tolerance: largest errors, relative to a tensor's largest entry and to that of all; by default by dtype.
    """
    largest = max((_largest(array) for name, array in wanted.items() if name != LOSS), default=0.0)
    wrong = []
    for name, array in wanted.items():
        if name not in got:
            wrong.append(f"{name} is missing")
            continue
        if got[name].shape != array.shape:
            wrong.append(f"{name} has shape {got[name].shape}, {array.shape} in PyTorch")
            continue
        off, allowed = _difference(got[name], array), _allowed(array, largest, tolerance)
        if not off <= allowed:
            size = _largest(array)
            wrong.append(f"{name} is off by {off:.2g} where {allowed:.2g} is allowed; its largest entry is {size:.2g}")
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CaptureError(
            f"{what} of the captured graph are not those of PyTorch: {'; '.join(wrong[:5])}{more}. With check=False the"
            " graph is not compared"
        )


def rounding(
    theirs: Mapping[str, np.ndarray], near: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]
) -> Tolerance:
    """The errors that rounding explains in a graph that is right in float64.

    Args:
        theirs: PyTorch's results in float32.
        near: PyTorch's results in float64 for inputs that are changed by more than rounding changes them.
        exact: PyTorch's results in float64.
    """
    largest = max((_largest(array) for name, array in exact.items() if name != LOSS), default=0.0)
    own, all_ = TOLERANCES[np.dtype(np.float32)]
    errors = [
        factor * (_difference(results[name], array) - all_ * largest) / _largest(array)
        for factor, results in ((ROUNDING, theirs), (1.0, near))
        for name, array in exact.items()
        if array.dtype == np.float64 and _largest(array)
    ]
    return max([own, *(min(error, LARGEST_ROUNDING) for error in errors)]), all_


def _largest(array: np.ndarray) -> float:
    sizes = np.abs(array.astype(np.float64))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference; infinite where one is finite and the other is not, or they are not the same infinity."""
    if not wanted.size:
        return 0.0
    one, other = got.astype(np.float64), wanted.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(one - other))
    return float(np.where(np.isnan(off), math.inf, off).max())


def _allowed(array: np.ndarray, largest: float, tolerance: Tolerance | None) -> float:
    if array.dtype.kind in "iub":
        return 0.0
    own, all_ = tolerance or TOLERANCES.get(array.dtype, SIXTEEN_BITS)
    return own * _largest(array) + all_ * largest
