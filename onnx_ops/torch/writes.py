"""Replaces the writes of a traced graph by operators that return new tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import _wrap_functional_tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.effects import storages
from onnx_ops.torch.operators import TABLE

aten = torch.ops.aten


def without_writes(graph: GraphModule) -> GraphModule:
    """A graph in which results of writes are new tensors; operators that wrote may have decompositions.

    It runs with the mode of the FakeTensors in the graph. Writes to a whole tensor, such as a counter or the input of
    an activation in place, are replaced in the graph itself, as it takes much longer to trace the graph again.
    """
    _replace_whole_writes(graph)
    modules = (module for module in graph.modules() if isinstance(module, GraphModule))
    return _functionalized(graph) if any(_writes(node) for module in modules for node in module.graph.nodes) else graph


def signature(value: Any) -> Any:
    """Sizes, strides and dtype of a tensor; type and text of another value."""
    if isinstance(value, torch.Tensor):
        return str(value.shape), str(value.stride()), value.dtype
    return type(value), str(value)


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _replace_whole_writes(graph: GraphModule) -> None:
    """Replace the writes to memory of which all that is read later is the tensor that is written to, in place."""
    places = {node: place for place, node in enumerate(graph.graph.nodes)}
    sharing: dict[int, list[Node]] = {}
    for node in list(places):
        if _writes(node) and isinstance(node.args[0], Node):
            readers = _readers(node, sharing, places)
            result = _written(node) if readers else None
            if result is not None:
                place = places[result] = places[node]
                for reader in (*readers, node):
                    reader.replace_all_uses_with(result, lambda user, place=place: places[user] > place)
                graph.graph.erase_node(node)
                node = result
        for storage in storages(tree_leaves(node.meta.get("val"))):
            sharing.setdefault(storage, []).append(node)


def _readers(write: Node, sharing: Mapping[int, Sequence[Node]], places: Mapping[Node, int]) -> list[Node]:
    """The earlier nodes that are the tensor to which an operator writes; empty if later ones read parts of its memory.

    Args:
        write: the call of the operator.
        sharing: the nodes before it by the storages of their values.
        places: the order of the nodes.
    """
    written = write.args[0].meta.get("val")
    found = [node for storage in storages([written]) for node in sharing.get(storage, ())]
    if not found or not _allocates(found[0]):
        return []
    read = [node for node in found if any(places[user] >= places[write] for user in node.users)]
    return read if all(_is_whole(node.meta["val"], written) for node in read) else []


def _allocates(node: Node) -> bool:
    """Whether a node returns new memory: not that of an input or a constant."""
    return isinstance(node.target, OpOverload) and all(r.alias_info is None for r in node.target._schema.returns)


def _is_whole(value: Any, written: torch.Tensor) -> bool:
    """Whether a tensor with the storage of another one has the same elements at the same places."""
    return (
        isinstance(value, torch.Tensor)
        and signature(value) == signature(written)
        and str(value.storage_offset()) == str(written.storage_offset())
    )


def _written(node: Node) -> Node | None:
    """The result of a write as a new node before it; None for an operator without one that returns a new tensor."""
    operator = _without_write(node.target)
    if operator is None:
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
    value, written = operator(*args, **kwargs), node.meta["val"]
    if (value.shape, value.dtype) != (written.shape, written.dtype):
        return None
    with node.graph.inserting_before(node):
        result = node.graph.call_function(operator, node.args, node.kwargs)
    result.meta = dict(node.meta)
    return result


def _without_write(operator: OpOverload) -> OpOverload | None:
    """aten.add.Tensor of aten.add_.Tensor; None if there is none, or if it has a decomposition."""
    if operator.namespace != "aten" or not operator._opname.endswith("_"):
        return None
    found = getattr(getattr(aten, operator._opname[:-1], None), operator._overloadname, None)
    if found is None or found in TABLE.decompositions or found._schema.is_mutable:
        return None
    if _arguments(found) != _arguments(operator):  # as of aten.pow.Scalar, whose Tensor is the exponent
        return None
    return found if [result.alias_info for result in found._schema.returns] == [None] else None


def _arguments(operator: OpOverload) -> list[tuple[str, str]]:
    """Names and types of the arguments of an operator."""
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments]


def _functionalized(graph: GraphModule) -> GraphModule:
    """The graph traced again without writes."""
    examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    run = torch.func.functionalize(_Functional(graph).run)
    functional = make_fx(run, decomposition_table=TABLE.decompositions, _allow_non_fake_inputs=True)(*examples)
    for node in functional.graph.find_nodes(op="call_function", target=aten.copy_.default):
        if _source(node.args[1]) is node.args[0]:  # `parameter.data = parameter.data`
            functional.graph.erase_node(node)
    return functional


class _Functional(torch.fx.Interpreter):
    """Runs a graph under functionalize, which replaces writes only to tensors computed from those it has wrapped."""

    def get_attr(self, target: str, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        return _wrap_functional_tensor(value, retrieve_current_functorch_interpreter().level())


def _source(node: Node) -> Node:
    """The node whose value a node has, as it is."""
    while node.target in (aten.detach.default, aten.copy.default):
        destination, value = node.args[0], node.args[-1]
        if signature(destination.meta["val"]) != signature(value.meta["val"]):
            break
        node = value
    return node
