"""Compiled forms of `loops.tiles.correlate` and `add_products`: sums of products along rows, for each lane."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.typing import Context as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic, overload

from onnx_ops.loops import tiles
from onnx_ops.loops.memory import LANES
from onnx_ops.runtime.lanes import QUAD, alignment, lanes_at, plus_product
from onnx_ops.runtime.native import MANY_REGISTERS, OPTIONS, WORD, Typed, Values
from onnx_ops.runtime.pointers import element_at, load, store

ADJACENT = 3
"""Terms at adjacent places whose factors are held in registers while the places pass by, each of which is then read
once: processors read fewer vectors per cycle than they multiply and add."""

AT_A_TIME = 2
"""Rows whose products are added at a time."""
COLUMNS = 4
"""Columns, whose adjacent places are read once."""


# --- sums for each place ----------------------------------------------------------------------------------------------


def _correlating(height: int, width: int, adjacent: bool) -> Callable[..., Any]:
    """An intrinsic for the sums at `height` by `width` places, `out_row` and `out_step` apart in out.

    Along rows of b they are adjacent, and so are those of `run` successive terms; or they are `b_step` apart, and `run`
    is not used.
    """

    @intrinsic
    def correlating(
        typing: TypingContext,
        a: types.Type,
        b: types.Type,
        a_places: types.Type,
        b_places: types.Type,
        terms: types.Type,
        run: types.Type,
        ahead: types.Type,
        b_row: types.Type,
        b_step: types.Type,
        out: types.Type,
        place: types.Type,
        out_row: types.Type,
        out_step: types.Type,
    ) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            a, b, a_places, b_places, terms, run, ahead, b_row, b_step, out, place, out_row, out_step = args
            step = WORD(1) if adjacent else b_step
            number = context.get_value_type(signature.args[9].dtype)
            vector, align = ir.VectorType(number, LANES), alignment(number)
            with builder.goto_entry_block():
                totals = [[builder.alloca(vector) for _ in range(width)] for _ in range(height)]
            for total in itertools.chain(*totals):
                builder.store(ir.Constant(vector, None), total)

            def add(first: ir.Value, count: int) -> None:
                """Add `count` terms, from one on, whose places in b are adjacent if there are several."""
                factors = []
                for j in range(count):
                    at = load(builder, element_at(builder, a_places, WORD, builder.add(first, WORD(j))), WORD)
                    factors.append(load(builder, lanes_at(builder, a, number, at), vector, align=align))
                at = builder.add(load(builder, element_at(builder, b_places, WORD, first), WORD), ahead)
                for i, row in enumerate(totals):
                    begin = lanes_at(builder, b, number, builder.add(at, builder.mul(b_row, WORD(i))))
                    for k in range(width + count - 1):
                        source = element_at(builder, begin, vector, builder.mul(step, WORD(k)))
                        given = load(builder, source, vector, align=align)
                        for j, factor in enumerate(factors):
                            if 0 <= k - j < width:
                                total = row[k - j]
                                builder.store(plus_product(builder, builder.load(total), factor, given), total)

            if adjacent:
                whole = builder.sub(run, builder.srem(run, WORD(ADJACENT)))
                with cgutils.for_range_slice(builder, WORD(0), terms, run, intp=WORD) as (first, _):
                    with cgutils.for_range_slice(builder, WORD(0), whole, WORD(ADJACENT), intp=WORD) as (k, _):
                        add(builder.add(first, k), ADJACENT)
                    with cgutils.for_range_slice(builder, whole, run, WORD(1), intp=WORD) as (k, _):
                        add(builder.add(first, k), 1)
            else:
                with cgutils.for_range(builder, terms, intp=WORD) as term:
                    add(term.index, 1)
            for i, k in itertools.product(range(height), range(width)):
                ahead = builder.add(builder.mul(out_row, WORD(i)), builder.mul(out_step, WORD(k)))
                target = lanes_at(builder, out, number, builder.add(place, ahead))
                store(builder, builder.load(totals[i][k]), target, align=align)
            return context.get_dummy_value()

        return types.none(a, b, a_places, b_places, *[types.int64] * 5, out, *[types.int64] * 3), codegen

    return correlating


def _covering(height: int, width: int, adjacent: bool) -> Callable[..., Any]:
    """A function for the sums at the places of all rows, in [begin, end) along them, at least `width` from 0 on.

    So many are computed at a time, or a single row if there are fewer rows.
    """
    several = _correlating(height, width, adjacent)
    one = several if height == 1 else _correlating(1, width, adjacent)

    @njit(**OPTIONS)
    def cover(a, b, a_places, b_places, terms, run, begin, end, rows, b_row, b_step, out, place, out_row, out_step):
        # The last step along an axis overlaps the one before.
        for first in range(begin, end, width):
            j = min(first, end - width)
            ahead, at = j * b_step, place + j * out_step
            if rows < height:
                for i in range(rows):
                    source, target = ahead + i * b_row, at + i * out_row
                    one(a, b, a_places, b_places, terms, run, source, b_row, b_step, out, target, out_row, out_step)
            else:
                for lowest in range(0, rows, height):
                    i = min(lowest, rows - height)
                    source, target = ahead + i * b_row, at + i * out_row
                    several(a, b, a_places, b_places, terms, run, source, b_row, b_step, out, target, out_row, out_step)

    return cover


def _correlating_rows(adjacent: bool, widest: int, wide: int, height: int) -> Callable[..., Any]:
    """A function for the sums of rows: `widest` at a time, `height` by `wide`, or along the columns of shorter rows."""
    cover_widest, cover_wide = _covering(1, widest, adjacent), _covering(height, wide, adjacent)
    cover_columns = _covering(QUAD, 1, adjacent)

    @njit(**OPTIONS)
    def correlate_rows(
        a, b, a_places, b_places, terms, run, columns, rows, b_row, b_step, out, place, out_row, out_step
    ):
        whole = columns - columns % widest
        if columns > widest and columns - whole > wide:
            whole = columns
        terms_of, at = (a, b, a_places, b_places, terms, run), (rows, b_row, b_step, out, place, out_row, out_step)
        cover_widest(*terms_of, 0, whole, *at)
        if columns >= wide:
            cover_wide(*terms_of, whole, columns, *at)
        else:
            cover_columns(*terms_of, 0, columns, *at)

    return correlate_rows


# As many sums and factors as there are registers.
_adjacent_floats = _correlating_rows(True, *((14, 7, 2) if MANY_REGISTERS else (4, 4, 1)))
_adjacent_doubles = _correlating_rows(True, *((7, 7, 1) if MANY_REGISTERS else (2, 2, 1)))
_apart = _correlating_rows(False, *((8, 4, 1) if MANY_REGISTERS else (4, 4, 1)))


@njit(**OPTIONS)
def _length_of_runs(places, count):
    """Greatest number that divides the count into runs of adjacent places."""
    run = 1
    while run < count and places[run] == places[run - 1] + 1:
        run += 1
    if run == 1 or count % run != 0:
        return 1
    for t in range(run, count):
        if t % run != 0 and places[t] != places[t - 1] + 1:
            return 1
    return run


@overload(tiles.correlate, jit_options=OPTIONS)
def _correlate(a, b, a_places, b_places, terms, rows, columns, b_row, b_step, out, place, out_row, out_step):
    adjacent = _adjacent_doubles if out.dtype == types.float64 else _adjacent_floats

    def implementation(a, b, a_places, b_places, terms, rows, columns, b_row, b_step, out, place, out_row, out_step):
        given, at = (a, b, a_places, b_places, terms), (columns, rows, b_row, b_step, out, place, out_row, out_step)
        if b_step == 1:
            adjacent(*given, _length_of_runs(b_places, terms), *at)
        else:
            _apart(*given, 1, *at)

    return implementation


# --- sums over all places -------------------------------------------------------------------------------------------


def _adding(adjacent: bool) -> Callable[..., Any]:
    """An intrinsic for `add_products`, of three adjacent starts in b and a step of 1, or of any."""

    @intrinsic
    def adding(
        typing: TypingContext,
        sums: types.Type,
        a: types.Type,
        b: types.Type,
        a_start: types.Type,
        b_starts: types.Type,
        rows: types.Type,
        columns: types.Type,
        a_row: types.Type,
        b_row: types.Type,
        step: types.Type,
    ) -> Typed:
        def codegen(context: CPUContext, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
            sums, a, b, a_start, b_starts, rows, columns, a_row, b_row, step = args
            number = context.get_value_type(signature.args[0].dtype)
            vector, align = ir.VectorType(number, LANES), alignment(number)
            begins = cgutils.unpack_tuple(builder, b_starts)
            with builder.goto_entry_block():
                totals = [[builder.alloca(vector) for _ in begins] for _ in range(AT_A_TIME)]

            def vectors(numbers: ir.Value, place: ir.Value, count: int) -> list[ir.Value]:
                begin = lanes_at(builder, numbers, number, place)
                return [
                    load(builder, element_at(builder, begin, vector, WORD(k)), vector, align=align)
                    for k in range(count)
                ]

            def add_columns(own: list[ir.Value], x_at: ir.Value, starts: list[ir.Value], count: int) -> None:
                """Add the products of adjacent columns of a row."""
                factors = vectors(a, x_at, count)
                if adjacent:
                    given = vectors(b, starts[0], count + len(own) - 1)
                    seen = [given[t : t + count] for t in range(len(own))]
                else:
                    seen = [vectors(b, start, count) for start in starts]
                for total, others in zip(own, seen, strict=True):
                    value = builder.load(total)
                    for x, y in zip(factors, others, strict=True):
                        value = plus_product(builder, value, x, y)
                    builder.store(value, total)

            def add_rows(first: ir.Value, count: int) -> None:
                """Add the products of adjacent rows, each with sums of its own, as a sum waits for its last term."""
                ranges = []
                for i in range(count):
                    row = builder.add(first, WORD(i))
                    ahead = builder.mul(row, b_row)
                    own = builder.add(a_start, builder.mul(row, a_row))
                    ranges.append((own, [builder.add(begin, ahead) for begin in begins]))
                    for total in totals[i]:
                        builder.store(ir.Constant(vector, None), total)
                begin = WORD(0)
                for width in (COLUMNS, 1) if adjacent else (1,):
                    end = builder.sub(columns, builder.srem(columns, WORD(width)))
                    with cgutils.for_range_slice(builder, begin, end, WORD(width), intp=WORD) as (column, _):
                        ahead = builder.mul(column, step)
                        for total, (x_at, starts) in zip(totals, ranges, strict=False):
                            at = [builder.add(start, ahead) for start in starts]
                            add_columns(total, builder.add(x_at, column), at, width)
                    begin = end
                for t, own in enumerate(zip(*totals[:count], strict=True)):
                    target = lanes_at(builder, sums, number, WORD(t))
                    value = load(builder, target, vector, align=align)
                    for total in own:
                        value = builder.fadd(value, builder.load(total))
                    store(builder, value, target, align=align)

            begin = WORD(0)
            for count in (AT_A_TIME, 1):
                end = builder.sub(rows, builder.srem(rows, WORD(count)))
                with cgutils.for_range_slice(builder, begin, end, WORD(count), intp=WORD) as (row, _):
                    add_rows(row, count)
                begin = end
            return context.get_dummy_value()

        return types.none(sums, a, b, types.int64, b_starts, *[types.int64] * 5), codegen

    return adding


_add_adjacent, _add_any = _adding(True), _adding(False)


@overload(tiles.add_products, jit_options=OPTIONS)
def _add_products(sums, a, b, a_start, b_starts, rows, columns, a_row, b_row, step):
    def implementation(sums, a, b, a_start, b_starts, rows, columns, a_row, b_row, step):
        if step == 1 and b_starts[1] == b_starts[0] + 1 and b_starts[2] == b_starts[0] + 2:
            _add_adjacent(sums, a, b, a_start, b_starts, rows, columns, a_row, b_row, step)
        else:
            _add_any(sums, a, b, a_start, b_starts, rows, columns, a_row, b_row, step)

    return implementation
