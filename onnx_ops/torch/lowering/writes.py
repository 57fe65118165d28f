"""Replaces the writes of a traced graph by operators that return new tensors."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._C._functorch import _wrap_functional_tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.fx.node import Argument, Target
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.base.table import is_decomposed
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.tracing.effects import storages

aten = torch.ops.aten


def without_writes(graph: GraphModule) -> GraphModule:
    """A graph in which results of writes are new tensors; operators that wrote may have decompositions.

    It runs with the mode of the FakeTensors in the graph. Most writes are replaced in the graph itself, as tracing the
    graph again takes much longer.
    """
    _replace_writes(graph)
    modules = (module for module in graph.modules() if isinstance(module, GraphModule))
    return _functionalized(graph) if any(_writes(node) for module in modules for node in module.graph.nodes) else graph


def signature(value: object) -> Any:
    """Sizes, strides and dtype of a tensor; type and text of another value."""
    if isinstance(value, torch.Tensor):
        return str(value.shape), str(value.stride()), value.dtype
    return type(value), str(value)


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


class _Memories:
    """The places of the nodes of a graph in its order, and which of them have memory in common.

    Those are views by their operators, and have one storage: FakeTensors of constants may have different ones.
    """

    def __init__(self, graph: GraphModule) -> None:
        self.places = {node: place for place, node in enumerate(graph.graph.nodes)}
        self._owners: dict[Node, Node] = {}
        self._sharing: defaultdict[Node | int, list[Node]] = defaultdict(list)

    def add(self, node: Node) -> None:
        """Add a node, after those that it is computed from."""
        source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        viewed = source if node.target is operator.getitem else node
        is_view = source is not None and viewed is not None and _aliases(viewed)
        self._owners[node] = self._owners.get(source, source) if is_view and source is not None else node
        for key in self._keys(node):
            self._sharing[key].append(node)

    def sharing(self, node: Node) -> list[Node]:
        """The nodes added so far whose values have memory in common with that of a node."""
        return list(dict.fromkeys(found for key in self._keys(node) for found in self._sharing[key]))

    def read_after(self, write: Node, found: Iterable[Node]) -> list[Node]:
        """Those of some nodes that are read by nodes after a write."""
        return [node for node in found if any(self.places[user] > self.places[write] for user in node.users)]

    def replace_after(self, write: Node, node: Node, new: Node) -> None:
        """Replace a node, where nodes after a write read it."""
        node.replace_all_uses_with(new, lambda user: self.places[user] > self.places[write])

    def _keys(self, node: Node) -> list[Node | int]:
        return [self._owners[node], *storages(tree_leaves(node.meta.get("val")))]


def _aliases(node: Node) -> bool:
    """Whether the result of a node is a view of its first argument, or that itself."""
    return isinstance(node.target, OpOverload) and any(result.alias_info for result in node.target._schema.returns)


def _replace_writes(graph: GraphModule) -> None:
    """Replace writes to memory that the graph has allocated, in place."""
    memories = _Memories(graph)
    for node in list(memories.places):
        made = [node]
        if _writes(node):
            arguments = _written_arguments(node)
            new = _with_whole_results(node, arguments, memories) or _with_memory(node, arguments, memories)
            if new:
                graph.graph.erase_node(node)
                made = new
        for value in made:
            memories.add(value)


def _with_whole_results(node: Node, arguments: Sequence[Node], memories: _Memories) -> list[Node]:
    """Replace a write to memory of which all that is read later is the tensor that is written to.

    Such as a counter, or the input of an activation in place. Returns the nodes that have the new values.
    """
    readers = [_readers(node, argument, memories) for argument in arguments]
    new = _without_writes(node, arguments) if readers and all(readers) else None
    if new is None:
        return []
    result, *written = new
    memories.places.update(dict.fromkeys(new, memories.places[node]))
    node.replace_all_uses_with(result)
    # The result of a write to one tensor is that tensor, that of others is in items of the new node.
    for value, found in zip(written or [result], readers, strict=True):
        for reader in found:
            memories.replace_after(node, reader, value)
    return new


def _written_arguments(node: Node) -> list[Node]:
    """The arguments that a call writes to; empty if they are in containers or named, or have memory in common."""
    parameters = node.target._schema.arguments
    written = [i for i, parameter in enumerate(parameters) if parameter.alias_info and parameter.alias_info.is_write]
    found = [node.args[i] for i in written if i < len(node.args)]
    if len(found) != len(written) or not all(isinstance(argument, Node) for argument in found):
        return []
    return found if len(storages(argument.meta["val"] for argument in found)) == len(found) else []


def _readers(write: Node, argument: Node, memories: _Memories) -> list[Node]:
    """The earlier nodes that are the tensor to which an operator writes; empty if later ones read parts of its memory.

    Args:
        write: the call of the operator.
        argument: the tensor.
        memories: of the nodes before it.
    """
    found = memories.sharing(argument)
    if not _allocates(found[0]):
        return []
    read = dict.fromkeys([argument, *memories.read_after(write, found)])
    return list(read) if all(_is_whole(node.meta["val"], argument.meta.get("val")) for node in read) else []


def _allocates(node: Node) -> bool:
    """Whether a node returns new memory: not that of an input or a constant."""
    made = node.args[0] if node.target is operator.getitem else node
    return isinstance(made, Node) and isinstance(made.target, OpOverload) and not _aliases(made)


def _is_whole(value: object, written: torch.Tensor) -> bool:
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


def _with_memory(node: Node, arguments: Sequence[Node], memories: _Memories) -> list[Node]:
    """Replace a write to a view, or by an operator with a decomposition, by operators that return new memory.

    What is read of the memory later is a view of that. Returns the new nodes.
    """
    target = node.target
    if not isinstance(target, OpOverload) or not len(arguments) == len(target._schema.returns) == 1:
        return []
    path = _path(arguments[0])
    if path is None or torch.Tag.inplace_view in target.tags:  # such as squeeze_, which changes sizes
        return []
    memory, *views = path
    read = memories.read_after(node, memories.sharing(memory))
    paths = [_path(each) for each in read]
    if not all(each and each[0] is memory for each in paths):
        return []
    written = _traced(node, memory, views)
    if written is None:
        return []
    result, nodes = written
    copies = {memory: result}
    with node.graph.inserting_before(node):
        for view in (view for each in (*paths, path) for view in each or ()):
            if view not in copies:
                copies[view] = node.graph.node_copy(view, lambda given: copies.get(given, given))
    made = list(dict.fromkeys([*nodes, *copies.values()]))
    memories.places.update(dict.fromkeys(made, memories.places[node]))
    node.replace_all_uses_with(copies[arguments[0]])
    for each in read:
        memories.replace_after(node, each, copies[each])
    return made


def _path(node: Node) -> list[Node] | None:
    """The node that allocates the memory of a tensor, and those that make views of it, up to the tensor.

    None for memory of inputs and constants, and for views that an operator returns in a list.
    """
    path = [node]
    while not _allocates(path[0]):
        target = path[0].target
        if not isinstance(target, OpOverload) or target._schema.is_mutable or not isinstance(path[0].args[0], Node):
            return None
        path.insert(0, path[0].args[0])
    return path if all(isinstance(each.meta.get("val"), torch.Tensor) for each in path) else None


def _traced(node: Node, memory: Node, views: Sequence[Node]) -> tuple[Node, list[Node]] | None:
    """What memory is after a write to a view of it, by operators that are traced under functionalize.

    Returns:
        The node of the memory, and all new nodes, before the write; None if they need constants, or there are none.
    """
    steps = [*views, node]
    inputs = list(
        dict.fromkeys([memory, *(each for step in steps for each in step.all_input_nodes if each not in views)])
    )

    def run(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        known[memory] = aten.clone.default(known[memory])
        for step in steps:
            args, kwargs = torch.fx.map_arg((step.args, step.kwargs), known.__getitem__)
            known[step] = step.target(*args, **kwargs)
        return known[memory]

    functional = make_fx(
        torch.func.functionalize(run), decomposition_table=TABLE.decompositions, _allow_non_fake_inputs=True
    )(*(each.meta["val"] for each in inputs))
    if functional.graph.find_nodes(op="get_attr") or functional.graph.output_node().args[0].op == "placeholder":
        return None
    copied = dict(zip(functional.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for clone in functional.graph.find_nodes(op="call_function", target=aten.clone.default):
        if copied.get(clone.args[0]) is memory:
            clone.replace_all_uses_with(clone.args[0])
            functional.graph.erase_node(clone)
    with node.graph.inserting_before(node):
        result = node.graph.graph_copy(functional.graph, copied)
    made = [each for each in copied.values() if each not in inputs]
    for each in made:
        each.meta = node.meta | {"val": each.meta["val"]}
    result.meta["val"] = memory.meta["val"]
    return result, made


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

    def get_attr(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        return _wrap_functional_tensor(value, retrieve_current_functorch_interpreter().level())

    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
