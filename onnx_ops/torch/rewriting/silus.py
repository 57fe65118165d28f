"""SiLU as the op Silu.

onnxruntime's Sigmoid is a rational function with an absolute error of 1e-8, and 0 below -18: its products have no digit
there. Silu has all of them and takes as long as its QuickGelu, to which it fuses the two nodes.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.torch.base.nodes import is_read_once, replace_node


def silus_by_op(model: ir.Model) -> None:
    """Replace products of a float32 value and its Sigmoid, which nothing else reads, in place."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type == "Mul" and (x := _argument(node)) is not None:
            sigmoid = next(value.producer() for value in node.inputs if value is not x)
            replace_node(node, ir.node("Silu", [x], domain=DOMAIN), along=[sigmoid])
            model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)


def _argument(product: ir.Node) -> ir.Value | None:
    """x of a product of x and Sigmoid(x)."""
    first, second = product.inputs
    for x, factor in ((first, second), (second, first)):
        node = None if factor is None else factor.producer()
        if node is None or (node.domain, node.op_type) != ("", "Sigmoid") or node.inputs[0] is not x:
            continue
        alone = is_read_once(factor) and node.graph is product.graph
        return x if alone and x.dtype is ir.DataType.FLOAT else None
    return None
