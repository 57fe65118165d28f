"""Compiled forms of `onnx_ops.loops.places`."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.typing import Context as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic

from onnx_ops.loops import places
from onnx_ops.loops.memory import LANES
from onnx_ops.runtime.lanes import alignment, lanes_at, plus_product
from onnx_ops.runtime.native import WORD, Typed, Values, implement, repeated
from onnx_ops.runtime.pointers import element_at, load, store
from onnx_ops.runtime.vectors import added_up

NUMBER = ir.DoubleType()
VECTOR = ir.VectorType(NUMBER, LANES)


def _widened(builder: ir.IRBuilder, numbers: ir.Value, number: ir.Type, place: ir.Value) -> ir.Value:
    """The elements at a place, of an LLVM type, as float64."""
    found = load(
        builder, lanes_at(builder, numbers, number, place), ir.VectorType(number, LANES), align=alignment(number)
    )
    return found if number == NUMBER else builder.fpext(found, VECTOR)


def _for_listed(
    builder: ir.IRBuilder, start: ir.Value, apart: ir.Value, terms: ir.Value, emit: Callable[[ir.Value], None]
) -> None:
    """A loop over the indices of a list."""
    end = builder.add(start, builder.mul(apart, terms))
    with cgutils.for_range_slice(builder, start, end, apart, intp=WORD) as (index, _):
        emit(index)


def _weight(builder: ir.IRBuilder, weights: ir.Value, index: ir.Value) -> ir.Value:
    return repeated(builder, load(builder, element_at(builder, weights, NUMBER, index), NUMBER), LANES)


def _place(builder: ir.IRBuilder, places: ir.Value, index: ir.Value) -> ir.Value:
    return load(builder, element_at(builder, places, WORD, index), WORD)


@intrinsic
def _add_from_places(
    typing: TypingContext,
    table: types.Type,
    places: types.Type,
    weights: types.Type,
    start: types.Type,
    apart: types.Type,
    terms: types.Type,
    out: types.Type,
    place: types.Type,
) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        table, places, weights, start, apart, terms, out, place = args
        of_table, of_out = (context.get_value_type(signature.args[k].dtype) for k in (0, 6))
        with builder.goto_entry_block():
            total = builder.alloca(VECTOR)
        builder.store(ir.Constant(VECTOR, None), total)

        def add(index: ir.Value) -> None:
            row = _widened(builder, table, of_table, _place(builder, places, index))
            builder.store(plus_product(builder, builder.load(total), _weight(builder, weights, index), row), total)

        _for_listed(builder, start, apart, terms, add)
        result = builder.load(total)
        if of_out != NUMBER:
            result = builder.fptrunc(result, ir.VectorType(of_out, LANES))
        store(builder, result, lanes_at(builder, out, of_out, place), align=alignment(of_out))
        return context.get_dummy_value()

    return types.none(table, places, weights, *[types.int64] * 3, out, types.int64), codegen


@intrinsic
def _add_to_places(
    typing: TypingContext,
    sums: types.Type,
    places: types.Type,
    weights: types.Type,
    start: types.Type,
    apart: types.Type,
    terms: types.Type,
    row: types.Type,
    place: types.Type,
) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        sums, places, weights, start, apart, terms, row, place = args
        own = _widened(builder, row, context.get_value_type(signature.args[6].dtype), place)

        def add(index: ir.Value) -> None:
            target = lanes_at(builder, sums, NUMBER, _place(builder, places, index))
            before = load(builder, target, VECTOR, align=alignment(NUMBER))
            total = plus_product(builder, before, _weight(builder, weights, index), own)
            store(builder, total, target, align=alignment(NUMBER))

        _for_listed(builder, start, apart, terms, add)
        return context.get_dummy_value()

    return types.none(sums, places, weights, *[types.int64] * 3, row, types.int64), codegen


@intrinsic
def _multiply_with_places(
    typing: TypingContext,
    table: types.Type,
    places: types.Type,
    start: types.Type,
    apart: types.Type,
    terms: types.Type,
    row: types.Type,
    place: types.Type,
    products: types.Type,
) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        table, places, start, apart, terms, row, place, products = args
        of_table, of_row = (context.get_value_type(signature.args[k].dtype) for k in (0, 5))
        own = _widened(builder, row, of_row, place)

        def add(index: ir.Value) -> None:
            other = _widened(builder, table, of_table, _place(builder, places, index))
            target = element_at(builder, products, NUMBER, index)
            total = builder.fadd(load(builder, target, NUMBER), added_up(builder, builder.fmul(own, other)))
            store(builder, total, target)

        _for_listed(builder, start, apart, terms, add)
        return context.get_dummy_value()

    return types.none(table, places, *[types.int64] * 3, row, types.int64, products), codegen


implement(places.add_from_places, _add_from_places)
implement(places.add_to_places, _add_to_places)
implement(places.multiply_with_places, _multiply_with_places)
