"""Whether two graphs of operators compute the same."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_leaves

from onnx_ops.torch.tracing.effects import storage_of, written

aten = torch.ops.aten

COPY = aten.clone.default
OF_MEMORY = {
    aten._reshape_alias,
    aten.as_strided,
    aten.as_strided_,
    aten.as_strided_copy,
    aten.as_strided_scatter,
    aten.is_contiguous,
    aten.resize_,
    aten.resize_as_,
    aten.set_,
    aten.storage_offset,
    aten.stride,
    aten.sym_is_contiguous,
    aten.sym_storage_offset,
    aten.sym_stride,
}
"""Operators whose results depend on where elements are in memory."""


def is_same(one: GraphModule, other: GraphModule) -> bool:
    """Whether two graphs have the same operators with the same arguments.

    But for those that no output depends on, and for copies in place of which the tensors themselves could be used.
    """
    copies = [_copies(graph) for graph in (one, other)]
    rows = [
        [node for node in _needed(graph) if node not in own] for graph, own in zip((one, other), copies, strict=True)
    ]
    if len(rows[0]) != len(rows[1]):
        return False
    places = [{node: place for place, node in enumerate(nodes)} for nodes in rows]
    for own, found in zip(places, copies, strict=True):
        own.update((copy, own[copied]) for copy, copied in found.items() if copied in own)  # a copy of a copy is later
    for left, right in zip(*rows, strict=True):
        if left.op != right.op or (left.op not in ("get_attr", "placeholder") and left.target != right.target):
            return False
        if left.op == "get_attr" and not _equal(_attribute(one, left), _attribute(other, right)):
            return False
        arguments = [
            tree_flatten(map_arg((node.args, node.kwargs), lambda each, own=own: _Place(own[each])))
            for node, own in ((left, places[0]), (right, places[1]))
        ]
        (leaves, structure), (others, other_structure) = arguments
        if structure != other_structure or not all(map(_equal, leaves, others)):
            return False
    return True


class _Place(int):
    """The place of a node in its graph, in place of the node among arguments."""


def _needed(graph: GraphModule) -> list[Node]:
    """The inputs, and the nodes that the outputs depend on, also by what they write to, in their order."""
    pending = [node for node in graph.graph.nodes if node.op == "output" or _written(node)]
    needed = set(graph.graph.find_nodes(op="placeholder"))
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    return [node for node in graph.graph.nodes if node in needed]


def _written(node: Node) -> list[Any]:
    """The arguments that a node writes to."""
    if isinstance(node.target, HigherOrderOperator):
        return node.all_input_nodes
    if not isinstance(node.target, OpOverload):
        return []
    return [leaf for leaf in tree_leaves(list(written(node.target, node.args, node.kwargs))) if leaf is not None]


def _copies(graph: GraphModule) -> dict[Node, Node]:
    """Copies with what they are of, if nothing is written to either afterwards; none if an operator reads strides."""
    if any(getattr(node.target, "overloadpacket", None) in OF_MEMORY for node in graph.graph.nodes):
        return {}
    found: dict[Node, Node] = {}
    changed: set[int | None] = set()
    for node in reversed(graph.graph.nodes):
        if node.target is COPY:
            own = {_storage(node), _storage(node.args[0])}
            if not own & (changed | {None}) and None not in changed:
                found[node] = node.args[0]
        changed.update(map(_storage, _written(node)))
    return dict(reversed(found.items()))


def _storage(node: object) -> int | None:
    """That of the tensor that a node returns; None if it is not known."""
    tensor = node.meta.get("val") if isinstance(node, Node) else None
    return storage_of(tensor) if isinstance(tensor, torch.Tensor) else None


def _attribute(graph: GraphModule, node: Node) -> Any:
    found: Any = graph
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _equal(one: object, other: object) -> bool:
    if isinstance(one, GraphModule) and isinstance(other, GraphModule):
        return is_same(one, other)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (
            type(one) is type(other) is torch.Tensor and one.dtype is other.dtype and torch.equal(one, other)
        )
    return type(one) is type(other) and bool(one == other)
