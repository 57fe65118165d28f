"""Results of layer normalization, computed again in the backward pass from what it keeps of them in any case.

The gradient of the weight of a linear layer reads the layer's input, which is often such a result. The gradient of the
normalization reads its input, mean and 1 / standard deviation, and computes the normalized values from them; their
products with the weight, plus the bias, are that result. So it need not be in memory from the forward pass on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from onnx_ops.core.step_format import GRADIENT, NEXT
from onnx_ops.torch.base.nodes import may_have

MIN_ELEMENTS = 1 << 16
"""Below this number of elements, where it is known, the memory is not worth two more nodes."""


def renormalize(model: ir.Model) -> None:
    """Let the backward pass of a training graph compute large results of layer normalization again, in place."""
    graph = model.graph
    forward = _ancestors(value for value in graph.outputs if not (value.name or "").startswith((NEXT, GRADIENT)))
    for node in list(graph):
        if node.domain == "" and node.op_type == "LayerNormalization" and node in forward:
            _renormalize(node, forward)


def _renormalize(node: ir.Node, forward: Collection[ir.Node]) -> None:
    result, graph = node.outputs[0], node.graph
    uses = list(_later_uses(result, forward))
    formula = _normalized(node)
    if not uses or formula is None or result.shape is None or not may_have(result.shape, MIN_ELEMENTS):
        return
    assert isinstance(graph, ir.Graph)
    places = {other: place for place, other in enumerate(graph)}
    first = min((user for _, user, _ in uses), key=places.__getitem__)
    if places[formula[-1]] > places[first]:
        graph.remove(formula)
        graph.insert_before(first, formula)

    def new(op_type: str, *inputs: ir.Value | None, like: ir.Node = node) -> ir.Value:
        made = ir.node(op_type, inputs, like.attributes if op_type == like.op_type else None)
        made.outputs[0].shape, made.outputs[0].type = like.outputs[0].shape, like.outputs[0].type
        graph.insert_before(first, made)
        return made.outputs[0]

    again = new("Mul", formula[-1].outputs[0], node.inputs[1])
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        again = new("Add", again, node.inputs[2])
    computed = {result: again}
    for views, user, place in uses:
        for view in views:
            if view.outputs[0] not in computed:
                source, *shape = view.inputs
                assert source is not None
                computed[view.outputs[0]] = new("Reshape", computed[source], *shape, like=view)
        user.replace_input_with(place, computed[views[-1].outputs[0] if views else result])


def _ancestors(values: Iterable[ir.Value]) -> set[ir.Node]:
    """The nodes that values are computed by."""
    found: set[ir.Node] = set()
    pending = [value.producer() for value in values]
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found.add(node)
            pending += [value.producer() for value in node.inputs if value is not None]
    return found


def _later_uses(
    value: ir.Value, forward: Collection[ir.Node], views: tuple[ir.Node, ...] = ()
) -> Iterator[tuple[tuple[ir.Node, ...], ir.Node, int]]:
    """The nodes after the forward pass that read a value or a view of it; with the views, and the place of the input.

    A view is the result of Reshape nodes of the forward pass.
    """
    for user, place in list(value.uses()):
        if user not in forward:
            yield views, user, place
        elif user.domain == "" and user.op_type == "Reshape" and place == 0:
            yield from _later_uses(user.outputs[0], forward, (*views, user))


def _normalized(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The nodes that compute (x - mean) * (1 / standard deviation) from the input and the statistics of a node."""
    if len(node.outputs) < 3:
        return None
    value, (_, mean, inverse) = node.inputs[0], node.outputs
    for centered, _ in mean.uses():
        if centered.domain == "" and centered.op_type == "Sub" and tuple(centered.inputs) == (value, mean):
            for scaled, _ in centered.outputs[0].uses():
                operands = set(scaled.inputs)
                if scaled.domain == "" and scaled.op_type == "Mul" and operands == {centered.outputs[0], inverse}:
                    return centered, scaled
    return None
