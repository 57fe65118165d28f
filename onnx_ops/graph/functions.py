"""Model-local functions: their calls, and inlining."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import inliner

from onnx_ops.core.errors import LinkError
from onnx_ops.graph.imports import add_import, normalized, versions
from onnx_ops.graph.walk import Container, all_nodes, containers, function_text, placed_nodes

Key = tuple[str, str, str]
"""Domain, name and overload of a function, which identify it."""


def function_key(function: onnx.FunctionProto) -> Key:
    return function.domain, function.name, function.overload


def called_key(node: onnx.NodeProto) -> Key:
    """The key of the function that a node calls, if it calls one."""
    return node.domain, node.op_type, node.overload


def check_calls(model: onnx.ModelProto) -> None:
    """Raise LinkError for calls that cannot be inlined: too many inputs or outputs, recursive or ambiguous ones."""
    functions = {function_key(f): f for f in model.functions}
    if len(functions) != len(model.functions):
        ((twice, _),) = Counter(map(function_key, model.functions)).most_common(1)
        raise LinkError(f"the model has several functions {function_text(*twice)}")
    for place, node in placed_nodes(model):
        function = functions.get(called_key(node))
        if function is None:
            continue
        for kind, given, known in (
            ("inputs", node.input, function.input),
            ("outputs", node.output, function.output),
        ):
            if len(given) > len(known):
                raise LinkError(
                    f"{place.label(node) or 'a node'} calls function {function_text(*called_key(node))} with"
                    f" {len(given)} {kind}, expected at most {len(known)}: {', '.join(known)}"
                )
    callees_first(functions)


def callees_first(functions: Mapping[Key, onnx.FunctionProto]) -> list[Key]:
    """The functions in topological order, callees first; raises LinkError for recursive ones."""

    def calls(key: Key) -> Iterator[Key]:
        return (called for called in map(called_key, all_nodes(functions[key])) if called in functions)

    done: dict[Key, None] = {}
    for start in functions:
        path = {} if start in done else {start: calls(start)}
        while path:
            caller, rest = next(reversed(path.items()))
            called = next((key for key in rest if key not in done), None)
            if called is None:
                del path[caller]
                done[caller] = None
            elif called in path:
                circle = [*itertools.dropwhile(called.__ne__, path), called]
                names = " calls ".join(function_text(*key) for key in circle)
                raise LinkError(f"the functions of the model are recursive: {names}")
            else:
                path[called] = calls(called)
    return list(done)


def functions_needed(container: Container, functions: Iterable[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """Those of the functions that a container calls, directly or indirectly, in the given order."""
    known = {function_key(f): f for f in functions}
    found: set[Key] = set()
    pending: list[Container] = [container]
    while pending:
        called = {called_key(node) for node in all_nodes(pending.pop())} & known.keys()
        pending.extend(known[key] for key in called - found)
        found |= called
    return [f for key, f in known.items() if key in found]


def inlined_counts(model: onnx.ModelProto, kinds: Sequence[Callable[[onnx.NodeProto], bool]]) -> list[int]:
    """Number of nodes of each kind in the model with its functions inlined, counted without inlining."""
    functions = {function_key(f): f for f in model.functions}
    totals: dict[Key, list[int]] = {}

    def total(container: Container) -> list[int]:
        counts = [0] * len(kinds)
        for node in all_nodes(container):
            of_node = totals.get(called_key(node)) or [int(is_kind(node)) for is_kind in kinds]
            counts = [count + more for count, more in zip(counts, of_node, strict=True)]
        return counts

    for key in callees_first(functions):
        totals[key] = total(functions[key])
    return total(model.graph)


def spell_out_defaults(model: onnx.ModelProto) -> None:
    """Write out the defaults of omitted attributes in calls of functions: the inliner drops defaults."""
    defaults = {function_key(f): f.attribute_proto for f in model.functions if f.attribute_proto}
    if not defaults:
        return
    for container in containers(model):
        for node in container.node:
            if own := defaults.get(called_key(node)):
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(attribute for attribute in own if attribute.name not in given)


def add_function_imports(model: onnx.ModelProto) -> None:
    """Add the imports of the model's functions to the model."""
    own = set(versions(model))
    for function in model.functions:
        for entry in function.opset_import:
            if normalized(entry.domain) not in own:
                add_import(model, entry.domain, entry.version)
                own.add(normalized(entry.domain))


def inlined_for_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all functions inlined, for type inference; modifies its argument.

    Types may be unknown after an operator that differs between the version a function imports and the model's.

    Raises:
        LinkError: functions that cannot be inlined.
    """
    if not model.functions:
        return model
    add_function_imports(model)
    spell_out_defaults(model)
    own = versions(model)
    for function in model.functions:  # the inliner skips functions that import other versions
        for entry in function.opset_import:
            entry.version = own[normalized(entry.domain)]
    return _inlined(model, convert_version=False)


def _inlined(model: onnx.ModelProto, convert_version: bool) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model, convert_version=convert_version)
    except Exception as error:  # RuntimeError, or the inliner's own ConvertError
        raise LinkError(f"the functions of the model cannot be inlined: {error}") from error


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions inlined, converted to the default opset of the model where they have another one.

    Raises:
        LinkError: functions that cannot be inlined or converted.
    """
    own = versions(model)
    converts = any(own.get(d, v) != v for function in model.functions for d, v in versions(function).items())
    result = _inlined(model, converts)
    kept = {function_key(f): f for f in result.functions}
    for _, node in placed_nodes(result):
        if function := kept.get(called_key(node)):
            imports = ", ".join(f"'{entry.domain}' {entry.version}" for entry in function.opset_import)
            raise LinkError(
                f"function {function_text(*called_key(node))} cannot be inlined: it imports {imports}, expected the"
                " versions that the model imports"
            )
    return result


def inlined_function(model: onnx.ModelProto, function: onnx.FunctionProto) -> onnx.FunctionProto:
    """A function of the model, one without attributes, with the functions it calls inlined.

    Raises:
        LinkError: as `inlined`.
    """
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=function.opset_import, functions=model.functions)
    add_function_imports(alone)
    described = {info.name: info for info in function.value_info}
    graph = alone.graph
    graph.node.extend(function.node)
    for names, values in ((function.input, graph.input), (function.output, graph.output)):
        values.extend(described.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    result.node.extend(inlined(alone).graph.node)
    used = {normalized(node.domain) for node in all_nodes(result)}
    del result.opset_import[:]
    result.opset_import.extend(entry for entry in alone.opset_import if normalized(entry.domain) in used)
    return result
