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


@intrinsic(prefer_literal=True)
def repeat(typing: Any, value: Any, count: Any, address: Any) -> Any:
    """Write a number `count` (a literal) times in a row to an address, as vectors: LLVM leaves such a loop as it is."""
    times = count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(args[0].type, times)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), args[0], ir.IntType(32)(0))
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), times), None)
        repeated = builder.shuffle_vector(first, first, everywhere)
        builder.store(repeated, builder.inttoptr(args[2], vector.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(value, count, types.int64), codegen


@intrinsic
def malloc(typing: Any, size: Any) -> Any:
    """Address of a new block of memory, 0 if there is none to be had."""
    return types.int64(types.int64), _libc("malloc", WORD, [WORD])


@intrinsic
def free(typing: Any, address: Any) -> Any:
    return types.none(types.int64), _libc("free", ir.VoidType(), [WORD])


LINE = 64
"""Bytes of a cache line, at whose bounds vectors are read fastest."""


@intrinsic
def _copy_lines_past_caches(typing: Any, source: Any, target: Any, lines: Any, ahead: Any, count: Any) -> Any:
    """Copy cache lines to where one begins; see `copy_past_caches`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target, lines, ahead, count = args
        line, byte, i32 = ir.VectorType(WORD, LINE // 8), ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        )
        past_caches = builder.module.add_metadata([i32(1)])
        with cgutils.for_range(builder, lines, intp=WORD) as loop:
            begin = builder.mul(loop.index, WORD(LINE))
            with cgutils.for_range(builder, count, intp=WORD) as other:
                address = builder.add(builder.load(builder.gep(ahead, [other.index])), begin)
                builder.call(prefetch, [builder.inttoptr(address, byte), i32(0), i32(3), i32(1)])  # to read, and soon
            read, written = (builder.inttoptr(builder.add(at, begin), line.as_pointer()) for at in (source, target))
            store = builder.store(builder.load(read, align=1), written, align=LINE)
            store.set_metadata("nontemporal", past_caches)
        return context.get_dummy_value()

    words = types.CPointer(types.int64)
    return types.none(types.int64, types.int64, types.int64, words, types.int64), codegen


@njit(**OPTIONS)
def copy_past_caches(source, target, size, ahead, count):
    """Copy `size` bytes to memory that is not to be kept in the caches, and which need not be read before.

    Meanwhile as many bytes are brought to the caches from each of `count` addresses: writing leaves time for that.
    Other threads see what was written for certain only after `settle`.
    """
    head = min(-target % LINE, size)
    lines = (size - head) // LINE
    tail = head + lines * LINE
    read, written = u1_at(source), u1_at(target)
    for i in range(head):
        written[i] = read[i]
    _copy_lines_past_caches(source + head, target + head, lines, ahead, count)
    for i in range(tail, size):
        written[i] = read[i]


@intrinsic
def settle(typing: Any) -> Any:
    """All that this thread has written comes before whatever it does next."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def bitcast(typing: Any, value: Any, like: Any) -> Any:
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
    return bitcast(i4(i4(bits) << i4(16)), f4(0))  # Numba widens int32 arithmetic to int64


@njit(**OPTIONS)
def float_to_bfloat(value):
    """Round to nearest, ties to even; a NaN stays one whatever its low bits.

    Each step is cut back to 32 bits, which Numba widens: a vector holds twice as many of them.
    """
    bits = bitcast(value, i4(0))
    upper = i4(bits >> i4(16))
    rounded = i4(i4(i4(bits + i4(0x7FFF)) + i4(upper & i4(1))) >> i4(16))
    quiet = i4(upper | i4(0x40))
    return u2(quiet if value != value else rounded)


@njit(**OPTIONS)
def double_to_odd_float(value):
    """To float32, towards zero, with the last bit set if anything was lost.

    A second rounding, to a 16-bit type, then gives what one rounding of the float64 would have given.
    """
    near = f4(value)
    bits = bitcast(near, i4(0))
    over = abs(f8(near)) > abs(value)
    lost = f8(near) != value
    odd = bitcast(i4((bits - i4(over)) | i4(lost)), f4(0))
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
def _as_floats(typing: Any, numbers: Any) -> Any:
    """The same pointer, to float32 numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(numbers), codegen


@overload(primitives.of_channels, jit_options=OPTIONS)
def _of_channels(operand):
    if isinstance(operand, Numbers16):
        return lambda operand: _as_floats(operand)
    return lambda operand: operand


@intrinsic
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), codegen


@overload(primitives.fma, jit_options=OPTIONS)
def _fma(a, b, c):
    return lambda a, b, c: fused(a, b, c)


def _in_any_order(operation: str) -> Any:
    """An intrinsic for a sum or product whose parts LLVM may take in any order."""

    @intrinsic
    def combine(typing: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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
def _select(typing: Any, condition: Any, a: Any, b: Any) -> Any:
    return a(types.boolean, a, a), lambda context, builder, signature, args: builder.select(*args)


@overload(primitives.choose, jit_options=OPTIONS)
def _choose(condition, a, b):
    return lambda condition, a, b: _select(condition, a, b)


@overload(primitives.size_up_to, jit_options=OPTIONS)
def _size_up_to(x, most):
    # Sizes are in the order of their bits, NaN last, and integers are compared beside the arithmetic.
    def least(x, most):
        bits, limit = i4(bitcast(x, i4(0)) & i4(0x7FFFFFFF)), bitcast(most, i4(0))
        return bitcast(_select(bits < limit, bits, limit), f4(0))

    return least if x == types.float32 else None


@overload(primitives.like, jit_options=OPTIONS)
def _like(value, other):
    if other == types.float32:
        return lambda value, other: f4(value)
    return lambda value, other: f8(value)


# --- memory ------------------------------------------------------------------------------------------------------

_POINTERS = {
    "float32": f4_at, "float64": f8_at, "int64": i8_at, "int32": i4_at, "uint16": u2_at, "uint8": u1_at,
}  # fmt: skip


@overload(primitives.array_at, jit_options=OPTIONS)
def _array_at(address, count, dtype):
    pointer = _POINTERS[dtype.dtype.name]
    # The bare pointer: an array would look at each index for a negative one, which keeps loops from being vectorised.
    return lambda address, count, dtype: pointer(address)


@overload(primitives.halves_at, jit_options=OPTIONS)
def _halves_at(address, count):
    return lambda address, count: half_at(address)


@overload(primitives.bfloats_at, jit_options=OPTIONS)
def _bfloats_at(address, count):
    return lambda address, count: bfloat_at(address)


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


@njit(**OPTIONS)
def _copy(numbers, count, out):
    for i in range(count):
        out[i] = numbers[i]


@overload(primitives.read_floats, jit_options=OPTIONS)
def _read_floats(source, element_type, count, target):
    def implementation(source, element_type, count, target):
        if element_type == FLOAT16:
            _copy(half_at(source), count, f4_at(target))
        elif element_type == BFLOAT16:
            _copy(bfloat_at(source), count, f4_at(target))
        else:
            _copy(f4_at(source), count, f4_at(target))

    return implementation


@overload(primitives.write_floats, jit_options=OPTIONS)
def _write_floats(source, element_type, count, target):
    def implementation(source, element_type, count, target):
        if element_type == FLOAT16:
            _copy(f4_at(source), count, half_at(target))
        elif element_type == BFLOAT16:
            _copy(f4_at(source), count, bfloat_at(target))
        else:
            _copy(f4_at(source), count, f4_at(target))

    return implementation


@overload(primitives.malloc, jit_options=OPTIONS)
def _malloc(size):
    return lambda size: malloc(size)


@overload(primitives.free, jit_options=OPTIONS)
def _free(address):
    return lambda address: free(address)
