"""Compiled forms of `onnx_ops.loops.vectors`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.datamodel import DataModelManager
from numba.core.imputils import lower_constant
from numba.core.typing import Signature
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model, typeof_impl

from onnx_ops.loops import vectors
from onnx_ops.loops.memory import LANES
from onnx_ops.loops.vectors import QUAD
from onnx_ops.runtime.memory import Numbers16, prefetch_line, room
from onnx_ops.runtime.native import FEATURES, Values, called, joined, of_type, repeated, shuffled, widened
from onnx_ops.runtime.pointers import element_at, load, store

INT, FLOAT, DOUBLE = ir.IntType(32), ir.FloatType(), ir.DoubleType()
WORDS = ir.VectorType(INT, LANES)


class Vector(types.Type):  # type: ignore[misc]
    """SIMD vector."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(name=f"Vector({dtype}, {count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, vector: types.Type) -> None:
        super().__init__(manager, vector, ir.VectorType(manager.lookup(vector.dtype).get_value_type(), vector.count))


FLOATS, INTEGERS, DOUBLES = Vector(types.float32, LANES), Vector(types.int32, LANES), Vector(types.float64, QUAD)
NUMBERS = types.CPointer(types.float32)


# --- registration with Numba -----------------------------------------------------------------------------------------


def _teach(function: Callable[..., Any], result: Callable[..., Any], *accepted: types.Type) -> Callable[..., Any]:
    """Decorator of a code generator for a function: emit(context, builder, signature, args).

    Args:
        function: the function.
        result: maps argument types to the type of the result; None if they are not supported.
        accepted: argument types, for a function that Numba also supports with others.
    """

    @infer_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: Sequence[types.Type], keywords: Mapping[str, types.Type]) -> Signature | None:
            wanted = result(*args)
            return None if wanted is None else signature(wanted, *args)

    def decorate(emit: Callable[..., Any]) -> Callable[..., Any]:
        for kinds in accepted or ((types.VarArg(types.Any),),):
            lower_builtin(function, *kinds)(emit)
        return emit

    return decorate


def _common(*kinds: types.Type) -> Vector | None:
    """The vector type among argument types, others being the same or scalars; None if there is none."""
    vector = next((kind for kind in kinds if isinstance(kind, Vector)), None)
    return vector if all(kind == vector or isinstance(kind, types.Number) for kind in kinds) else None


def _teach_arithmetic(function: Callable[..., Any], emit: Callable[..., Any], *accepted: types.Type) -> None:
    """Register a function of vectors of one type or scalars.

    Args:
        emit: emit(builder, is_integer, *vectors).
    """

    @_teach(function, _common, *accepted)
    def write(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
        vector = call.return_type
        values = [
            value
            if kind == vector
            else repeated(builder, context.cast(builder, value, kind, vector.dtype), vector.count)
            for kind, value in zip(call.args, args, strict=True)
        ]
        return emit(builder, isinstance(vector.dtype, types.Integer), *values)


# --- arithmetic ---------------------------------------------------------------------------------------------------

VECTOR_AND_NUMBER = ((Vector, Vector), (Vector, types.Number), (types.Number, Vector))


def _of_either(of_integers: str, of_floats: str) -> Callable[..., Any]:
    """Code generator for an instruction of two vectors."""

    def emit(builder: ir.IRBuilder, integers: bool, a: ir.Value, b: ir.Value) -> ir.Value:
        if integers:
            return getattr(builder, of_integers)(a, b)
        return getattr(builder, of_floats)(a, b, flags=("contract",))

    return emit


def _ordered(order: str) -> Callable[..., Any]:
    """Code generator for a selection from two vectors by an ordered comparison; the second for NaN."""

    def emit(builder: ir.IRBuilder, integers: bool, a: ir.Value, b: ir.Value) -> ir.Value:
        compare = builder.icmp_signed if integers else builder.fcmp_ordered
        return builder.select(compare(order, a, b), a, b)

    return emit


def _by_sign(
    builder: ir.IRBuilder, integers: bool, vector: ir.Value, negative: ir.Value, positive: ir.Value
) -> ir.Value:
    return builder.select(_is_negative(builder, builder.bitcast(vector, WORDS)), negative, positive)


def _is_negative(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    return builder.icmp_signed("<", vector, ir.Constant(vector.type, None))


_teach_arithmetic(operator.add, _of_either("add", "fadd"), *VECTOR_AND_NUMBER)
_teach_arithmetic(operator.sub, _of_either("sub", "fsub"), *VECTOR_AND_NUMBER)
_teach_arithmetic(operator.mul, _of_either("mul", "fmul"), *VECTOR_AND_NUMBER)
_teach_arithmetic(operator.and_, lambda builder, integers, a, b: builder.and_(a, b), *VECTOR_AND_NUMBER)
_teach_arithmetic(operator.or_, lambda builder, integers, a, b: builder.or_(a, b), *VECTOR_AND_NUMBER)
_teach_arithmetic(operator.rshift, lambda builder, integers, a, b: builder.ashr(a, b), *VECTOR_AND_NUMBER)
_teach_arithmetic(operator.lshift, lambda builder, integers, a, b: builder.shl(a, b), *VECTOR_AND_NUMBER)
_teach_arithmetic(operator.neg, lambda builder, integers, a: builder.fneg(a), (Vector,))
_teach_arithmetic(abs, lambda builder, integers, a: called(builder, of_type("fabs", a.type), a), (Vector,))
_teach_arithmetic(vectors.lesser, _ordered("<"))
_teach_arithmetic(vectors.greater, _ordered(">"))
_teach_arithmetic(vectors.by_sign, _by_sign)


# --- conversions -----------------------------------------------------------------------------------------------------


def _from(given: Vector, wanted: Vector) -> Callable[..., Any]:
    return lambda vector: wanted if vector == given else None


@_teach(vectors.spread, lambda value: {types.float32: FLOATS, types.float64: DOUBLES}.get(value))
def _spread(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    return repeated(builder, args[0], call.return_type.count)


@_teach(vectors.bits, _from(FLOATS, INTEGERS))
@_teach(vectors.floats, _from(INTEGERS, FLOATS))
def _read_as(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    return builder.bitcast(args[0], context.get_value_type(call.return_type))


@_teach(vectors.as_floats, _from(INTEGERS, FLOATS))
def _as_floats(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    return builder.sitofp(args[0], context.get_value_type(FLOATS))


def _constant(number: ir.Type, values: Sequence[float]) -> ir.Value:
    return ir.Constant(ir.VectorType(number, len(values)), list(values))


def _halves(builder: ir.IRBuilder, vector: ir.Value) -> list[ir.Value]:
    count = vector.type.count // 2
    return [shuffled(builder, vector, vector, range(k, k + count)) for k in (0, count)]


def added_up(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """Pairwise sum of float64 elements."""
    while vector.type.count > 1:
        vector = builder.fadd(*_halves(builder, vector))
    return builder.extract_element(vector, INT(0))


@_teach(vectors.total, lambda vector: types.float64 if vector in (FLOATS, DOUBLES) else None)
def _total(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    vector = args[0]
    if call.args[0] == FLOATS:
        vector = builder.fpext(vector, ir.VectorType(DOUBLE, LANES))
    return added_up(builder, vector)


@_teach(vectors.any_negative, _from(INTEGERS, types.boolean))
def _any_negative(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    negative = _is_negative(builder, args[0])
    return builder.icmp_unsigned("!=", builder.bitcast(negative, ir.IntType(LANES)), ir.IntType(LANES)(0))


# --- memory -------------------------------------------------------------------------------------------------------


def _floats_from(builder: ir.IRBuilder, kind: types.Type, numbers: ir.Value, start: ir.Value, count: int) -> ir.Value:
    """float32 vector of `count` elements in memory, of Numba type `kind`, from `start` on."""
    number, align = (FLOAT, 4) if kind == NUMBERS else (ir.IntType(16), 2)
    elements = load(builder, element_at(builder, numbers, number, start), ir.VectorType(number, count), align=align)
    return elements if kind == NUMBERS else widened(builder, kind.element_type, elements)


def _of_numbers(wanted: Vector) -> Callable[..., Any]:
    return lambda numbers, start: wanted if numbers == NUMBERS or isinstance(numbers, Numbers16) else None


@_teach(vectors.load, _of_numbers(FLOATS))
def _load(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    numbers, start = args
    return _floats_from(builder, call.args[0], numbers, start, LANES)


@_teach(vectors.load_wide, _of_numbers(DOUBLES))
def _load_wide(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    numbers, start = args
    return builder.fpext(_floats_from(builder, call.args[0], numbers, start, QUAD), ir.VectorType(DOUBLE, QUAD))


@_teach(vectors.prefetch, _of_numbers(types.none))
def _prefetch(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    numbers, start = args
    number = FLOAT if call.args[0] == NUMBERS else ir.IntType(16)
    prefetch_line(builder, element_at(builder, numbers, number, start))
    return context.get_dummy_value()


@_teach(vectors.store, lambda vector, numbers, start: types.none if (vector, numbers) == (FLOATS, NUMBERS) else None)
def _store(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    store(builder, args[0], element_at(builder, args[1], FLOAT, args[2]), align=4)
    return context.get_dummy_value()


@_teach(vectors.scratch, lambda count: NUMBERS if isinstance(count, types.IntegerLiteral) else None)
def _scratch(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    return builder.bitcast(room(builder, 4 * call.args[0].literal_value), context.get_value_type(NUMBERS))


# --- tables -------------------------------------------------------------------------------------------------------


class Table(types.Dummy):  # type: ignore[misc]
    """Type of a table, whose elements are constants of compiled code."""

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self.numbers = numbers
        super().__init__(name=f"Table{numbers}")


register_model(Table)(models.OpaqueModel)


@typeof_impl.register(vectors.Table)
def _type_of_table(table: Any, c: Any) -> Table:
    return Table(tuple(map(float, table.numbers)))


@lower_constant(Table)
def _table(context: CPUContext, builder: ir.IRBuilder, kind: types.Type, value: Any) -> ir.Value:
    return context.get_dummy_value()


def _is_table(table: types.Type, index: types.Type) -> Vector | None:
    return FLOATS if isinstance(table, Table) and index == INTEGERS else None


@_teach(operator.getitem, _is_table, (Table, Vector))
def _look_up(context: CPUContext, builder: ir.IRBuilder, call: Signature, args: Values) -> ir.Value:
    numbers, index = call.args[0].numbers, args[1]
    if "+avx512f" in FEATURES:
        parts = [_constant(FLOAT, numbers[first : first + 16]) for first in range(0, len(numbers), 16)]
        if len(parts) == 1:
            return called(builder, "x86.avx512.permvar.sf.512", parts[0], index)
        return called(builder, "x86.avx512.vpermi2var.ps.512", parts[0], index, parts[1])
    if "+avx2" in FEATURES:
        return joined(builder, [_by_eights(builder, numbers, part) for part in _halves(builder, index)])
    table = cgutils.global_constant(builder, "table", ir.Constant(ir.ArrayType(FLOAT, len(numbers)), numbers))
    place = builder.and_(index, _constant(INT, [len(numbers) - 1] * LANES))
    found = ir.Constant(ir.VectorType(FLOAT, LANES), ir.Undefined)
    for lane in map(INT, range(LANES)):
        number = load(builder, element_at(builder, table, FLOAT, builder.extract_element(place, lane)), FLOAT)
        found = builder.insert_element(found, number, lane)
    return found


def _by_eights(builder: ir.IRBuilder, numbers: ir.Value, index: ir.Value) -> ir.Value:
    """Eight lookups: in each group of eight elements by the lowest bits, then selection by the other bits."""
    found = [
        called(builder, "x86.avx2.permps", _constant(FLOAT, numbers[first : first + 8]), index)
        for first in range(0, len(numbers), 8)
    ]
    bit = 8
    while len(found) > 1:
        is_upper = builder.icmp_signed("!=", builder.and_(index, _constant(INT, [bit] * 8)), _constant(INT, [0] * 8))
        found = [builder.select(is_upper, b, a) for a, b in zip(found[::2], found[1::2], strict=True)]
        bit *= 2
    return found[0]
