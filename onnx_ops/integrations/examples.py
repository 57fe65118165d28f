"""Models of one node: any call, and the example of an op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

from onnx_ops.core.domain import opset_import
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.graph.types import value_info
from onnx_ops.integrations.nodes import make_node
from onnx_ops.linking.link import FUNCTIONS_SINCE_IR, link


def node_model(
    op: Op, inputs: Mapping[str, TensorType], outputs: Mapping[str, TensorType], attributes: Mapping[str, Any]
) -> onnx.ModelProto:
    """A model of one node whose values are named as in the schema, in the oldest opset of the op's function body."""
    node = make_node(op.name, {name: name for name in inputs}, {name: name for name in outputs}, **attributes)
    own, results = ([value_info(name, tensor) for name, tensor in tensors.items()] for tensors in (inputs, outputs))
    opsets = [helper.make_opsetid("", op.body_opset), opset_import()]
    graph = helper.make_graph([node], op.name, own, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=FUNCTIONS_SINCE_IR)


def example_model(op: Op) -> onnx.ModelProto:
    """The op's example as a model."""
    arrays, expected = op.example.arrays(), op.example.expected()
    inputs, outputs = ({name: TensorType.of(a) for name, a in given.items()} for given in (arrays, expected))
    return node_model(op, inputs, outputs, op.example.attributes)


def example_body(op: Op) -> onnx.FunctionProto:
    """The function body that `link` adds to the op's example."""
    body, _ = link(example_model(op)).functions
    return body
