"""Model-local functions: what calls them, and models with them put in place of the nodes that call them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import inliner

from onnx_ops.core.errors import LinkError
from onnx_ops.graph.imports import add_import, spelled, versions
from onnx_ops.graph.walk import Container, all_nodes, containers, function_text, placed_nodes

Key = tuple[str, str, str]
"""Domain, name and overload of a function, by which nodes call it."""


def function_key(function: onnx.FunctionProto) -> Key:
    return function.domain, function.name, function.overload


def called_key(node: onnx.NodeProto) -> Key:
    """The function that a node calls, if there is one of this key."""
    return node.domain, node.op_type, node.overload


def check_calls(model: onnx.ModelProto) -> None:
    """Refuse calls of functions that cannot be inlined: with too many inputs or outputs, in a circle, or ambiguous."""
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
                    f"{place.words(node) or 'a node'} calls function {function_text(*called_key(node))} with"
                    f" {len(given)} {kind}, expected at most {len(known)}: {', '.join(known)}"
                )
    callees_first(functions)


def callees_first(functions: Mapping[Key, onnx.FunctionProto]) -> list[Key]:
    """The functions, each after those that it calls; LinkError for functions that call each other in a circle."""

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
                raise LinkError(f"the functions of the model call each other in a circle: {names}")
            else:
                path[called] = calls(called)
    return list(done)


def functions_needed(container: Container, functions: Iterable[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """Of these functions those that the nodes of a container call, and those that they call; in the order given."""
    known = {function_key(f): f for f in functions}
    found: set[Key] = set()
    pending: list[Container] = [container]
    while pending:
        called = {called_key(node) for node in all_nodes(pending.pop())} & known.keys()
        pending.extend(known[key] for key in called - found)
        found |= called
    return [f for key, f in known.items() if key in found]


def inlined_counts(model: onnx.ModelProto, kinds: Sequence[Callable[[onnx.NodeProto], bool]]) -> list[int]:
    """How many nodes of each kind the model has once its functions are inlined; found without inlining them."""
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
    """Give calls of functions the attributes that they leave to their defaults, which the inliner forgets."""
    defaults = {function_key(f): f.attribute_proto for f in model.functions if f.attribute_proto}
    if not defaults:
        return
    for container in containers(model):
        for node in container.node:
            if own := defaults.get(called_key(node)):
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(attribute for attribute in own if attribute.name not in given)


def import_what_functions_do(model: onnx.ModelProto) -> None:
    """Let the model import the domains that only functions of it do."""
    own = set(versions(model))
    for function in model.functions:
        for entry in function.opset_import:
            if spelled(entry.domain) not in own:
                add_import(model, entry.domain, entry.version)
                own.add(spelled(entry.domain))


def inlined_for_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all functions inlined, to see what types their nodes get; changes the model that it is given.

    Types behind an operator that is another in the version that a function imports may be unknown in it.

    Raises:
        LinkError: functions that cannot be inlined.
    """
    if not model.functions:
        return model
    import_what_functions_do(model)
    spell_out_defaults(model)
    own = versions(model)
    for function in model.functions:  # the inliner leaves those of other versions where they are
        for entry in function.opset_import:
            entry.version = own[spelled(entry.domain)]
    return _inlined(model, convert_version=False)


def _inlined(model: onnx.ModelProto, convert_version: bool) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model, convert_version=convert_version)
    except Exception as error:  # a RuntimeError, or a ConvertError of its own
        raise LinkError(f"the functions of the model cannot be inlined: {error}") from error


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions inlined, those of another default opset converted to the model's.

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
    """A function of the model, one without attributes, with those that it calls put in place of the nodes that do.

    Raises:
        LinkError: as `inlined`.
    """
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=function.opset_import, functions=model.functions)
    import_what_functions_do(alone)
    described = {info.name: info for info in function.value_info}
    graph = alone.graph
    graph.node.extend(function.node)
    for names, values in ((function.input, graph.input), (function.output, graph.output)):
        values.extend(described.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    result.node.extend(inlined(alone).graph.node)
    used = {spelled(node.domain) for node in all_nodes(result)}
    del result.opset_import[:]
    result.opset_import.extend(entry for entry in alone.opset_import if spelled(entry.domain) in used)
    return result
