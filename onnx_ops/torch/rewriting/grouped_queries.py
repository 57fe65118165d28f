"""Attention with grouped queries reads each key and value once.

Models with fewer heads of keys than of queries repeat keys and values for the queries of a group, as `repeat_kv` of
transformers does, and sum the gradients with respect to the copies. The ops of this domain take the fewer heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnx_ops.core.domain import DOMAIN
from onnx_ops.ops import OPS
from onnx_ops.torch.base.nodes import constant_integers, is_read_once, is_standard
from onnx_ops.torch.rewriting.known_shapes import has_shape, has_shape_of, sizes_depend_on_data

REPEATED: Mapping[str, Mapping[str, str | None]] = {
    "FlashAttentionScore": {"key": None, "value": None},
    "FlashAttentionScoreGrad": {"key_in": "dk", "value": "dv"},
}
"""The inputs of ops that models repeat, with the outputs that are the gradients with respect to them."""


def read_grouped_keys(model: ir.Model) -> None:
    """Let attention and its gradient read keys and values that are repeated for groups of queries once, in place."""
    by_data = sizes_depend_on_data(model)
    attention = [node for node in model.graph.all_nodes() if node.domain == DOMAIN and node.op_type in REPEATED]
    if any([_read_once(node, by_data) for node in attention]):
        RemoveUnusedNodesPass()(model)


@dataclass(frozen=True)
class _Repeated:
    """Keys or values (B, M * G, S, D), each head of which is there G times.

    Attributes:
        heads: each of them once, (B, M, S, D).
        groups: (B, M, G, S, D).
    """

    heads: ir.Value
    groups: ir.Value


def _read_once(node: ir.Node, by_data: bool) -> bool:
    """Let a node read each head once; returns whether they were repeated, and their gradients are sums over groups."""
    op = OPS[node.op_type]
    inputs = [op.input_names.index(name) for name in REPEATED[node.op_type]]
    gradients = [node.outputs[op.output_names.index(name)] for name in REPEATED[node.op_type].values() if name]
    repeated = [each for place in inputs if (each := _repeated(node.inputs[place], by_data)) is not None]
    if len(repeated) < len(inputs) or len({each.heads.shape[1] for each in repeated if each.heads.shape}) > 1:
        return False
    sums = [_sum_over_groups(*pair, by_data) for pair in zip(gradients, repeated, strict=False)]
    if None in sums:
        return False
    for place, each in zip(inputs, repeated, strict=True):
        node.replace_input_with(place, each.heads)
    for gradient, total, each in zip(gradients, sums, repeated, strict=False):
        assert total is not None
        gradient.shape = each.heads.shape
        if total is not gradient:
            ir.convenience.replace_all_uses_with(total, gradient)
    return True


def _repeated(value: ir.Value | None, by_data: bool) -> _Repeated | None:
    """How a value repeats heads: by an axis of size 1 that is expanded and becomes part of the axis of heads."""
    groups = _input(value, "Reshape")
    single = _input(groups, "Expand")
    heads = _input(single, "Unsqueeze") or _input(single, "Reshape")
    if value is None or groups is None or single is None or heads is None:
        return None
    if heads.shape is None or groups.shape is None or (len(heads.shape), len(groups.shape)) != (4, 5):
        return None
    batch, count, *rest = heads.shape
    copies = groups.shape[2]
    if not isinstance(count, int) or not isinstance(copies, int):
        return None
    fits = (
        has_shape(single, (batch, count, 1, *rest), by_data)
        and has_shape(groups, (batch, count, copies, *rest), by_data)
        and has_shape(value, (batch, count * copies, *rest), by_data)
    )
    return _Repeated(heads, groups) if fits else None


def _sum_over_groups(gradient: ir.Value, repeated: _Repeated, by_data: bool) -> ir.Value | None:
    """The sum over groups of the gradient with respect to copies; None if it is read otherwise."""
    if not gradient.uses() and not gradient.is_graph_output():
        return gradient
    groups = _output(gradient, "Reshape")
    total = _output(groups, "ReduceSum")
    if groups is None or total is None or not has_shape_of(groups, repeated.groups, by_data) or _axes(total) != [2]:
        return None
    if not has_shape_of(total, repeated.heads, by_data):
        total = _output(total, "Squeeze") or _output(total, "Reshape")
    if total is None or not has_shape_of(total, repeated.heads, by_data) or total.is_graph_output():
        return None
    return total


def _axes(total: ir.Value) -> list[int] | None:
    """The axes over which a ReduceSum adds, if they are constant."""
    node = total.producer()
    return None if node is None or len(node.inputs) < 2 else constant_integers(node.inputs[1])


def _input(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """The first input of the node of this type that computes a value."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and is_standard(node, op_type) else None


def _output(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """The output of the node of this type whose first input is all that reads a value."""
    if value is None or not is_read_once(value):
        return None
    ((node, place),) = value.uses()
    return node.outputs[0] if is_standard(node, op_type) and place == 0 else None
