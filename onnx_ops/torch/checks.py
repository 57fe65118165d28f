"""A captured graph beside PyTorch itself, on the arguments it was captured with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from onnx_ops.torch.errors import CaptureError

# Errors of sums in another order, relative to the largest entry of a tensor; wrong graphs are off by far more. The
# second number is relative to the largest entry of all tensors compared: gradients that are 0 but for rounding, such as
# that of a bias in front of a batch norm, are as large as the rounding of the others.
TOLERANCES = {np.dtype(np.float64): (1e-8, 1e-11), np.dtype(np.float32): (1e-3, 1e-5)}
SIXTEEN_BITS = (5e-2, 5e-3)


def compare(what: str, got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """Refuse, with a CaptureError that has the figures, values that are not those of PyTorch."""
    largest = max((_largest(array) for name, array in wanted.items() if name != "loss"), default=0.0)
    wrong = []
    for name, array in wanted.items():
        if name not in got:
            wrong.append(f"{name} is missing")
            continue
        if got[name].shape != array.shape:
            wrong.append(f"{name} has shape {got[name].shape}, {array.shape} in PyTorch")
            continue
        off, allowed = _difference(got[name], array), _allowed(array, largest)
        if not off <= allowed:
            size = _largest(array)
            wrong.append(f"{name} is off by {off:.2g} where {allowed:.2g} is allowed; its largest entry is {size:.2g}")
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CaptureError(f"{what} of the captured graph are not those of PyTorch: {'; '.join(wrong[:5])}{more}")


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


def _allowed(array: np.ndarray, largest: float) -> float:
    if array.dtype.kind in "iub":
        return 0.0
    own, all_ = TOLERANCES.get(array.dtype, SIXTEEN_BITS)
    return own * _largest(array) + all_ * largest
