"""Vectors of numbers, for kernels that look numbers up in tables: NumPy arrays here, registers in compiled code.

A loop over single numbers is turned into one over vectors by LLVM, but a table would then lie in memory, where looking
up takes longer than computing. `onnx_ops.runtime.vectors` teaches Numba the compiled form.

A vector holds LANES float32 or int32 numbers, or QUAD float64 numbers. Arithmetic is that of its numbers, also with a
single number in place of a vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from onnx_ops.loops.primitives import LANES

QUAD = 4
"""Numbers of a vector of float64: conversions from float32 are fastest so many at a time."""
TO_INTEGER = np.float32(12582912)
"""Adding this leaves a number rounded to an integer, which then lies in the low bits of the sum."""


class Table:
    """LANES or twice as many float32 numbers, looked up by the low bits of int32 numbers."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self.numbers = np.fromiter(numbers, np.float32)
        if len(self.numbers) not in (LANES, 2 * LANES):
            raise ValueError(f"a table of {len(self.numbers)} numbers, not {LANES} or {2 * LANES}")

    def __getitem__(self, index: Any) -> Any:
        return self.numbers[index & (len(self.numbers) - 1)]


def spread(value: Any) -> Any:
    """A vector of one number throughout."""
    return np.full(QUAD if isinstance(value, np.float64 | float) else LANES, value)


def load(numbers: Any, start: int) -> Any:
    """The LANES numbers from a place on, as float32; `numbers` are float32 or of 16 bits."""
    return np.array([numbers[start + k] for k in range(LANES)], np.float32)


def load_wide(numbers: Any, start: int) -> Any:
    """The QUAD numbers from a place on, as float64; `numbers` are float32 or of 16 bits."""
    return np.array([numbers[start + k] for k in range(QUAD)], np.float64)


def prefetch(numbers: Any, start: int) -> None:
    """Have the numbers from a place on brought to the caches while others are worked on; there need not be any."""


def store(vector: Any, numbers: Any, start: int) -> None:
    """A vector of float32 to the places from one on; `numbers` are float32."""
    numbers[start : start + LANES] = vector


def scratch(count: int) -> Any:
    """Room for `count` float32 numbers, a literal, that lasts as long as the call of the function."""
    return np.empty(count, np.float32)


def bits(vector: Any) -> Any:
    """The bits of float32 numbers, as int32."""
    return vector.view(np.int32)


def floats(vector: Any) -> Any:
    """The float32 numbers that have the bits of int32 numbers."""
    return vector.view(np.float32)


def as_floats(vector: Any) -> Any:
    """Int32 numbers as float32."""
    return vector.astype(np.float32)


def lesser(a: Any, b: Any) -> Any:
    """a where it is less than b, else b."""
    return np.where(a < b, a, b)


def greater(a: Any, b: Any) -> Any:
    """a where it is greater than b, else b."""
    return np.where(a > b, a, b)


def by_sign(vector: Any, negative: Any, positive: Any) -> Any:
    """Numbers of `negative` where the sign of a float32 is set, else of `positive`."""
    return np.where(np.signbit(vector), negative, positive)


def total(vector: Any) -> Any:
    """Sum of float32 or float64 numbers, in float64."""
    return np.sum(vector, dtype=np.float64)


def any_negative(vector: Any) -> bool:
    """Whether an int32 number is below 0."""
    return bool(np.any(vector < 0))
