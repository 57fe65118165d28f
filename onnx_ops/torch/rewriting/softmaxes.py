"""Softmaxes that are weights of products, by an op of this domain; others by the operators that they consist of.

The op has 0 for weights below exp(-87): those of a mask of -100, as in Swin, are subnormal numbers, which make products
of matrices take up to twenty times as long. onnxruntime's Softmax has 0 for them on processors without AVX-512. Where a
logarithm may follow, which is -infinity for 0, the softmax is written out.

So is one along an axis that is not the last one: onnxruntime transposes a tensor and back, which takes ten times as
long as the operators.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.types import FLOATS
from onnx_ops.torch.base.nodes import may_have, replace_node

MIN_INNER = 64
"""The least number of elements behind the axis; for few of them onnxruntime's reductions are slow."""
DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

PRODUCTS = ("MatMul", "Gemm")
BETWEEN = ("Cast", "Div", "DropoutV3", "Expand", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""What may come between a softmax and the products that it is a factor of."""
SELECTING = (*BETWEEN, "Add", "Concat", "Gather", "GatherElements", "GatherND", "ReduceSum", "Slice", "Split", "Where")
"""What may come between such a product and a logarithm of weights that it selects or adds up."""


def weigh_by_op(model: ir.Model) -> None:
    """Replace softmaxes, of which there are products alone, by SoftmaxV2, in place; not without gradients of any."""
    nodes = list(model.graph.all_nodes())
    if not any(node.op_type == "SoftmaxBackward" for node in nodes):
        return
    for node in nodes:
        if node.domain or node.op_type != "Softmax" or node.inputs[0] is None:
            continue
        (weights,), dtype = node.outputs, node.inputs[0].dtype
        if not _is_factor(weights) or dtype is None or dtype.value not in FLOATS:
            continue
        axis = node.attributes.get_int("axis", -1)
        replace_node(node, ir.node("SoftmaxV2", node.inputs, {"dim": axis}, domain=DOMAIN))
        model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)


def _is_factor(value: ir.Value) -> bool:
    """Whether a value is used in products and gradients of softmaxes alone."""
    if value.is_graph_output() or not value.uses():
        return False
    return all(
        (user.op_type in PRODUCTS and not _has_logarithm(user, through_product=False))
        or user.op_type == "SoftmaxBackward"
        or (user.op_type in BETWEEN and _is_factor(user.outputs[0]))
        for user, _ in value.uses()
    )


def _has_logarithm(node: ir.Node, *, through_product: bool) -> bool:
    """Whether there may be the logarithm of an element of its results.

    Args:
        node: the softmax, or a product.
        through_product: whether the element may be selected by a product with a one-hot first, as in networks that copy
            words.
    """
    waiting, seen = [node], {node}
    while waiting:
        for value in waiting.pop().outputs:
            users = {user for user, _ in value.uses()} - seen
            seen |= users
            waiting += [user for user in users if user.op_type in SELECTING]
            for user in users:
                if user.op_type == "Log":
                    return True
                if through_product and user.op_type in PRODUCTS and _has_logarithm(user, through_product=False):
                    return True
    return False


def write_out_softmaxes(model: ir.Model) -> None:
    """Replace softmaxes over an axis before others, and those with a logarithm, by reductions along it, in place."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type in ("Softmax", "LogSoftmax"):
            _write_out(node)


def _write_out(node: ir.Node) -> None:
    value, axis = node.inputs[0], node.attributes.get_int("axis", -1)
    if value is None or value.shape is None or value.dtype not in DTYPES:
        return
    inner = value.shape[axis % len(value.shape) + 1 :] if len(value.shape) else ()
    is_slow = inner and may_have(inner, MIN_INNER)
    rounds_to_zero = node.op_type == "Softmax" and value.dtype == ir.DataType.FLOAT
    if not is_slow and not (rounds_to_zero and _has_logarithm(node, through_product=True)):
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
