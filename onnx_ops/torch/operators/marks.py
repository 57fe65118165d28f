"""Marks that keep the names of the values that an update reads in a captured step, which is cut at them.

These are the gradients, and what the loss writes to the state. Until the graph is simplified, the update reads each
through a mark, an operator of its own: not through an equal value, such as an output that is reported.
"""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx.defs import OpSchema, get_schema
from onnxscript.values import Op, Opset
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.nodes import Value

DOMAIN = "onnx_ops.torch"
MARK = OpSchema(
    "Mark",
    DOMAIN,
    1,
    inputs=[OpSchema.FormalParameter("value", "T")],
    outputs=[OpSchema.FormalParameter("same", "T")],
    type_constraints=[("T", sorted(get_schema("Shape").inputs[0].types), "Tensors.")],
    attributes=[OpSchema.Attribute("name", OpSchema.AttrType.STRING)],
)


def _mark(value: Value, name: str) -> Value:
    return Op(Opset(DOMAIN, 1), MARK.name, MARK)(value, name=name)


@custom_operator(_mark, lambda value, name: torch.empty_like(value))
def marked(value: Tensor, name: str) -> Tensor:
    """A value as an operator; the name distinguishes it from equal values."""
    return value.clone()


def take_out_marks(model: ir.Model) -> None:
    """Remove the marks; their inputs get their names, by an Identity if they have other uses."""
    for node in list(model.graph):
        if node.domain != DOMAIN or node.op_type != MARK.name:
            continue
        (before,), (after,) = node.inputs, node.outputs
        assert before is not None
        if before.producer() is None or before.is_graph_output() or len(before.uses()) > 1:
            model.graph.insert_before(node, copy := ir.node("Identity", [before]))
            before = copy.outputs[0]
        before.shape, before.type = after.shape, after.type
        name = node.attributes["name"].as_string()
        after.replace_all_uses_with(before, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        before.name = name
    model.graph.opset_imports.pop(DOMAIN, None)
