"""Softmax and LogSoftmax over the channels of images, in the operators that they consist of.

onnxruntime transposes a tensor so that the axis is the last one, and back, which takes ten times as long as these.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import may_have

MIN_INNER = 64
"""The least number of elements behind the axis; for few of them onnxruntime's reductions are slow."""
DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def write_out_softmaxes(model: ir.Model) -> None:
    """Replace softmaxes over an axis before others by reductions along it, in place."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type in ("Softmax", "LogSoftmax"):
            _write_out(node)


def _write_out(node: ir.Node) -> None:
    value, axis = node.inputs[0], node.attributes.get_int("axis", -1)
    if value is None or value.shape is None or value.dtype not in DTYPES:
        return
    inner = value.shape[axis % len(value.shape) + 1 :] if len(value.shape) else ()
    if not inner or not may_have(inner, MIN_INNER):
        return
    graph, result = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph | ir.Function)
    axes = ir.node("Constant", [], {"value": ir.tensor(np.array([axis], np.int64))})
    added = [axes]

    def new(op_type: str, *inputs: ir.Value, shape: ir.Shape | None = value.shape, **attributes: int) -> ir.Value:
        added.append(ir.node(op_type, inputs, attributes))
        made = added[-1].outputs[0]
        made.dtype, made.shape = value.dtype, shape
        return made

    def reduced(op_type: str, given: ir.Value) -> ir.Value:
        return new(op_type, given, axes.outputs[0], shape=None, keepdims=1)

    below = new("Sub", value, reduced("ReduceMax", value))
    power = new("Exp", below)
    total = reduced("ReduceSum", power)
    is_logarithm = node.op_type == "LogSoftmax"
    found = new("Sub", below, new("Log", total, shape=None)) if is_logarithm else new("Div", power, total)
    ir.convenience.replace_nodes_and_values(graph, node, [node], added, [result], [found])
