"""Whether two graphs of operators compute the same."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils._sympy.value_ranges import ValueRanges

from onnx_ops.torch.tracing.certainty import is_certain
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


@dataclass(frozen=True)
class Sizes:
    """Dynamic sizes for which graphs are compared.

    Attributes:
        values: those of the first graph, in terms of those of the second one.
        ranges: of the second one's.
    """

    values: Mapping[sympy.Symbol, sympy.Expr]
    ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]

    def are_equal(self, one: sympy.Expr, other: sympy.Expr) -> bool:
        """Whether two sizes are equal for all that they are computed from."""
        one, other = one.xreplace(self.values), other.xreplace(self.values)
        if one == other:
            return True
        equation = sympy.Eq(one, other)
        return equation is sympy.true or (equation is not sympy.false and is_certain(equation, self.ranges))


def is_same(one: GraphModule, other: GraphModule, sizes: Sizes | None = None) -> bool:
    """Whether two graphs have the same operators with the same arguments.

    But for those that no output depends on, and for copies in place of which the tensors themselves could be used.

    Args:
        one: a graph.
        other: another one.
        sizes: for which they are compared: slices are left out that are whole then, and padding that is empty. None for
            all sizes, which have the same symbols in both.
    """
    passed = [_passed_on(graph, sizes) for graph in (one, other)]
    numbers: list[dict[Node, object]] = [{} if sizes is None else _sizes(graph) for graph in (one, other)]
    rows = [
        [node for node in _needed(graph, own, known) if node not in own]
        for graph, own, known in zip((one, other), passed, numbers, strict=True)
    ]
    if len(rows[0]) != len(rows[1]):
        return False
    places = [
        known | {node: _Place(place) for place, node in enumerate(nodes)}
        for known, nodes in zip(numbers, rows, strict=True)
    ]
    for own, found in zip(places, passed, strict=True):
        own.update((node, own[same]) for node, same in found.items() if same in own)  # a copy of a copy is later
    for left, right in zip(*rows, strict=True):
        if left.op != right.op or (left.op not in ("get_attr", "placeholder") and _target(left) != _target(right)):
            return False
        if left.op == "get_attr" and not _equal(_attribute(one, left), _attribute(other, right), sizes):
            return False
        arguments = [
            tree_flatten(map_arg(_arguments(node, sizes), lambda each, own=own: own[each]))
            for node, own in ((left, places[0]), (right, places[1]))
        ]
        (leaves, structure), (others, other_structure) = arguments
        if structure != other_structure or not all(_equal(*pair, sizes) for pair in zip(leaves, others, strict=True)):
            return False
    return True


class _Place(int):
    """The place of a node in its graph, in place of the node among arguments."""


def _needed(graph: GraphModule, passed: Mapping[Node, Node], numbers: Collection[Node]) -> list[Node]:
    """The inputs, and the nodes that the outputs depend on, also by what they write to, in their order.

    Args:
        graph: the nodes.
        passed: nodes in place of which others are used, with these.
        numbers: nodes that are known without others.
    """
    pending = [node for node in graph.graph.nodes if node.op == "output" or _written(node)]
    needed = set(graph.graph.find_nodes(op="placeholder"))
    while pending:
        node = pending.pop()
        if node not in needed and node not in numbers:
            needed.add(node)
            pending += [passed[node]] if node in passed else node.all_input_nodes
    return [node for node in graph.graph.nodes if node in needed]


def _written(node: Node) -> list[Any]:
    """The arguments that a node writes to."""
    if isinstance(node.target, HigherOrderOperator):
        return node.all_input_nodes
    if not isinstance(node.target, OpOverload):
        return []
    return [leaf for leaf in tree_leaves(list(written(node.target, node.args, node.kwargs))) if leaf is not None]


def _passed_on(graph: GraphModule, sizes: Sizes | None) -> dict[Node, Node]:
    """Nodes that return the elements of a tensor, with the tensor: whole slices, and copies.

    Copies if nothing is written to either tensor afterwards. No nodes if an operator reads strides.
    """
    if any(getattr(node.target, "overloadpacket", None) in OF_MEMORY for node in graph.graph.nodes):
        return {}
    found: dict[Node, Node] = {}
    changed: set[int | None] = set()
    for node in reversed(graph.graph.nodes):
        if sizes is not None and _is_whole_slice(node, sizes):
            found[node] = node.args[0]
        elif (copied := _copied(node, sizes)) is not None:
            own = {_storage(node), _storage(copied)}
            if not own & (changed | {None}) and None not in changed:
                found[node] = copied
        changed.update(map(_storage, _written(node)))
    return dict(reversed(found.items()))


def _is_whole_slice(node: Node, sizes: Sizes) -> bool:
    """Whether a node is a slice of all elements."""
    return (
        node.target is aten.slice.Tensor
        and node.args[4:] in ((), (1,))
        and _are_of_one_shape(node, node.args[0], sizes)
    )


def _are_of_one_shape(one: object, other: object, sizes: Sizes) -> bool:
    """Whether two nodes, of as many axes, return tensors of the same shape."""
    shape, expected = _shape(one), _shape(other)
    return shape is not None and expected is not None and all(map(sizes.are_equal, shape, expected))


def _copied(node: Node, sizes: Sizes | None) -> Node | None:
    """The tensor whose elements a node copies: all of them, and no others."""
    if node.target is COPY:
        return node.args[0]
    if sizes is None:
        return None
    if node.target is aten.slice_backward.default:
        return node.args[0] if node.args[5] == 1 and _are_of_one_shape(node, node.args[0], sizes) else None
    if node.target is aten.constant_pad_nd.default:
        amounts = [_number(amount) for amount in node.args[1]]
        nothing = all(amount is not None and sizes.are_equal(amount, sympy.S.Zero) for amount in amounts)
        return node.args[0] if nothing else None
    if node.target is aten.cat.default:
        axis = node.args[1] if len(node.args) > 1 else 0
        shapes = [_shape(each) for each in node.args[0]]
        if any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
            return None
        some = [
            each
            for each, shape in zip(node.args[0], shapes, strict=True)
            if not sizes.are_equal((shape or [])[axis], sympy.S.Zero)
        ]
        return some[0] if len(some) == 1 and _dtype(some[0]) is _dtype(node) else None
    return None


def _shape(node: object) -> list[sympy.Expr] | None:
    """The sizes of the tensor that a node returns; None if it returns no tensor."""
    tensor = node.meta.get("val") if isinstance(node, Node) else None
    return [_expression(size) for size in tensor.shape] if isinstance(tensor, torch.Tensor) else None


def _dtype(node: Node) -> torch.dtype:
    return node.meta["val"].dtype


def _number(value: object) -> sympy.Expr | None:
    """An integer among the arguments of a node, in terms of sizes; None for any other argument."""
    if isinstance(value, Node):
        return _size(value)
    return sympy.Integer(value) if isinstance(value, int) and not isinstance(value, bool | _Place) else None


def _sizes(graph: GraphModule) -> dict[Node, object]:
    """Nodes that return integers in terms of sizes of the inputs, with these."""
    return {node: size for node in graph.graph.nodes if (size := _size(node)) is not None}


def _size(node: Node) -> sympy.Expr | None:
    """An integer that a node returns, in terms of sizes of the inputs; None if it returns anything else."""
    value = node.meta.get("val")
    if not isinstance(value, torch.SymInt) or not value.node.has_hint():
        return None
    return _expression(value)


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _arguments(node: Node, sizes: Sizes | None) -> tuple[object, object]:
    """The arguments of a node; the sizes that a view has, among which the one may be written as -1."""
    if sizes is not None and _target(node) is aten.view.default:
        return (node.args[0], _shape(node)), {}
    return node.args, node.kwargs


def _target(node: Node) -> object:
    """The operator of a node; that of a view for views of which nothing else is left."""
    return aten.view.default if node.target is aten._unsafe_view.default else node.target


def _storage(node: object) -> int | None:
    """That of the tensor that a node returns; None if it is not known."""
    tensor = node.meta.get("val") if isinstance(node, Node) else None
    return storage_of(tensor) if isinstance(tensor, torch.Tensor) else None


def _attribute(graph: GraphModule, node: Node) -> Any:
    found: Any = graph
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _equal(one: object, other: object, sizes: Sizes | None) -> bool:
    if isinstance(one, GraphModule) and isinstance(other, GraphModule):
        return is_same(one, other, sizes)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (
            type(one) is type(other) is torch.Tensor and one.dtype is other.dtype and torch.equal(one, other)
        )
    if sizes is not None and (isinstance(one, sympy.Expr) or isinstance(other, sympy.Expr)):
        left, right = (each if isinstance(each, sympy.Expr) else _number(each) for each in (one, other))
        return left is not None and right is not None and sizes.are_equal(left, right)
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)
