"""Sums of tensors that are padded with zeros to disjoint parts of one tensor, as concatenations.

The gradients of all slices of a tensor are such a sum: those of query, key and value, say, sliced from one projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import is_read_once


@dataclass(frozen=True)
class _Part:
    """A value padded with zeros along one axis.

    Attributes:
        value: the value without its padding.
        begin, end: the elements of the padded tensor that it has.
        size: of the padded tensor along the axis.
    """

    value: ir.Value
    axis: int
    begin: int
    end: int
    size: int


def join_pads(model: ir.Model) -> None:
    """Write sums of padded values as concatenations wherever the padded values are adjacent, in place."""
    for node in list(model.graph.all_nodes()):
        if is_sum(node) and not is_term(node.outputs[0]):
            _join(node)


def is_sum(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Add"


def is_term(value: ir.Value) -> bool:
    """Whether all that uses a value is a sum of its shape in the same graph."""
    if not is_read_once(value):
        return False
    user, own = value.uses()[0].node, value.producer()
    same = own is not None and user.graph is own.graph and value.shape is not None
    return same and is_sum(user) and user.outputs[0].shape == value.shape


def terms_of(node: ir.Node) -> list[ir.Value]:
    """The terms of a sum of any number of values."""
    found, left = [], list(node.inputs)
    while left:
        value = left.pop(0)
        assert value is not None
        inner = value.producer()
        if inner is not None and is_sum(inner) and is_term(value):
            left[:0] = inner.inputs
        else:
            found.append(value)
    return found


def _join(node: ir.Node) -> None:
    graph, total = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph | ir.Function)
    terms = terms_of(node)
    parts = {term: part for term in terms if term.shape == total.shape and (part := _part(term)) is not None}
    added: list[ir.Node] = []
    rest = [term for term in terms if term not in parts]
    for axis in sorted({part.axis for part in parts.values()}):
        chosen = sorted((term for term in parts if parts[term].axis == axis), key=lambda term: parts[term].begin)
        while chosen:
            run = [chosen.pop(0)]
            for term in list(chosen):
                if parts[term].begin == parts[run[-1]].end:
                    run.append(term)
                    chosen.remove(term)
            rest.append(_joined([parts[term] for term in run], total, added) if len(run) > 1 else run[0])
    if len(rest) == len(terms):
        return
    result = rest[0]
    for term in rest[1:]:
        result = _node(added, "Add", [result, term], total)
    ir.convenience.replace_nodes_and_values(graph, node, [node], added, [total], [result])


def _joined(parts: Sequence[_Part], total: ir.Value, added: list[ir.Node]) -> ir.Value:
    """The sum of adjacent parts."""
    first, last = parts[0], parts[-1]
    assert total.shape is not None
    sizes = list(total.shape)
    sizes[first.axis] = last.end - first.begin
    values = [part.value for part in parts]
    joined = _node(added, "Concat", values, total, sizes, {"axis": first.axis})
    before, after = first.begin, first.size - last.end
    if before == after == 0:
        return joined
    pads = np.zeros((2, len(sizes)), np.int64)
    pads[:, first.axis] = before, after
    added.append(ir.node("Constant", [], {"value": ir.tensor(pads.reshape(-1))}))
    return _node(added, "Pad", [joined, added[-1].outputs[0]], total)


def _node(
    added: list[ir.Node],
    op_type: str,
    inputs: Sequence[ir.Value],
    total: ir.Value,
    sizes: Sequence[int | ir.SymbolicDim] | None = None,
    attributes: dict[str, int] | None = None,
) -> ir.Value:
    """The output of a new node, of the dtype of `total`, and of its shape unless there are `sizes`."""
    added.append(ir.node(op_type, inputs, attributes))
    value = added[-1].outputs[0]
    value.dtype, value.shape = total.dtype, total.shape if sizes is None else ir.Shape(sizes)
    return value


def _part(value: ir.Value) -> _Part | None:
    """The part that a padded value is; None for others."""
    node = value.producer()
    if node is None or node.op_type != "Pad" or node.domain or not is_read_once(value):
        return None
    mode, (inner, pads, *options) = node.attributes.get_string("mode", "constant"), node.inputs
    numbers = [option and ir.convenience.get_const_tensor(option) for option in (pads, *options)]
    if mode != "constant" or inner is None or numbers[0] is None or len(options) > 1 or value.shape is None:
        return None
    if options and options[0] is not None and (numbers[1] is None or np.any(numbers[1].numpy() != 0)):
        return None
    before, after = numbers[0].numpy().reshape(2, -1)
    axes = np.flatnonzero((before != 0) | (after != 0))
    if len(axes) != 1 or min(before.min(), after.min()) < 0:
        return None
    axis = int(axes[0])
    size = value.shape[axis]
    return _Part(inner, axis, int(before[axis]), size - int(after[axis]), size) if isinstance(size, int) else None
