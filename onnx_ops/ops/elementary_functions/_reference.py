"""The definition in NumPy of functions of one number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from onnx_ops.ops.references import rounded


def function_of_self(
    function: Callable[[np.ndarray], np.ndarray], self: np.ndarray, dtype: npt.DTypeLike | None
) -> np.ndarray:
    """A NumPy function of an array, computed in float64, or for float64 results in long double."""
    wide = np.longdouble if np.float64 in (self.dtype, dtype) else np.float64
    with np.errstate(divide="ignore", invalid="ignore"):
        return rounded(function(self.astype(np.float64).astype(wide)), self.dtype, dtype)
