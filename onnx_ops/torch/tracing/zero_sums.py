"""Sums of zeros whose angle is computed: PyTorch's are 0.0, onnxruntime's are -0.0 where all terms are.

Between a vector of zeros and another one, as of a node and itself, torch.atan2 would then return pi in place of 0.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from onnx_ops.torch.tracing.row_indices import added_call

aten = torch.ops.aten

SUMS = {aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim}
SIGNED = {aten.atan2.default}
"""Whose results depend on the signs of zeros."""
KEEPING = {
    aten.alias, aten.cat, aten.clone, aten.detach, aten.expand, aten.flip, aten.gather, aten.index, aten.index_select,
    aten.mul, aten.neg, aten.permute, aten.repeat, aten.reshape, aten.select, aten.slice, aten.split, aten.squeeze,
    aten.stack, aten.t, aten.transpose, aten.unbind, aten.unsqueeze, aten.view, aten.where, aten._to_copy,
    aten._unsafe_view,
}  # fmt: skip
"""Whose results have zeros with the signs of those in their arguments."""


def make_zeros_positive(traced: GraphModule) -> None:
    """Make the zeros of those sums positive, in place."""
    graph = traced.graph
    for total in dict.fromkeys(_sums(traced)):
        with graph.inserting_after(total):
            is_zero = added_call(graph, aten.eq.Scalar, (total, 0.0))
        with graph.inserting_after(is_zero):
            found = added_call(graph, aten.masked_fill.Scalar, (total, is_zero, 0.0))
        total.replace_all_uses_with(found, delete_user_cb=lambda user, own=(is_zero, found): user not in own)
    traced.recompile()


def _sums(traced: GraphModule) -> Iterator[Node]:
    """The sums of floating numbers on which the signs of zeros in angles depend."""
    left = [given for node in traced.graph.nodes if node.target in SIGNED for given in node.all_input_nodes]
    seen = set(left)
    while left:
        node = left.pop()
        if node.target in SUMS and node.meta["val"].is_floating_point():
            yield node
        elif node.target is operator.getitem or getattr(node.target, "overloadpacket", None) in KEEPING:
            left += [given for given in node.all_input_nodes if given not in seen]
            seen.update(left)
