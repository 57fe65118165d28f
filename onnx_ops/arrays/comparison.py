"""Compares a result with a golden one.

Names and definitions of the measures are those of msprobe (MindStudio-Probe, `msprobe/core/compare/npy_compare.py` and
`core/common/const.py`): Cosine, MaxAbsErr, MaxRelativeErr, One Thousandth Err Ratio, Five Thousandths Err Ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onnx_ops.core.types import shape_text

BLOCK = 2**18
"""Elements that are compared at a time."""
EPSILON = 2.0**-52
"""Added to a golden value of 0, and to the value beside it, for the relative error, as in msprobe."""


@dataclass(frozen=True)
class Comparison:
    """A result beside the golden one. All fields have types of JSON.

    Elements that are both NaN, or infinite with the same sign, are equal; so is an infinite element whose golden value,
    of a wider dtype, rounds to it. A NaN or an infinity beside another value is an infinite error.

    Attributes:
        name: of the pair.
        problem: why the arrays cannot be compared; then all other fields are empty.
        dtype, golden_dtype, shape: of the arrays.
        cosine: cosine similarity; 1 if both are zero; NaN if one is, or where NaNs or infinities differ.
        max_abs_err: largest abs(got - golden).
        max_relative_err: largest abs((got - golden) / golden), 2**-52 added to both where golden is 0.
        one_thousandth_err_ratio, five_thousandths_err_ratio: ratio of elements with a relative error below 0.001 and
            0.005.
        max_ulp: largest error in units in the last place of the coarser dtype of the two, at the golden value.
        different_nonfinite: number of elements with a NaN or infinity beside another value.
        outside: number of elements with abs(got - golden) > atol + rtol * abs(golden).
        worst: index of the element with the largest error in ulp.
        got, golden: its values.
    """

    name: str
    problem: str | None = None
    dtype: str = ""
    golden_dtype: str = ""
    shape: tuple[int, ...] = ()
    cosine: float = math.nan
    max_abs_err: float = math.nan
    max_relative_err: float = math.nan
    one_thousandth_err_ratio: float = math.nan
    five_thousandths_err_ratio: float = math.nan
    max_ulp: float = math.nan
    different_nonfinite: int = 0
    outside: int = 0
    worst: tuple[int, ...] | None = None
    got: float | int | None = None
    golden: float | int | None = None


def compare(
    name: str, got: np.ndarray | None, golden: np.ndarray | None, *, rtol: float = math.inf, atol: float = 0.0
) -> Comparison:
    """Compare arrays of numbers or booleans of the same shape; None for one that is missing."""
    if got is None or golden is None:
        return Comparison(name, "missing beside the golden one" if got is None else "no golden one")
    for array in (got, golden):
        if not (array.dtype.kind in "biuf" or array.dtype == ml_dtypes.bfloat16):
            return Comparison(name, f"dtype {array.dtype}, expected real numbers or booleans")
    if got.shape != golden.shape:
        return Comparison(name, f"shape {shape_text(got.shape)}, golden {shape_text(golden.shape)}")
    units = _Units.of(got.dtype, golden.dtype)
    worst, most = None, -1.0
    absolute = relative = 0.0
    dot = np.zeros(3, np.longdouble)
    counts = np.zeros(4, np.int64)
    for start, x, y in _blocks(got, golden):
        equal = units.equal(x, y)
        different = ~(equal | (np.isfinite(x) & np.isfinite(y)))
        x, y = np.where(equal | different, 0, x), np.where(different | (equal & ~np.isfinite(y)), 0, y)
        x = np.where(equal, y, x)
        error = np.abs(x - y)
        zero = (y == 0) * EPSILON
        ratio = error / np.abs(y + zero)
        ulps = error / units.at(y)
        far = error > atol + (rtol * np.abs(y) if rtol < math.inf else math.inf)
        for measure in (error, ratio, ulps):
            measure[different] = math.inf
        dot += [x @ y, x @ x, y @ y]
        counts += [np.sum(ratio < 0.001), np.sum(ratio < 0.005), np.sum(different), np.sum(far | different)]
        absolute, relative = max(absolute, float(error.max())), max(relative, float(ratio.max()))
        place = int(ulps.argmax())
        if ulps[place] > most:
            worst, most = start + place, float(ulps[place])
    index = None if worst is None else tuple(map(int, np.unravel_index(worst, got.shape)))
    values = (None, None) if index is None else (_number(got[index]), _number(golden[index]))
    close, near, nonfinite, outside = map(int, counts)
    return Comparison(
        name,
        None,
        got.dtype.name,
        golden.dtype.name,
        got.shape,
        math.nan if nonfinite else _cosine(*dot),
        absolute,
        relative,
        close / got.size if got.size else 1.0,
        near / got.size if got.size else 1.0,
        max(most, 0.0),
        nonfinite,
        outside,
        index,
        *values,
    )


def _finfo(dtype: np.dtype) -> np.finfo:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def _number(value: np.generic) -> float | int:
    return int(value) if value.dtype.kind in "biu" else float(value)


def _cosine(dot: np.longdouble, got: np.longdouble, golden: np.longdouble) -> float:
    if got == golden == 0:
        return 1.0
    if got == 0 or golden == 0:
        return math.nan
    return max(-1.0, min(1.0, float(dot / np.sqrt(got) / np.sqrt(golden))))


def _blocks(got: np.ndarray, golden: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Blocks of both arrays in long double, with the index of their first element; exact for all dtypes on x86."""
    flat = got.reshape(-1), golden.reshape(-1)
    for start in range(0, got.size, BLOCK):
        x, y = (_real(array[start : start + BLOCK]) for array in flat)
        yield start, x, y


def _real(array: np.ndarray) -> np.ndarray:
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    return array.astype(np.longdouble)


@dataclass(frozen=True)
class _Units:
    """The units in the last place of a dtype.

    Attributes:
        digits: of the significand in binary; None for integers, whose unit is 1.
        least: exponent of the smallest positive number, a power of 2.
        largest: exponent above that of the largest number.
    """

    digits: int | None
    least: int = 0
    largest: int = 0

    @classmethod
    def of(cls, *dtypes: np.dtype) -> _Units:
        """Those of the coarsest floating dtype, or of integers."""
        known = [_finfo(dtype) for dtype in dtypes if dtype.kind not in "biu"]
        if not known:
            return cls(None)
        coarsest = min(known, key=lambda info: info.nmant)
        digits = coarsest.nmant + 1
        return cls(digits, coarsest.minexp - coarsest.nmant, coarsest.maxexp)

    def equal(self, got: np.ndarray, golden: np.ndarray) -> np.ndarray:
        """Whether elements are equal, NaN included; an infinity also to what rounds to it."""
        equal = (got == golden) | (np.isnan(got) & np.isnan(golden))
        if self.digits is None:
            return equal
        limit = np.ldexp(np.longdouble(2) - np.ldexp(np.longdouble(1), -self.digits), self.largest - 1)
        return equal | (np.isinf(got) & (np.abs(golden) >= limit) & (np.signbit(got) == np.signbit(golden)))

    def at(self, values: np.ndarray) -> np.ndarray:
        """The unit in the last place at finite values."""
        if self.digits is None:
            return np.ones_like(values)
        _, exponents = np.frexp(values)
        exponents = np.where(values == 0, self.least, np.maximum(exponents - self.digits, self.least))
        return np.ldexp(np.longdouble(1), exponents)
