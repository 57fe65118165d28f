"""Attention reads heads where projections have them.

PyTorch's attention takes (batch, heads, positions, features), and a projection has (batch, positions, heads, features):
models transpose queries, keys, values and results, and the gradients of all. The ops of this domain take both.

So do rotary embeddings of queries and keys, between the transposes and attention, and their gradients: their cosines
and sines are transposed, which all layers share. Where they are written out they stay as they are, and so do the
transposes: factors that are spread over heads are spread over all positions at once in the first layout, and in the
second one a row at a time, which takes onnxruntime longer than the transposes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN
from onnx_ops.ops import OPS

EXCHANGED = [0, 2, 1, 3]
"""The axes of one layout in the other one."""
LAYOUT, POSITIONS_FIRST = "input_layout", 1
RESULT = "attention_in"
"""The input of the gradient that is the result of attention."""
ROTARY, ANGLES = ("RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"), (1, 2)
"""The ops, and the places of their inputs that have the layout with one head."""
TENSORS = {"query", "key", "key_in", "value", "dy", RESULT, "attention_out", "dq", "dk", "dv", "x", "y", "dx"}
"""The inputs and outputs of attention, of rotary embeddings and of their gradients that have the layout."""
LEAST_FEATURES = 16
"""The features of a cache line: tasks for several heads would write to lines that they share."""

Use = tuple[ir.Node, int]


def read_heads_in_place(model: ir.Model) -> None:
    """Let attention and its gradient have the layout of projections where that takes fewer transposes, in place."""
    angles: dict[ir.Value, ir.Value] = {}
    places = {node: place for place, node in enumerate(model.graph.all_nodes())}
    for nodes in _groups(node for node in places if _is_attention(node)):
        groups = [_Group(sorted(_with_rotary(nodes), key=places.__getitem__), angles), _Group(nodes, angles)]
        group = max((each for each in groups if each.has_long_rows()), key=_Group.saved, default=None)
        if group is not None and group.saved() > 0:
            group.exchange()


def _is_attention(node: ir.Node) -> bool:
    return node.domain == DOMAIN and LAYOUT in OPS[node.op_type].attributes


def _groups(nodes: Iterable[ir.Node]) -> Iterable[list[ir.Node]]:
    """Each node of attention with those of the same graph that compute its gradient."""
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        sources = [value.producer() for name, value in _inputs(node) if name == RESULT]
        found = (source for source in sources if source in groups and source.graph is node.graph)
        groups.setdefault(next(found, node), []).append(node)
    return groups.values()


def _with_rotary(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Nodes of attention, and the rotary embeddings and gradients of these that are between them and other nodes."""
    neighbours = [value.producer() for node in nodes for _, value in _inputs(node)]
    neighbours += [user for node in nodes for value in _outputs(node) for user, place in value.uses() if place == 0]
    rotary = [node for node in neighbours if node is not None and node.graph is nodes[0].graph and _is_rotary(node)]
    return [*nodes, *dict.fromkeys(rotary)]


def _is_rotary(node: ir.Node) -> bool:
    """Whether a node rotates all heads of a position by the same angles, and computes no gradients of these."""
    if node.domain != DOMAIN or node.op_type not in ROTARY or len(node.inputs) != 1 + len(ANGLES):
        return False
    shapes = [None if value is None else value.shape for value in node.inputs]
    return all(shape is not None and len(shape) == len(EXCHANGED) for shape in shapes) and all(
        shape is not None and shape[1] == 1 for shape in shapes[1:]
    )


def _inputs(node: ir.Node) -> list[tuple[str, ir.Value]]:
    """The inputs that have the layout, with their names."""
    named = zip(OPS[node.op_type].input_names, node.inputs, strict=False)
    return [(name, value) for name, value in named if name in TENSORS and value is not None]


def _outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs that have the layout."""
    named = zip(OPS[node.op_type].output_names, node.outputs, strict=False)
    return [value for name, value in named if name in TENSORS]


class _Group:
    """Nodes that have one layout.

    Args:
        nodes: in the order of their graph.
        angles: cosines and sines in the other layout, to which those of the nodes are added.
    """

    def __init__(self, nodes: Sequence[ir.Node], angles: dict[ir.Value, ir.Value]) -> None:
        self._nodes, self._angles = nodes, angles
        self._outputs = [value for node in nodes for value in _outputs(node)]
        read = dict.fromkeys(value for node in nodes for _, value in _inputs(node))
        self._inputs = [value for value in read if value not in self._outputs]

    def has_long_rows(self) -> bool:
        """Whether a row of features is at least a cache line."""
        shapes = [value.shape for value in self._inputs]
        return all(s is not None and isinstance(s[-1], int) and s[-1] >= LEAST_FEATURES for s in shapes)

    def saved(self) -> int:
        """The number of transposes that the other layout saves."""
        count = 0
        for value in self._inputs:
            if _exchanged(value.producer()) is None:
                count -= 1
            elif not value.is_graph_output() and all(map(self._is_of_layout, value.uses())):
                count += 1
        for value in self._outputs:
            transposes, others = self._other_uses(value)
            count += len(transposes) - (len(others) > 0 or value.is_graph_output())
        return count

    def exchange(self) -> None:
        """Use the other layout."""
        for value in self._inputs:
            uses = list(filter(self._is_of_layout, value.uses()))
            if (source := _exchanged(value.producer())) is None:
                readers = {node for node, _ in uses}
                source = _transposed(value)
                _insert(source, before=next(node for node in self._nodes if node in readers))
            for node, index in uses:
                node.replace_input_with(index, source)
        for node in self._nodes:
            if _is_attention(node):
                node.attributes[LAYOUT] = ir.AttrInt64(LAYOUT, POSITIONS_FIRST)
            else:
                self._exchange_angles(node)
            for value in _outputs(node):
                self._exchange_output(value, node)

    def _exchange_angles(self, node: ir.Node) -> None:
        for place in ANGLES:
            value = node.inputs[place]
            assert value is not None
            if value not in self._angles:
                self._angles[value] = _transposed(value)
                source = value.producer()
                assert node.graph is not None
                _insert(self._angles[value], before=None if source else node.graph[0], after=source)
            node.replace_input_with(place, self._angles[value])

    def _exchange_output(self, value: ir.Value, node: ir.Node) -> None:
        transposes, others = self._other_uses(value)
        first_layout = _transposed(value)
        first_layout.shape, value.shape = value.shape, first_layout.shape
        for transpose, _ in transposes:
            ir.convenience.replace_all_uses_with(transpose.outputs[0], value)
        if others or value.is_graph_output():
            _insert(first_layout, after=node)
            for user, index in others:
                user.replace_input_with(index, first_layout)
        if value.is_graph_output():
            assert node.graph is not None
            node.graph.outputs[node.graph.outputs.index(value)] = first_layout
            value.name, first_layout.name = f"{value.name}_by_position", value.name

    def _other_uses(self, value: ir.Value) -> tuple[list[Use], list[Use]]:
        """The uses of an output by transposes to the other layout, and those by other nodes than the group's."""
        uses = [use for use in value.uses() if not self._is_of_layout(use)]
        transposes = [use for use in uses if _exchanged(use[0]) and not use[0].outputs[0].is_graph_output()]
        return transposes, [use for use in uses if use not in transposes]

    def _is_of_layout(self, use: Use) -> bool:
        """Whether it is that of an input of the layout, or one of the dtype alone."""
        node, index = use
        if (node.domain, node.op_type, index) == ("", "CastLike", 1):
            return True
        return node in self._nodes and OPS[node.op_type].input_names[index] in TENSORS


def _exchanged(node: ir.Node | None) -> ir.Value | None:
    """What a node transposes to the other layout."""
    if node is None or (node.domain, node.op_type) != ("", "Transpose"):
        return None
    return node.inputs[0] if list(node.attributes.get_ints("perm", ())) == EXCHANGED else None


def _transposed(value: ir.Value) -> ir.Value:
    """A value in the other layout, by a node that is in no graph."""
    result = ir.node("Transpose", [value], {"perm": EXCHANGED}).outputs[0]
    result.dtype = value.dtype
    if value.shape is not None:
        result.shape = ir.Shape([value.shape[axis] for axis in EXCHANGED])
    return result


def _insert(value: ir.Value, *, before: ir.Node | None = None, after: ir.Node | None = None) -> None:
    """Insert the node that has a value as its output, next to another one."""
    node, place = value.producer(), before or after
    assert node is not None
    assert place is not None
    assert place.graph is not None
    (place.graph.insert_before if before else place.graph.insert_after)(place, node)
