"""Attention reads heads where projections have them.

PyTorch's attention takes (batch, heads, positions, features), and a projection has (batch, positions, heads, features):
models transpose queries, keys, values and results, and the gradients of all. The ops of this domain take both.

Rotary embeddings, between the transposes and the ops, stay as they are: factors that are spread over heads are spread
over all positions at once in the first layout, and in the second one a row at a time, which takes onnxruntime longer
than the transposes.
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
TENSORS = {"query", "key", "key_in", "value", "dy", RESULT, "attention_out", "dq", "dk", "dv"}
"""The inputs and outputs of attention and its gradient that have the layout."""
LEAST_FEATURES = 16
"""The features of a cache line: tasks for several heads would write to lines that they share."""

Use = tuple[ir.Node, int]


def read_heads_in_place(model: ir.Model) -> None:
    """Let attention and its gradient have the layout of projections where that takes fewer transposes, in place."""
    for nodes in _groups(node for node in model.graph.all_nodes() if _is_attention(node)):
        group = _Group(nodes)
        if group.has_long_rows() and group.saved() > 0:
            group.exchange()


def _is_attention(node: ir.Node) -> bool:
    return node.domain == DOMAIN and LAYOUT in OPS[node.op_type].schema.attributes


def _groups(nodes: Iterable[ir.Node]) -> Iterable[list[ir.Node]]:
    """Each node of attention with those of the same graph that compute its gradient."""
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        sources = [value.producer() for name, value in _inputs(node) if name == RESULT]
        found = (source for source in sources if source in groups and source.graph is node.graph)
        groups.setdefault(next(found, node), []).append(node)
    return groups.values()


def _inputs(node: ir.Node) -> list[tuple[str, ir.Value]]:
    """The inputs that have the layout, with their names."""
    named = zip(OPS[node.op_type].input_names, node.inputs, strict=False)
    return [(name, value) for name, value in named if name in TENSORS and value is not None]


def _outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs that have the layout."""
    named = zip(OPS[node.op_type].output_names, node.outputs, strict=False)
    return [value for name, value in named if name in TENSORS]


class _Group:
    """Nodes of attention that have one layout, in the order of their graph."""

    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self._nodes = nodes
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
            node.attributes[LAYOUT] = ir.AttrInt64(LAYOUT, POSITIONS_FIRST)
            for value in _outputs(node):
                self._exchange_output(value, node)

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
