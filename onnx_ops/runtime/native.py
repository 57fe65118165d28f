"""The compiled side of `primitives`, and the few machine operations that Numba has no name for."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, from_dtype, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_jitable, register_model

from onnx_ops.loops import primitives
from onnx_ops.loops.records import JOB, KERNEL
from onnx_ops.runtime.records import LAYOUT, LOOP, PYTHON

if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, so that Numba compiles nothing")

WORD = ir.IntType(64)
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
"""Compile options of every helper: IEEE division, and fused multiply-add where the machine has it."""

f4, f8, i4, i8, u2 = np.float32, np.float64, np.int32, np.int64, np.uint16

# Element types of ONNX (TensorProto.DataType) as the native code meets them.
FLOAT, UINT8, INT8, INT32, INT64, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 6, 7, 9, 10, 11, 16
INT16 = 5


@functools.cache
def install() -> None:
    """Teach Numba the helpers that kernels call."""
    for function in primitives.HELPERS:
        register_jitable(**OPTIONS)(function)
    for function in primitives.INLINED:
        register_jitable(forceinline=True, **OPTIONS)(function)


# --- machine operations ------------------------------------------------------------------------------------------


@intrinsic
def call(typing: Any, address: Any, arguments: Any) -> Any:
    """Call a C function of words by its address, with a tuple of arguments, and give back its word."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = cgutils.unpack_tuple(builder, args[1])
        function = builder.inttoptr(args[0], ir.FunctionType(WORD, [WORD] * len(words)).as_pointer())
        return builder.call(function, words)

    return types.int64(types.int64, arguments), codegen


def _pointer_to(element: Any) -> Any:
    """An intrinsic that sees an address as a typed pointer."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), codegen

    return pointer


f4_at, f8_at, i8_at, i4_at, u2_at, i2_at, i1_at, u1_at = map(
    _pointer_to,
    (
        types.float32, types.float64, types.int64, types.int32,
        types.uint16, types.int16, types.int8, types.uint8,
    ),
)  # fmt: skip


@functools.cache
def _record_pointer(record: Any) -> Any:
    """An intrinsic that sees an address as a record, in place."""

    @intrinsic
    def at(typing: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(record))

        return record(types.int64), codegen

    return at


job_at, kernel_at, python_at, loop_at, layout_at = (
    _record_pointer(from_dtype(layout)) for layout in (JOB, KERNEL, PYTHON, LOOP, LAYOUT)
)


@intrinsic(prefer_literal=True)
def stack(typing: Any, size: Any) -> Any:
    """Address of `size` (a literal) bytes on the stack of the calling function, aligned for any vector."""
    count = size.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.goto_entry_block():  # not cgutils.alloca_once: its zero fill takes LLVM minutes to compile
            block = builder.alloca(ir.ArrayType(ir.IntType(8), count))
        block.align = 64
        return builder.ptrtoint(block, WORD)

    return types.int64(size), codegen


def _libc(name: str, result: Any, arguments: list[Any]) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)
        value = builder.call(function, args)
        return context.get_dummy_value() if isinstance(result, ir.VoidType) else value

    return codegen


@intrinsic
def malloc(typing: Any, size: Any) -> Any:
    """Address of a new block of memory, 0 if there is none to be had."""
    return types.int64(types.int64), _libc("malloc", WORD, [WORD])


@intrinsic
def free(typing: Any, address: Any) -> Any:
    return types.none(types.int64), _libc("free", ir.VoidType(), [WORD])


@intrinsic
def _bitcast(typing: Any, value: Any, like: Any) -> Any:
    """The bits of `value`, read as the type of `like`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return like(value, like), codegen


@intrinsic
def half_to_float(typing: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def float_to_half(typing: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@njit(**OPTIONS)
def bfloat_to_float(bits):
    return _bitcast(i4(i4(bits) << i4(16)), f4(0))  # Numba widens int32 arithmetic to int64


@njit(**OPTIONS)
def float_to_bfloat(value):
    """Round to nearest, ties to even; a NaN stays one whatever its low bits."""
    bits = _bitcast(value, i4(0))
    rounded = (bits + i4(0x7FFF) + ((bits >> i4(16)) & i4(1))) >> i4(16)
    quiet = (bits >> i4(16)) | i4(0x40)
    return u2((quiet if value != value else rounded) & i4(0xFFFF))


@njit(**OPTIONS)
def double_to_odd_float(value):
    """To float32, towards zero, with the last bit set if anything was lost.

    A second rounding, to a 16-bit type, then gives what one rounding of the float64 would have given.
    """
    near = f4(value)
    bits = _bitcast(near, i4(0))
    over = abs(f8(near)) > abs(value)
    lost = f8(near) != value
    odd = _bitcast(i4((bits - i4(over)) | i4(lost)), f4(0))
    return near if near != near else odd


class Numbers16(types.Type):  # type: ignore[misc]
    """A pointer to 16-bit floating numbers that are read as float32 and rounded where they are written."""

    def __init__(self, element_type: int) -> None:
        self.element_type = element_type
        super().__init__(name=f"Numbers16({element_type})")


@register_model(Numbers16)
class _Numbers16Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numbers: Any) -> None:
        super().__init__(manager, numbers, ir.IntType(16).as_pointer())


@intrinsic
def _bits16(typing: Any, numbers: Any) -> Any:
    """The same pointer, to the bits."""
    return types.CPointer(types.uint16)(numbers), lambda context, builder, signature, args: args[0]


def _numbers_at(element_type: int) -> Any:
    """An intrinsic that sees an address as 16-bit floating numbers."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return Numbers16(element_type)(types.int64), codegen

    return pointer


half_at, bfloat_at = _numbers_at(FLOAT16), _numbers_at(BFLOAT16)


@overload(operator.getitem, jit_options=OPTIONS)
def _read16(numbers, index):
    if not isinstance(numbers, Numbers16):
        return None
    if numbers.element_type == FLOAT16:
        return lambda numbers, index: half_to_float(_bits16(numbers)[index])
    return lambda numbers, index: bfloat_to_float(_bits16(numbers)[index])


@overload(operator.setitem, jit_options=OPTIONS)
def _write16(numbers, index, value):
    if not isinstance(numbers, Numbers16):
        return None
    narrowed = double_to_odd_float if value == types.float64 else f4
    rounded = float_to_half if numbers.element_type == FLOAT16 else float_to_bfloat

    def write(numbers, index, value):
        _bits16(numbers)[index] = rounded(narrowed(value))

    return write


@intrinsic
def _fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), codegen


@overload(primitives.fma, jit_options=OPTIONS)
def _fma(a, b, c):
    return lambda a, b, c: _fused(a, b, c)


@intrinsic
def _add_any_order(typing: Any, a: Any, b: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args, flags=("reassoc",))

    return types.float64(types.float64, types.float64), codegen


@overload(primitives.add_any_order, jit_options=OPTIONS)
def _any_order(a, b):
    return lambda a, b: _add_any_order(f8(a), f8(b))


@intrinsic
def _select(typing: Any, condition: Any, a: Any, b: Any) -> Any:
    return a(types.boolean, a, a), lambda context, builder, signature, args: builder.select(*args)


@overload(primitives.choose, jit_options=OPTIONS)
def _choose(condition, a, b):
    return lambda condition, a, b: _select(condition, a, b)


@overload(primitives.like, jit_options=OPTIONS)
def _like(value, other):
    if other == types.float32:
        return lambda value, other: f4(value)
    return lambda value, other: f8(value)


# --- exponentials: range reduction and a polynomial, which LLVM vectorises; libm goes one number at a time --------

# e**r on |r| <= ln(2)/2 as 1 + r + r*r*q(r). Chebyshev fits of q, relative error of e**r 8e-9 and 1.3e-17.
Q4 = tuple(map(f4, (0.0013926250831497612, 0.008363232883682618, 0.04166655421298415, 0.1666657666611993, 0.5)))
Q8 = (
    2.51004725046949961e-08, 2.7620201591031549e-07, 2.7557268276905697e-06, 2.4801521057868205e-05,
    0.00019841269863171556, 0.001388888891736708, 0.008333333333330038, 0.04166666666662382,
    0.16666666666666667, 0.5000000000000001,
)  # fmt: skip
LOG2E = 1.4426950408889634
LN2_HIGH4, LN2_LOW4 = f4(0.693145751953125), f4(1.4286068203094172e-06)
LN2_HIGH8, LN2_LOW8 = 0.693147180369123816, 1.9082149292705877e-10
# Adding this leaves a number rounded to an integer, which then lies in the low bits of the sum.
ROUND4, ROUND8 = f4(12582912), 6755399441055744.0


@njit(**OPTIONS)
def _falling4(x):
    low = x < f4(-174)
    y = f4(-174) if low else x
    shifted = y * f4(LOG2E) + ROUND4
    n = shifted - ROUND4
    rest, low_part = y - n * LN2_HIGH4, n * LN2_LOW4
    r = rest - low_part
    lost = (rest - r) - low_part  # what rounding took from r: half of the error otherwise
    q = Q4[0]
    q = q * r + Q4[1]
    q = q * r + Q4[2]
    q = q * r + Q4[3]
    q = q * r + Q4[4]
    power = _bitcast(shifted, i4(0)) - _bitcast(ROUND4, i4(0))
    half = power >> i4(1)
    first = _bitcast(i4((half + i4(127)) << i4(23)), f4(0))
    second = _bitcast(i4((power - half + i4(127)) << i4(23)), f4(0))
    second = f4(0) if low else second
    return ((q * (r * r) + lost) + r) + f4(1), first, second


@njit(**OPTIONS)
def _exp_parts4(x):
    high = x > f4(176)
    value, first, second = _falling4(f4(176) if high else x)
    return value, first, f4(np.inf) if high else second


@njit(**OPTIONS)
def _reduced8(y):
    """e**y as a number in [0.7, 1.5], and the power of two that it lacks plus ROUND8."""
    shifted = y * LOG2E + ROUND8
    n = shifted - ROUND8
    r = (y - n * LN2_HIGH8) - n * LN2_LOW8
    # Two chains of half the length (even and odd powers) keep both multipliers busy.
    s = r * r
    even = ((((Q8[1] * s + Q8[3]) * s + Q8[5]) * s + Q8[7]) * s) + Q8[9]
    odd = (((Q8[0] * s + Q8[2]) * s + Q8[4]) * s + Q8[6]) * s + Q8[8]
    return ((odd * r + even) * s + r) + 1.0, shifted


@njit(**OPTIONS)
def _power8(n):
    return _bitcast((n + i8(1023)) << i8(52), f8(0))


@njit(**OPTIONS)
def _exp_parts8(x):
    low, high = x < -1416.0, x > 1417.0
    y = -1416.0 if low else x
    y = 1417.0 if high else y
    value, shifted = _reduced8(y)
    power = _bitcast(shifted, i8(0)) - _bitcast(ROUND8, i8(0))
    half = power >> i8(1)
    second = _power8(power - half)
    second = 0.0 if low else second
    second = np.inf if high else second
    return value, _power8(half), second


@overload(primitives.falling_exp_parts, jit_options=OPTIONS)
def _falling_exp_parts(x):
    if x == types.float32:
        return lambda x: _falling4(x)
    return lambda x: _exp_parts8(x)


@njit(**OPTIONS)
def _near_exp_parts(x):
    shifted = x * f4(LOG2E) + ROUND4
    n = shifted - ROUND4
    r = _fused(-n, LN2_LOW4, _fused(-n, LN2_HIGH4, x))
    q = Q4[0]
    q = q * r + Q4[1]
    q = q * r + Q4[2]
    q = q * r + Q4[3]
    q = q * r + Q4[4]
    power = _bitcast(shifted, i4(0)) + (i4(127) - _bitcast(ROUND4, i4(0)))
    return q * (r * r) + r, _bitcast(i4(power << i4(23)), f4(0))


@overload(primitives.near_exp_parts, jit_options=OPTIONS)
def _near_exp_parts_of_float(x):
    return (lambda x: _near_exp_parts(x)) if x == types.float32 else None


@overload(primitives.exp_parts, jit_options=OPTIONS)
def _exp_parts(x):
    if x == types.float32:
        return lambda x: _exp_parts4(x)
    return lambda x: _exp_parts8(x)


# e**r on |r| <= ln(2)/2 as 1 + r + r*r*q(r) again, with a relative error of 2e-10.
Q6 = (
    0.00019891030654370327, 0.0013933685862617174, 0.008333310889582076, 0.04166646460202654,
    0.16666666681659179, 0.5000000013498178,
)  # fmt: skip
LN2 = 0.6931471805599453


@njit(**OPTIONS)
def _short_exp(x):
    y = max(min(f8(x), 709.0), -708.0)
    shifted = y * LOG2E + ROUND8
    r = y - (shifted - ROUND8) * LN2
    s = r * r
    q = ((Q6[0] * r + Q6[1]) * s + (Q6[2] * r + Q6[3])) * s + (Q6[4] * r + Q6[5])
    value = ((q * s + r) + 1.0) * _power8(_bitcast(shifted, i8(0)) - _bitcast(ROUND8, i8(0)))
    value = 0.0 if x < f4(-745) else value
    return np.inf if x > f4(709) else value


@overload(primitives.short_exp, jit_options=OPTIONS)
def _short_exp_of_float(x):
    return (lambda x: _short_exp(x)) if x == types.float32 else None


# --- logarithms --------------------------------------------------------------------------------------------------

# log(1 + f) = 2*s + s*z*q(z), where s = f/(2 + f) and z = s*s. Chebyshev fits of q, with their relative errors of the
# whole: 7e-16 and 5e-18 for sqrt(1/2) <= 1 + f <= sqrt(2), and 2e-18 for 0 <= f <= 1.
L6 = (
    0.1662311658428347, 0.18140107756610346, 0.22222864249374918, 0.2857142412022083,
    0.4000000001126354, 0.6666666666666206,
)  # fmt: skip
L7 = (
    0.14617807153417325, 0.15331611722055008, 0.1818289243253687, 0.22222211089379496,
    0.28571428626253836, 0.3999999999989889, 0.666666666666667,
)  # fmt: skip
L11 = (
    0.1563057780092285, 0.07492143795550767, 0.10845178394880015, 0.11734279061303197, 0.13335178631449257,
    0.1538454396486055, 0.18181819897962714, 0.2222222219823677, 0.285714285716001, 0.39999999999999525,
    0.6666666666666666,
)  # fmt: skip
# log(1 + x) = x*p(x) for 0 <= x <= 1, with a relative error of 2e-10.
P12 = (
    -0.0012525852620659762, 0.008925603861739712, -0.029800145490202278, 0.06350289738777211, -0.1008180479257159,
    0.13403457249133155, -0.1644481781513311, 0.19963546159118528, -0.24996389178843487, 0.33333145512337686,
    -0.4999999612139627, 0.9999999998657495,
)  # fmt: skip
ROOT_HALF = i8(0x3FE6A09E667F3BCD)
"""The bits of sqrt(1/2)."""
FROM_ROOT_HALF = i8(0x3FF0000000000000) - ROOT_HALF
FRACTION = i8(0xFFFFFFFFFFFFF)
INTEGERS = 4503599627370496.0
"""2**52: a float64 from here up has an integer in its low bits."""


@njit(**OPTIONS)
def _mantissa_and_exponent(x):
    """A positive normal number as one in [sqrt(1/2), sqrt(2)] and a power of two."""
    bits = _bitcast(x, i8(0)) + FROM_ROOT_HALF
    mantissa = _bitcast((bits & FRACTION) + ROOT_HALF, f8(0))
    exponent = _bitcast((bits >> i8(52)) | _bitcast(INTEGERS, i8(0)), f8(0)) - (INTEGERS + 1023.0)
    return mantissa, exponent


@njit(**OPTIONS)
def _with_limits(logarithm, x):
    """The logarithm of an x that may also be 0, negative, infinite or NaN."""
    inside = logarithm if x < np.inf else x
    return inside if x > 0 else (-np.inf if x == 0 else np.nan)


@njit(**OPTIONS)
def _log4(x):
    """Of a float64 that is no subnormal number, with an error of six units in the last place at most."""
    mantissa, exponent = _mantissa_and_exponent(x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    w = z * z
    q = ((L6[0] * z + L6[1]) * w + (L6[2] * z + L6[3])) * w + (L6[4] * z + L6[5])
    return _with_limits((s * z) * q + (exponent * LN2 + 2.0 * s), x)


@njit(**OPTIONS)
def _log8(x):
    subnormal = x < 2.2250738585072014e-308
    mantissa, exponent = _mantissa_and_exponent(x * 18014398509481984.0 if subnormal else x)
    exponent = exponent - 54.0 if subnormal else exponent
    f = mantissa - 1.0
    s = f / (mantissa + 1.0)
    z = s * s
    w = z * z
    even = ((L7[0] * w + L7[2]) * w + L7[4]) * w + L7[6]
    odd = (L7[1] * w + L7[3]) * w + L7[5]
    half = 0.5 * f * f
    # f - half is the greater part of log(1 + f): f is exact, and the rest is small.
    rest = half - (s * (half + z * (odd * z + even)) + exponent * LN2_LOW8)
    return _with_limits(exponent * LN2_HIGH8 - (rest - f), x)


# log(1 + f) as f - f*f/2 + f*f*f*p(f), with a relative error of 2e-8.
P8 = tuple(
    map(
        f4,
        (
            -0.07902657332430531, 0.12623324592866522, -0.12998601366832238, 0.14214404488829827,
            -0.16641243987532217, 0.2000104704998093, -0.2500030706279144, 0.3333333072195835,
        ),
    )
)  # fmt: skip
ROOT_HALF4 = i4(0x3F3504F3)
FROM_ROOT_HALF4 = i4(0x3F800000 - 0x3F3504F3)


@njit(**OPTIONS)
def _short_log(x):
    subnormal = x < f4(1.17549435e-38)
    bits = i4(_bitcast(x * f4(16777216) if subnormal else x, i4(0)) + FROM_ROOT_HALF4)
    f = _bitcast(i4((bits & i4(0x7FFFFF)) + ROOT_HALF4), f4(0)) - f4(1)
    exponent = f4(i4(bits >> i4(23)) - (i4(151) if subnormal else i4(127)))
    p = P8[0]
    p = p * f + P8[1]
    p = p * f + P8[2]
    p = p * f + P8[3]
    p = p * f + P8[4]
    p = p * f + P8[5]
    p = p * f + P8[6]
    p = p * f + P8[7]
    s = f * f
    logarithm = exponent * f4(LN2) + (p * (s * f) + (f - f4(0.5) * s))
    inside = logarithm if x < f4(np.inf) else x
    return inside if x > 0 else (f4(-np.inf) if x == 0 else f4(np.nan))


@overload(primitives.short_log, jit_options=OPTIONS)
def _short_log_of_float(x):
    return (lambda x: _short_log(x)) if x == types.float32 else None


@overload(primitives.log, jit_options=OPTIONS)
def _log(x):
    if x == types.float32:
        return lambda x: _log4(f8(x))
    return lambda x: _log8(x)


@njit(**OPTIONS)
def _log1p4(x):
    s = x * x
    q = s * s
    high = (P12[0] * x + P12[1]) * s + (P12[2] * x + P12[3])
    middle = (P12[4] * x + P12[5]) * s + (P12[6] * x + P12[7])
    return ((high * q + middle) * q + ((P12[8] * x + P12[9]) * s + (P12[10] * x + P12[11]))) * x


@njit(**OPTIONS)
def _log1p8(x):
    divisor = 2.0 + x
    reciprocal = 1.0 / divisor
    s = x * reciprocal
    lost = _fused(-s, divisor, x) - s * (x - (divisor - 2.0))  # of s*divisor
    z = s * s
    w = z * z
    even = ((((L11[0] * w + L11[2]) * w + L11[4]) * w + L11[6]) * w + L11[8]) * w + L11[10]
    odd = (((L11[1] * w + L11[3]) * w + L11[5]) * w + L11[7]) * w + L11[9]
    return ((odd * z + even) * z * s + 2.0 * lost * reciprocal) + 2.0 * s


@overload(primitives.softplus_of_falling, jit_options=OPTIONS)
def _softplus_of_falling(x):
    if x == types.float32:
        return lambda x: _log1p4(_short_exp(x))

    def double(x):
        value, first, second = _exp_parts8(x)
        return _log1p8((value * first) * second)

    return double


# --- numbers with a power of two of their own ---------------------------------------------------------------------


@njit(**OPTIONS)
def _exp_and_power(x):
    y = max(x, -2e12)
    value, shifted = _reduced8(y)
    return (value, shifted - ROUND8) if x >= -1e12 else (0.0, primitives.NO_POWER)


@njit(**OPTIONS)
def _value_and_power(x):
    value, power = _mantissa_and_exponent(x)
    return (value, power) if x > 0 else (0.0, primitives.NO_POWER)


@overload(primitives.exp_and_power, jit_options=OPTIONS)
def _exp_and_power_of(x):
    return lambda x: _exp_and_power(x)


@overload(primitives.value_and_power, jit_options=OPTIONS)
def _value_and_power_of(x):
    return lambda x: _value_and_power(x)


@overload(primitives.power_of_two, jit_options=OPTIONS)
def _power_of_two(power):
    # The sum has power + 1023 in its low bits, and the shift leaves these alone.
    return lambda power: _bitcast(_bitcast(power + (ROUND8 + 1023.0), i8(0)) << i8(52), f8(0))


# --- memory ------------------------------------------------------------------------------------------------------

_POINTERS = {
    "float32": f4_at, "float64": f8_at, "int64": i8_at, "int32": i4_at, "uint16": u2_at,
}  # fmt: skip


@overload(primitives.array_at, jit_options=OPTIONS)
def _array_at(address, count, dtype):
    pointer = _POINTERS[dtype.dtype.name]
    # The bare pointer: an array would look at each index for a negative one, which keeps loops from being vectorised.
    return lambda address, count, dtype: pointer(address)


@overload(primitives.record_at, jit_options=OPTIONS)
def _record_at(address, layout):
    pointer = _record_pointer(layout.dtype)
    return lambda address, layout: pointer(address)


@njit(**OPTIONS)
def number_at(address, element_type, index):
    if element_type == FLOAT:
        return f8(f4_at(address)[index])
    if element_type == DOUBLE:
        return f8_at(address)[index]
    if element_type == FLOAT16:
        return f8(half_to_float(u2_at(address)[index]))
    if element_type == BFLOAT16:
        return f8(bfloat_to_float(u2_at(address)[index]))
    if element_type == INT64:
        return f8(i8_at(address)[index])
    if element_type == INT32:
        return f8(i4_at(address)[index])
    if element_type == INT16:
        return f8(i2_at(address)[index])
    if element_type == INT8:
        return f8(i1_at(address)[index])
    return f8(u1_at(address)[index])  # uint8 and bool


@overload(primitives.number_at, jit_options=OPTIONS)
def _number_at(address, element_type, index):
    return lambda address, element_type, index: number_at(address, element_type, index)


@overload(primitives.read_numbers, jit_options=OPTIONS)
def _read_numbers(function, source, element_type, count, target):
    def implementation(function, source, element_type, count, target):
        call(function, (source, element_type, 1, count, target))

    return implementation


@overload(primitives.write_numbers, jit_options=OPTIONS)
def _write_numbers(function, source, element_type, count, target):
    def implementation(function, source, element_type, count, target):
        call(function, (source, element_type, count, target))

    return implementation


@overload(primitives.malloc, jit_options=OPTIONS)
def _malloc(size):
    return lambda size: malloc(size)


@overload(primitives.free, jit_options=OPTIONS)
def _free(address):
    return lambda address: free(address)
