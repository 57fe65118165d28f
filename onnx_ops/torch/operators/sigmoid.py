"""Sigmoids in float32, more accurate than onnxruntime's where that matters."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

aten = torch.ops.aten

PRODUCTS = (aten.mul.Tensor, aten.sigmoid_backward.default)
SIGMOID = ((aten.neg.default, ()), (aten.exp.default, ()), (aten.add.Scalar, (1,)), (aten.reciprocal.default, ()))
"""The operators of 1 / (1 + exp(-x)), with their further arguments."""


def refine_sigmoids(module: GraphModule) -> None:
    """Write sigmoids of a traced graph as 1 / (1 + exp(-x)), except where only products read them.

    onnxruntime's Sigmoid has an absolute error of 1e-8, and is 0 below -18: logarithms of it, as of binary cross
    entropies, and their gradients would be wrong.
    """
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=aten.sigmoid.default):
        value = node.meta["val"]
        if value.dtype is not torch.float32 or all(user.target in PRODUCTS for user in node.users):
            continue
        result = node.args[0]
        with graph.inserting_before(node):
            if result.meta["val"].dtype is not value.dtype:  # integers
                result = graph.call_function(aten._to_copy.default, (result,), {"dtype": value.dtype})
                result.meta["val"] = value
            for step, others in SIGMOID:
                result = graph.call_function(step, (result, *others))
                result.meta["val"] = value
        node.replace_all_uses_with(result)
        graph.erase_node(node)
