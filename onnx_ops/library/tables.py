"""The tables of a library as C: its ops, what they declare to onnxruntime, and their functions for each processor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx_ops.core.op import Op
from onnx_ops.library.functions import COMPUTE_FUNCTION
from onnx_ops.library.objects import Level, symbol
from onnx_ops.runtime import callbacks, heap_callbacks, reuse
from onnx_ops.runtime.compiler import Function
from onnx_ops.runtime.declarations import Declaration, declarations
from onnx_ops.runtime.heap_record import Functions

HEAP_FUNCTIONS = [name for name in Functions._fields if name in heap_callbacks.FUNCTIONS]


def tables(ops: Sequence[Op], functions: Sequence[Function], levels: Iterable[Level]) -> str:
    """A C source with the tables of `native/library.h`.

    Args:
        ops: those of the library.
        functions: as `functions.functions(ops)`.
        levels: those that functions are compiled for, the lowest first.
    """
    numbers = {function: number for number, function in enumerate(functions)}
    return "\n".join(
        ['#include "library.h"\n', *_operators(ops), *_declarations(ops, numbers), *_levels(functions, levels)]
    )


def _operators(ops: Sequence[Op]) -> Iterator[str]:
    yield "const oo_operator oo_operators[] = {"
    for op in ops:
        optional = [int(parameter.optional) for parameter in op.outputs]
        some = int(any(parameter.optional for parameter in op.inputs))
        yield f'    {{"{op.name}", {{{_listed(optional)}}}, {some}}},'
    yield "};\n"


def _declarations(ops: Sequence[Op], numbers: Mapping[Function, int]) -> Iterator[str]:
    yield "oo_declaration oo_declarations[] = {"
    for i, op in enumerate(ops):
        for declared in declarations(op):
            own = reuse.functions(reuse.pairs_of(op, declared))
            places = [numbers[own[name]] if own else -1 for name in ("GetMayInplace", "ReleaseMayInplace")]
            yield f"    {{{{{_fields(declared)}}}, {i}, {_listed(places)}}},"
    yield "};\nconst int64_t oo_declaration_count = sizeof oo_declarations / sizeof *oo_declarations;\n"
    yield "const oo_callback oo_callbacks[] = {"
    for field, function in {"KernelComputeV2": COMPUTE_FUNCTION, **callbacks.FUNCTIONS}.items():
        yield f"    {{offsetof(oo_custom_op, {field}), {numbers[function]}}},"
    yield "};\nconst int64_t oo_callback_count = sizeof oo_callbacks / sizeof *oo_callbacks;\n"
    own = heap_callbacks.FUNCTIONS
    yield f"const int64_t oo_heap_functions[] = {{{_listed(numbers[own[name]] for name in HEAP_FUNCTIONS)}}};\n"


def _fields(declared: Declaration) -> str:
    lists = {
        "input_type": declared.input_types,
        "optional": map(int, declared.optional_inputs),
        "output_type": declared.output_types,
        "optional_output": map(int, declared.optional_outputs),
    }
    counts = f".inputs = {len(declared.input_types)}, .outputs = {len(declared.output_types)}"
    values = ", ".join(f".{name} = {{{_listed(numbers)}}}" for name, numbers in lists.items())
    return f'.name = (void *)"{declared.kernel_name}", {counts}, {values}'


def _levels(functions: Sequence[Function], levels: Iterable[Level]) -> Iterator[str]:
    rows = []
    for level in levels:
        symbols = [symbol(level, number, function) for number, function in enumerate(functions)]
        yield from (f'extern __attribute__((visibility("hidden"))) void {name}(void);' for name in symbols)
        yield f"static void *const functions_{level.name}[] = {{"
        yield from (f"    (void *){name}," for name in symbols)
        yield "};\n"
        rows.append(f'{{"{level.name}", "{level.needs}", functions_{level.name}}}')
    yield f"const oo_level oo_levels[] = {{{_listed(reversed(rows))}}};"
    yield f"const int64_t oo_level_count = {len(rows)};\n"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
