"""Selections by a condition, as the op SWhere.

onnxruntime's Where branches on each element and writes three tensors: where the condition is hard to predict, such as
the sign of an activation, it takes tens of times as long as a copy of the elements. Its PRelu branches too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.types import FLOATS
from onnx_ops.torch.base.nodes import may_have, replace_node

MIN_ELEMENTS = 1024
"""Below this number of elements, where it is known, onnxruntime's Where is as fast."""


def select_by_op(model: ir.Model) -> None:
    """Replace the Where and PRelu nodes of large floating tensors, in place."""
    for node in list(model.graph.all_nodes()):
        if node.domain or node.op_type not in _REPLACEMENTS or not _is_large(_typed(node.outputs[0])):
            continue
        replace_node(node, *_REPLACEMENTS[node.op_type](node))
        model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)


def _is_large(value: ir.Value | None) -> bool:
    if value is None or value.dtype is None or value.dtype.value not in FLOATS or value.shape is None:
        return False
    return may_have(value.shape, MIN_ELEMENTS)


def _typed(value: ir.Value | None, steps: int = 8) -> ir.Value | None:
    """A value, or if its type is not known, as within a translation, one from which it is computed elementwise."""
    if value is None or (value.dtype is not None and value.shape is not None):
        return value
    node = value.producer()
    if steps == 0 or node is None or node.domain or node.op_type not in _ELEMENTWISE:
        return None
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    found = [_typed(operand, steps - 1) for operand in operands]
    return next((given for given in found if given is not None and given.shape), None)


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


_ELEMENTWISE = {
    "Abs",
    "Add",
    "Div",
    "Exp",
    "Log",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "Reciprocal",
    "Relu",
    "Sqrt",
    "Sub",
    "Where",
}
_REPLACEMENTS: Mapping[str, Callable[[ir.Node], list[ir.Node]]] = {"Where": _where, "PRelu": _prelu}
