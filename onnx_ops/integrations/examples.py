"""The example of an op as a model."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from onnx_ops.core.domain import opset_import
from onnx_ops.core.op import Op
from onnx_ops.integrations.nodes import make_node
from onnx_ops.linking.link import FUNCTIONS_SINCE_IR, link


def example_model(op: Op) -> onnx.ModelProto:
    """The op's example as a model of one node, in the oldest opset that its function body supports."""
    arrays, expected = op.example.arrays(), op.example.expected()
    node = make_node(
        op.name, {name: name for name in arrays}, {name: name for name in expected}, **op.example.attributes
    )
    inputs = [_value_info(name, array.dtype, array.shape) for name, array in arrays.items()]
    outputs = [_value_info(name, array.dtype, array.shape) for name, array in expected.items()]
    opsets = [helper.make_opsetid("", op.body_opset), opset_import()]
    graph = helper.make_graph([node], op.name, inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=FUNCTIONS_SINCE_IR)


def example_body(op: Op) -> onnx.FunctionProto:
    """The function body that `link` adds to the op's example."""
    body, _ = link(example_model(op)).functions
    return body


def _value_info(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
