"""What the NumPy references share."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import helper

from onnx_ops.core.reduction import Reduction
from onnx_ops.core.types import promote


def computing_dtype(arrays: Iterable[np.ndarray | None], dtype: npt.DTypeLike | None) -> np.dtype:
    """The dtype an op computes in: the one that is asked for, else float64 if an input has it, else float32."""
    if dtype is not None:
        return np.dtype(dtype)
    return np.dtype(np.float64 if any(a is not None and a.dtype == np.float64 for a in arrays) else np.float32)


class Scaled:
    """Numbers with exponents of their own, whose products neither overflow nor lose digits.

    Attributes:
        mantissa: float64, 0 or of a size in [0.5, 1), or infinite, or NaN.
        exponent: of 2, by which the mantissa is multiplied.
    """

    def __init__(self, number: npt.ArrayLike, exponent: npt.ArrayLike = 0) -> None:
        self.mantissa, own = np.frexp(np.asarray(number, np.float64))
        self.exponent = np.where(np.isfinite(self.mantissa), own, 0) + np.asarray(exponent, np.intc)

    @classmethod
    def exp(cls, power: np.ndarray) -> Scaled:
        """e to a power; a finite one counts as 8000 or -8000 at most, which no other factors bring back."""
        finite = np.where(np.isinf(power), 0.0, np.clip(power, -8000.0, 8000.0))
        exponent = np.rint(finite / np.log(2))
        # ln(2) in two parts, the first of which gives an exact product.
        rest = (finite - exponent * 0.693147180369123816) - exponent * 1.9082149292705877e-10
        exponent = np.where(np.isnan(exponent), 0, exponent)
        return cls(np.where(np.isinf(power), np.exp(power), np.exp(rest)), exponent.astype(np.intc))

    def __mul__(self, other: Scaled) -> Scaled:
        return Scaled(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def __add__(self, other: Scaled) -> Scaled:
        larger = np.maximum(self.exponent, other.exponent)
        exponent = np.where(self.mantissa == 0, other.exponent, np.where(other.mantissa == 0, self.exponent, larger))
        terms = (np.ldexp(term.mantissa, term.exponent - exponent) for term in (self, other))
        return Scaled(sum(terms), exponent)

    def value(self) -> np.ndarray:
        """The numbers in float64, rounded once where they are subnormal."""
        return np.ldexp(self.mantissa, self.exponent)


def reduced(terms: np.ndarray, reduction: int, divisor: int) -> np.ndarray:
    """A loss of float64 terms: the terms themselves, or their sum by a divisor. The sum is rounded to float64 once."""
    if Reduction(reduction) is Reduction.NONE:
        return terms
    with np.errstate(all="ignore"):
        return np.asarray(terms.sum(dtype=np.longdouble).astype(np.float64) / np.float64(divisor))


def promoted(*arrays: np.ndarray) -> np.dtype:
    """The one floating dtype that holds all of them."""
    dtype = promote(helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays)
    assert dtype is not None
    return helper.tensor_dtype_to_np_dtype(dtype)


def rounded(result: npt.ArrayLike, to: npt.DTypeLike, dtype: npt.DTypeLike | None) -> np.ndarray:
    """The result in the output's dtype, or as computed where the caller asked for a dtype."""
    array = np.asarray(result)
    kind = np.dtype(to if dtype is None else dtype)
    if array.dtype == np.float64 and kind == np.dtype(ml_dtypes.bfloat16):
        array = _odd_float32(array)  # ml_dtypes converts by way of float32, which would round twice
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(kind)


def _odd_float32(array: np.ndarray) -> np.ndarray:
    """float64 to float32, towards zero, with the last bit set where anything was lost."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = array.astype(np.float32)
        bits = near.view(np.int32) - (np.abs(near.astype(np.float64)) > np.abs(array)).astype(np.int32)
        bits |= (near.astype(np.float64) != array).astype(np.int32)
    return np.where(np.isnan(near), near, bits.view(np.float32))
