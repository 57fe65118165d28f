"""Compiled forms of `onnx_ops.loops.tiles`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.typing import Context as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic

from onnx_ops.loops import tiles
from onnx_ops.loops.memory import LANES
from onnx_ops.loops.tiles import COLUMNS, PANEL, ROWS
from onnx_ops.runtime.lanes import alignment, plus_product
from onnx_ops.runtime.native import (
    MANY_REGISTERS,
    WORD,
    Typed,
    Values,
    implement,
    repeated,
    shuffled,
)
from onnx_ops.runtime.pointers import element_at, load, store


def _part_of(number: ir.Type) -> tuple[int, int]:
    """Rows and vectors of a tile whose sums are held in registers at once."""
    if not MANY_REGISTERS:
        return ROWS // 2, 1
    return (ROWS, PANEL) if isinstance(number, ir.FloatType) else (ROWS, 1)


def _for_parts(builder: ir.IRBuilder, number: ir.Type, vectors: ir.Value, emit: Callable[[range, range], None]) -> None:
    """Emit the code of each part of a tile of 1 or PANEL vectors, a number known at run time."""
    rows, most = _part_of(number)
    with builder.if_else(builder.icmp_signed("<", vectors, WORD(PANEL))) as (one, all_of_them):
        for branch, count in ((one, 1), (all_of_them, PANEL)):
            with branch:
                for r in range(0, ROWS, rows):
                    for v in range(0, count, most):
                        emit(range(r, r + rows), range(v, min(v + most, count)))


class _Sums:
    """Sums of products in registers: row by row, vector by vector."""

    def __init__(self, builder: ir.IRBuilder, vector: ir.Type, rows: range, vectors: range) -> None:
        self._builder, self._vectors = builder, vectors
        with builder.goto_entry_block():
            self._totals = {(r, v): builder.alloca(vector) for r in rows for v in vectors}
        for total in self._totals.values():
            builder.store(ir.Constant(vector, None), total)

    def add(self, row: int, x: ir.Value, others: dict[int, ir.Value]) -> None:
        """Add the products of a number with vectors."""
        x = repeated(self._builder, x, LANES)
        for v in self._vectors:
            total = self._totals[row, v]
            self._builder.store(plus_product(self._builder, self._builder.load(total), x, others[v]), total)

    def items(self) -> Any:
        return ((r, v, self._builder.load(total)) for (r, v), total in self._totals.items())


@intrinsic
def _multiply_tile(
    typing: TypingContext,
    image: types.Type,
    rows: types.Type,
    row_start: types.Type,
    terms: types.Type,
    channels: types.Type,
    block: types.Type,
    weights: types.Type,
    starts: types.Type,
    start: types.Type,
    panel: types.Type,
    step: types.Type,
    out: types.Type,
    places: types.Type,
    place: types.Type,
    apart: types.Type,
    vectors: types.Type,
) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        image, rows, row_start, terms, channels, block, *others = args
        weights, starts, start, panel, step, out, places, place, apart, count_of_vectors = others
        number = context.get_value_type(signature.args[0].dtype)
        vector, align = ir.VectorType(number, LANES), alignment(number)
        lanes = WORD(LANES)
        blocks = builder.sdiv(builder.add(channels, WORD(LANES - 1)), lanes)
        ahead_of_lane = builder.mul(step, lanes)

        def emit(own: range, vectors: range) -> None:
            sums = _Sums(builder, vector, own, vectors)
            with cgutils.for_range(builder, blocks, intp=WORD) as b:
                first = builder.mul(b.index, lanes)
                rest = builder.sub(channels, first)
                count = builder.select(builder.icmp_signed("<", rest, lanes), rest, lanes)
                ahead = builder.mul(b.index, block)
                with cgutils.for_range(builder, terms, intp=WORD) as t:
                    row = builder.add(row_start, builder.mul(t.index, WORD(ROWS)))
                    sources = {}
                    for r in own:
                        at = load(builder, element_at(builder, rows, WORD, builder.add(row, WORD(r))), WORD)
                        sources[r] = element_at(builder, image, number, builder.add(at, ahead))
                    begin = load(builder, element_at(builder, starts, WORD, builder.add(start, t.index)), WORD)
                    begin = builder.add(begin, builder.mul(first, ahead_of_lane))
                    panels = {
                        v: element_at(builder, weights, number, builder.add(begin, builder.mul(panel, WORD(v))))
                        for v in vectors
                    }
                    with cgutils.for_range(builder, count, intp=WORD) as lane:
                        at = builder.mul(lane.index, ahead_of_lane)
                        given = {
                            v: load(builder, element_at(builder, panels[v], number, at), vector, align=align)
                            for v in vectors
                        }
                        for r in own:
                            x = load(builder, element_at(builder, sources[r], number, lane.index), number, align=align)
                            sums.add(r, x, given)
            for r, v, total in sums.items():
                at = load(builder, element_at(builder, places, WORD, builder.add(place, WORD(r))), WORD)
                at = builder.mul(builder.add(at, builder.mul(apart, WORD(v))), lanes)
                store(builder, total, element_at(builder, out, number, at), align=align)

        _for_parts(builder, number, count_of_vectors, emit)
        return context.get_dummy_value()

    word = types.int64
    kinds = (image, rows, word, word, word, word, weights, starts, word, word, word, out, places, word, word, word)
    return types.none(*kinds), codegen


implement(tiles.multiply_tile, _multiply_tile)


@intrinsic
def _add_outer_products(
    typing: TypingContext,
    sums: types.Type,
    start: types.Type,
    step: types.Type,
    image: types.Type,
    image_start: types.Type,
    block: types.Type,
    grad: types.Type,
    grad_start: types.Type,
    counts: types.Type,
    image_steps: types.Type,
    grad_steps: types.Type,
    vectors: types.Type,
) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        sums, start, step, image, image_start, block, grad, grad_start, *tuples, count_of_vectors = args
        counts, image_steps, grad_steps = (cgutils.unpack_tuple(builder, value) for value in tuples)
        number = context.get_value_type(signature.args[0].dtype)
        vector, align = ir.VectorType(number, LANES), alignment(number)

        def emit(own: range, vectors: range) -> None:
            part = _Sums(builder, vector, own, vectors)

            def add_products(axis: int, x: ir.Value, g: ir.Value) -> None:
                if axis == len(counts):
                    seen = {}
                    for v in vectors:
                        at = builder.add(x, builder.mul(block, WORD(v)))
                        seen[v] = load(builder, element_at(builder, image, number, at), vector, align=align)
                    for r in own:
                        at = builder.add(g, WORD(r))
                        part.add(r, load(builder, element_at(builder, grad, number, at), number, align=align), seen)
                    return
                with cgutils.for_range(builder, counts[axis], intp=WORD) as i:
                    x = builder.add(x, builder.mul(i.index, image_steps[axis]))
                    add_products(axis + 1, x, builder.add(g, builder.mul(i.index, grad_steps[axis])))

            add_products(0, image_start, grad_start)
            for r, v, total in part.items():
                at = builder.add(start, builder.mul(step, WORD(r * PANEL + v)))
                target = element_at(builder, sums, number, builder.mul(at, WORD(LANES)))
                store(builder, builder.fadd(load(builder, target, vector, align=align), total), target, align=align)

        _for_parts(builder, number, count_of_vectors, emit)
        return context.get_dummy_value()

    word = types.int64
    kinds = (sums, word, word, image, word, word, grad, word, counts, image_steps, grad_steps, word)
    return types.none(*kinds), codegen


implement(tiles.add_outer_products, _add_outer_products)


@intrinsic
def _add_dot_products(
    typing: TypingContext,
    sums: types.Type,
    start: types.Type,
    a: types.Type,
    a_starts: types.Type,
    a_start: types.Type,
    b: types.Type,
    b_starts: types.Type,
    b_start: types.Type,
    vectors: types.Type,
) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        sums, start, a, a_starts, a_start, b, b_starts, b_start, vectors = args
        number = context.get_value_type(signature.args[0].dtype)
        align = alignment(number)
        rows, lanes = (ROWS if MANY_REGISTERS else ROWS // 2), LANES if MANY_REGISTERS else LANES // 2
        if isinstance(number, ir.DoubleType):
            lanes //= 2
        vector = ir.VectorType(number, lanes)

        def row_at(numbers: ir.Value, starts: ir.Value, index: ir.Value, first_lane: int) -> ir.Value:
            begin = load(builder, element_at(builder, starts, WORD, index), WORD)
            return element_at(builder, numbers, number, builder.add(begin, WORD(first_lane)))

        def emit(own: range, first_lane: int) -> None:
            with builder.goto_entry_block():
                totals = {(r, c): builder.alloca(vector) for r in own for c in range(COLUMNS)}
            for total in totals.values():
                builder.store(ir.Constant(vector, None), total)
            a_rows = {r: row_at(a, a_starts, builder.add(a_start, WORD(r)), first_lane) for r in own}
            b_rows = [row_at(b, b_starts, builder.add(b_start, WORD(c)), first_lane) for c in range(COLUMNS)]
            with cgutils.for_range(builder, vectors, intp=WORD) as t:
                at = builder.mul(t.index, WORD(LANES))
                columns = [load(builder, element_at(builder, row, number, at), vector, align=align) for row in b_rows]
                for r in own:
                    x = load(builder, element_at(builder, a_rows[r], number, at), vector, align=align)
                    for c, y in enumerate(columns):
                        total = totals[r, c]
                        builder.store(plus_product(builder, builder.load(total), x, y), total)
            for (r, c), total in totals.items():
                at = builder.mul(builder.add(start, WORD(r * COLUMNS + c)), WORD(LANES))
                target = element_at(builder, sums, number, builder.add(at, WORD(first_lane)))
                so_far = load(builder, target, vector, align=align)
                store(builder, builder.fadd(so_far, builder.load(total)), target, align=align)

        for r in range(0, ROWS, rows):
            for first_lane in range(0, LANES, lanes):
                emit(range(r, r + rows), first_lane)
        return context.get_dummy_value()

    word = types.int64
    return types.none(sums, word, a, a_starts, word, b, b_starts, word, word), codegen


implement(tiles.add_dot_products, _add_dot_products)


@intrinsic
def _largest(typing: TypingContext, numbers: types.Type, start: types.Type, count: types.Type) -> Typed:
    def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        numbers, start, count = args
        number = context.get_value_type(signature.args[0].dtype)
        vector, align = ir.VectorType(number, LANES), alignment(number)
        with builder.goto_entry_block():
            most = builder.alloca(vector)
        builder.store(ir.Constant(vector, [float("-inf")] * LANES), most)
        with cgutils.for_range(builder, builder.sdiv(count, WORD(LANES)), intp=WORD) as block:
            at = builder.add(start, builder.mul(block.index, WORD(LANES)))
            x, so_far = load(builder, element_at(builder, numbers, number, at), vector, align=align), builder.load(most)
            builder.store(builder.select(builder.fcmp_ordered(">", x, so_far), x, so_far), most)
        found = builder.load(most)
        while found.type.count > 1:
            half = found.type.count // 2
            a, b = (shuffled(builder, found, found, range(k, k + half)) for k in (0, half))
            found = builder.select(builder.fcmp_ordered(">", a, b), a, b)
        return builder.extract_element(found, ir.IntType(32)(0))

    return numbers.dtype(numbers, types.int64, types.int64), codegen


implement(tiles.largest, _largest)
