"""Compiled forms of `loops.memory` and `loops.tiles` for lanes: interleaving of rows, and sums of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.typing import Context as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic, overload

from onnx_ops.loops import memory, tiles
from onnx_ops.loops.memory import LANES
from onnx_ops.runtime.memory import Numbers16, bfloat_at, f4_at, f8_at, half_at
from onnx_ops.runtime.native import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    OPTIONS,
    WORD,
    Typed,
    Values,
    implement,
    joined,
    shuffled,
    widened,
)
from onnx_ops.runtime.pointers import element_at, load, pointer_at, store

QUAD = 4
"""Elements of each row per step."""
TURNED = [k + QUAD * lane for k in range(QUAD) for lane in range(QUAD)]
"""Indices that transpose a QUAD x QUAD block."""


def lanes_at(builder: ir.IRBuilder, numbers: ir.Value, number: ir.Type, place: ir.Value) -> ir.Value:
    """Pointer to the LANES elements, of an LLVM type, at a place."""
    return element_at(builder, numbers, number, builder.mul(place, WORD(LANES)))


def plus_product(builder: ir.IRBuilder, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    return builder.fadd(total, builder.fmul(x, y, flags=("contract",)), flags=("contract",))


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The columns of LANES rows of LANES elements, by shuffles that are one instruction each."""
    quads = range(0, LANES, QUAD)

    def paired(rows: list[ir.Value], width: int) -> list[ir.Value]:
        """In each quad, `width` elements of one row and of the other: of the first half of the quad, of the second."""
        begins = [[quad + half + k for quad in quads for k in range(0, 2, width)] for half in (0, 2)]
        places = [[own + at + k for at in half for own in (0, LANES) for k in range(width)] for half in begins]
        return [shuffled(builder, rows[0], rows[1], half) for half in places]

    def alternate(rows: list[ir.Value]) -> list[ir.Value]:
        """The even quads of one row and of the other, and the odd ones."""
        begins = [[own + quad for own in (0, LANES) for quad in quads[odd::2]] for odd in (0, 1)]
        return [shuffled(builder, rows[0], rows[1], [at + k for at in half for k in range(QUAD)]) for half in begins]

    blocks = []  # by quad of rows, and by column of a quad
    for q in quads:
        first, second = paired(rows[q : q + 2], 1), paired(rows[q + 2 : q + 4], 1)
        blocks.append([column for halves in zip(first, second, strict=True) for column in paired(list(halves), 2)])
    columns = [[alternate(list(pair)) for pair in (of_quad[:2], of_quad[2:])] for of_quad in zip(*blocks, strict=True)]
    parts = [[alternate([one[odd], other[odd]]) for odd in (0, 1)] for one, other in columns]
    return [parts[k % QUAD][k // QUAD % 2][k // QUAD // 2] for k in range(LANES)]


def _read(
    builder: ir.IRBuilder, context: CPUContext, given: types.Type, wanted: ir.Type, address: ir.Value, count: int
) -> ir.Value:
    """`count` elements at an address, of the type of Numba array `given`, converted to LLVM type `wanted`."""
    if isinstance(given, Numbers16):
        vector = ir.VectorType(ir.IntType(16), count)
        value = widened(builder, given.element_type, _loaded(builder, address, vector))
    else:
        value = _loaded(builder, address, ir.VectorType(context.get_value_type(given.dtype), count))
    if value.type.element == wanted:
        return value
    return (builder.fptrunc if isinstance(wanted, ir.FloatType) else builder.fpext)(value, ir.VectorType(wanted, count))


@intrinsic
def _interleave_lines(
    typing: TypingContext,
    sources: types.Type,
    offset: types.Type,
    numbers: types.Type,
    out: types.Type,
    place: types.Type,
) -> Typed:
    """Interleave LANES elements of each row, so that lines of cache which rows share a set of are read once."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        sources, offset, _, out, place = args
        wanted = context.get_value_type(signature.args[3].dtype)
        addresses = [load(builder, element_at(builder, sources, WORD, WORD(lane)), WORD) for lane in range(LANES)]
        rows = [
            _read(builder, context, signature.args[2], wanted, builder.add(address, offset), LANES)
            for address in addresses
        ]
        for k, column in enumerate(_transposed(builder, rows)):
            target = lanes_at(builder, out, wanted, builder.add(place, WORD(k)))
            store(builder, column, target, align=alignment(wanted))
        return context.get_dummy_value()

    return types.none(sources, types.int64, numbers, out, types.int64), codegen


@intrinsic
def _interleave_quads(
    typing: TypingContext,
    sources: types.Type,
    offset: types.Type,
    numbers: types.Type,
    out: types.Type,
    place: types.Type,
) -> Typed:
    """Interleave QUAD elements of each row, `offset` bytes after its source; `numbers` has their type."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        sources, offset, _, out, place = args
        wanted = context.get_value_type(signature.args[3].dtype)

        def quad(lane: int) -> ir.Value:
            """QUAD elements of a row."""
            address = builder.add(load(builder, element_at(builder, sources, WORD, WORD(lane)), WORD), offset)
            return _read(builder, context, signature.args[2], wanted, address, QUAD)

        # Transpose four rows at a time.
        blocks = [
            joined(builder, [quad(lane) for lane in range(first, first + QUAD)]) for first in range(0, LANES, QUAD)
        ]
        blocks = [shuffled(builder, block, block, TURNED) for block in blocks]
        for k in range(QUAD):
            part = list(range(QUAD * k, QUAD * (k + 1)))
            column = joined(builder, [shuffled(builder, block, block, part) for block in blocks])
            target = lanes_at(builder, out, wanted, builder.add(place, WORD(k)))
            store(builder, column, target, align=alignment(wanted))
        return context.get_dummy_value()

    return types.none(sources, types.int64, numbers, out, types.int64), codegen


def _loaded(builder: ir.IRBuilder, address: ir.Value, vector: ir.Type) -> ir.Value:
    """A vector at an address."""
    return load(builder, pointer_at(builder, address, vector), vector, align=alignment(vector.element))


def alignment(number: ir.Type) -> int:
    """Alignment of an element in memory, in bytes."""
    return {"double": 8, "float": 4, "i16": 2}[str(number)]


@njit(**OPTIONS)
def _interleave(sources, size, start, count, out, place, at):
    if count >= LANES:
        whole = count - count % LANES
        for j in range(0, whole, LANES):
            _interleave_lines(sources, (start + j) * size, at(0), out, place + j)
        if whole < count:  # overlaps the previous step
            last = count - LANES
            _interleave_lines(sources, (start + last) * size, at(0), out, place + last)
        return
    whole = count - count % QUAD
    for j in range(0, whole, QUAD):
        _interleave_quads(sources, (start + j) * size, at(0), out, place + j)
    if count >= QUAD and whole < count:  # overlaps the previous step
        last = count - QUAD
        _interleave_quads(sources, (start + last) * size, at(0), out, place + last)
    elif whole < count:
        for j in range(count):  # not lane by lane, which LLVM would vectorize at length
            for lane in range(LANES):
                out[(place + j) * LANES + lane] = at(sources[lane] + (start + j) * size)[0]


@overload(memory.interleave, jit_options=OPTIONS)
def _interleave_of_type(sources, element_type, start, count, out, place):
    def implementation(sources, element_type, start, count, out, place):
        if element_type == FLOAT:
            _interleave(sources, 4, start, count, out, place, f4_at)
        elif element_type == DOUBLE:
            _interleave(sources, 8, start, count, out, place, f8_at)
        elif element_type == FLOAT16:
            _interleave(sources, 2, start, count, out, place, half_at)
        else:
            _interleave(sources, 2, start, count, out, place, bfloat_at)

    return implementation


@intrinsic
def _separate_quads(
    typing: TypingContext, numbers: types.Type, place: types.Type, targets: types.Type, offset: types.Type
) -> Typed:
    """Write QUAD elements of each lane to a row, `offset` bytes after its target."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        numbers, place, targets, offset = args
        number = context.get_value_type(signature.args[0].dtype)
        row, align = ir.VectorType(number, QUAD), alignment(number)
        lanes = ir.VectorType(number, LANES)
        columns = [
            load(builder, lanes_at(builder, numbers, number, builder.add(place, WORD(k))), lanes, align=align)
            for k in range(QUAD)
        ]
        for first in range(0, LANES, QUAD):
            part = list(range(first, first + QUAD))
            square = joined(builder, [shuffled(builder, column, column, part) for column in columns])
            square = shuffled(builder, square, square, TURNED)
            for k in range(QUAD):
                own = shuffled(builder, square, square, list(range(QUAD * k, QUAD * (k + 1))))
                target = load(builder, element_at(builder, targets, WORD, WORD(first + k)), WORD)
                store(builder, own, pointer_at(builder, builder.add(target, offset), row), align=align)
        return context.get_dummy_value()

    return types.none(numbers, types.int64, targets, types.int64), codegen


@intrinsic
def _separate_lines(
    typing: TypingContext, numbers: types.Type, place: types.Type, targets: types.Type, offset: types.Type
) -> Typed:
    """Write LANES elements of each lane to a row."""

    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        numbers, place, targets, offset = args
        number = context.get_value_type(signature.args[0].dtype)
        lanes, align = ir.VectorType(number, LANES), alignment(number)
        places = [builder.add(place, WORD(k)) for k in range(LANES)]
        columns = [load(builder, lanes_at(builder, numbers, number, at), lanes, align=align) for at in places]
        for lane, row in enumerate(_transposed(builder, columns)):
            target = load(builder, element_at(builder, targets, WORD, WORD(lane)), WORD)
            store(builder, row, pointer_at(builder, builder.add(target, offset), lanes), align=align)
        return context.get_dummy_value()

    return types.none(numbers, types.int64, targets, types.int64), codegen


@njit(**OPTIONS)
def _separate_one_by_one(numbers, place, count, targets, start, size, at):
    for j in range(count):
        for lane in range(LANES):
            at(targets[lane] + (start + j) * size)[0] = numbers[(place + j) * LANES + lane]


@njit(**OPTIONS)
def _separate_as_they_are(numbers, place, count, targets, start, size, at):
    lines, whole = count - count % LANES, count - count % QUAD
    for j in range(0, lines, LANES):
        _separate_lines(numbers, place + j, targets, (start + j) * size)
    for j in range(lines, whole, QUAD):
        _separate_quads(numbers, place + j, targets, (start + j) * size)
    _separate_one_by_one(numbers, place + whole, count - whole, targets, start + whole, size, at)


@overload(memory.separate, jit_options=OPTIONS)
def _separate(numbers, place, count, targets, element_type, start):
    to_float = _separate_as_they_are if numbers.dtype == types.float32 else _separate_one_by_one
    to_double = _separate_as_they_are if numbers.dtype == types.float64 else _separate_one_by_one

    def implementation(numbers, place, count, targets, element_type, start):
        if element_type == FLOAT:
            to_float(numbers, place, count, targets, start, 4, f4_at)
        elif element_type == DOUBLE:
            to_double(numbers, place, count, targets, start, 8, f8_at)
        elif element_type == FLOAT16:
            _separate_one_by_one(numbers, place, count, targets, start, 2, half_at)
        else:
            _separate_one_by_one(numbers, place, count, targets, start, 2, bfloat_at)

    return implementation


# --- vectors of which each lane has its own --------------------------------------------------------------------------


def _reducing(start: float, combine: Callable[..., Any]) -> Callable[..., Any]:
    """An intrinsic that combines the elements of each lane, one after the other, to a vector."""

    @intrinsic
    def reducing(typing: TypingContext, numbers: types.Type, count: types.Type, out: types.Type) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            numbers, count, out = args
            number = context.get_value_type(signature.args[2].dtype)
            vector, align = ir.VectorType(number, LANES), alignment(number)
            with builder.goto_entry_block():
                total = builder.alloca(vector)
            builder.store(ir.Constant(vector, [start] * LANES), total)
            with cgutils.for_range(builder, count, intp=WORD) as step:
                given = load(builder, lanes_at(builder, numbers, number, step.index), vector, align=align)
                builder.store(combine(builder, builder.load(total), given), total)
            store(builder, builder.load(total), lanes_at(builder, out, number, WORD(0)), align=align)
            return context.get_dummy_value()

        return types.none(numbers, count, out), codegen

    return reducing


def _changing(combine: Callable[..., Any]) -> Callable[..., Any]:
    """An intrinsic that combines all elements of a lane with that of a vector, in place."""

    @intrinsic
    def changing(typing: TypingContext, numbers: types.Type, count: types.Type, values: types.Type) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            numbers, count, values = args
            number = context.get_value_type(signature.args[0].dtype)
            vector, align = ir.VectorType(number, LANES), alignment(number)
            own = load(builder, lanes_at(builder, values, number, WORD(0)), vector, align=align)
            with cgutils.for_range(builder, count, intp=WORD) as step:
                at = lanes_at(builder, numbers, number, step.index)
                store(builder, combine(builder, load(builder, at, vector, align=align), own), at, align=align)
            return context.get_dummy_value()

        return types.none(numbers, count, values), codegen

    return changing


def _greater(builder: ir.IRBuilder, most: ir.Value, x: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", x, most), x, most)


implement(tiles.largest_by_lane, _reducing(float("-inf"), _greater))
implement(tiles.sum_by_lane, _reducing(0.0, lambda builder, total, x: builder.fadd(total, x)))
implement(tiles.subtract_by_lane, _changing(lambda builder, x, value: builder.fsub(x, value)))
implement(tiles.divide_by_lane, _changing(lambda builder, x, value: builder.fdiv(x, value)))
