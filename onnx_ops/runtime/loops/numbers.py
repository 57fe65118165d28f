"""Conversion to and from the computing dtype of a loop."""

from __future__ import annotations

from numba import njit, types

from onnx_ops.runtime.memory import Numbers16, bfloat_at, f4_at, f8_at, half_at, u1_at
from onnx_ops.runtime.native import BFLOAT16, BOOL, DOUBLE, FLOAT, FLOAT16, OPTIONS

NUMBERS = {
    FLOAT: types.CPointer(types.float32),
    DOUBLE: types.CPointer(types.float64),
    FLOAT16: Numbers16(FLOAT16),
    BFLOAT16: Numbers16(BFLOAT16),
}
"""Element types in memory by computing dtype. 16-bit elements are converted to float32 as they are read."""

LOAD = {
    dtype: types.void(types.int64, types.int64, types.int64, types.int64, numbers) for dtype, numbers in NUMBERS.items()
}
"""Signature of a load by computing dtype: (source, element type, step, count, destination)."""
STORE = {dtype: types.void(NUMBERS[dtype], types.int64, types.int64, types.int64) for dtype in NUMBERS}
"""Signature of a store by computing dtype: (source, element type, count, destination)."""


@njit(**OPTIONS)
def bring(numbers, step, count, out):
    """out[k] = numbers[k * step], converted to the computing dtype."""
    if step == 1:
        for i in range(count):
            out[i] = numbers[i]
    elif step == 0:
        value = numbers[0]
        for i in range(count):
            out[i] = value
    else:
        for i in range(count):
            out[i] = numbers[i * step]


def load(source, element_type, step, count, out):
    """Convert elements of any dtype to the computing dtype, the type of `out`."""
    if element_type == FLOAT:
        bring(f4_at(source), step, count, out)
    elif element_type == DOUBLE:
        bring(f8_at(source), step, count, out)
    elif element_type == FLOAT16:
        bring(half_at(source), step, count, out)
    elif element_type == BOOL:
        bring(u1_at(source), step, count, out)
    else:
        bring(bfloat_at(source), step, count, out)


def store(source, element_type, count, destination):
    """Convert elements of the computing dtype to a dtype, rounded once."""
    if element_type == FLOAT:
        bring(source, 1, count, f4_at(destination))
    elif element_type == DOUBLE:
        bring(source, 1, count, f8_at(destination))
    elif element_type == FLOAT16:
        bring(source, 1, count, half_at(destination))
    else:
        bring(source, 1, count, bfloat_at(destination))
