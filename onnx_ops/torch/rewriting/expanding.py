"""Expanded values, such as the gradients of means: what is computed of them, before they are expanded, if at all.

The elementwise operators broadcast by themselves, and onnxruntime's Expand takes longer than they do.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_ops.torch.base.nodes import replace_node
from onnx_ops.torch.rewriting.known_shapes import has_shape_of, sizes_depend_on_data

SCALING = ("Mul", "Div")
BROADCASTING = ("Add", "Sub", "Mul", "Div")


def delay_expands(model: ir.Model) -> None:
    """Let nodes of these types read what is expanded, where the result is the same, in place."""
    by_data = sizes_depend_on_data(model)
    waiting = [node for node in model.graph.all_nodes() if node.domain == "" and node.op_type == "Expand"]
    while waiting:
        expand = waiting.pop()
        given, (expanded,) = expand.inputs[0], expand.outputs
        if given is None:
            continue
        for user, place in list(expanded.uses()):
            if user.domain or user.op_type not in BROADCASTING:
                continue
            other = user.inputs[1 - place]
            if other is None or other is expanded:
                continue
            if user.op_type in SCALING and place == 0 and _is_number(other):
                waiting.append(_scaled_before(expand, user))
            elif has_shape_of(other, expanded, by_data):
                user.replace_input_with(place, given)


def _is_number(value: ir.Value) -> bool:
    constant = ir.convenience.get_const_tensor(value)
    return constant is not None and len(constant.shape) == 0


def _scaled_before(expand: ir.Node, user: ir.Node) -> ir.Node:
    """Scale what is expanded in place of the result; returns the new Expand."""
    given = expand.inputs[0]
    assert given is not None
    scaling = ir.node(user.op_type, [given, user.inputs[1]])
    small = scaling.outputs[0]
    small.shape, small.type = given.shape, given.type
    moved = ir.node("Expand", [small, expand.inputs[1]])
    replace_node(user, scaling, moved)
    return moved
