"""Numbers for oracles: widening, exact sums, errors in units in the last place, derivatives by differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, Any]
Reals = type[np.float64] | type[np.longdouble]

# bits after the leading one, exponent of the smallest normal number, exponent of the first power of two too large
_FORMATS = {
    np.dtype(np.float16): (10, -14, 16),
    np.dtype(ml_dtypes.bfloat16): (7, -126, 128),
    np.dtype(np.float32): (23, -126, 128),
    np.dtype(np.float64): (52, -1022, 1024),
}


def real(array: ArrayLike, dtype: Reals = np.float64) -> Array:
    """The same numbers in a wide dtype."""
    array = np.asarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float64)  # ml_dtypes has no cast to longdouble
    return array.astype(dtype)


def attribute(value: float, dtype: Reals = np.float64) -> Any:
    """An attribute of type float as ONNX keeps it, rounded to float32."""
    return dtype(np.float32(value))


def exact_sum(terms: Array, axes: tuple[int, ...]) -> Array:
    """The sum over some axes, rounded once; of longdouble terms, to about 106 bits before it is rounded.

    Sums that meet infinities or NaN, or that overflow on the way, are NumPy's.
    """
    kept = tuple(axis for axis in range(terms.ndim) if axis not in axes)
    shape = tuple(terms.shape[axis] for axis in kept)
    rows = np.transpose(terms, (*kept, *axes)).reshape(math.prod(shape), math.prod(terms.shape[a] for a in axes))
    return exact_sums(rows).reshape(shape)


def exact_sums(terms: Array) -> Array:
    """`exact_sum` over the last axis."""
    rows = terms.reshape(math.prod(terms.shape[:-1]), terms.shape[-1])
    firsts = rows.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities
        rests = rows[:, :0] if rows.dtype == np.float64 else (rows - firsts).astype(np.float64)
    totals = [_exact_total(row, *parts) for row, *parts in zip(rows, firsts.tolist(), rests.tolist(), strict=True)]
    return np.array(totals, terms.dtype).reshape(terms.shape[:-1])


def _exact_total(row: Array, first: list[float], rest: list[float]) -> Any:
    """The sum of a row, from its elements in float64 and what is missing of each, nothing in a row of float64."""
    parts = first + rest
    try:
        total = math.fsum(parts)
        beyond = math.fsum([*parts, -total]) if rest else 0.0
    except (OverflowError, ValueError):
        total = math.nan
    if not math.isfinite(total):
        with np.errstate(all="ignore"):
            return row.sum()
    return row.dtype.type(total) + row.dtype.type(beyond)


def largest(terms: Array) -> Array:
    """The largest size along the last axis."""
    return np.abs(terms).max(-1, initial=0.0)


def per_channel(values: ArrayLike, rank: int, dtype: Reals) -> Array:
    """values (channels,) shaped to broadcast along axis 1 of an array of `rank`."""
    return real(values, dtype).reshape((-1,) + (1,) * (rank - 2))


def finite_difference(function: Callable[[Array], Any], array: ArrayLike, step: float = 1e-6) -> Array:
    """Central differences in float64 of a scalar function of an array; result of array's shape."""
    array = real(array)
    gradient = np.empty_like(array)
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (float(function(up)) - float(function(down))) / (up[index] - down[index])
    return gradient


def difference(actual: ArrayLike, expected: ArrayLike) -> Array:
    """|actual - expected| in float64, element by element.

    0 where both are NaN or the same infinity, infinite where only one of them is.
    """
    got, want = real(actual, np.longdouble), real(expected, np.longdouble)
    with np.errstate(all="ignore"):
        off = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, np.abs(got - want))
        return np.where(np.isnan(off), math.inf, off).astype(np.float64)


def ulp_error(actual: Array, expected_float64: ArrayLike, largest_term: ArrayLike | None = None) -> Array:
    """|actual - expected| in units in the last place of actual.dtype, as a float64 array of actual's shape.

    The unit is the spacing of actual.dtype at max(|expected|, largest_term), never below its smallest subnormal; a
    NaN or infinite largest_term is ignored. Equal infinities and NaN on both sides count 0, any other meeting of a
    special value inf. Two exceptions for an infinite result of the right sign where a finite value is expected: 0 where
    expected rounds to it; in the last binade it counts as the power of two that is the first not to fit.
    expected may be longdouble; correct rounding gives at most 0.5. Whole numbers and truth values that
    differ count inf.
    """
    actual = np.asarray(actual)
    expected = np.asarray(expected_float64)
    if actual.shape != expected.shape:
        raise ValueError(f"actual has shape {actual.shape}, expected has shape {expected.shape}")
    if actual.dtype.kind in "bi":
        return np.where(actual == expected, 0.0, math.inf)
    bits, lowest, overflow = _FORMATS[actual.dtype]
    # float64 suffices for narrower dtypes, and takes a third of the time.
    wide = np.longdouble if actual.dtype == np.float64 or expected.dtype == np.longdouble else np.float64
    with np.errstate(all="ignore"):
        got, want = real(actual, wide), real(expected, wide)
        size = np.where(np.isfinite(want), np.abs(want), 0)
        if largest_term is not None:
            largest = np.broadcast_to(np.abs(real(largest_term, wide)), size.shape)
            size = np.maximum(size, np.where(np.isfinite(largest), largest, 0))
        exponent = np.where(size == 0, lowest, np.frexp(size)[1] - 1)
        exponent = np.clip(exponent, lowest, overflow - 1) - bits
        places = np.ldexp(got, -exponent)
        infinite = np.isinf(got) & np.isfinite(want) & (np.signbit(got) == np.signbit(want))
        near = infinite & (np.abs(want) >= np.ldexp(wide(1), overflow - 1))
        places = np.where(near, np.copysign(np.ldexp(wide(1), overflow - exponent), want), places)
        error = np.abs(places - np.ldexp(want, -exponent))
        rounded = real(expected, np.float64).astype(actual.dtype)
        error = np.where(infinite & np.isinf(rounded), 0, error)
        error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0, error)
        return np.where(np.isnan(error), math.inf, error).astype(np.float64)
