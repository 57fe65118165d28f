"""Numba implementations of the arithmetic `primitives`, and intrinsics that Numba does not have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import config, njit, types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.registry import cpu_target
from numba.core.typing import Context as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic, overload, register_jitable

from onnx_ops.loops import primitives
from onnx_ops.runtime import target

if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, so that Numba compiles nothing")
target.select()
FEATURES = frozenset(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
"""Features of the target processor by LLVM's names, each prefixed with + or -."""
MANY_REGISTERS = "+avx512f" in FEATURES
"""Whether it has 32 vector registers, not 16."""
if binding.llvm_version_info < (20,) and "+f16c" not in FEATURES and binding.get_process_triple().startswith("x86_64"):
    raise ImportError("this processor has no float16 instructions (F16C); install Numba 0.62 or newer")

WORD = ir.IntType(64)
OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"contract"},
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Options of all helpers: IEEE division by zero, fused multiply-add allowed, called by compiled functions alone."""

Values = Sequence[ir.Value]
Codegen = Callable[[CPUContext, ir.IRBuilder, Signature, Values], ir.Value]
"""Emits the code of a call: of its target, of its types and of its arguments."""
Typed = tuple[Signature, Codegen]
"""What an intrinsic is for argument types."""

f4, f8, i4, i8, u2 = np.float32, np.float64, np.int32, np.int64, np.uint16

# Element types of ONNX (TensorProto.DataType).
FLOAT, UINT8, INT8, INT32, INT64, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 6, 7, 9, 10, 11, 16
INT16 = 5


@functools.cache
def install() -> None:
    """Register the helpers of kernels with Numba."""
    for function in primitives.HELPERS:
        register_jitable(**OPTIONS)(function)
    for function in primitives.INLINED:
        register_jitable(forceinline=True, **OPTIONS)(function)


# --- implementations of what kernels call ------------------------------------------------------------------------


def implement(declared: Callable[..., Any], implementation: Callable[..., Any]) -> None:
    """Compile calls of a function of `loops` as calls of another one with the same arguments."""

    @overload(declared, jit_options=OPTIONS)
    def implemented(*arguments):
        return lambda *arguments: implementation(*arguments)


def implement_by_dtype(declared: Callable[..., Any], implementations: Mapping[types.Type, Callable[..., Any]]) -> None:
    """The same of a function of one number, with an implementation for each dtype."""

    @overload(declared, jit_options=OPTIONS)
    def implemented(x):
        own = implementations.get(x)
        return own and (lambda x: own(x))


@overload(primitives.items_of, jit_options=OPTIONS)
def _items_of(sequence, indices):
    if not len(indices):
        return lambda sequence, indices: ()
    return lambda sequence, indices: (sequence[indices[0]],) + primitives.items_of(sequence, indices[1:])  # noqa: RUF005


@overload(primitives.elements_at, jit_options=OPTIONS)
def _elements_at(arrays, index):
    if not len(arrays):
        return lambda arrays, index: ()
    return lambda arrays, index: (arrays[0][index],) + primitives.elements_at(arrays[1:], index)  # noqa: RUF005


# --- machine operations ------------------------------------------------------------------------------------------


@intrinsic
def call(typing: TypingContext, address: types.Type, arguments: types.Type) -> Typed:
    """Call a C function at an address with a tuple of 64-bit words; returns a 64-bit word."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        words = cgutils.unpack_tuple(builder, args[1])
        # A pointer to a function has its type: llvmlite has no other calls of an address.
        function = builder.inttoptr(args[0], ir.FunctionType(WORD, [WORD] * len(words)).as_pointer())
        return builder.call(function, words)

    return types.int64(types.int64, arguments), codegen


@intrinsic
def bitcast(typing: TypingContext, value: types.Type, like: types.Type) -> Typed:
    """`value` reinterpreted as the type of `like`."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return like(value, like), codegen


def shuffled(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, places: Iterable[int]) -> ir.Value:
    """shufflevector: the elements at `places` of the concatenation of two vectors."""
    mask = list(places)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(mask)), mask))


def joined(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """The concatenation of a power of 2 of vectors."""
    while len(vectors) > 1:
        places = range(2 * vectors[0].type.count)
        vectors = [shuffled(builder, a, b, places) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def repeated(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    """A vector of `count` elements equal to `value` (splat)."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return shuffled(builder, first, first, [0] * count)


def called(builder: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic whose result has the type of the first argument."""
    function = ir.FunctionType(args[0].type, [value.type for value in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}"), args)


def of_type(name: str, number: ir.Type) -> str:
    """The LLVM name of an intrinsic, for float32, float64 or a vector of them."""
    count, kind = (f"v{number.count}", number.element) if isinstance(number, ir.VectorType) else ("", number)
    return f"{name}.{count}f{32 if kind == ir.FloatType() else 64}"


def widened(builder: ir.IRBuilder, element_type: int, bits: ir.Value) -> ir.Value:
    """Convert the bits of FLOAT16 or BFLOAT16 elements, a vector of uint16, to a vector of float32."""
    count = bits.type.count
    if element_type == FLOAT16:
        halves = builder.bitcast(bits, ir.VectorType(ir.HalfType(), count))
        return builder.fpext(halves, ir.VectorType(ir.FloatType(), count))
    words = ir.VectorType(ir.IntType(32), count)
    shifted = builder.shl(builder.zext(bits, words), ir.Constant(words, [16] * count))
    return builder.bitcast(shifted, ir.VectorType(ir.FloatType(), count))


@intrinsic
def half_to_float(typing: TypingContext, bits: types.Type) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def float_to_half(typing: TypingContext, value: types.Type) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@njit(**OPTIONS)
def bfloat_to_float(bits):
    return bitcast(i4(i4(bits) << i4(16)), f4(0))  # i4(): Numba widens int32 arithmetic to int64


@njit(**OPTIONS)
def float_to_bfloat(value):
    """Round float32 to bfloat16, ties to even; a NaN becomes quiet, so that truncation cannot make it infinite.

    i4(): Numba widens int32 arithmetic to int64, with half as many elements per vector register.
    """
    bits = bitcast(value, i4(0))
    upper = i4(bits >> i4(16))
    rounded = i4(i4(i4(bits + i4(0x7FFF)) + i4(upper & i4(1))) >> i4(16))
    quiet = i4(upper | i4(0x40))
    return u2(quiet if value != value else rounded)


@njit(**OPTIONS)
def double_to_odd_float(value):
    """float64 to float32 by round-to-odd (Boldo and Melquiond), so that rounding it to 16 bits is a single rounding."""
    near = f4(value)
    bits = bitcast(near, i4(0))
    over = abs(f8(near)) > abs(value)
    lost = f8(near) != value
    odd = bitcast(i4((bits - i4(over)) | i4(lost)), f4(0))
    return near if near != near else odd


@intrinsic
def fused(typing: TypingContext, a: types.Type, b: types.Type, c: types.Type) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return called(builder, of_type("fma", args[0].type), *args)

    return a(a, a, a), codegen


implement(primitives.fma, fused)


def _in_any_order(operation: str) -> Callable[..., Any]:
    """An intrinsic for a sum or product that LLVM may reassociate."""

    @intrinsic
    def combine(typing: TypingContext, a: types.Type, b: types.Type) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            return getattr(builder, operation)(*args, flags=("reassoc", "contract"))

        return a(a, a), codegen

    return combine


_add_any_order, _multiply_any_order = _in_any_order("fadd"), _in_any_order("fmul")


@overload(primitives.add_any_order, jit_options=OPTIONS)
def _added_in_any_order(a, b):
    if a == types.float32:
        return lambda a, b: _add_any_order(a, f4(b))
    return lambda a, b: _add_any_order(f8(a), f8(b))


@overload(primitives.multiply_any_order, jit_options=OPTIONS)
def _multiplied_in_any_order(a, b):
    if a == types.float32:
        return lambda a, b: _multiply_any_order(a, f4(b))
    return lambda a, b: _multiply_any_order(f8(a), f8(b))


@intrinsic
def _select(typing: TypingContext, condition: types.Type, a: types.Type, b: types.Type) -> Typed:
    return a(types.boolean, a, a), lambda context, builder, signature, args: builder.select(*args)


implement(primitives.choose, _select)


@overload(primitives.abs_up_to, jit_options=OPTIONS)
def _abs_up_to(x, most):
    # The bits of nonnegative floats, as integers, have the order of the floats, with NaN last.
    def least(x, most):
        bits, limit = i4(bitcast(x, i4(0)) & i4(0x7FFFFFFF)), bitcast(most, i4(0))
        return bitcast(_select(bits < limit, bits, limit), f4(0))

    return least if x == types.float32 else None


@overload(primitives.like, jit_options=OPTIONS)
def _like(value, other):
    if other == types.float32:
        return lambda value, other: f4(value)
    return lambda value, other: f8(value)
