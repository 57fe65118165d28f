"""Marks that keep the names of gradients in a captured step, at which workers cut it in two.

Until the graph is simplified, the update reads each gradient through a mark, an operator of its own: not through an
equal value, such as an output that is reported.
"""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx.defs import OpSchema
from onnxscript.values import Op, Opset
from torch import Tensor

from onnx_ops.core.schema import tensor_types
from onnx_ops.core.types import FLOATS
from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.nodes import Value

DOMAIN = "onnx_ops.torch"
MARK = OpSchema(
    "Gradient",
    DOMAIN,
    1,
    inputs=[OpSchema.FormalParameter("value", "T")],
    outputs=[OpSchema.FormalParameter("same", "T")],
    type_constraints=[("T", tensor_types(FLOATS), "Floating types.")],
    attributes=[OpSchema.Attribute("parameter", OpSchema.AttrType.STRING)],
)


def _mark(value: Value, parameter: str) -> Value:
    return Op(Opset(DOMAIN, 1), MARK.name, MARK)(value, parameter=parameter)


@custom_operator(_mark, lambda value, parameter: torch.empty_like(value))
def gradient(value: Tensor, parameter: str) -> Tensor:
    """A gradient as an operator; the parameter's name distinguishes it from equal gradients."""
    return value.clone()


def take_out_marks(model: ir.Model) -> None:
    """Remove the marks; their inputs get the names of their outputs, by an Identity if they have other uses."""
    for node in list(model.graph):
        if node.domain != DOMAIN or node.op_type != MARK.name:
            continue
        (before,), (after,) = node.inputs, node.outputs
        assert before is not None
        if before.producer() is None or before.is_graph_output() or len(before.uses()) > 1:
            model.graph.insert_before(node, copy := ir.node("Identity", [before]))
            before = copy.outputs[0]
        before.shape, before.type = after.shape, after.type
        name = after.name
        after.replace_all_uses_with(before, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        before.name = name
    model.graph.opset_imports.pop(DOMAIN, None)
