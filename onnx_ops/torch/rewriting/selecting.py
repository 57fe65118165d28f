"""Selections by a condition, as the op SWhere.

onnxruntime's Where branches on each element and writes three tensors: where the condition is hard to predict, such as
the sign of an activation, it takes tens of times as long as a copy of the elements. Its PRelu branches too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.types import FLOATS
from onnx_ops.torch.base.nodes import may_have, replace_node

MIN_ELEMENTS = 1024
"""Below this number of elements, where it is known, onnxruntime's Where is as fast."""

OF_BOOLEANS = "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor"
"""The elementwise operators whose results are booleans."""
OF_NUMBERS = """
    Abs Acos Add Asin Atan Cast Ceil Clip Cos Div Erf Exp Floor Log Max Min Mul Neg Pow Reciprocal Relu Round Sigmoid
    Sign Sin Sqrt Sub Tan Tanh Where
"""
"""Other elementwise operators."""


def select_by_op(model: ir.Model) -> None:
    """Replace the Where and PRelu nodes of large floating tensors, in place."""
    types = _Types(model)
    nodes = [node for node in model.graph.all_nodes() if not node.domain and node.op_type in _REPLACEMENTS]
    for node in [node for node in nodes if types.is_large(node.outputs[0])]:
        replace_node(node, *_REPLACEMENTS[node.op_type](node))
        model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)


class _Types:
    """The types of values, derived from operands where the graph has none, as within the translation of an operator.

    The shape of an elementwise result is that of any operand with axes: all that is asked for is whether it is large.
    """

    def __init__(self, model: ir.Model) -> None:
        self._dtypes: dict[ir.Value, ir.DataType] = {}
        self._shapes: dict[ir.Value, ir.Shape] = {}
        for node in model.graph.all_nodes():
            self._enter(node)

    def is_large(self, value: ir.Value) -> bool:
        dtype, shape = self._dtypes.get(value), self._shapes.get(value)
        return dtype is not None and dtype.value in FLOATS and shape is not None and may_have(shape, MIN_ELEMENTS)

    def _enter(self, node: ir.Node) -> None:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype is not None:
                self._dtypes[value] = value.dtype
            if value is not None and value.shape is not None:
                self._shapes[value] = value.shape
        if node.domain or node.op_type not in _ELEMENTWISE:
            return
        operands, (result,) = [value for value in node.inputs if value is not None], node.outputs
        if (shape := next(filter(None, map(self._shapes.get, operands)), None)) is not None:
            self._shapes.setdefault(result, shape)
        if (dtype := self._dtype(node, operands)) is not None:
            self._dtypes.setdefault(result, dtype)

    def _dtype(self, node: ir.Node, operands: Sequence[ir.Value]) -> ir.DataType | None:
        if node.op_type == "Cast":
            return ir.DataType(node.attributes["to"].as_int())
        if node.op_type in _BOOLEAN:
            return ir.DataType.BOOL
        chosen = operands[1:] if node.op_type == "Where" else operands
        return next(filter(None, map(self._dtypes.get, chosen)), None)


_BOOLEAN = frozenset(OF_BOOLEANS.split())
_ELEMENTWISE = _BOOLEAN | frozenset(OF_NUMBERS.split())


def _where(node: ir.Node) -> list[ir.Node]:
    return [ir.node("SWhere", node.inputs, domain=DOMAIN)]


def _prelu(node: ir.Node) -> list[ir.Node]:
    """x where x > 0, else slope * x."""
    x, slope = node.inputs
    assert x is not None
    assert x.dtype is not None
    zero = ir.node("Constant", [], {"value": ir.tensor(np.zeros((), x.dtype.numpy()))})
    positive, scaled = ir.node("Greater", [x, zero.outputs[0]]), ir.node("Mul", [x, slope])
    selected = ir.node("SWhere", [positive.outputs[0], x, scaled.outputs[0]], domain=DOMAIN)
    return [zero, positive, scaled, selected]


_REPLACEMENTS: Mapping[str, Callable[[ir.Node], list[ir.Node]]] = {"Where": _where, "PRelu": _prelu}
