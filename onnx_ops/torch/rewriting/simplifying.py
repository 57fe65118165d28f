"""Simplifies captured graphs without changing their results, in place of the optimizer of torch.onnx.export.

That one treats constants up to 1e-8, such as Adam's eps, as 0, and merges casts to float32 and then float16 into one,
which rounds differently.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer, rewriter
from onnxscript.rewriter.rules import common as common_rules

from onnx_ops.core.domain import DOMAIN
from onnx_ops.ops import OPS
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.rewriting.attention_layouts import read_heads_in_place
from onnx_ops.torch.rewriting.expanding import delay_expands
from onnx_ops.torch.rewriting.gelus import gelus_by_op
from onnx_ops.torch.rewriting.grouped_queries import read_grouped_keys
from onnx_ops.torch.rewriting.integers import widen_integers
from onnx_ops.torch.rewriting.joining import join_pads
from onnx_ops.torch.rewriting.known_shapes import remove_reshapes_to_own_shape
from onnx_ops.torch.rewriting.last_axes import compute_along_first_axes
from onnx_ops.torch.rewriting.narrow_tensors import flatten_narrow
from onnx_ops.torch.rewriting.parts import read_stacked
from onnx_ops.torch.rewriting.permuting import split_transposes
from onnx_ops.torch.rewriting.rms_norms import rms_norms_by_op
from onnx_ops.torch.rewriting.rotary import rotary_embeddings_by_op
from onnx_ops.torch.rewriting.softmaxes import weigh_by_op, write_out_softmaxes
from onnx_ops.torch.rewriting.summing import split_sums
from onnx_ops.torch.rewriting.transposing import fuse_transposes, transpose_next_to_products

# The rules that compare no floating constants.
RULES = {
    common_rules.collapse_slice_rule: "Slice",
    common_rules.collapse_slice2_rule: "Slice",
    common_rules.cast_constant_of_shape_rule: "Cast",
    common_rules.cast_constant_of_shape_without_value_rule: "Cast",
    common_rules.materialize_reshape_shape_rule: "Reshape",
    common_rules.no_op_cast_rule: "Cast",
    common_rules.no_op_expand_rule: "Expand",
    common_rules.no_op_transpose_rule: "Transpose",
    common_rules.reshape_reshape_rule: "Reshape",
    common_rules.squeeze_reshape_1d_rule: "Reshape",
    common_rules.transpose_transpose_rule: "Transpose",
    common_rules.unsqueeze_unsqueeze_rule: "Unsqueeze",
}
"""The rules, with the op_type of the node that each replaces."""

MOST_COMPARED = 1 << 20
"""The number of elements up to which equal constants become one."""

ROUNDS = 3
"""The largest number of rounds; a round that changes the graph may enable simplifications of the next."""


def simplify(model: ir.Model) -> None:
    """Fold constants, eliminate common subexpressions, and remove nodes without effect or use, in place."""
    common.InlinePass()(model)
    rules = rewriter.pattern.RewriteRuleSet([_of(op_type, rule) for rule, op_type in RULES.items()])
    for _ in range(ROUNDS):
        before = _connections(model)
        optimizer.fold_constants(model)
        read_stacked(model)
        compute_along_first_axes(model)
        fuse_transposes(model)
        transpose_next_to_products(model)
        rewriter.RewritePass(rules)(model)
        common.RemoveUnusedNodesPass()(model)
        if _connections(model) == before:
            break
    join_pads(model)
    weigh_by_op(model)
    write_out_softmaxes(model)
    delay_expands(model)
    flatten_narrow(model)
    split_sums(model)
    common.RemoveUnusedNodesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    common.DeduplicateInitializersPass(size_limit=MOST_COMPARED)(model)
    _eliminate_common_subexpressions(model)
    common.RemoveUnusedNodesPass()(model)
    gelus_by_op(model)
    rms_norms_by_op(model)
    rotary_embeddings_by_op(model)
    remove_reshapes_to_own_shape(model)
    read_grouped_keys(model)
    read_heads_in_place(model)
    split_transposes(model)
    _rewrite_nodes(model)
    widen_integers(model)
    common.RemoveUnusedNodesPass()(model)
    _omit_unused_outputs(model)
    _prevent_scale_fusion(model.graph)
    common.RemoveUnusedFunctionsPass()(model)
    common.RemoveUnusedOpsetsPass()(model)


def _connections(model: ir.Model) -> list[tuple[ir.Node, str, tuple[ir.Value | None, ...]]]:
    """The nodes with what they compute, and of what; passes also report changes that leave these alone."""
    return [(node, node.op_type, tuple(node.inputs)) for node in model.graph.all_nodes()]


def _eliminate_common_subexpressions(model: ir.Model) -> None:
    """Compute equal nodes once; an output keeps its type where the first of the nodes has none."""
    kinds = [(value.type, value.shape) for value in model.graph.outputs]
    _restore_omitted_outputs(model.graph)
    common.CommonSubexpressionEliminationPass()(model)
    for value, (kind, shape) in zip(model.graph.outputs, kinds, strict=True):
        if value.type is None:
            value.type, value.shape = kind, shape


def _restore_omitted_outputs(graph: ir.Graph) -> None:
    """Give nodes that differ in the outputs that are omitted, such as Uniques of one tensor, all outputs of these.

    onnxruntime would merge them, and take the outputs that one has for those of the other.
    """
    alike: dict[Any, list[ir.Node]] = {}
    for node in graph:
        if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
            continue
        attributes = frozenset((name, str(attribute.value)) for name, attribute in node.attributes.items())
        alike.setdefault((node.op_identifier(), tuple(node.inputs), attributes), []).append(node)
    for nodes in alike.values():
        used = [[bool(value.name) for value in node.outputs] for node in nodes]
        if all(each == used[0] for each in used):
            continue
        for node in nodes:
            node.resize_outputs(max(map(len, used)))
            for i, value in enumerate(node.outputs):
                value.name = value.name or f"{node.name}_output_{i}"


def _of(op_type: str, rule: rewriter.pattern.RewriteRule) -> rewriter.pattern.RewriteRule:
    """A rule that refuses the nodes of other op_types at once; its matcher takes 20 times as long to do so."""
    only = copy.copy(rule)

    def rewritten(model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **options: Any) -> Any:
        if node.op_type != op_type or (rule is common_rules.materialize_reshape_shape_rule and not _inferable(node)):
            return None
        return rule.try_rewrite(model, graph, node, **options)

    only.try_rewrite = rewritten
    return only


def _inferable(node: ir.Node) -> bool:
    """Whether a Reshape with -1 for a dynamic size of its result can tell it: any would do beside a size of 0."""
    shape = node.outputs[0].shape
    return shape is not None and (0 not in shape or shape.is_static())


def _omit_unused_outputs(model: ir.Model) -> None:
    """Omit the unused optional outputs of this domain's nodes."""
    for node in model.graph.all_nodes():
        if node.domain != DOMAIN:
            continue
        given = 0
        for i, (value, parameter) in enumerate(zip(node.outputs, OPS[node.op_type].outputs, strict=False)):
            if parameter.optional and not value.uses() and not value.is_graph_output():
                value.name = ""
            else:
                given = i + 1
        node.resize_outputs(given)


def _rewrite_nodes(model: ir.Model) -> None:
    """Apply the rewrites in the table of operators to this domain's nodes."""
    for node in list(model.graph.all_nodes()):
        if node.domain == DOMAIN and node.op_type in TABLE.rewrites:
            TABLE.rewrites[node.op_type](node)


def _prevent_scale_fusion(graph: ir.Graph) -> None:
    """Expand scalar float64 factors to a row of the other operand's last dimension.

    onnxruntime's MatMulScaleFusion rounds a scalar factor next to a MatMul to float32; it ignores rows.
    """
    rows: dict[tuple[str | None, int], ir.Value] = {}
    for node in graph.all_nodes():
        if node.domain or node.op_type not in ("Mul", "Div"):
            continue
        for place, (factor, other) in enumerate(zip(node.inputs, reversed(node.inputs), strict=True)):
            tensor = None if factor is None else factor.const_value
            columns = None if other is None or not other.shape else other.shape[-1]
            if factor is None or tensor is None or tensor.dtype is not ir.DataType.DOUBLE or tensor.size != 1:
                continue
            if len(tensor.shape) > 1 or not isinstance(columns, int) or columns < 2:
                continue
            if (factor.name, columns) not in rows:
                name = f"{factor.name}_row_of_{columns}"
                array = np.full(columns, tensor.numpy())
                row = rows[factor.name, columns] = ir.val(name, const_value=ir.tensor(array, name=name))
                graph.register_initializer(row)
            node.replace_input_with(place, rows[factor.name, columns])
