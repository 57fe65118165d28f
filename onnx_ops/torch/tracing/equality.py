"""Whether two graphs of operators compute the same."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten


def is_same(one: GraphModule, other: GraphModule) -> bool:
    """Whether two graphs have the same operators with the same arguments, but for those that no output depends on."""
    rows = [_needed(graph) for graph in (one, other)]
    if len(rows[0]) != len(rows[1]):
        return False
    places = [{node: place for place, node in enumerate(nodes)} for nodes in rows]
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
    """The inputs, and the nodes that the outputs depend on, in their order."""
    pending = list(graph.graph.find_nodes(op="output"))
    needed = set(graph.graph.find_nodes(op="placeholder"))
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    return [node for node in graph.graph.nodes if node in needed]


def _attribute(graph: GraphModule, node: Node) -> Any:
    found: Any = graph
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, GraphModule) and isinstance(other, GraphModule):
        return is_same(one, other)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (
            type(one) is type(other) is torch.Tensor and one.dtype is other.dtype and torch.equal(one, other)
        )
    return type(one) is type(other) and bool(one == other)
