"""What kernels are written with: plain Python here, so that a kernel can be run and debugged as it stands.

In `onnx_ops.runtime`, `native`, `memory`, `lanes` and `elementary` teach Numba the compiled form of each of them. There
are `vectors` besides.
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
"""Place of the rounding error of the divisor's reciprocal, which is parameters[0] of an elementwise core."""

wide = np.float64
"""To float64, in a kernel that computes a step in it whatever its dtype."""

HELPERS: list[Callable[..., Any]] = []
"""Functions that kernels call, to be compiled along with them."""


def helper(function: F) -> F:
    """Mark a function that kernels may call; it stays plain Python."""
    HELPERS.append(function)
    return function


INLINED: list[Callable[..., Any]] = []
"""Those of them whose code goes into the loops that call them."""


def inlined(function: F) -> F:
    """Mark a function as `helper` does, for a call from inside a loop: one that is large would not be inlined else."""
    INLINED.append(function)
    return function


def exp_parts(x: Any) -> tuple[Any, Any, Any]:
    """e**x as three factors, none of which overflows or loses digits where e**x alone would.

    x is a float32 or float64, also infinite or NaN. The product of the factors is e**x; multiplied into another
    number one by one they give a result that is good to the last digits even where e**x itself is subnormal or too
    large. e**x beyond the square of the dtype's range counts as 0 or infinity.
    """
    dtype = type(x)
    with np.errstate(over="ignore", under="ignore"):
        root = np.exp(x / dtype(2))
    return dtype(1), root, root


def near_exp_parts(x: Any) -> tuple[Any, Any]:
    """e**x of a float32 from -87 to 87 as (excess, power), for which e**x = power * (1 + excess); power is one of 2."""
    power = np.exp2(np.rint(x / np.log(np.float32(2))))
    return np.float32(np.exp(np.float64(x)) / np.float64(power) - 1), power


def near_exp(x: Any) -> Any:
    """e**x of a float32 from -87 to 87 in float32, with an error of 3e-6: enough for a result of 16 bits."""
    return np.exp(x)


def short_exp(x: Any) -> Any:
    """e**x of a float32 in float64, with an error of 2e-10: enough for a result in float32.

    Above 709 it is infinite, below -745 it is 0, and down to there e**-708 at least.
    """
    value = np.exp(np.clip(np.float64(x), -708.0, 709.0))
    return np.inf if x > 709 else 0.0 if x < -745 else value


def normal_exp(x: Any) -> Any:
    """e**x of a float64 from -708 to 709 with an error of 2e-10; of any other it is some number or NaN."""
    return np.exp(x)


def one_plus_exp(x: Any) -> Any:
    """1 + e**x of a float64 from -708 to 0 with an error of 3e-9 of e**x; of any other it is some number or NaN."""
    with np.errstate(all="ignore"):
        return 1 + np.exp(x)


def log(x: Any) -> Any:
    """Natural logarithm of a float32 or float64, in float64; of 0 it is -infinity, of less NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.float64(x))


def short_log(x: Any) -> Any:
    """Natural logarithm of a float32 in float32, for a result of 16 bits; of 0 it is -infinity, of less NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


def normal_log(x: Any) -> Any:
    """`short_log` of a positive normal float32; of any other it is some number or NaN."""
    return short_log(x)


def near_log(x: Any) -> Any:
    """Natural logarithm of a positive normal float32 in float32, with an error of 3e-6 or that of its rounding.

    Enough for a result of 16 bits; of any other number it is some number or NaN.
    """
    return short_log(x)


def near_log1p(x: Any) -> Any:
    """log(1 + x) of a float32 from 0 to 1 in float32, with an error of 4e-7: enough for a result of 16 bits."""
    return np.log1p(x)


def softplus_of_falling(x: Any) -> Any:
    """log(1 + e**x) in float64, of an x that is at most 0, or NaN; of a float32 with an error of 4e-10."""
    return np.log1p(np.exp(np.float64(x)))


NO_POWER = -1e200
"""The power of two of a 0: below that of any number, also when millions of them are added up."""


def exp_and_power(x: Any) -> tuple[Any, Any]:
    """e**x of a float64 as value * 2**power, the value 0 or from 0.7 to 1.5 and the power a whole float64.

    For -1e12 <= x <= 1e12; of -infinity it is 0 with the power NO_POWER.
    """
    if x == -np.inf:
        return np.float64(0), np.float64(NO_POWER)
    ln2 = np.log(np.longdouble(2))
    power = np.rint(np.float64(x / ln2))
    return np.exp(np.float64(x - power * ln2)), power


def value_and_power(x: Any) -> tuple[Any, Any]:
    """A positive normal float64 as value * 2**power, the value from 0.7 to 1.5; of 0 it is 0 and the power NO_POWER."""
    if x == 0:
        return np.float64(0), np.float64(NO_POWER)
    value, power = np.frexp(x)
    return (value, np.float64(power)) if value > np.sqrt(0.5) else (2 * value, np.float64(power - 1))


def power_of_two(power: Any) -> Any:
    """2**power of a whole float64 from -1022 to 1023; 0 for -1023."""
    return np.float64(0) if power == -1023 else np.ldexp(1.0, int(power))


def like(value: Any, other: Any) -> Any:
    """A number in the dtype of another."""
    return type(other)(value)


def of_channels(operand: Any) -> Any:
    """An operand with one number per channel, for a core of any dtype; beside 16-bit operands they are float32."""
    return operand


def falling_exp_parts(x: Any) -> tuple[Any, Any, Any]:
    """`exp_parts` of an x that is at most 0, or NaN."""
    return exp_parts(x)


def add_any_order(a: Any, b: Any) -> Any:
    """a + b in the dtype of a; a sum of many such is added up in the order that is fastest on the machine."""
    return a + b


def multiply_any_order(a: Any, b: Any) -> Any:
    """a * b likewise."""
    return a * b


def choose(condition: Any, a: Any, b: Any) -> Any:
    """a if a condition holds, else b, of one dtype; both are computed, so that the loop can be vectorised."""
    return a if condition else b


def size_up_to(x: Any, most: Any) -> Any:
    """|x| of a float32; the positive number `most` if that is less, or if x is NaN."""
    return abs(x) if abs(x) < most else most


def fma(a: Any, b: Any, c: Any) -> Any:
    """a*b + c, rounded once, in the dtype of a; of vectors too."""
    with np.errstate(all="ignore"):
        return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype(a.dtype)


FLOAT, DOUBLE, BOOL = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.DOUBLE), int(onnx.TensorProto.BOOL)
FLOAT16 = int(onnx.TensorProto.FLOAT16)


@helper
def item_size(element_type: int) -> int:
    """Bytes of a floating element type, or of BOOL."""
    if element_type == DOUBLE:
        return 8
    if element_type == FLOAT:
        return 4
    return 1 if element_type == BOOL else 2


@helper
def channel_type(compute_type: int) -> int:
    """The element type of per-channel operands, the pivot among them, beside others of a computing dtype."""
    return DOUBLE if compute_type == DOUBLE else FLOAT


@helper
def total_of(values: Any, start: int, count: int) -> float:
    """Sum of values[start:start + count] by halves, which spoils them: vectorised, and off by few roundings."""
    while count > 1:
        half = count // 2
        upper = start + count - half
        for i in range(half):
            values[start + i] += values[upper + i]
        count -= half
    return float(values[start]) if count == 1 else 0.0


def array_at(address: int, count: int, dtype: Any) -> Any:
    """The `count` numbers of NumPy type `dtype` that start at a memory address, as an array."""
    kind = np.dtype(dtype)
    return np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(address), kind)


class Numbers16:
    """Numbers of 16 bits, each of which is read as a float32 and rounded where it is written."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = numbers

    def __getitem__(self, index: int) -> np.float32:
        return np.float32(self._numbers[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self._numbers[index] = value


def halves_at(address: int, count: int) -> Any:
    """The `count` float16 numbers that start at a memory address, to be computed with in float32."""
    return Numbers16(array_at(address, count, np.float16))


def bfloats_at(address: int, count: int) -> Any:
    """The same of bfloat16 numbers."""
    return Numbers16(array_at(address, count, onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)))


@helper
def floats_at(address: int, count: int) -> Any:
    """The same of float32 numbers."""
    return array_at(address, count, np.float32)


@helper
def doubles_at(address: int, count: int) -> Any:
    """The `count` float64 numbers that start at a memory address."""
    return array_at(address, count, np.float64)


def record_at(address: int, layout: Any) -> Any:
    """The record (`runtime.layout`) at a memory address."""
    return array_at(address, 1, layout).view(np.recarray)[0]


def number_at(address: int, element_type: int, index: int) -> float:
    """The index-th number of a tensor of an ONNX element type, as a float64."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    return float(array_at(address + index * dtype.itemsize, 1, dtype)[0])


def read_numbers(function: int, source: int, element_type: int, count: int, target: int) -> None:
    """Read `count` numbers of an ONNX element type into float64; function: the field `read` of the kernel."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, np.float64)[:] = array_at(source, count, dtype)


def write_numbers(function: int, source: int, element_type: int, count: int, target: int) -> None:
    """Write `count` float64 numbers in an ONNX element type; function: the field `read` of the kernel."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, dtype)[:] = array_at(source, count, np.float64).astype(dtype)


def read_floats(source: int, element_type: int, count: int, target: int) -> None:
    """Read `count` numbers of float or of a 16-bit floating type into float32."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, np.float32)[:] = array_at(source, count, dtype)


def write_floats(source: int, element_type: int, count: int, target: int) -> None:
    """Write `count` float32 numbers in float or in a 16-bit floating type, rounded once."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    array_at(target, count, dtype)[:] = array_at(source, count, np.float32).astype(dtype)


LANES = 16
"""Numbers that lie side by side where one step of a loop works on all of them."""


def interleave(sources: Any, element_type: int, start: int, count: int, out: Any, place: int) -> None:
    """Bring rows together: number start + j of that at sources[lane] to out[(place + j)*LANES + lane].

    sources has LANES addresses of floating numbers of an ONNX element type; they come in out's dtype.
    """
    for lane in range(LANES):
        for j in range(count):
            out[(place + j) * LANES + lane] = number_at(int(sources[lane]), element_type, start + j)


def separate(numbers: Any, place: int, count: int, targets: Any, element_type: int, start: int) -> None:
    """The other way round: numbers[(place + j)*LANES + lane] to number start + j of the row at targets[lane].

    They are rounded once to the element type, which is floating.
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
    """Sums of products at many places, for each lane by itself: out[(place + i*out_row + j*step)*LANES + lane] = sum of

        a[a_places[t]*LANES + lane] * b[(b_places[t] + i*b_row + j)*LANES + lane]

    over t in [0, terms), one after the other, for i in [0, rows) and j in [0, columns). All have one dtype.
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
    """Add three sums of products, for each lane by itself: sums[t*LANES + lane] += the sum over i and j of

        a[(a_start + i*a_row + j)*LANES + lane] * b[(b_starts[t] + i*b_row + j*step)*LANES + lane]

    for i in [0, rows) and j in [0, columns), each row added up by itself. All arrays have one dtype.
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
    """A number of an attribute of whole numbers, which a record holds by address and count; the default of none."""
    return int(array_at(address, count, np.int64)[axis]) if count > 0 else default


def malloc(size: int) -> int:
    """Address of a new block of memory, 0 if there is none to be had."""
    return _raw_malloc(size) or 0


def free(address: int) -> None:
    """Give a block of memory back."""
    _raw_free(address)


_raw_malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyMem_RawMalloc", ctypes.pythonapi))
_raw_free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))
