"""Replaces the writes of a traced graph by operators that return new tensors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import _wrap_functional_tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.base.table import is_decomposed
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.tracing.effects import storages

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
        made = [node]
        if _writes(node):
            arguments = _written_arguments(node)
            readers = [_readers(node, argument, sharing, places) for argument in arguments]
            new = _without_writes(node, arguments) if readers and all(readers) else None
            if new is not None:
                result, *written = made = new
                places.update(dict.fromkeys(made, place := places[node]))
                node.replace_all_uses_with(result)
                # The result of a write to one tensor is that tensor, that of others is in items of the new node.
                for value, found in zip(written or [result], readers, strict=True):
                    for reader in found:
                        reader.replace_all_uses_with(value, lambda user, place=place: places[user] > place)
                graph.graph.erase_node(node)
        for value in made:
            for storage in storages(tree_leaves(value.meta.get("val"))):
                sharing.setdefault(storage, []).append(value)


def _written_arguments(node: Node) -> list[Node]:
    """The arguments that a call writes to; empty if they are in containers or named, or have memory in common."""
    parameters = node.target._schema.arguments
    written = [i for i, parameter in enumerate(parameters) if parameter.alias_info and parameter.alias_info.is_write]
    found = [node.args[i] for i in written if i < len(node.args)]
    if len(found) != len(written) or not all(isinstance(argument, Node) for argument in found):
        return []
    return found if len(storages(argument.meta["val"] for argument in found)) == len(found) else []


def _readers(
    write: Node, argument: Node, sharing: Mapping[int, Sequence[Node]], places: Mapping[Node, int]
) -> list[Node]:
    """The earlier nodes that are the tensor to which an operator writes; empty if later ones read parts of its memory.

    Args:
        write: the call of the operator.
        argument: the tensor.
        sharing: the nodes before it by the storages of their values.
        places: the order of the nodes.
    """
    written = argument.meta.get("val")
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


def _without_writes(node: Node, arguments: Sequence[Node]) -> list[Node] | None:
    """A call that returns new tensors in place of one that writes, as new nodes before it.

    Args:
        node: the call.
        arguments: those that it writes to.

    Returns:
        The call, then, if it returns several tensors, those of its items that the other one writes to its arguments;
        None for an operator without one that returns new tensors.
    """
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
    target = _without_write(node.target, len(arguments))
    if target is None or is_decomposed(target, args):
        return None
    changed = [argument.meta["val"] for argument in arguments]
    several = len(target._schema.returns) > 1
    expected = (*node.meta["val"], *changed) if several else (node.meta["val"],)
    found = target(*args, **kwargs)
    if [(t.shape, t.dtype) for t in tree_leaves(found)] != [(t.shape, t.dtype) for t in expected]:
        return None
    with node.graph.inserting_before(node):
        result = node.graph.call_function(target, node.args, node.kwargs)
        result.meta = node.meta | {"val": expected if several else expected[0]}
        items = range(len(expected) - len(changed), len(expected)) if several else ()
        made = [node.graph.call_function(operator.getitem, (result, i)) for i in items]
    for item, value in zip(made, changed, strict=several):
        item.meta = node.meta | {"val": value}
    return [result, *made]


def _without_write(target: OpOverload, written: int) -> OpOverload | None:
    """aten.add.Tensor of aten.add_.Tensor, or aten.x_functional of aten.x with several results; None if there is none.

    Those of the second kind return the tensors that the others write to after these results. `written` is the number of
    arguments that are written to.
    """
    in_place = target._opname.endswith("_")
    if target.namespace != "aten" or in_place != (len(target._schema.returns) == written == 1):
        return None
    name = target._opname[:-1] if in_place else f"{target._opname}_functional"
    found = getattr(getattr(aten, name, None), target._overloadname, None)
    if found is None or found._schema.is_mutable:
        return None
    if _arguments(found) != _arguments(target):  # as of aten.pow.Scalar, whose Tensor is the exponent
        return None
    results = len(target._schema.returns) + (0 if in_place else written)
    return found if [result.alias_info for result in found._schema.returns] == [None] * results else None


def _arguments(operator: OpOverload) -> list[tuple[str, str]]:
    """Names and types of the arguments of an operator."""
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments]


def _functionalized(graph: GraphModule) -> GraphModule:
    """The graph traced again without writes."""
    examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    run = torch.func.functionalize(_Functional(graph).run)
    functional = make_fx(run, decomposition_table=TABLE.decompositions, _allow_non_fake_inputs=True)(*examples)
    result = functional.graph.output_node()
    for node in functional.graph.find_nodes(op="call_function", target=aten.copy_.default):
        argument, value = node.args[:2]
        # `parameter.data = parameter.data`, or the last value of an argument of the loss, which only its caller sees.
        if _source(value) is argument or argument.op == "placeholder":
            argument.replace_all_uses_with(value, lambda user: user is result)
            node.replace_all_uses_with(value)
            functional.graph.erase_node(node)
    return functional


class _Functional(torch.fx.Interpreter):
    """Runs a graph under functionalize, which replaces writes only to tensors computed from those it has wrapped."""

    def get_attr(self, target: str, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        return _wrap_functional_tensor(value, retrieve_current_functorch_interpreter().level())

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # A write to one of the results of unbind makes numbers of dynamic sizes.
        if target is aten.unbind.int and any(map(is_symbolic, args[0].shape)):
            axis = args[1] if len(args) > 1 else 0
            return [args[0].select(axis, i) for i in range(args[0].shape[axis])]
        return super().call_function(target, args, kwargs)


def _source(node: Node) -> Node:
    """The node whose value a node has, as it is."""
    while node.target in (aten.detach.default, aten.copy.default):
        destination, value = node.args[0], node.args[-1]
        if signature(destination.meta["val"]) != signature(value.meta["val"]):
            break
        node = value
    return node
