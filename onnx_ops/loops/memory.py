"""Memory that kernels read, write and allocate, in plain Python, so that a kernel also runs without Numba.

`memory` and `lanes` in `onnx_ops.runtime` hold the compiled forms.
"""

import ctypes
from typing import Any

import numpy as np
import onnx

from onnx_ops.loops.primitives import Array, ceil_divide, helper

FLOAT, DOUBLE, BOOL = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.DOUBLE), int(onnx.TensorProto.BOOL)
FLOAT16 = int(onnx.TensorProto.FLOAT16)

LINE = 64
"""Bytes of a cache line."""
LANES = 16
"""Interleaved rows that one vector operation processes: one AVX-512 vector of float32, two of float64."""


# --- sizes ------------------------------------------------------------------------------------------------------------


@helper
def whole_lines(size: int) -> int:
    """`size` bytes, or an address, rounded up to a multiple of a cache line."""
    return ceil_divide(size, LINE) * LINE


@helper
def item_size(element_type: int) -> int:
    """Bytes per element of a floating element type or BOOL."""
    if element_type == DOUBLE:
        return 8
    if element_type == FLOAT:
        return 4
    return 1 if element_type == BOOL else 2


@helper
def computing_size(element_type: int) -> int:
    """Bytes per element of the computing dtype: float64 for DOUBLE, else float32."""
    return 8 if element_type == DOUBLE else 4


@helper
def channel_type(compute_type: int) -> int:
    """Element type of per-channel operands and pivots for a computing dtype."""
    return DOUBLE if compute_type == DOUBLE else FLOAT


@helper
def setting(address: int, count: int, axis: int, default: int) -> int:
    """Element `axis` of an INTS attribute at `address`; `default` if the attribute is empty."""
    return int(array_at(address, count, np.int64)[axis]) if count > 0 else default


# --- views of memory --------------------------------------------------------------------------------------------------


def size_of(dtype: Any) -> int:
    """Bytes per element of a NumPy dtype."""
    return np.dtype(dtype).itemsize


def array_at(address: int, count: int, dtype: Any) -> Any:
    """View of `count` elements of NumPy dtype `dtype` at a memory address."""
    kind = np.dtype(dtype)
    return np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(address), kind)


class Numbers16:
    """View of 16-bit elements, read as float32 and rounded on assignment."""

    def __init__(self, numbers: Array) -> None:
        self._numbers = numbers

    def __getitem__(self, index: int) -> np.float32:
        return np.float32(self._numbers[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self._numbers[index] = value


def halves_at(address: int, count: int) -> Any:
    """View of `count` float16 elements at a memory address, read as float32."""
    return Numbers16(array_at(address, count, np.float16))


def bfloats_at(address: int, count: int) -> Any:
    """View of `count` bfloat16 elements at a memory address, read as float32."""
    return Numbers16(array_at(address, count, onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)))


@helper
def floats_at(address: int, count: int) -> Any:
    """View of `count` float32 elements at a memory address."""
    return array_at(address, count, np.float32)


@helper
def doubles_at(address: int, count: int) -> Any:
    """View of `count` float64 elements at a memory address."""
    return array_at(address, count, np.float64)


def record_at(address: int, layout: Any) -> Any:
    """The record of dtype `layout` at a memory address."""
    return array_at(address, 1, layout).view(np.recarray)[0]


def number_at(address: int, element_type: int, index: int) -> float:
    """Element `index` of a tensor of an ONNX element type, as float64."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    return float(array_at(address + index * dtype.itemsize, 1, dtype)[0])


# --- elements of a dtype known at run time ----------------------------------------------------------------------------


def read_numbers(function: int, source: int, element_type: int, count: int, target: int) -> None:
    """Convert `count` elements of an ONNX element type at `source` to float64 at `target`.

    function: the field `read` of the kernel.
    """
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, np.float64)[:] = array_at(source, count, dtype)


def write_numbers(function: int, source: int, element_type: int, count: int, target: int) -> None:
    """Convert `count` float64 elements at `source` to an ONNX element type at `target`, rounded once.

    function: the field `write` of the kernel.
    """
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, dtype)[:] = array_at(source, count, np.float64).astype(dtype)


def read_floats(source: int, element_type: int, count: int, target: int) -> None:
    """Convert `count` elements of FLOAT, FLOAT16 or BFLOAT16 at `source` to float32 at `target`."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, np.float32)[:] = array_at(source, count, dtype)


def write_floats(source: int, element_type: int, count: int, target: int) -> None:
    """Convert `count` float32 elements at `source` to FLOAT, FLOAT16 or BFLOAT16 at `target`, rounded once."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, dtype)[:] = array_at(source, count, np.float32).astype(dtype)


@helper
def read_row(source: int, element_type: int, count: int, target: Array) -> None:
    """Convert elements at an address to the computing dtype: float64 for DOUBLE, else float32."""
    if element_type == DOUBLE:
        copy_bytes(source, address_of(target), 8 * count)
    else:
        read_floats(source, element_type, count, address_of(target))


@helper
def write_row(numbers: Array, element_type: int, count: int, target: int) -> None:
    """Inverse of `read_row`, rounded once."""
    if element_type == DOUBLE:
        copy_bytes(address_of(numbers), target, 8 * count)
    else:
        write_floats(address_of(numbers), element_type, count, target)


def interleave(sources: Array, element_type: int, start: int, count: int, out: Array, place: int) -> None:
    """Interleave LANES rows: out[(place + j)*LANES + lane] = row[lane][start + j] for j in [0, count).

    Args:
        sources: LANES addresses of rows of floating `element_type`.
        out: float32 or float64; elements are converted to its dtype.
    """
    for lane in range(LANES):
        for j in range(count):
            out[(place + j) * LANES + lane] = number_at(int(sources[lane]), element_type, start + j)


def separate(numbers: Array, place: int, count: int, targets: Array, element_type: int, start: int) -> None:
    """Inverse of `interleave`: row[lane][start + j] = numbers[(place + j)*LANES + lane], rounded once.

    Args:
        targets: LANES addresses of rows of floating `element_type`.
    """
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    for lane in range(LANES):
        own = np.array([numbers[(place + j) * LANES + lane] for j in range(count)], np.float64)
        array_at(int(targets[lane]) + start * dtype.itemsize, count, dtype)[:] = own.astype(dtype)


# --- blocks of memory -------------------------------------------------------------------------------------------------


def malloc(size: int) -> int:
    """Address of a new block of `size` bytes; 0 if there is no memory."""
    return _raw_malloc(size) or 0


def free(address: int) -> None:
    """Free a block from `malloc`."""
    _raw_free(address)


def copy_bytes(source: int, target: int, size: int) -> None:
    """Copy `size` bytes between memory addresses; the ranges do not overlap."""
    ctypes.memmove(target, source, size)


def address_of(array: Array) -> int:
    """Memory address of an array of `array_at`, `allocate` or `tail`."""
    return int(array.ctypes.data)


def tail(array: Array, start: int) -> Any:
    """View of the elements of an array from index `start` on."""
    return array[start:]


def allocate(*buffers: tuple[int, Any]) -> tuple[Any, ...]:
    """Uninitialized arrays in one new block of memory.

    Args:
        buffers: length and NumPy dtype of each array.

    Returns:
        The address of the block, to `free` it, and the arrays, each aligned to a cache line. If there is no memory,
        the address is 0, and the arrays must not be accessed.
    """
    ends = [0]
    for count, dtype in buffers:
        ends.append(ends[-1] + whole_lines(count * size_of(dtype)))
    memory = malloc(ends[-1] + LINE)
    if memory == 0:
        return (0, *(np.empty(0, dtype) for _, dtype in buffers))
    first = whole_lines(memory)
    return (memory, *(array_at(first + begin, *buffer) for begin, buffer in zip(ends, buffers, strict=False)))


_raw_malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyMem_RawMalloc", ctypes.pythonapi))
_raw_free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))
