"""Results of layer normalization and of RmsNorm, computed again in the backward pass from what it keeps in any case.

The gradient of the weight of a linear layer reads the layer's input, which is often such a result. The gradient of the
normalization reads its input, of which one more node computes that result. So the result need not be in memory from the
forward pass on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.step_format import GRADIENT, NEXT
from onnx_ops.torch.base.nodes import may_have

NORMS = (("", "LayerNormalization"), (DOMAIN, "RmsNorm"))
"""Domains and op_types."""
MIN_ELEMENTS = 1 << 16
"""Below this number of elements, where it is known, the memory is not worth two more nodes."""


def renormalize(model: ir.Model) -> None:
    """Let the backward pass of a training graph compute large results of normalizations again, in place."""
    graph = model.graph
    forward = _ancestors(value for value in graph.outputs if not (value.name or "").startswith((NEXT, GRADIENT)))
    for node in list(graph):
        if (node.domain, node.op_type) in NORMS and node in forward:
            _renormalize(node, forward)


def _renormalize(node: ir.Node, forward: Collection[ir.Node]) -> None:
    value, result, graph = node.inputs[0], node.outputs[0], node.graph
    uses = list(_later_uses(result, forward))
    if not uses or value is None or result.shape is None or not may_have(result.shape, MIN_ELEMENTS):
        return
    assert isinstance(graph, ir.Graph)
    places = {other: place for place, other in enumerate(graph)}
    first = min((user for _, user, _ in uses), key=places.__getitem__)
    if all(places[user] < places[first] for user in value.consumers()):
        return

    def new(like: ir.Node, *inputs: ir.Value | None, **attributes: int) -> ir.Value:
        made = ir.node(like.op_type, inputs, {**like.attributes, **attributes}, domain=like.domain)
        made.outputs[0].shape, made.outputs[0].type = like.outputs[0].shape, like.outputs[0].type
        graph.insert_before(first, made)
        return made.outputs[0]

    changed = {}
    if not node.domain:
        # The axis counted from the other end: onnxruntime would make one node of two that are equal.
        axis, rank = node.attributes.get_int("axis", -1), len(result.shape)
        changed["axis"] = axis + rank if axis < 0 else axis - rank
    computed = {result: new(node, *node.inputs, **changed)}
    for views, user, place in uses:
        for view in views:
            if view.outputs[0] not in computed:
                source, *shape = view.inputs
                assert source is not None
                computed[view.outputs[0]] = new(view, computed[source], *shape)
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
