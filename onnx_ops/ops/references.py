"""Helpers of the NumPy references."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_ops.core.reduction import Reduction


def computing_dtype(arrays: Iterable[np.ndarray | None], dtype: npt.DTypeLike | None) -> np.dtype:
    """The dtype to compute in: `dtype` if given, else float64 if an input has it, else float32."""
    if dtype is not None:
        return np.dtype(dtype)
    return np.dtype(np.float64 if any(a is not None and a.dtype == np.float64 for a in arrays) else np.float32)


class Scaled:
    """Arrays mantissa * 2**exponent, whose products neither overflow nor underflow.

    Attributes:
        mantissa: float64; 0, infinite, NaN or abs(mantissa) in [0.5, 1).
        exponent: int, of the same shape.
    """

    def __init__(self, number: npt.ArrayLike, exponent: npt.ArrayLike = 0) -> None:
        self.mantissa, own = np.frexp(np.asarray(number, np.float64))
        self.exponent = np.where(np.isfinite(self.mantissa), own, 0) + np.asarray(exponent, np.intc)

    @classmethod
    def exp(cls, power: np.ndarray) -> Scaled:
        """exp(power); finite powers are clipped to [-8000, 8000], beyond the reach of any other factor."""
        finite = np.where(np.isinf(power), 0.0, np.clip(power, -8000.0, 8000.0))
        exponent = np.rint(finite / np.log(2))
        # Cody-Waite range reduction.
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
        """The values in float64, rounded once where they are subnormal."""
        return np.ldexp(self.mantissa, self.exponent)


def divisor(reduction: int, space: tuple[int, ...]) -> int:
    """Divisor of the terms over an index space; a scalar counts as a batch of 1."""
    divisors = {Reduction.MEAN: math.prod(space), Reduction.BATCHMEAN: space[0] if space else 1}
    return divisors.get(Reduction(reduction), 1)


def reduced(terms: np.ndarray, reduction: int) -> np.ndarray:
    """The terms, or their sum over the divisor, summed in long double and rounded to float64 once."""
    if Reduction(reduction) is Reduction.NONE:
        return terms
    with np.errstate(all="ignore"):
        total = terms.sum(dtype=np.longdouble).astype(np.float64)
        return np.asarray(total / np.float64(divisor(reduction, terms.shape)))


def sum_to(terms: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The terms, summed over the axes along which `shape` was broadcast."""
    lead = terms.ndim - len(shape)
    summed = tuple(a for a, n in enumerate(terms.shape) if a < lead or shape[a - lead] != n)
    return terms.sum(axis=summed).reshape(shape) if summed else terms


def promoted(*arrays: np.ndarray) -> np.dtype:
    """The smallest floating dtype that holds all of them."""
    dtypes = {a.dtype for a in arrays}
    return dtypes.pop() if len(dtypes) == 1 else computing_dtype(arrays, None)


def rounded(result: npt.ArrayLike, to: npt.DTypeLike, dtype: npt.DTypeLike | None) -> np.ndarray:
    """The result in dtype `to`, or in `dtype` if the caller gave one."""
    array = np.asarray(result)
    kind = np.dtype(to if dtype is None else dtype)
    if array.dtype == np.float64 and kind == np.dtype(ml_dtypes.bfloat16):
        array = _odd_float32(array)  # ml_dtypes converts through float32, which would round twice
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(kind)


def function_of_self(
    function: Callable[[np.ndarray], np.ndarray], self: np.ndarray, dtype: npt.DTypeLike | None
) -> np.ndarray:
    """A function of an array, in float64, or for float64 results in long double; it may compute in more."""
    wide = np.longdouble if np.float64 in (self.dtype, dtype) else np.float64
    with np.errstate(divide="ignore", invalid="ignore"):
        return rounded(function(self.astype(np.float64).astype(wide)).astype(wide), self.dtype, dtype)


def _odd_float32(array: np.ndarray) -> np.ndarray:
    """float64 as float32, by round-to-odd (Boldo and Melquiond)."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = array.astype(np.float32)
        bits = near.view(np.int32) - (np.abs(near.astype(np.float64)) > np.abs(array)).astype(np.int32)
        bits |= (near.astype(np.float64) != array).astype(np.int32)
    return np.where(np.isnan(near), near, bits.view(np.float32))
