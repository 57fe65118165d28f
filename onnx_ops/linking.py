"""Makes a model with ops of this domain self-contained.

A node of the domain stays as it is. What `link` attaches is two model-local functions for each op that is used: the op
itself, whose body is one node with the name of its kernel, and a function of that very name in standard operators.
Where the kernel is registered, onnxruntime takes it; where it is not, the second function runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from onnx_ops.body import ATTACHED_BY, Body, public_function
from onnx_ops.domain import DOMAIN, KERNEL_DOMAIN, OPSET_VERSION, kernel_name
from onnx_ops.errors import LinkError, at_node
from onnx_ops.graph import reading
from onnx_ops.graph.edits import Insertions, Names
from onnx_ops.graph.functions import (
    Key,
    called_key,
    check_calls,
    function_key,
    import_what_functions_do,
    inlined,
    spell_out_defaults,
)
from onnx_ops.graph.imports import add_import, spelled, versions
from onnx_ops.graph.types import skeleton
from onnx_ops.graph.walk import containers, function_text, placed_nodes
from onnx_ops.op import Op
from onnx_ops.ops import OPS
from onnx_ops.roles import Role
from onnx_ops.signature import TensorType, is_optional
from onnx_ops.sites import Site, check_size, find_calls, opset_of, sites
from onnx_ops.version import __version__

FUNCTIONS_SINCE_IR = 8
LINKED_BY = "onnx_ops.version"
"""The key of a linked model's metadata under which stands the version that has linked it."""


def link(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model that any session can run.

    Args:
        model: a ModelProto, its bytes, or a path; external data stays external.

    Returns:
        The model with, for each op of the domain that is used in its graph, a subgraph or a function, what the op needs
        to run attached, and the version of onnx_ops in its metadata. Everything else is as it was; a model that this
        version has linked comes back the same. What other tools have made of a linked model is linked anew: nodes of
        kernels, renamed functions.

    Raises:
        OSError: a file that cannot be read.
        OpError: a node that its op refuses, by inputs, attributes, dtypes or shapes as far as the model tells them.
        LinkError: what is no model; one whose default opset is too old, whose nodes no one portable body can serve, or
            whose functions cannot be called as they are.
    """
    linked = load(model)
    restore(linked)
    found = sites(linked)
    check_imports(linked)
    if not found:
        return linked
    find_calls(linked, found)
    _check(found)
    used = used_ops(found)
    insertions, names = Insertions(), Names(linked)
    for op in used:
        _fill_missing(op, _of(op, found), insertions, names)
    opset = opset_of(linked)
    attached = []
    for op in used:
        check_opset(op, opset)
        own = _of(op, found)
        _spell_out_where_uses_differ(op, own)
        try:
            body = _body(op, own, opset)
        except LinkError:
            _cast_inputs(op, own, insertions, names)
            body = _body_after_casts(op, own, opset)
        attached.extend([body, public_function(op, versions(linked).get(KERNEL_DOMAIN, 1))])
    for site in found:  # a function that has been given a node in standard operators, or never imported the domain
        add_import(site.place.importer, DOMAIN, OPSET_VERSION)
        if insertions.has(site.place):
            add_import(site.place.importer, "", opset)
    insertions.apply(linked)
    # A function after those that it calls: ReferenceEvaluator looks no further than what came before.
    brought = list(linked.functions)
    del linked.functions[:]
    linked.functions.extend([*attached, *brought])
    for domain, version in ((DOMAIN, OPSET_VERSION), (KERNEL_DOMAIN, 1), ("", opset)):
        add_import(linked, domain, version)
    linked.ir_version = max(linked.ir_version, FUNCTIONS_SINCE_IR)
    _note_version(linked)
    return linked


def inline(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model in standard operators alone, for runtimes that know neither the domain nor functions.

    Args:
        model: as for `link`.

    Returns:
        The linked model with all functions, those that it came with too, put in place of the nodes that call them. It
        runs on the portable bodies everywhere, also where the kernels are registered.

    Raises:
        OpError, LinkError: as `link`; LinkError also for a function that imports another version of a domain than the
            model, the default domain's apart.
    """
    plain = load(model)
    restore(plain)
    check_calls(plain)
    check_size(plain)
    plain = link(plain)
    light = skeleton(plain)
    add_import(light, "", opset_of(light))
    import_what_functions_do(light)
    spell_out_defaults(light)
    graph = inlined(light).graph
    del graph.initializer[:]
    graph.initializer.extend(plain.graph.initializer)
    plain.graph.CopyFrom(graph)
    del plain.functions[:]
    inner = [node for container in containers(plain) for node in container.node]
    for named in (*inner, *plain.opset_import):
        named.domain = spelled(named.domain)
    used = {"", *(node.domain for node in inner)}
    for entry in light.opset_import:  # those of the functions too
        add_import(plain, entry.domain, entry.version)
    for entry in [entry for entry in plain.opset_import if entry.domain not in used]:
        plain.opset_import.remove(entry)
    return plain


def load(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model; external data stays external.

    Raises:
        LinkError: what is no model.
    """
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        reading.check(copy)
        return copy
    if isinstance(model, bytes | bytearray | memoryview):
        return reading.parse(bytes(model))
    return reading.read(Path(os.fspath(model)))


# --- what is linked already -------------------------------------------------------------------------------------------


def _note_version(model: onnx.ModelProto) -> None:
    entry = next((e for e in model.metadata_props if e.key == LINKED_BY), None) or model.metadata_props.add()
    entry.key, entry.value = LINKED_BY, __version__


def linked_by(model: onnx.ModelProto) -> str | None:
    """The version that has linked a model, if its metadata tells."""
    return next((entry.value for entry in model.metadata_props if entry.key == LINKED_BY), None)


def restore(model: onnx.ModelProto) -> bool:
    """Make a linked model what it was before, also if other tools have changed it since.

    Nodes that use an op by other names become nodes of the domain: those of a kernel, as an inliner or an optimised
    model leaves them, and calls of attached functions that have got a prefix. Attached functions go.

    Returns:
        Whether anything was attached.

    Raises:
        LinkError: a function of the model has the name of an op, but is none that `link` attaches.
    """
    attached = {function_key(f): op for f in model.functions if (op := _attached(f))}
    kept = [f for f in model.functions if function_key(f) not in attached]
    brought = {function_key(f) for f in kept}
    for op in OPS.values():
        if (key := (DOMAIN, op.name, "")) in brought:
            raise LinkError(f"the model brings a function {function_text(*key)} of its own, which is the name of an op")
    for _, node in placed_nodes(model):
        if called_key(node) not in brought:
            _restore_node(node, attached)
    if attached:
        del model.functions[:]
        model.functions.extend(kept)
    return bool(attached)


def _restore_node(node: onnx.NodeProto, attached: Mapping[Key, Op]) -> None:
    if op := attached.get(called_key(node)):
        node.domain, node.op_type = DOMAIN, op.name
    elif node.domain == KERNEL_DOMAIN and node.op_type.startswith(kernel_name("")):
        node.domain, node.op_type = DOMAIN, node.op_type.removeprefix(kernel_name(""))
    if node.domain == DOMAIN and node.op_type in OPS:
        node.ClearField("overload")  # the ops have none


def _attached(function: onnx.FunctionProto) -> Op | None:
    """The op that `link` has attached a function for, under its own name or with a prefix."""
    if function.overload:
        return None
    if function.domain == KERNEL_DOMAIN:
        op = kernel_op(function.name)
        same = op and (function.name == kernel_name(op.name) or list(function.input) == list(op.input_names))
        return op if same else None
    if function.domain != DOMAIN:
        return None
    if ATTACHED_BY in function.doc_string:
        return next((op for op in OPS.values() if function.name.endswith(op.name)), None)
    op = kernel_op(function.node[0].op_type) if len(function.node) == 1 else None
    calls_kernel = op and function.node[0].domain == KERNEL_DOMAIN and function.name.endswith(op.name)
    return op if calls_kernel else None


def kernel_op(name: str) -> Op | None:
    """The op whose kernel has this name, or this name behind a prefix."""
    return next((op for op in OPS.values() if name.endswith(kernel_name(op.name))), None)


# --- what is refused -------------------------------------------------------------------------------------------------


def used_ops(found: Iterable[Site]) -> list[Op]:
    """The ops that nodes use."""
    present = {site.node.op_type for site in found}
    return [op for op in OPS.values() if op.name in present]


def check_imports(model: onnx.ModelProto) -> None:
    """Refuse a model, or a function of it, that imports another version of the domain."""
    importers = [("the model", model), *((f"function {function_text(*function_key(f))}", f) for f in model.functions)]
    for text, importer in importers:
        for entry in importer.opset_import:
            if entry.domain == DOMAIN and entry.version != OPSET_VERSION:
                raise LinkError(f"{text} imports version {entry.version} of domain {DOMAIN}, expected {OPSET_VERSION}")


def check_opset(op: Op, opset: int) -> None:
    """Refuse a default opset that lacks operators of an op's portable body."""
    if opset < op.body_opset:
        raise LinkError(
            f"the model imports opset {opset} of the default domain, {op.name} needs {op.body_opset} or newer"
        )


def _check(found: Iterable[Site]) -> None:
    """Raise the first refusal of a node or a call."""
    accepted = set()
    for site in found:
        op = site.op()
        for refusal in site.refusals:
            raise refusal
        for call in site.calls:
            if call.key not in accepted:
                with at_node(site.words):
                    op.kernel.infer(call)
                accepted.add(call.key)


# --- what a function body cannot say is settled at the node ----------------------------------------------------------


def _of(op: Op, found: Iterable[Site]) -> list[Site]:
    return [site for site in found if site.node.op_type == op.name]


def _body(op: Op, own: Iterable[Site], opset: int) -> onnx.FunctionProto:
    """The body that serves all calls; one of which nothing is known if there is none, as in a function never called."""
    calls = {call.key: call for site in own for call in site.calls}
    return Body(op, list(calls.values()) or [op.call([TensorType()] * len(op.input_names))]).function(opset)


def _body_after_casts(op: Op, own: Sequence[Site], opset: int) -> onnx.FunctionProto:
    try:
        return _body(op, own, opset)
    except LinkError as error:
        several = [site.words for site in own if len(_mixtures(op, site)) > 1]
        raise LinkError(f"{error}: {', '.join(filter(None, several))}") from error


def _mixtures(op: Op, site: Site) -> set[tuple[int | None, ...]]:
    """The dtypes of the inputs of a node, one mixture for each that calls of the function around it bring."""
    return {tuple(map(call.dtype, op.input_names)) for call in site.calls}


def _fill_missing(op: Op, own: Sequence[Site], insertions: Insertions, names: Names) -> None:
    """Give ones to nodes that leave out an input that another node of the op has."""
    for index, parameter in enumerate(op.schema.inputs):
        lacking = [site for site in own if not _has_input(site.node, index)]
        if not is_optional(parameter) or len(lacking) == len(own):
            continue
        for site in lacking:
            site.node.input.extend([""] * (index + 1 - len(site.node.input)))
            made = _ones(op, site.node, parameter.name, names)
            insertions.before(site.place, site.node, made)
            site.node.input[index] = made[-1].output[0]
            like = _channel_input(op, parameter.name)
            site.calls = [
                call.with_input(parameter.name, TensorType(TensorProto.FLOAT, call.shape(like) if like else ()))
                for call in site.calls
            ]


def _has_input(node: onnx.NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _channel_input(op: Op, name: str) -> str | None:
    """For an input of one number per channel, another that is always there; None for an input that broadcasts."""
    roles: dict[str, Role] = getattr(op.kernel, "roles", {})
    return next(n for n, own in roles.items() if own & Role.CHANNEL) if roles[name] & Role.CHANNEL else None


def _ones(op: Op, node: onnx.NodeProto, name: str, names: Names) -> list[onnx.NodeProto]:
    out = names.new(f"{node.output[0]}_{name}_ones")
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    like = _channel_input(op, name)
    if like is None:
        return [helper.make_node("Constant", [], [out], value_float=1.0)]
    shape = names.new(f"{out}_shape")
    return [
        helper.make_node("Shape", [node.input[op.input_names.index(like)]], [shape]),
        helper.make_node("ConstantOfShape", [shape], [out], value=one),
    ]


def _spell_out_where_uses_differ(op: Op, own: Sequence[Site]) -> None:
    """Give an op's nodes the attributes that its body refers to: onnx.inliner forgets defaults."""
    calls = {call.key: call for site in own for call in site.calls}.values()
    wanted = [name for name in op.schema.attributes if len({call.attributes[name] for call in calls}) > 1]
    for site in own:
        given = {attribute.name for attribute in site.node.attribute}
        site.node.attribute.extend(op.schema.attributes[n].default_value for n in wanted if n not in given)


def _cast_inputs(op: Op, own: Sequence[Site], insertions: Insertions, names: Names) -> None:
    """Cast the inputs of an op's nodes with mixed dtypes, where one body cannot serve all the mixtures."""
    for site in own:
        if len(_mixtures(op, site)) != 1:
            continue  # not used, or by several calls of a function that bring different dtypes
        dtype = op.kernel.infer(site.calls[0]).dtype
        for index, name in enumerate(op.input_names):
            if site.calls[0].dtype(name) not in (dtype, None) and dtype is not None:
                cast = names.new(f"{site.node.output[0]}_{name}_cast")
                made = helper.make_node("Cast", [site.node.input[index]], [cast], to=dtype)
                insertions.before(site.place, site.node, [made])
                site.node.input[index] = cast
                site.calls = [call.with_input(name, TensorType(dtype, call.shape(name))) for call in site.calls]
