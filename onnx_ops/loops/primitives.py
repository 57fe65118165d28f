"""Functions that kernels may call, in plain Python, so that a kernel also runs without Numba.

`native`, `elementary` and `trigonometry` in `onnx_ops.runtime` hold their compiled forms; `loops.memory`, `loops.tiles`
and `loops.vectors` have more.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""A one-dimensional array in Python; a pointer in compiled code."""
Floating = type[np.floating[Any]]
"""A computing dtype, for which code is compiled."""
Number = Any
"""A number of the computing dtype, or a float64; NumPy's types do not say what operators make of these."""

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


def exp_parts(x: Number) -> tuple[Any, Any, Any]:
    """exp(x) as three factors, none of which overflows or becomes subnormal where exp(x) would.

    Multiplied into another number one after the other, they keep full relative precision even where exp(x) itself is
    subnormal or overflows. Where exp(x) exceeds the square of the dtype's range, the product is 0 or infinity.

    Relative error of the product, before it is rounded: 1e-7 for float32 x, 2e-16 for float64 x.

    Args:
        x: float64, or a float32 <= 0 or NaN.
    """
    dtype = type(x)
    with np.errstate(over="ignore", under="ignore"):
        root = np.exp(x / dtype(2))
    return dtype(1), root, root


def exp_excess_parts(x: Number) -> tuple[Any, Any]:
    """(excess, power) with exp(x) = power * (1 + excess), power a power of 2; float32 x in [-87, 87].

    abs(power * (1 + excess) / exp(x) - 1) <= 5e-8.
    """
    power = np.exp2(np.rint(x / np.log(np.float32(2))))
    return np.float32(np.exp(np.float64(x)) / np.float64(power) - 1), power


def exp_approx(x: Number) -> Any:
    """exp(x) in float32 for float32 x in [-87, 87], for 16-bit results.

    abs(exp_approx(x) / exp(x) - 1) <= 3e-6.
    """
    return np.exp(x)


def exp_of_float32(x: Number) -> Any:
    """exp(x) in float64 for float32 x, for float32 results.

    abs(exp_of_float32(x) / exp(x) - 1) <= 2.2e-10 for x in [-708, 709]; inf for x > 709, exp(-708) for x in
    [-745, -708), 0 for x < -745.
    """
    value = np.exp(np.clip(np.float64(x), -708.0, 709.0))
    return np.inf if x > 709 else 0.0 if x < -745 else value


def exp_in_range(x: Number) -> Any:
    """exp(x) in float64 for float64 x in [-708, 709]; unspecified for other x.

    abs(exp_in_range(x) / exp(x) - 1) <= 2.2e-10.
    """
    return np.exp(x)


def one_plus_exp(x: Number) -> Any:
    """1 + exp(x) in float64 for float64 x in [-708, 0]; unspecified for other x.

    abs(one_plus_exp(x) - 1 - exp(x)) <= 3.1e-9 * exp(x) + 2**-53.
    """
    with np.errstate(all="ignore"):
        return 1 + np.exp(x)


def log(x: Number) -> Any:
    """Natural logarithm of a float32 or float64, in float64; -inf for 0, NaN for x < 0.

    Relative error <= 1e-15 for float32 x, 1 ulp for float64 x.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.float64(x))


def log_float32(x: Number) -> Any:
    """Natural logarithm of a float32 in float32, error <= 0.8 ulp; -inf for 0, NaN for x < 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


def log_float32_normal(x: Number) -> Any:
    """`log_float32` for float32 x in [2**-126, inf); unspecified for other x."""
    return log_float32(x)


def log_approx(x: Number) -> Any:
    """Natural logarithm in float32 for float32 x in [2**-126, inf), for 16-bit results; unspecified for other x.

    abs(log_approx(x) - log(x)) <= max(3e-6, 0.5 ulp).
    """
    return log_float32(x)


def log1p_approx(x: Number) -> Any:
    """log1p(x) in float32 for float32 x in [0, 1], for 16-bit results.

    abs(log1p_approx(x) - log1p(x)) <= 4e-7.
    """
    return np.log1p(x)


LARGEST_ANGLE = 2.0**20
"""Up to which `sin` and `cos` reduce an angle."""


def sin(x: Number) -> Any:
    """Sine of a float32 or float64 with abs(x) <= LARGEST_ANGLE, in float64; unspecified for others.

    Relative error <= 2e-10 for float32 x, 0.8 ulp for float64 x. -0 for -0.
    """
    with np.errstate(invalid="ignore"):
        return np.sin(np.float64(x))


def cos(x: Number) -> Any:
    """Cosine, as `sin`."""
    with np.errstate(invalid="ignore"):
        return np.cos(np.float64(x))


def sin_of_any_angle(x: Number) -> Any:
    """Sine of any float32 or float64 in float64, by the C library."""
    with np.errstate(invalid="ignore"):
        return np.sin(np.float64(x))


def cos_of_any_angle(x: Number) -> Any:
    """Cosine, as `sin_of_any_angle`."""
    with np.errstate(invalid="ignore"):
        return np.cos(np.float64(x))


def softplus_of_nonpositive(x: Number) -> Any:
    """log1p(exp(x)) in float64 for x <= 0 or NaN; relative error <= 4e-10 for float32 x, 3e-16 for float64 x."""
    return np.log1p(np.exp(np.float64(x)))


def softplus_for_float32(x: Number) -> Any:
    """log1p(exp(x)) in float64 for float64 x <= 0 or NaN, relative error <= 4e-10; log1p(exp(-708)) for x < -708."""
    return np.log1p(np.exp(np.fmax(x, -708.0) if x == x else x))


NO_POWER = -1e200
"""Exponent of the value 0: below any other exponent, also after millions of additions."""


def exp_and_power(x: Number) -> tuple[Any, Any]:
    """exp(x) of a float64 as (value, power) with exp(x) = value * 2**power; value in [0.7, 1.5], power integral.

    For abs(x) <= 1e12; (0, NO_POWER) for x = -inf.
    """
    if x == -np.inf:
        return np.float64(0), np.float64(NO_POWER)
    ln2 = np.log(np.longdouble(2))
    power = np.rint(np.float64(x / ln2))
    return np.exp(np.float64(x - power * ln2)), power


def value_and_power(x: Number) -> tuple[Any, Any]:
    """x in [2**-1022, inf) as (value, power) with x = value * 2**power, value in [0.7, 1.5]; (0, NO_POWER) for 0."""
    if x == 0:
        return np.float64(0), np.float64(NO_POWER)
    value, power = np.frexp(x)
    return (value, np.float64(power)) if value > np.sqrt(0.5) else (2 * value, np.float64(power - 1))


def power_of_two(power: Number) -> Any:
    """2**power for an integral float64 power in [-1022, 1023]; 0 for -1023."""
    return np.float64(0) if power == -1023 else np.ldexp(1.0, int(power))


def like(value: Number, other: Number) -> Any:
    """value, converted to the dtype of other."""
    return type(other)(value)


def of_channels(operand: Array) -> Any:
    """A per-channel operand, float32 for 16-bit computing dtypes."""
    return operand


def exp_of_difference(x: Number) -> Any:
    """exp(x) in the dtype of x for abs(x) <= 87 (float32) or 708 (float64), 0 for x below and infinity for x above.

    abs(exp_of_difference(x) / exp(x) - 1) <= 2**-23 for float32 x, 2**-51 for float64 x.
    """
    most = 87 if x.dtype == np.float32 else 708
    return type(x)(0) if x < -most else type(x)(np.inf) if x > most else np.exp(x)


def add_any_order(a: Number, b: Number) -> Any:
    """a + b in the dtype of a; the compiler may reassociate sums of these."""
    return a + b


def multiply_any_order(a: Number, b: Number) -> Any:
    """a * b in the dtype of a; the compiler may reassociate."""
    return a * b


def items_of(sequence: Any, indices: tuple[int, ...]) -> tuple[Any, ...]:
    """The items at these indices."""
    return tuple(sequence[index] for index in indices)


def elements_at(arrays: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    """The elements of arrays at an index."""
    return tuple(array[index] for array in arrays)


def choose(condition: Any, a: Number, b: Number) -> Any:
    """a if condition else b; evaluates both, so that the loop vectorizes. a and b have one dtype."""
    return a if condition else b


def abs_up_to(x: Number, most: Number) -> Any:
    """min(abs(x), most) of a float32; most where x is NaN."""
    return abs(x) if abs(x) < most else most


def fma(a: Number, b: Number, c: Number) -> Any:
    """a*b + c, rounded once (fused multiply-add), in the dtype of a; numbers or vectors."""
    with np.errstate(all="ignore"):
        return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype(a.dtype)


@helper
def ceil_divide(a: int, b: int) -> int:
    return (a + b - 1) // b


@helper
def total_of(values: Array, start: int, count: int) -> float:
    """Pairwise sum of values[start:start + count]; overwrites them."""
    while count > 1:
        half = count // 2
        upper = start + count - half
        for i in range(half):
            values[start + i] += values[upper + i]
        count -= half
    return float(values[start]) if count == 1 else 0.0
