"""Sorts as the op Sort; onnxruntime's TopK takes two to four times as long."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.types import FLOATS
from onnx_ops.torch.base.nodes import constant_integers, is_standard


def sorts_by_op(model: ir.Model) -> None:
    """Replace TopK nodes that order all floating elements along an axis, in place."""
    for node in list(model.graph.all_nodes()):
        if is_standard(node, "TopK") and _takes_all(node):
            settings = {"dim": _integer(node, "axis", -1), "descending": _integer(node, "largest", 1)}
            added = ir.node("Sort", [node.inputs[0]], settings, domain=DOMAIN, num_outputs=2)
            for old, new in zip(node.outputs, added.outputs, strict=True):
                new.shape, new.type = old.shape, old.type
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], [added], node.outputs, added.outputs)
            model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)


def _integer(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _takes_all(node: ir.Node) -> bool:
    x, count = node.inputs
    if x is None or x.dtype is None or x.dtype.value not in FLOATS or x.shape is None or count is None:
        return False
    size, number = x.shape[_integer(node, "axis", -1)], constant_integers(count)
    return size == (_measured(count) if number is None else number[0])


def _measured(count: ir.Value) -> Any:
    """The dimension whose size a value is; None for another one."""
    shape = count.producer()
    if shape is None or not is_standard(shape, "Shape") or (x := shape.inputs[0]) is None or x.shape is None:
        return None
    start = _integer(shape, "start", 0)
    measured = x.shape[start : _integer(shape, "end", len(x.shape))]
    return measured[0] if len(measured) == 1 else None
