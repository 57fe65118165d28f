"""Makes a model with ops of this domain self-contained.

A node of the domain stays as it is. What `link` attaches is two model-local functions for each op that is used: the op
itself, whose body is one node with the name of its kernel, and a function of that very name in standard operators.
Where the kernel is registered, onnxruntime takes it; where it is not, the second function runs.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence

import onnx
from onnx import AttributeProto, TensorProto, helper, inliner, parser, shape_inference

from onnx_ops.body import Body, attribute_type, function_head
from onnx_ops.domain import DOMAIN, KERNEL_DOMAIN, OPSET_VERSION, kernel_name
from onnx_ops.errors import LinkError, OpError
from onnx_ops.op import Op
from onnx_ops.ops import OPS, op_named
from onnx_ops.roles import Role
from onnx_ops.signature import Call, TensorType, is_optional

FUNCTIONS_SINCE_IR = 8
LARGE = 1024
"""Elements above which an initializer cannot matter to shapes, so that it is left out when they are worked out."""


def link(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model that any session can run.

    Args:
        model: a ModelProto, its bytes, or a path; external data stays external.

    Returns:
        The model with, for each op of the domain that is used in its graph, a subgraph or a function, what the op needs
        to run attached. Everything else is as it was; a model that is linked already comes back the same.

    Raises:
        OpError: a node that its op refuses, by inputs, attributes, dtypes or shapes as far as the model tells them.
        LinkError: a model whose default opset is too old, or whose nodes no one portable body can serve.
    """
    linked = load(model)
    remove_functions(linked)
    present = {node.op_type for _, node in nodes(linked)}
    used = [op for op in OPS.values() if op.name in present]
    check_version(linked)
    for _, node in nodes(linked):
        check_node(linked, node)
    if not used:
        return linked
    _fill_missing(linked, used)
    calls = _calls(linked)
    for op in used:
        for call in calls[op.name]:
            op.kernel.infer(call)
        _spell_out_where_uses_differ(linked, op, calls[op.name])
    opset = default_opset(linked)
    attached = []
    for op in used:
        check_opset(op, opset)
        try:
            body = Body(op, calls[op.name]).function(opset)
        except LinkError:
            _cast_inputs(linked, op)
            body = Body(op, _calls(linked)[op.name]).function(opset)
        attached.extend([body, _public_function(op)])
    # A function after those that it calls: ReferenceEvaluator looks no further than what came before.
    own = list(linked.functions)
    del linked.functions[:]
    linked.functions.extend([*attached, *own])
    for domain, version in ((DOMAIN, OPSET_VERSION), (KERNEL_DOMAIN, 1), ("", opset)):
        _import(linked, domain, version)
    linked.ir_version = max(linked.ir_version, FUNCTIONS_SINCE_IR)
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
    plain = link(model)
    skeleton = _skeleton(plain)
    _spell_out_defaults(skeleton)
    inlined = _inlined(skeleton).graph
    del inlined.initializer[:]
    inlined.initializer.extend(plain.graph.initializer)
    plain.graph.CopyFrom(inlined)
    del plain.functions[:]
    inner = [node for container in containers(plain) for node in container.node]
    for named in (*inner, *plain.opset_import):
        named.domain = _spelled(named.domain)
    used = {"", *(node.domain for node in inner)}
    for entry in skeleton.opset_import:  # those of the functions too
        _import(plain, entry.domain, entry.version)
    for entry in [entry for entry in plain.opset_import if entry.domain not in used]:
        plain.opset_import.remove(entry)
    return plain


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions inlined, those of another default opset converted to the model's."""
    try:
        result = inliner.inline_local_functions(model, convert_version=_has_other_versions(model))
    except Exception as error:  # a RuntimeError, or a ConvertError of its own
        raise LinkError(f"the functions of the model cannot be inlined: {error}") from error
    kept = {(f.domain, f.name): f for f in result.functions}
    for container in containers(result):
        for node in container.node:
            if function := kept.get((node.domain, node.op_type)):
                imports = ", ".join(f"'{entry.domain}' {entry.version}" for entry in function.opset_import)
                raise LinkError(
                    f"function {node.domain}.{node.op_type} cannot be inlined: it imports {imports}, expected the"
                    " versions that the model imports"
                )
    return result


def _has_other_versions(model: onnx.ModelProto) -> bool:
    """Whether a function imports another version of a domain than the model does."""
    own = _versions(model)
    return any(own.get(d, v) != v for function in model.functions for d, v in _versions(function).items())


def load(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model; external data stays external."""
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    if isinstance(model, bytes | bytearray | memoryview):
        return onnx.load_model_from_string(bytes(model))
    return onnx.load_model(os.fspath(model), load_external_data=False)


def _own(function: onnx.FunctionProto) -> bool:
    return (function.domain == DOMAIN and function.name in OPS) or (
        function.domain == KERNEL_DOMAIN and function.name.startswith(f"{DOMAIN}_")
    )


def remove_functions(model: onnx.ModelProto) -> None:
    """Take off what `link` has attached."""
    kept = [f for f in model.functions if not _own(f)]
    if len(kept) != len(model.functions):
        del model.functions[:]
        model.functions.extend(kept)


def _spelled(domain: str) -> str:
    """The domain, in the shorter of the two spellings that the default domain has."""
    return "" if domain == "ai.onnx" else domain


def _versions(importer: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {_spelled(entry.domain): entry.version for entry in importer.opset_import}


def _import(importer: onnx.ModelProto | onnx.FunctionProto, domain: str, version: int) -> None:
    if _spelled(domain) not in _versions(importer):
        importer.opset_import.append(helper.make_opsetid(domain, version))


def default_opset(model: onnx.ModelProto) -> int:
    """The version of the default domain that a model imports; if none, the newest of its functions or of all bodies."""
    versions = _versions(model)
    if "" in versions:
        return versions[""]
    inner = [v[""] for v in map(_versions, model.functions) if "" in v]
    return max(inner or [op.body_opset for op in OPS.values()])


# --- nodes ---------------------------------------------------------------------------------------------------------

Container = onnx.GraphProto | onnx.FunctionProto


def containers(model: onnx.ModelProto) -> Iterator[Container]:
    """The graph, the functions, and the subgraphs of both."""
    pending: list[Container] = [model.graph, *model.functions]
    while pending:
        container = pending.pop()
        yield container
        for node in container.node:
            pending.extend(subgraphs(node))


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    return [g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]


def tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, in initializers and attributes."""
    for container in containers(model):
        if isinstance(container, onnx.GraphProto):
            yield from container.initializer
            for sparse in container.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in container.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)


def nodes(model: onnx.ModelProto) -> Iterator[tuple[Container, onnx.NodeProto]]:
    """All nodes of the domain, with what they stand in."""
    for container in containers(model):
        for node in container.node:
            if node.domain == DOMAIN:
                yield container, node


def check_version(model: onnx.ModelProto) -> None:
    """Refuse a model that imports another version of the domain."""
    for entry in model.opset_import:
        if entry.domain == DOMAIN and entry.version != OPSET_VERSION:
            raise LinkError(f"the model imports version {entry.version} of domain {DOMAIN}, expected {OPSET_VERSION}")


def check_opset(op: Op, opset: int) -> None:
    """Refuse a default opset that lacks operators of an op's portable body."""
    if opset < op.body_opset:
        raise LinkError(
            f"the model imports opset {opset} of the default domain, {op.name} needs {op.body_opset} or newer"
        )


def check_node(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Refuse a node of the domain that no schema describes, unless the model brings a function for it."""
    if any(f.domain == DOMAIN and f.name == node.op_type for f in model.functions):
        return
    op = op_named(node.op_type)
    for attribute in node.attribute:
        expected = op.attribute(attribute.name).default_value.type
        if attribute.type != expected:
            got, wanted = map(AttributeProto.AttributeType.Name, (attribute.type, expected))
            raise OpError(node.op_type, f"attribute '{attribute.name}' has type {got}, expected {wanted}")
    if len(node.output) != 1 or not node.output[0]:
        raise OpError(node.op_type, f"got {len(node.output)} outputs, expected 1")


# --- what is known of the nodes' inputs ----------------------------------------------------------------------------

Types = dict[str, TensorType]
MARK = "node of onnx_ops "


def _calls(model: onnx.ModelProto) -> dict[str, list[Call]]:
    """All uses of each op; one of which nothing is known for an op that no node uses."""
    calls: dict[str, list[Call]] = {name: [] for name in OPS}
    for node, types in typed_nodes(model):
        calls[node.op_type].append(call_of(node, types))
    return {name: own or [OPS[name].call([TensorType()] * len(OPS[name].input_names))] for name, own in calls.items()}


def typed_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, Types]]:
    """The nodes of the domain, with the functions of the model inlined, and the types of all values they can see."""
    skeleton = _skeleton(model)
    if model.functions:
        _spell_out_defaults(skeleton)
        _pretend_versions(skeleton)
        skeleton = inliner.inline_local_functions(skeleton)
    return _typed_nodes(_inferred(skeleton).graph, {})


def uses(model: onnx.ModelProto, chosen: Sequence[onnx.NodeProto]) -> list[list[tuple[onnx.NodeProto, Types]]]:
    """How each of some nodes of a model is run: once for each call of the functions that it stands in."""
    found: list[list[tuple[onnx.NodeProto, Types]]] = [[] for _ in chosen]
    kept = [node.doc_string for node in chosen]
    try:
        for number, node in enumerate(chosen):  # inlining keeps no other trace of where a node comes from
            node.doc_string = f"{MARK}{number}"
        for node, types in typed_nodes(model):
            if node.doc_string.startswith(MARK):
                found[int(node.doc_string.removeprefix(MARK))].append((node, types))
    finally:
        for node, text in zip(chosen, kept, strict=True):
            node.doc_string = text
    return found


def _pretend_versions(model: onnx.ModelProto) -> None:
    """Let all functions import the versions that the model does: the inliner leaves others where they are.

    Types behind an operator that has changed meanwhile may then be unknown; the domain's nodes are seen in any case.
    """
    versions = _versions(model)
    for function in model.functions:
        for entry in function.opset_import:
            entry.version = versions[_spelled(entry.domain)]


def _spell_out_defaults(model: onnx.ModelProto) -> None:
    """Give calls of functions the attributes that they leave to their defaults, which the inliner forgets."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in model.functions if f.attribute_proto}
    for container in containers(model):
        for node in container.node:
            given = {attribute.name for attribute in node.attribute}
            own = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(attribute for attribute in own if attribute.name not in given)


def _spell_out_where_uses_differ(model: onnx.ModelProto, op: Op, calls: Sequence[Call]) -> None:
    """Give an op's nodes the attributes that its body refers to: onnx.inliner forgets defaults."""
    names = [name for name in op.schema.attributes if len({call.attributes[name] for call in calls}) > 1]
    for _, node in nodes(model):
        if node.op_type == op.name:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(op.schema.attributes[n].default_value for n in names if n not in given)


def call_of(node: onnx.NodeProto, types: Types) -> Call:
    """What is known of a node; OpError for one with too many inputs."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    return OPS[node.op_type].call([types.get(i, TensorType()) if i else None for i in node.input], attributes)


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the weight of its initializers."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = model.graph
    for field, value in graph.ListFields():
        if field.name != "initializer":
            getattr(light.graph, field.name).extend(value) if field.is_repeated else setattr(
                light.graph, field.name, value
            )
    for tensor in graph.initializer:
        external = tensor.data_location == TensorProto.EXTERNAL
        if external or math.prod(tensor.dims) > LARGE:
            light.graph.initializer.append(TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type))
        else:
            light.graph.initializer.append(tensor)
    # What a model lacks that leaves it to its functions, or that was made with onnx.helper alone.
    for domain, version in ((DOMAIN, OPSET_VERSION), ("", default_opset(model))):
        _import(light, domain, version)
    for function in model.functions:
        for entry in function.opset_import:
            _import(light, entry.domain, entry.version)
    return light


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with value_info as far as it can be told."""
    return shape_inference.infer_shapes(model, data_prop=True)


def _typed_nodes(graph: onnx.GraphProto, outer: Types) -> Iterator[tuple[onnx.NodeProto, Types]]:
    """The nodes of the domain in a graph and its subgraphs, with the types of all values they can see."""
    types = dict(outer)
    for tensor in graph.initializer:
        types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.HasField("tensor_type"):
            types[info.name] = tensor_type(info.type)
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type in OPS:
            yield node, types
        for subgraph in subgraphs(node):
            yield from _typed_nodes(subgraph, types)


def tensor_type(proto: onnx.TypeProto) -> TensorType:
    """What a TypeProto tells of a tensor."""
    tensor = proto.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)
    return TensorType(tensor.elem_type or None, shape)


# --- what a function body cannot say is settled at the node --------------------------------------------------------


def _fill_missing(model: onnx.ModelProto, used: Sequence[Op]) -> None:
    """Give ones to nodes that leave out an input that another node of the same op has."""
    taken = _value_names(model)
    for op in used:
        optional = [i for i, p in enumerate(op.schema.inputs) if is_optional(p)]
        placed = [(c, n) for c, n in nodes(model) if n.op_type == op.name]
        for index in optional:
            name = op.input_names[index]
            if not any(_has_input(n, index) for _, n in placed):
                continue
            for container, node in placed:
                if not _has_input(node, index):
                    node.input.extend([""] * (index + 1 - len(node.input)))
                    ones = _ones(op, node, name, taken)
                    node.input[index] = ones[-1].output[0]
                    _insert_before(model, container, node, ones)


def _has_input(node: onnx.NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _value_names(model: onnx.ModelProto) -> set[str]:
    names = {value for container in containers(model) for n in container.node for value in (*n.input, *n.output)}
    for container in containers(model):
        if isinstance(container, onnx.GraphProto):
            names.update(v.name for v in (*container.input, *container.output, *container.initializer))
        else:
            names.update((*container.input, *container.output))
    return names


def _new_name(wish: str, taken: set[str]) -> str:
    name = next(n for n in itertools.chain([wish], (f"{wish}_{k}" for k in itertools.count(2))) if n not in taken)
    taken.add(name)
    return name


def _ones(op: Op, node: onnx.NodeProto, name: str, taken: set[str]) -> list[onnx.NodeProto]:
    out = _new_name(f"{node.output[0]}_{name}_ones", taken)
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    roles: dict[str, Role] = getattr(op.kernel, "roles", {})
    if not roles[name] & Role.CHANNEL:
        return [helper.make_node("Constant", [], [out], value_float=1.0)]
    like = next(i for i, own in enumerate(roles.values()) if own & Role.CHANNEL)
    shape = _new_name(f"{out}_shape", taken)
    return [
        helper.make_node("Shape", [node.input[like]], [shape]),
        helper.make_node("ConstantOfShape", [shape], [out], value=one),
    ]


def _insert_before(
    model: onnx.ModelProto, container: Container, node: onnx.NodeProto, made: Sequence[onnx.NodeProto]
) -> None:
    """Put nodes in standard operators before a node of the model."""
    place = next(i for i, other in enumerate(container.node) if other.output[:] == node.output[:])
    for offset, new in enumerate(made):
        container.node.insert(place + offset, new)
    if isinstance(container, onnx.FunctionProto):
        _import(container, "", default_opset(model))


def _cast_inputs(model: onnx.ModelProto, op: Op) -> None:
    """Cast the inputs of an op's nodes with mixed dtypes, where one body cannot serve all the mixtures."""
    taken = _value_names(model)
    placed = [(container, node) for container, node in nodes(model) if node.op_type == op.name]
    for (container, node), runs in zip(placed, uses(model, [node for _, node in placed]), strict=True):
        calls = [call_of(*run) for run in runs]
        if len({tuple(map(call.dtype, op.input_names)) for call in calls}) != 1:
            continue  # not used, or by several calls of a function that bring different dtypes
        dtype = op.kernel.infer(calls[0]).dtype
        for index, name in enumerate(op.input_names):
            if calls[0].dtype(name) not in (dtype, None) and dtype is not None:
                cast = _new_name(f"{node.output[0]}_{name}_cast", taken)
                made = helper.make_node("Cast", [node.input[index]], [cast], to=dtype)
                _insert_before(model, container, node, [made])
                node.input[index] = cast


def _public_function(op: Op) -> onnx.FunctionProto:
    """The op as a function whose body is its kernel."""
    attributes = ", ".join(f"{name}: {attribute_type(a)} = @{name}" for name, a in op.schema.attributes.items())
    return parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["{KERNEL_DOMAIN}": 1]>\n{function_head(op, op.name)} {{\n'
        f"{op.output_name} = {KERNEL_DOMAIN}.{kernel_name(op.name)}"
        f" {f'<{attributes}>' if attributes else ''} ({', '.join(op.input_names)})\n}}"
    )
