"""Compares outputs of a captured graph with those of PyTorch, and bounds the errors of rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from onnx_ops.core.step_format import LOSS
from onnx_ops.torch.base.errors import CaptureError

# Errors of sums in another order, relative to the largest entry of a tensor; those of wrong graphs are much larger. The
# second number is relative to the largest entry of all tensors compared: a gradient that is 0 except for rounding, such
# as that of a bias before a batch norm, is as large as the rounding errors of the others.
Tolerance = tuple[float, float]
TOLERANCES: Mapping[np.dtype, Tolerance] = {np.dtype(np.float64): (1e-8, 1e-11), np.dtype(np.float32): (1e-3, 1e-5)}
# bfloat16 rounds by up to 2**-9; where float32 sums in another order are rounded to another number, the difference of
# 2**-8 reaches all later results. This holds for the float32 gradients of a step that computes under autocast too.
SIXTEEN_BITS: Tolerance = (5e-2, 5e-3)
# A float32 graph that is converted to float64 has constants that were rounded to float32.
WIDENED: Tolerance = (1e-5, 1e-7)
# Errors that are allowed in float32 if the graph is correct in float64: ten times PyTorch's error in float32, or the
# effect of a change of the inputs that is about a hundred times as large as rounding, up to a relative error of 0.5.
ROUNDING, LARGEST_ROUNDING = 10.0, 0.5


def compare(
    what: str,
    got: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    tolerance: Tolerance | None = None,
) -> None:
    """Compare results of the graph with those of PyTorch.

    Args:
        what: names the results in the error.
        got: the graph's results by name; those that `wanted` does not have are ignored.
        wanted: PyTorch's results by name.
        tolerance: maximal errors, relative to the largest entry of a tensor and of all tensors; default by dtype.

    Raises:
        CaptureError: a missing result, another shape, or an error above the tolerance.
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
    """The tolerance for rounding errors of a graph that is correct in float64.

    Args:
        theirs: PyTorch's results in float32.
        near: PyTorch's results in float64 for inputs with a relative change larger than rounding.
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
    """The largest absolute value of the finite entries; 0 if there is none."""
    sizes = np.abs(array.astype(np.float64))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest absolute difference; equal infinities and two NaN differ by 0, other non-finite pairs by infinity."""
    if not wanted.size:
        return 0.0
    one, other = got.astype(np.float64), wanted.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(one - other))
    return float(np.where(np.isnan(off), math.inf, off).max())


def _allowed(array: np.ndarray, largest: float, tolerance: Tolerance | None) -> float:
    """The allowed absolute error of an array; 0 for integers and booleans."""
    if array.dtype.kind in "iub":
        return 0.0
    own, all_ = tolerance or TOLERANCES.get(array.dtype, SIXTEEN_BITS)
    return own * _largest(array) + all_ * largest
