"""Vector operations for kernels that look up tables: NumPy arrays here, SIMD registers in compiled code.

LLVM vectorizes plain loops, but keeps a table in memory, where a lookup costs more than the arithmetic.
`onnx_ops.runtime.vectors` has the compiled forms.

A vector has LANES float32 or int32 elements, or QUAD float64 elements. Operators work elementwise, and broadcast a
scalar operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from onnx_ops.loops.memory import LANES
from onnx_ops.loops.primitives import Array, Number, inlined

QUAD = 4
"""Elements of a float64 vector: conversion from float32 is fastest in this width."""
TO_INTEGER = np.float32(12582912)
"""1.5 * 2**23: adding it rounds to an integer, held in the low bits of the sum."""


class Table:
    """LANES or 2*LANES float32 elements, indexed by the low bits of int32 vectors."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self.numbers = np.fromiter(numbers, np.float32)
        if len(self.numbers) not in (LANES, 2 * LANES):
            raise ValueError(f"a table of {len(self.numbers)} numbers, not {LANES} or {2 * LANES}")

    def __getitem__(self, index: Any) -> Any:
        return self.numbers[index & (len(self.numbers) - 1)]


def spread(value: Number) -> Any:
    """Vector with all elements equal to value."""
    return np.full(QUAD if isinstance(value, np.float64 | float) else LANES, value)


def load(numbers: Array, start: int) -> Any:
    """numbers[start:start + LANES] as float32; `numbers` float32 or 16-bit."""
    return np.array([numbers[start + k] for k in range(LANES)], np.float32)


def load_wide(numbers: Array, start: int) -> Any:
    """numbers[start:start + QUAD] as float64; `numbers` float32 or 16-bit."""
    return np.array([numbers[start + k] for k in range(QUAD)], np.float64)


def prefetch(numbers: Array, start: int) -> None:
    """Prefetch numbers[start:] into cache; `start` may be beyond the end."""


def store(vector: Any, numbers: Array, start: int) -> None:
    """numbers[start:start + LANES] = vector; `numbers` float32."""
    numbers[start : start + LANES] = vector


def scratch(count: int) -> Any:
    """Uninitialized float32 array on the stack, valid until the function returns; `count` is a literal."""
    return np.empty(count, np.float32)


def bits(vector: Any) -> Any:
    """float32 vector reinterpreted as int32."""
    return vector.view(np.int32)


def floats(vector: Any) -> Any:
    """int32 vector reinterpreted as float32."""
    return vector.view(np.float32)


def as_floats(vector: Any) -> Any:
    """int32 vector converted to float32."""
    return vector.astype(np.float32)


def lesser(a: Any, b: Any) -> Any:
    """Elementwise a if a < b else b."""
    return np.where(a < b, a, b)


def greater(a: Any, b: Any) -> Any:
    """Elementwise a if a > b else b."""
    return np.where(a > b, a, b)


def by_sign(vector: Any, negative: Any, positive: Any) -> Any:
    """Elementwise `negative` where the sign bit of a float32 is set, else `positive`."""
    return np.where(np.signbit(vector), negative, positive)


def total(vector: Any) -> Any:
    """Sum of a float32 or float64 vector, in float64."""
    return np.sum(vector, dtype=np.float64)


def any_negative(vector: Any) -> bool:
    """Whether any element of an int32 vector is negative."""
    return bool(np.any(vector < 0))


@inlined
def sum_terms(add_terms: Callable[[Any, Any, int, int], Any], inputs: Any, start: int, count: int) -> Any:
    """Sum of the terms of elements [start, start + count), in float64; `count` a multiple of LANES.

    Args:
        add_terms: add_terms(sums, inputs, start, i) adds the terms of elements start + i to start + i + QUAD - 1 to a
            float64 vector, elementwise.
        inputs: arrays; a tuple of them, as LLVM would read the pointers in the operands of a core in each iteration.
    """
    # Four accumulators, as the latency of one addition is that of about four iterations.
    a, b, c, d = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
    for i in range(0, count, LANES):
        a = add_terms(a, inputs, start, i)
        b = add_terms(b, inputs, start, i + QUAD)
        c = add_terms(c, inputs, start, i + 2 * QUAD)
        d = add_terms(d, inputs, start, i + 3 * QUAD)
    return total((a + b) + (c + d))
