"""Elements of tensors that were stacked are read from what was stacked.

Complex numbers are pairs of real tensors, which are stacked where a real view of them is taken; often one part is read.
The gradient of the stack is then padded with zeros for the other part.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_ops.torch.base.nodes import constant_integers, is_standard, replace_node


def read_stacked(model: ir.Model) -> None:
    """Replace lookups of a single place along the axis of a stack, in place."""
    for node in list(model.graph.all_nodes()):
        if not is_standard(node, "Gather") or (part := _part(node)) is None:
            continue
        if node.outputs[0].is_graph_output():
            replace_node(node, ir.node("Identity", [part]))
        else:
            ir.convenience.replace_all_uses_with(node.outputs[0], part)


def _part(lookup: ir.Node) -> ir.Value | None:
    """What a lookup returns, if it was stacked with others, or with zeros by a Pad."""
    stacked, index = lookup.inputs
    source = None if stacked is None else stacked.producer()
    place = None if index is None or index.shape is None or len(index.shape) else constant_integers(index)
    if source is None or place is None or source.outputs[0].shape is None:
        return None
    rank = len(source.outputs[0].shape)
    axis = lookup.attributes.get_int("axis", 0) % rank
    parts = _stacked(source, axis, rank)
    return parts[place[0]] if -len(parts) <= place[0] < len(parts) else None


def _stacked(node: ir.Node, axis: int, rank: int) -> list[ir.Value | None]:
    """The parts that a node stacks along an axis, None for zeros; nothing if it does anything else."""
    if is_standard(node, "Concat") and node.attributes["axis"].as_int() % rank == axis:
        parts = [_without_axis(value, axis, rank) for value in node.inputs]
        return [] if None in parts else parts
    pads = constant_integers(node.inputs[1]) if is_standard(node, "Pad") else None
    part = None if pads is None else _without_axis(node.inputs[0], axis, rank)
    if part is None or pads is None or any(p < 0 or (p and i % rank != axis) for i, p in enumerate(pads)):
        return []
    return [None] * pads[axis] + [part] + [None] * pads[axis + rank]


def _without_axis(value: ir.Value | None, axis: int, rank: int) -> ir.Value | None:
    """A value before this axis was added; None if it was not the last thing that was done to it."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Unsqueeze"):
        return None
    axes = constant_integers(node.inputs[1])
    return node.inputs[0] if axes is not None and [each % rank for each in axes] == [axis] else None
