"""Sums over the rows of a matrix, in two steps.

onnxruntime adds row after row in float32, so that the rounding error of a gradient of a bias grows with the number of
rows. Sums of blocks of rows, and the sum of these, are more accurate, and faster, as a block stays in cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import constant_integers

MIN_ROWS = 128
"""The least number of rows that are summed in two steps."""
MIN_BLOCK = 8
"""The least number of rows in a block."""


def split_sums(model: ir.Model) -> None:
    """Write float32 ReduceSum nodes over the leading axes as two, in place."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type == "ReduceSum":
            _split(node)


def _split(node: ir.Node) -> None:
    value, axes = node.inputs[0], constant_integers(node.inputs[1] if len(node.inputs) > 1 else None)
    if value is None or value.shape is None or value.dtype is not ir.DataType.FLOAT or axes is None:
        return
    leading, rank = len(axes), len(value.shape)
    if sorted(axis % rank for axis in axes) != list(range(leading)) or leading in (0, rank):
        return
    trailing = [size for size in value.shape[leading:] if isinstance(size, int)]
    rows = _block(value, leading)
    if rows is None or len(trailing) < rank - leading or math.prod(trailing) < 2:
        return
    graph, result = node.graph, node.outputs[0]
    added: list[ir.Node] = []
    assert isinstance(graph, ir.Graph | ir.Function)

    def new(op_type: str, given: ir.Value, numbers: Sequence[int], **attributes: int) -> ir.Value:
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array(numbers, np.int64))})
        made = ir.node(op_type, [given, constant.outputs[0]], attributes)
        added.extend((constant, made))
        made.outputs[0].dtype = value.dtype
        return made.outputs[0]

    blocks = new("Reshape", value, [-1, rows, *trailing])
    total = new("ReduceSum", new("ReduceSum", blocks, [1], keepdims=0), [0], keepdims=0)
    total.shape = ir.Shape(trailing)
    if node.attributes.get_int("keepdims", 1):
        total = new("Unsqueeze", total, range(leading))
        total.shape = ir.Shape([1] * leading + trailing)
    ir.convenience.replace_nodes_and_values(graph, node, [node], added, [result], [total])


def _block(value: ir.Value, leading: int) -> int | None:
    """Rows of a block, which divide the number of rows; None for few rows, and where no such number is known."""
    assert value.shape is not None
    sizes = [size if isinstance(size, int) else None for size in value.shape[:leading]]
    known = [size for size in sizes if size is not None]
    if len(known) == leading:
        rows = math.prod(known)
        fitting = [n for n in range(MIN_BLOCK, math.isqrt(rows) + 1) if rows % n == 0]
        return rows // fitting[-1] if fitting and rows >= MIN_ROWS else None
    if sizes[-1] is not None:
        return sizes[-1] if sizes[-1] >= MIN_BLOCK else None
    source = value.producer()  # a Reshape of (N, rows, ...) to (N * rows, ...)
    inner = source.inputs[0] if source is not None and source.op_type == "Reshape" and leading == 1 else None
    if inner is None or inner.shape is None or len(inner.shape) <= len(value.shape):
        return None
    place = len(inner.shape) - len(value.shape)
    size = inner.shape[place]
    same = list(inner.shape[place + 1 :]) == list(value.shape[1:])
    return size if same and isinstance(size, int) and size >= MIN_BLOCK else None
