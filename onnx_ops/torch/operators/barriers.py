"""Barriers: values that are available only after another value has been computed.

Until the graph is simplified, a barrier is an operator of its own, so that no optimization looks through it. Then it
becomes a Reshape to its own shape, to which onnxruntime gives the memory of its input, and whose shape operand depends
on the other value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx import TensorProto
from onnx.defs import OpSchema
from onnxscript.values import Op, Opset
from torch import Tensor

from onnx_ops.core.schema import tensor_types
from onnx_ops.core.types import FLOATS
from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.nodes import Value

DOMAIN = "onnx_ops.torch.barriers"
TYPES = (*FLOATS, *(getattr(TensorProto, name) for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64")))
BARRIER = OpSchema(
    "Barrier",
    DOMAIN,
    1,
    inputs=[OpSchema.FormalParameter("value", "T"), OpSchema.FormalParameter("after", "S")],
    outputs=[OpSchema.FormalParameter("same", "T")],
    type_constraints=[("T", tensor_types(TYPES), "Types of PyTorch."), ("S", tensor_types(FLOATS), "Floating types.")],
)


def _node(value: Value, after: Value) -> Value:
    return Op(Opset(DOMAIN, 1), BARRIER.name, BARRIER)(value, after)


@custom_operator(_node, lambda value, after: torch.empty_like(value))
def barrier(value: Tensor, after: Tensor) -> Tensor:
    """A tensor that is equal to `value`, and is computed after the floating tensor `after`."""
    return value.clone()


def lower_barriers(model: ir.Model) -> None:
    """Replace the barriers by standard nodes."""
    for graph in (model.graph, *model.graph.subgraphs()):
        lowering = _Lowering(graph)
        for node in list(graph):
            if node.domain == DOMAIN:
                lowering.replace(node)
    model.graph.opset_imports.pop(DOMAIN, None)


class _Lowering:
    """Replaces the barriers of one graph; those that wait for the same value share the nodes that depend on it."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._zeros: dict[ir.Value, ir.Value] = {}
        self._constants: dict[tuple[int, ...], ir.Value] = {}

    def replace(self, node: ir.Node) -> None:
        value, after = node.inputs
        (same,) = node.outputs
        assert value is not None
        assert after is not None
        if after not in self._zeros:
            self._zeros[after] = self._zero(node, after)
        shape = self._insert(node, "Add", self._shape(node, value), self._zeros[after])
        reshaped = self._insert(node, "Reshape", value, shape)
        reshaped.shape, reshaped.type = same.shape, same.type
        same.replace_all_uses_with(reshaped, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)

    def _insert(self, before: ir.Node, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        self._graph.insert_before(before, node := ir.node(op_type, inputs, attributes))
        return node.outputs[0]

    def _zero(self, before: ir.Node, after: ir.Value) -> ir.Value:
        """An int64 vector [0], computed from the first element of a value as [is it NaN? 1 : 0] / 2.

        No optimizer knows that it is 0, and it is 0 for NaN and infinity too, and for an empty tensor.
        """
        flat = self._insert(before, "Reshape", after, self._constant(-1))
        first = self._insert(before, "Slice", flat, self._constant(0), self._constant(1))
        single = self._insert(before, "Cast", first, to=ir.DataType.FLOAT)
        count = self._insert(before, "Cast", self._insert(before, "IsNaN", single), to=ir.DataType.INT64)
        total = self._insert(before, "ReduceSum", count, self._constant(0))
        return self._insert(before, "Div", total, self._constant(2))

    def _shape(self, before: ir.Node, value: ir.Value) -> ir.Value:
        sizes = None if value.shape is None else list(value.shape)
        if sizes is not None and all(isinstance(size, int) for size in sizes):
            return self._constant(*sizes)
        return self._insert(before, "Shape", value)

    def _constant(self, *numbers: int) -> ir.Value:
        """An int64 vector."""
        if numbers not in self._constants:
            name = "/".join(["barrier", self._graph.name or "", *map(str, numbers)])
            array = np.array(numbers, np.int64)
            self._constants[numbers] = ir.val(name, const_value=ir.tensor(array, name=name))
            self._graph.register_initializer(self._constants[numbers])
        return self._constants[numbers]
