"""Cumulative sums and lookups along the last axis, as ones along the first axis, between transposes.

onnxruntime adds or copies a single element at a time along the last axis, and whole rows along the first one: with two
transposes of matrices these take a fifth to a half of the time.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import constant_integers, is_read_once, is_standard, may_have, replace_node

MIN_ELEMENTS = 2048
"""Below this number of elements, where it is known, two more nodes take longer than they save."""
MIN_ROWS = 8
"""The least number of elements that are next to one another along the first axis."""
FEW = 4
"""Lookups of fewer than a quarter of the elements take less time than a transpose of all."""


def compute_along_first_axes(model: ir.Model) -> None:
    """Replace CumSum and Gather nodes, and the reversals before and after a CumSum, in place."""
    for node in list(model.graph.all_nodes()):
        if is_standard(node, "Slice"):
            _reverse_sum(node)
    for node in list(model.graph.all_nodes()):
        if is_standard(node, "CumSum") and _is_along_last(node, constant_integers(node.inputs[1])):
            zero = ir.node("Constant", [], {"value": ir.tensor(np.int64(0))})
            options = {name: node.attributes.get_int(name, 0) for name in ("exclusive", "reverse")}
            _replace(node, [zero], ir.node("CumSum", [node.inputs[0], zero.outputs[0]], options), rank=1)
        elif is_standard(node, "Gather") and _is_along_last(node, [node.attributes.get_int("axis", 0)]):
            indices = node.inputs[1]
            if indices is not None and indices.shape is not None and _are_many(node, indices.shape):
                _replace(node, [], ir.node("Gather", node.inputs, {"axis": 0}), rank=len(indices.shape))


def _is_along_last(node: ir.Node, axes: list[int] | None) -> bool:
    """Whether the axis is the last one of a large tensor with several rows."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if axes is None or shape is None or axes[0] not in (-1, len(shape) - 1):
        return False
    return may_have(shape, MIN_ELEMENTS) and len(shape) > 1 and may_have(shape[:-1], MIN_ROWS)


def _are_many(lookup: ir.Node, indices: ir.Shape) -> bool:
    """Whether a lookup returns many of the elements, as far as is known."""
    assert lookup.inputs[0] is not None
    assert lookup.inputs[0].shape is not None
    sizes = [lookup.inputs[0].shape[-1], *indices]
    known = [size for size in sizes if isinstance(size, int)]
    return len(indices) > 0 and len(known) == len(sizes) and math.prod(known[1:]) * FEW >= known[0]


def _replace(node: ir.Node, before: list[ir.Node], computed: ir.Node, rank: int) -> None:
    """Compute along the first axis in place of the last one, of which `rank` axes are made."""
    (given, *_), count = node.inputs, len(node.inputs[0].shape) - 1
    first = ir.node("Transpose", [given], {"perm": [count, *range(count)]})
    computed.replace_input_with(0, first.outputs[0])
    last = ir.node("Transpose", computed.outputs, {"perm": [*range(rank, rank + count), *range(rank)]})
    for added, value in ((first, given), (computed, node.outputs[0])):
        if value.shape is not None:
            kept = count if added is first else len(value.shape) - rank
            added.outputs[0].shape = ir.Shape([*value.shape[kept:], *value.shape[:kept]])
        added.outputs[0].type = value.type
    replace_node(node, *before, first, computed, last)


def _reverse_sum(flip: ir.Node) -> None:
    """Sum from the end in place of a reversal, a cumulative sum and this second reversal."""
    axis, summed = _flipped_axis(flip), flip.inputs[0]
    node = None if summed is None else summed.producer()
    if axis is None or node is None or not is_standard(node, "CumSum") or not is_read_once(summed):
        return
    source = None if node.inputs[0] is None else node.inputs[0].producer()
    if source is None or node.graph is not flip.graph or _flipped_axis(source) != axis:
        return
    rank = len(summed.shape) if summed.shape is not None else None
    if rank is None or [each % rank for each in constant_integers(node.inputs[1]) or []] != [axis % rank]:
        return
    options = {
        "exclusive": node.attributes.get_int("exclusive", 0),
        "reverse": 1 - node.attributes.get_int("reverse", 0),
    }
    replace_node(flip, ir.node("CumSum", [source.inputs[0], node.inputs[1]], options))


def _flipped_axis(node: ir.Node) -> int | None:
    """The axis that a node reverses; None if it does anything else."""
    if not is_standard(node, "Slice") or len(node.inputs) < 5:
        return None
    start, end, axes, steps = map(constant_integers, node.inputs[1:5])
    whole = start == [-1] and steps == [-1] and end is not None and end[0] < -(2**31)
    return axes[0] if whole and axes is not None and len(axes) == 1 else None
