"""Functions that kernels may call, in plain Python, so that a kernel also runs without Numba.

`native`, `memory`, `lanes` and `elementary` in `onnx_ops.runtime` hold their compiled forms; `loops.vectors` has more.
"""

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import onnx

F = TypeVar("F", bound=Callable[..., Any])

ONE = np.float32(1)
ZERO = np.float32(0)
LAST_PARAMETER = 7
"""Index of the rounding error of parameters[0], the reciprocal of the divisor, in the parameters of a core."""

wide = np.float64
"""Conversion to float64, for a step that needs it whatever the computing dtype."""

HELPERS: list[Callable[..., Any]] = []
"""Functions compiled along with the kernels that call them."""


def helper(function: F) -> F:
    """Register a function that kernels may call; returns it unchanged."""
    HELPERS.append(function)
    return function


INLINED: list[Callable[..., Any]] = []
"""Helpers that are always inlined into the loops that call them."""


def inlined(function: F) -> F:
    """Register a helper that is inlined, however large; returns it unchanged."""
    INLINED.append(function)
    return function


def exp_parts(x: Any) -> tuple[Any, Any, Any]:
    """exp(x) as three factors, none of which overflows or becomes subnormal where exp(x) would.

    Multiplied into another number one after the other, they keep full relative precision even where exp(x) itself is
    subnormal or overflows. Where exp(x) exceeds the square of the dtype's range, the product is 0 or infinity.

    Args:
        x: float32 or float64, any value.
    """
    dtype = type(x)
    with np.errstate(over="ignore", under="ignore"):
        root = np.exp(x / dtype(2))
    return dtype(1), root, root


def exp_excess_parts(x: Any) -> tuple[Any, Any]:
    """(excess, power) with exp(x) = power * (1 + excess), power a power of 2; float32 x in [-87, 87]."""
    power = np.exp2(np.rint(x / np.log(np.float32(2))))
    return np.float32(np.exp(np.float64(x)) / np.float64(power) - 1), power


def exp_approx(x: Any) -> Any:
    """exp(x) in float32 for float32 x in [-87, 87], for 16-bit results.

    abs(exp_approx(x) / exp(x) - 1) <= 3e-6.
    """
    return np.exp(x)


def exp_of_float32(x: Any) -> Any:
    """exp(x) in float64 for float32 x, for float32 results.

    abs(exp_of_float32(x) / exp(x) - 1) <= 2.2e-10 for x in [-708, 709]; inf for x > 709, exp(-708) for x in
    [-745, -708), 0 for x < -745.
    """
    value = np.exp(np.clip(np.float64(x), -708.0, 709.0))
    return np.inf if x > 709 else 0.0 if x < -745 else value


def exp_in_range(x: Any) -> Any:
    """exp(x) in float64 for float64 x in [-708, 709]; unspecified for other x.

    abs(exp_in_range(x) / exp(x) - 1) <= 2.2e-10.
    """
    return np.exp(x)


def one_plus_exp(x: Any) -> Any:
    """1 + exp(x) in float64 for float64 x in [-708, 0]; unspecified for other x.

    abs(one_plus_exp(x) - 1 - exp(x)) <= 3.1e-9 * exp(x) + 2**-53.
    """
    with np.errstate(all="ignore"):
        return 1 + np.exp(x)


def log(x: Any) -> Any:
    """Natural logarithm of a float32 or float64, in float64; -inf for 0, NaN for x < 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.float64(x))


def log_float32(x: Any) -> Any:
    """Natural logarithm of a float32 in float32, for 16-bit results; -inf for 0, NaN for x < 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


def log_float32_normal(x: Any) -> Any:
    """`log_float32` for float32 x in [2**-126, inf); unspecified for other x."""
    return log_float32(x)


def log_approx(x: Any) -> Any:
    """Natural logarithm in float32 for float32 x in [2**-126, inf), for 16-bit results; unspecified for other x.

    abs(log_approx(x) - log(x)) <= max(3e-6, 0.5 ulp).
    """
    return log_float32(x)


def log1p_approx(x: Any) -> Any:
    """log1p(x) in float32 for float32 x in [0, 1], for 16-bit results.

    abs(log1p_approx(x) - log1p(x)) <= 4e-7.
    """
    return np.log1p(x)


def softplus_of_nonpositive(x: Any) -> Any:
    """log1p(exp(x)) in float64 for x <= 0 or NaN; relative error <= 4e-10 for float32 x."""
    return np.log1p(np.exp(np.float64(x)))


NO_POWER = -1e200
"""Exponent of the value 0: below any other exponent, also after millions of additions."""


def exp_and_power(x: Any) -> tuple[Any, Any]:
    """exp(x) of a float64 as (value, power) with exp(x) = value * 2**power; value in [0.7, 1.5], power integral.

    For abs(x) <= 1e12; (0, NO_POWER) for x = -inf.
    """
    if x == -np.inf:
        return np.float64(0), np.float64(NO_POWER)
    ln2 = np.log(np.longdouble(2))
    power = np.rint(np.float64(x / ln2))
    return np.exp(np.float64(x - power * ln2)), power


def value_and_power(x: Any) -> tuple[Any, Any]:
    """x in [2**-1022, inf) as (value, power) with x = value * 2**power, value in [0.7, 1.5]; (0, NO_POWER) for 0."""
    if x == 0:
        return np.float64(0), np.float64(NO_POWER)
    value, power = np.frexp(x)
    return (value, np.float64(power)) if value > np.sqrt(0.5) else (2 * value, np.float64(power - 1))


def power_of_two(power: Any) -> Any:
    """2**power for an integral float64 power in [-1022, 1023]; 0 for -1023."""
    return np.float64(0) if power == -1023 else np.ldexp(1.0, int(power))


def like(value: Any, other: Any) -> Any:
    """value, converted to the dtype of other."""
    return type(other)(value)


def of_channels(operand: Any) -> Any:
    """A per-channel operand, float32 for 16-bit computing dtypes."""
    return operand


def exp_parts_of_nonpositive(x: Any) -> tuple[Any, Any, Any]:
    """`exp_parts` for x <= 0 or NaN."""
    return exp_parts(x)


def exp_of_difference(x: Any) -> Any:
    """exp(x) in the dtype of x for abs(x) <= 87 (float32) or 708 (float64), 0 for x below and infinity for x above.

    abs(exp_of_difference(x) / exp(x) - 1) <= 2**-23 for float32 x, 2**-51 for float64 x.
    """
    most = 87 if x.dtype == np.float32 else 708
    return type(x)(0) if x < -most else type(x)(np.inf) if x > most else np.exp(x)


def add_any_order(a: Any, b: Any) -> Any:
    """a + b in the dtype of a; the compiler may reassociate sums of these."""
    return a + b


def multiply_any_order(a: Any, b: Any) -> Any:
    """a * b in the dtype of a; the compiler may reassociate."""
    return a * b


def choose(condition: Any, a: Any, b: Any) -> Any:
    """a if condition else b; evaluates both, so that the loop vectorizes. a and b have one dtype."""
    return a if condition else b


def abs_up_to(x: Any, most: Any) -> Any:
    """min(abs(x), most) of a float32; most where x is NaN."""
    return abs(x) if abs(x) < most else most


def fma(a: Any, b: Any, c: Any) -> Any:
    """a*b + c, rounded once (fused multiply-add), in the dtype of a; numbers or vectors."""
    with np.errstate(all="ignore"):
        return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype(a.dtype)


FLOAT, DOUBLE, BOOL = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.DOUBLE), int(onnx.TensorProto.BOOL)
FLOAT16 = int(onnx.TensorProto.FLOAT16)


@helper
def ceil_divide(a: int, b: int) -> int:
    return (a + b - 1) // b


@helper
def item_size(element_type: int) -> int:
    """Bytes per element of a floating element type or BOOL."""
    if element_type == DOUBLE:
        return 8
    if element_type == FLOAT:
        return 4
    return 1 if element_type == BOOL else 2


@helper
def channel_type(compute_type: int) -> int:
    """Element type of per-channel operands and pivots for a computing dtype."""
    return DOUBLE if compute_type == DOUBLE else FLOAT


@helper
def total_of(values: Any, start: int, count: int) -> float:
    """Pairwise sum of values[start:start + count]; overwrites them."""
    while count > 1:
        half = count // 2
        upper = start + count - half
        for i in range(half):
            values[start + i] += values[upper + i]
        count -= half
    return float(values[start]) if count == 1 else 0.0


def size_of(dtype: Any) -> int:
    """Bytes per element of a NumPy dtype."""
    return np.dtype(dtype).itemsize


def array_at(address: int, count: int, dtype: Any) -> Any:
    """View of `count` elements of NumPy dtype `dtype` at a memory address."""
    kind = np.dtype(dtype)
    return np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(address), kind)


class Numbers16:
    """View of 16-bit elements, read as float32 and rounded on assignment."""

    def __init__(self, numbers: Any) -> None:
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


LANES = 16
"""Interleaved rows that one vector operation processes: one AVX-512 vector of float32, two of float64."""


def interleave(sources: Any, element_type: int, start: int, count: int, out: Any, place: int) -> None:
    """Interleave LANES rows: out[(place + j)*LANES + lane] = row[lane][start + j] for j in [0, count).

    Args:
        sources: LANES addresses of rows of floating `element_type`.
        out: float32 or float64; elements are converted to its dtype.
    """
    for lane in range(LANES):
        for j in range(count):
            out[(place + j) * LANES + lane] = number_at(int(sources[lane]), element_type, start + j)


def separate(numbers: Any, place: int, count: int, targets: Any, element_type: int, start: int) -> None:
    """Inverse of `interleave`: row[lane][start + j] = numbers[(place + j)*LANES + lane], rounded once.

    Args:
        targets: LANES addresses of rows of floating `element_type`.
    """
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    for lane in range(LANES):
        own = np.array([numbers[(place + j) * LANES + lane] for j in range(count)], np.float64)
        array_at(int(targets[lane]) + start * dtype.itemsize, count, dtype)[:] = own.astype(dtype)


def correlate(
    a: Any,
    b: Any,
    a_places: Any,
    b_places: Any,
    terms: int,
    rows: int,
    columns: int,
    b_row: int,
    out: Any,
    place: int,
    out_row: int,
    step: int,
) -> None:
    """Sums of products for each lane: out[(place + i*out_row + j*step)*LANES + lane] = sum over t in [0, terms) of

        a[a_places[t]*LANES + lane] * b[(b_places[t] + i*b_row + j)*LANES + lane]

    in the order of t, for i in [0, rows) and j in [0, columns). a, b and out have one dtype.
    """
    for i in range(rows):
        for j in range(columns):
            total = np.zeros(LANES, out.dtype)
            for t in range(terms):
                at_a, at_b = int(a_places[t]) * LANES, (int(b_places[t]) + i * b_row + j) * LANES
                with np.errstate(all="ignore"):
                    total += a[at_a : at_a + LANES] * b[at_b : at_b + LANES]
            at = (place + i * out_row + j * step) * LANES
            out[at : at + LANES] = total


def add_products(
    sums: Any,
    a: Any,
    b: Any,
    a_start: int,
    b_starts: tuple[int, int, int],
    rows: int,
    columns: int,
    a_row: int,
    b_row: int,
    step: int,
) -> None:
    """Accumulate three sums of products for each lane: sums[t*LANES + lane] += sum over i and j of

        a[(a_start + i*a_row + j)*LANES + lane] * b[(b_starts[t] + i*b_row + j*step)*LANES + lane]

    for i in [0, rows) and j in [0, columns), with a partial sum per row. sums, a and b have one dtype.
    """
    for t in range(3):
        for i in range(rows):
            total = np.zeros(LANES, sums.dtype)
            for j in range(columns):
                at_a = (a_start + i * a_row + j) * LANES
                at_b = (b_starts[t] + i * b_row + j * step) * LANES
                with np.errstate(all="ignore"):
                    total += a[at_a : at_a + LANES] * b[at_b : at_b + LANES]
            with np.errstate(all="ignore"):
                sums[t * LANES : (t + 1) * LANES] += total


@helper
def setting(address: int, count: int, axis: int, default: int) -> int:
    """Element `axis` of an INTS attribute at `address`; `default` if the attribute is empty."""
    return int(array_at(address, count, np.int64)[axis]) if count > 0 else default


def malloc(size: int) -> int:
    """Address of a new block of `size` bytes; 0 if there is no memory."""
    return _raw_malloc(size) or 0


def free(address: int) -> None:
    """Free a block from `malloc`."""
    _raw_free(address)


def copy_bytes(source: int, target: int, size: int) -> None:
    """Copy `size` bytes between memory addresses; the ranges do not overlap."""
    ctypes.memmove(target, source, size)


def address_of(array: Any) -> int:
    """Memory address of an array of `array_at` or `allocate`."""
    return int(array.ctypes.data)


def allocate(*buffers: tuple[int, Any]) -> tuple[Any, ...]:
    """Uninitialized arrays in one new block of memory.

    Args:
        buffers: length and NumPy dtype of each array.

    Returns:
        The address of the block, to `free` it, and the arrays, each at a multiple of 8 bytes. If there is no memory,
        the address is 0, and the arrays must not be accessed.
    """
    ends = [0]
    for count, dtype in buffers:
        ends.append(ends[-1] + -(-count * np.dtype(dtype).itemsize // 8) * 8)
    memory = malloc(ends[-1])
    if memory == 0:
        return (0, *(np.empty(0, dtype) for _, dtype in buffers))
    return (memory, *(array_at(memory + begin, *buffer) for begin, buffer in zip(ends, buffers, strict=False)))


_raw_malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyMem_RawMalloc", ctypes.pythonapi))
_raw_free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))
