"""Logarithm, sine and cosine as ops of the domain, where onnxruntime takes four to eight times as long."""

from __future__ import annotations

import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.torch.base.nodes import may_have, replace_node

OPS = {name: f"Inplace{name}" for name in ("Log", "Sin", "Cos")}
DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
FEW = 1_000
"""Elements below which the call of a kernel takes as long as what it saves."""


def functions_by_op(model: ir.Model) -> None:
    """Replace standard nodes, in place, but for those of a known small number of elements."""
    for node in list(model.graph.all_nodes()):
        if node.domain != "" or node.op_type not in OPS:
            continue
        (x,) = node.inputs
        if x is not None and x.dtype in DTYPES and (x.shape is None or may_have(x.shape.dims, FEW)):
            replace_node(node, ir.node(OPS[node.op_type], [x], domain=DOMAIN))
            model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)
