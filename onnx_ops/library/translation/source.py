"""The C source of the checks of ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType

import numpy as np
from onnx.defs import OpSchema

from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.library.translation import classes
from onnx_ops.library.translation.body import Body
from onnx_ops.library.translation.calls import UnknownMethodError
from onnx_ops.library.translation.errors import TranslationError
from onnx_ops.library.translation.program import RUNTIME_NAMES, Program
from onnx_ops.loops.records import KERNEL, MAX_INPUTS, MAX_OUTPUTS, WORD_TYPES, attributes_of
from onnx_ops.loops.records import offset as offset_of
from onnx_ops.runtime import kernels
from onnx_ops.runtime.compiler import Function
from onnx_ops.runtime.records import LOOP

WORDS = {"int64": "i", "float64": "d", "float32": "f"}
LISTS = {OpSchema.AttrType.INTS: "I", OpSchema.AttrType.FLOATS: "F"}
"""Kinds of fields, as native/values.h has them."""
HEAD = """#include <math.h>

#include "values.h"

#define K(number) (constants + (number))
typedef oo_value V;
typedef oo_state S;
"""


def source(ops: Sequence[Op], functions: Sequence[Function]) -> str:
    """C source of the checks, shape inference and choice of kernels of ops, for native/checks.c.

    Args:
        ops: what calls are of, by number.
        functions: the native functions with their signatures, by number.

    Raises:
        TranslationError: Python that is not translated, with its line.
    """
    program = Program()
    entries = [
        program.function(own) for own in (Op.call, Op.infer, Op.check_arrays, kernels.fields_of, OpError.__str__)
    ]
    selves = [program.constant(op) for op in ops]
    assert classes.fields_of(TensorType) == ("dtype", "shape")
    tensor_type = program.kind(TensorType)
    layouts = [_layout(program, "of_kernel", KERNEL), _layout(program, "of_loop", LOOP)]
    layouts += [_attributes(program, op) for op in ops]
    bodies = _bodies(program)
    methods = [_method(program, name) for name in program.invoked]
    rows = [
        f"    {{{self}, {len(op.input_names)}, {len(op.output_names)}, {layout.text}}}, /* {op.name} */"
        for self, layout, op in zip(selves, layouts[2:], ops, strict=True)
    ]
    pairs = ((program.met(f), program.met(signature)) for f, signature in functions)
    natives = [f"    {{{f}, {signature}, {i}}}," for i, (f, signature) in enumerate(pairs) if f and signature]
    most = max(len(op.attributes) for op in ops)
    parts = [
        HEAD,
        f'_Static_assert(OO_MAX_INPUTS == {MAX_INPUTS} && OO_MAX_OUTPUTS == {MAX_OUTPUTS}, "checks.h");',
        f'_Static_assert(OO_MAX_ATTRIBUTES >= {most} && OO_NAMES == {len(RUNTIME_NAMES)}, "checks.h, values.h");',
        _names(program),
        f"static const oo_object constants[{len(program.constants)}];",
        "\n".join(f"static V {name}(S *s, const V *a);" for name in program.functions.values()),
        _constants(program),
        _classes(program),
        *methods,
        *bodies,
        *(layout.fields for layout in layouts),
        *["static const oo_op ops[] = {", *rows, "};"],
        *["static const oo_pair natives[] = {", *natives, "};"],
        "const oo_program oo_translated = {",
        f"    ops, {tensor_type}, {layouts[0].text}, {layouts[1].text},",
        f"    {len(natives)}, natives, {', '.join(entries)},\n}};\n",
    ]
    return "\n".join(parts)


@dataclass(frozen=True)
class _Layout:
    """A layout of a record in C: the definition of its fields, and its own initializer."""

    fields: str
    text: str


def _layout(program: Program, name: str, layout: np.dtype, lists: Mapping[str, str] | None = None) -> _Layout:
    """The layout of a record; `lists`: kinds of the fields that are addresses of lists."""
    rows = []
    for field, (kind, offset, *_) in (layout.fields or {}).items():
        base, shape = kind.subdtype or (kind, (1,))
        counted = field.removesuffix("_count")
        if lists and (counted in lists and field != counted):
            continue
        own, count = WORDS[base.name], shape[0]
        if lists and field in lists:
            own, count = lists[field], offset_of(layout, f"{field}_count")
        rows.append(f"{{{program.constant(field)}, '{own}', {offset}, {count}}}")
    return _Layout(
        "\n".join([f"static const oo_field {name}[] = {{", *(f"    {row}," for row in rows), "};\n"]),
        f"{{{layout.itemsize}, {len(rows)}, {name}}}",
    )


def _attributes(program: Program, op: Op) -> _Layout:
    """The layout of the record of an op's attributes."""
    lists = {}
    for name, attribute in op.attributes.items():
        if attribute.type not in LISTS | WORD_TYPES:
            raise TranslationError(f"{op.name}: attribute '{name}' has a type that is not translated")
        if attribute.type in LISTS:
            lists[name] = LISTS[attribute.type]
    layout = attributes_of(op.schema)
    if not op.attributes:
        return _Layout("", f"{{{layout.itemsize}, 0, NULL}}")
    return _layout(program, f"of_{op.kernel_name}", layout, lists)


def _bodies(program: Program) -> list[str]:
    """The C functions; one that calls a method is written again once further classes with that method are found."""
    found: dict[str, str] = {}
    while program.wanted:
        before = len(program.functions), len(program.seen)
        waiting: dict[FunctionType, UnknownMethodError] = {}
        while program.wanted:
            function = program.wanted.pop(0)
            try:
                found[program.functions[function]] = Body(program, function).written()
            except UnknownMethodError as error:
                waiting[function] = error
        program.complete()
        if waiting and before == (len(program.functions), len(program.seen)):
            raise next(iter(waiting.values()))
        program.wanted += waiting
    while program.complete():
        pass
    return [found[name] for name in program.functions.values()]


def _names(program: Program) -> str:
    names = [name for name in program.names if name not in RUNTIME_NAMES]
    lines = [f"    OO_NAME_{name}{' = OO_NAMES' if i == 0 else ''}," for i, name in enumerate(names)]
    return "\n".join(["enum {", *lines, "};\n"])


def _constants(program: Program) -> str:
    items: list[str] = []
    lines = []
    for constant in program.constants:
        fields = constant.fields
        if constant.items:
            fields += f", .as.items = items + {len(items)}"
            items += [item or "NULL" for item in constant.items]
        lines.append(f"    {{{fields}}},")
    head = [f"static const V items[{len(items)}] = {{", *_filled(items), "};\n"]
    return "\n".join([*head, "static const oo_object constants[] = {", *lines, "};\n"])


def _filled(items: Sequence[str]) -> list[str]:
    return ["    " + ", ".join(items[i : i + 12]) + "," for i in range(0, len(items), 12)]


def _classes(program: Program) -> str:
    lines, rows = [], []
    for number, kind in enumerate(program.kinds):
        members = [program.constant(member) for member in classes.members_of(kind)]
        names = () if members else classes.fields_of(kind)
        fields = [f"OO_NAME_{name}" if name in program.names else "-1" for name in names]
        properties = {n: own for n in program.used if (own := classes.property_of(kind, n))}
        parts = [str(int(classes.is_named_tuple(kind)))]
        for what, c_type, values in (
            ("fields", "const int16_t", fields),
            ("members", "const V", members),
            ("properties", "const int16_t", [f"OO_NAME_{n}" for n in properties]),
            ("code", "oo_code *const", [program.function(own) for own in properties.values()]),
        ):
            if values:
                lines.append(f"static {c_type} {what}{number}[] = {{{', '.join(values)}}};")
            parts += [str(len(values))] if what != "code" else []
            parts.append(f"{what}{number}" if values else "NULL")
        rows.append(f"    {{{', '.join(parts)}}}, /* {kind.__qualname__} */")
    return "\n".join([*lines, "\nconst oo_class oo_classes[] = {", *rows, "};\n"])


def _method(program: Program, name: str) -> str:
    """A function that selects a method by the class of its first argument, and calls it."""
    lines = [f"static V m_{name}(S *s, const V *a) {{"]
    for kind, method in program.methods(name).items():
        if kind in program.kinds and method in program.functions:
            test = f"a[0]->kind == OO_RECORD && a[0]->type == {program.kinds[kind]}"
            lines.append(f"    if ({test}) return {program.functions[method]}(s, a);")
    return "\n".join([*lines, '    oo_fail(s, "AttributeError: no such method");', "}\n"])
