"""Compiled forms of `loops.memory`, and memory operations of the runtime."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import from_dtype, njit, types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.datamodel import DataModelManager
from numba.core.typing import Context as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic, models, overload, register_model

from onnx_ops.loops import memory, primitives
from onnx_ops.loops.memory import LINE, whole_lines
from onnx_ops.loops.records import JOB, KERNEL
from onnx_ops.runtime.native import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    OPTIONS,
    WORD,
    Codegen,
    Typed,
    Values,
    bfloat_to_float,
    call,
    double_to_odd_float,
    f4,
    f8,
    float_to_bfloat,
    float_to_half,
    half_to_float,
    implement,
    repeated,
)
from onnx_ops.runtime.pointers import cast, element_at, load, pointer_at, pointer_type, store
from onnx_ops.runtime.records import LAYOUT, LOOP, PYTHON

# --- pointers and blocks of memory -----------------------------------------------------------------------------------


def _pointer_to(element: types.Type) -> Callable[[int], Any]:
    """An intrinsic that casts an address to a typed pointer."""

    @intrinsic
    def pointer(typing: TypingContext, address: types.Type) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
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
def _record_pointer(record: types.Type) -> Callable[[int], Any]:
    """An intrinsic that casts an address to a record."""

    @intrinsic
    def at(typing: TypingContext, address: types.Type) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            return builder.inttoptr(args[0], context.get_value_type(record))

        return record(types.int64), codegen

    return at


job_at, kernel_at, python_at, loop_at, layout_at = (
    _record_pointer(from_dtype(layout)) for layout in (JOB, KERNEL, PYTHON, LOOP, LAYOUT)
)


def room(builder: ir.IRBuilder, size: int) -> ir.Value:
    """Pointer to `size` bytes on the stack of the calling function, aligned for any vector."""
    with builder.goto_entry_block():  # not cgutils.alloca_once: its zero fill takes LLVM minutes to compile
        block = builder.alloca(ir.ArrayType(ir.IntType(8), size))
    block.align = LINE
    return block


@intrinsic(prefer_literal=True)
def stack(typing: TypingContext, size: types.Type) -> Typed:
    """Address of `size` (a literal) bytes on the stack of the calling function, aligned for any vector."""
    count = size.literal_value

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return builder.ptrtoint(room(builder, count), WORD)

    return types.int64(size), codegen


def _libc(name: str, result: ir.Type, arguments: list[ir.Type]) -> Codegen:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)
        value = builder.call(function, args)
        return context.get_dummy_value() if isinstance(result, ir.VoidType) else value

    return codegen


@intrinsic(prefer_literal=True)
def repeat(typing: TypingContext, value: types.Type, count: types.Type, address: types.Type) -> Typed:
    """Store a value `count` (a literal) times at an address, as vectors, which LLVM does not do by itself."""
    times = count.literal_value

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        vector = repeated(builder, args[0], times)
        store(builder, vector, pointer_at(builder, args[2], vector.type), align=1)
        return context.get_dummy_value()

    return types.none(value, count, types.int64), codegen


@intrinsic
def malloc(typing: TypingContext, size: types.Type) -> Typed:
    """Address of a new block of `size` bytes; 0 if there is no memory."""
    return types.int64(types.int64), _libc("malloc", WORD, [WORD])


@intrinsic
def free(typing: TypingContext, address: types.Type) -> Typed:
    return types.none(types.int64), _libc("free", ir.VoidType(), [WORD])


@intrinsic
def copy_bytes(typing: TypingContext, source: types.Type, target: types.Type, size: types.Type) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        source, target = (builder.inttoptr(address, cgutils.voidptr_t) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), codegen


def prefetch_line(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at an address, which may be invalid."""
    byte, i32 = ir.IntType(8), ir.IntType(32)
    function = ir.FunctionType(ir.VoidType(), [pointer_type(byte), i32, i32, i32])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer_type(byte)], function)
    builder.call(prefetch, [cast(builder, address, byte), i32(0), i32(3), i32(1)])  # read, high locality, data


@intrinsic
def _copy_lines_past_caches(
    typing: TypingContext,
    source: types.Type,
    target: types.Type,
    lines: types.Type,
    ahead: types.Type,
    count: types.Type,
) -> Typed:
    """Copy cache lines to an aligned address; see `copy_past_caches`."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        source, target, lines, ahead, count = args
        line, byte = ir.VectorType(WORD, LINE // 8), ir.IntType(8)
        past_caches = builder.module.add_metadata([ir.IntType(32)(1)])
        with cgutils.for_range(builder, lines, intp=WORD) as loop:
            begin = builder.mul(loop.index, WORD(LINE))
            with cgutils.for_range(builder, count, intp=WORD) as other:
                address = builder.add(load(builder, element_at(builder, ahead, WORD, other.index), WORD), begin)
                prefetch_line(builder, pointer_at(builder, address, byte))
            read, written = (pointer_at(builder, builder.add(at, begin), line) for at in (source, target))
            stored = store(builder, load(builder, read, line, align=1), written, align=LINE)
            stored.set_metadata("nontemporal", past_caches)
        return context.get_dummy_value()

    words = types.CPointer(types.int64)
    return types.none(types.int64, types.int64, types.int64, words, types.int64), codegen


@njit(**OPTIONS)
def copy_past_caches(source, target, size, ahead, count):
    """Copy `size` bytes with non-temporal stores, and prefetch as many bytes from each of `count` addresses.

    Other threads see the stores only after `store_fence`.
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
def store_fence(typing: TypingContext) -> Typed:
    """Order all previous stores of this thread before later ones (sfence)."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), codegen


# --- 16-bit elements in memory ---------------------------------------------------------------------------------------


class Numbers16(types.Type):  # type: ignore[misc]
    """Pointer to 16-bit floating elements, read as float32 and rounded on assignment."""

    def __init__(self, element_type: int) -> None:
        self.element_type = element_type
        super().__init__(name=f"Numbers16({element_type})")


@register_model(Numbers16)
class _Numbers16Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, numbers: types.Type) -> None:
        super().__init__(manager, numbers, manager[types.CPointer(types.uint16)].get_value_type())


@intrinsic
def _bits16(typing: TypingContext, numbers: types.Type) -> Typed:
    """The pointer, cast to the bits."""
    return types.CPointer(types.uint16)(numbers), lambda context, builder, signature, args: args[0]


def _numbers_at(element_type: int) -> Callable[[int], Any]:
    """An intrinsic that casts an address to a pointer to 16-bit floating elements."""

    @intrinsic
    def pointer(typing: TypingContext, address: types.Type) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
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
def _as_floats(typing: TypingContext, numbers: types.Type) -> Typed:
    """The pointer, cast to float32."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(numbers), codegen


@overload(primitives.of_channels, jit_options=OPTIONS)
def _of_channels(operand):
    if isinstance(operand, Numbers16):
        return lambda operand: _as_floats(operand)
    return lambda operand: operand


# --- elements of a dtype known at run time ---------------------------------------------------------------------------

_POINTERS = {
    "float32": f4_at, "float64": f8_at, "int64": i8_at, "int32": i4_at, "uint16": u2_at, "uint8": u1_at,
}  # fmt: skip


@overload(memory.size_of, jit_options=OPTIONS)
def _size_of(dtype):
    kind = dtype.dtype
    size = kind.size if isinstance(kind, types.Record) else kind.bitwidth // 8
    return lambda dtype: size


@overload(memory.array_at, jit_options=OPTIONS)
def _array_at(address, count, dtype):
    pointer = _POINTERS[dtype.dtype.name]
    # A pointer, since an array would handle negative indices, which prevents vectorization.
    return lambda address, count, dtype: pointer(address)


@overload(memory.halves_at, jit_options=OPTIONS)
def _halves_at(address, count):
    return lambda address, count: half_at(address)


@overload(memory.bfloats_at, jit_options=OPTIONS)
def _bfloats_at(address, count):
    return lambda address, count: bfloat_at(address)


@overload(memory.record_at, jit_options=OPTIONS)
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


implement(memory.number_at, number_at)


@overload(memory.read_numbers, jit_options=OPTIONS)
def _read_numbers(function, source, element_type, count, target):
    def implementation(function, source, element_type, count, target):
        call(function, (source, element_type, 1, count, target))

    return implementation


@overload(memory.write_numbers, jit_options=OPTIONS)
def _write_numbers(function, source, element_type, count, target):
    def implementation(function, source, element_type, count, target):
        call(function, (source, element_type, count, target))

    return implementation


@njit(**OPTIONS)
def _copy(numbers, count, out):
    for i in range(count):
        out[i] = numbers[i]


@overload(memory.read_floats, jit_options=OPTIONS)
def _read_floats(source, element_type, count, target):
    def implementation(source, element_type, count, target):
        if element_type == FLOAT16:
            _copy(half_at(source), count, f4_at(target))
        elif element_type == BFLOAT16:
            _copy(bfloat_at(source), count, f4_at(target))
        else:
            _copy(f4_at(source), count, f4_at(target))

    return implementation


@overload(memory.write_floats, jit_options=OPTIONS)
def _write_floats(source, element_type, count, target):
    def implementation(source, element_type, count, target):
        if element_type == FLOAT16:
            _copy(f4_at(source), count, half_at(target))
        elif element_type == BFLOAT16:
            _copy(f4_at(source), count, bfloat_at(target))
        else:
            _copy(f4_at(source), count, f4_at(target))

    return implementation


implement(memory.malloc, malloc)


implement(memory.free, free)


implement(memory.copy_bytes, copy_bytes)


@intrinsic
def address_of(typing: TypingContext, pointer: types.Type) -> Typed:
    """Address of a pointer or record."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return builder.ptrtoint(args[0], WORD)

    return types.int64(pointer), codegen


implement(memory.address_of, address_of)


@intrinsic
def _tail(typing: TypingContext, pointer: types.Type, start: types.Type) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        return element_at(builder, args[0], context.get_data_type(pointer.dtype), args[1])

    return pointer(pointer, types.int64), codegen


implement(memory.tail, _tail)


@intrinsic
def _divide(typing: TypingContext, address: types.Type, buffers: types.Type) -> Typed:
    """The memory at an address as consecutive arrays: (its end, pointers), of pairs of a length and a dtype."""
    pointers = types.Tuple([types.CPointer(dtype.dtype) for _, dtype in buffers])
    result = types.Tuple([types.int64, pointers])

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        end, arrays = args[0], []
        for pair, pointer in zip(cgutils.unpack_tuple(builder, args[1]), pointers, strict=True):
            arrays.append(builder.inttoptr(end, context.get_value_type(pointer)))
            size = builder.mul(builder.extract_value(pair, 0), WORD(pointer.dtype.bitwidth // 8))
            end = builder.add(end, builder.and_(builder.add(size, WORD(LINE - 1)), WORD(-LINE)))
        return context.make_tuple(builder, result, (end, context.make_tuple(builder, pointers, arrays)))

    return result(types.int64, buffers), codegen


@overload(memory.allocate, jit_options=OPTIONS)
def _allocate(*buffers):
    def implementation(*buffers):
        memory = malloc(_divide(0, buffers)[0] + LINE)
        return (memory, *_divide(whole_lines(memory), buffers)[1])

    return implementation
