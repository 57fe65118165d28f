"""Operators on tensors whose last axes have the size 1, such as one number per edge of a graph, on one axis.

onnxruntime's Gather and GatherND copy row by row, however short rows are, its broadcasting takes element by element
where a scalar of rank 0 meets a last axis of size 1, and its reductions over an axis of size 1 are loops too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import may_have

MANY = 64
"""The number of elements from which on these nodes are rewritten."""
BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
)
REDUCTIONS = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})


def flatten_narrow(model: ir.Model) -> None:
    """Rewrite these nodes, in place."""
    for node in list(model.graph.all_nodes()):
        if node.domain:
            continue
        if node.op_type == "GatherND":
            _look_up_rows(node)
        elif node.op_type == "Gather":
            _look_up_numbers(node)
        elif node.op_type in BROADCASTING:
            _align_scalar(node)
        elif node.op_type in REDUCTIONS:
            _drop_axes(node)


def _look_up_rows(node: ir.Node) -> None:
    """GatherND by one index per row, (E, 1), as Gather."""
    table, indices = node.inputs
    result = node.outputs[0]
    if node.attributes.get_int("batch_dims", 0) or table is None or indices is None or result.shape is None:
        return
    # The last axis of the indices has as many as there are axes that they index, and may have no known shape.
    if not table.shape or len(result.shape) != len(table.shape) or not _is_column(indices):
        return
    edit = _Edit(node)
    flat = edit.reshaped(indices, [-1], ir.Shape(result.shape[:1]))
    gathered = edit.new("Gather", [table, flat], result, axis=0)
    edit.finish(gathered)
    producer = gathered.producer()
    assert producer is not None
    _look_up_numbers(producer)


def _is_column(indices: ir.Value) -> bool:
    """Whether indices are (E, 1)."""
    if indices.shape is not None:
        return len(indices.shape) == 2 and indices.shape[1] == 1
    node = indices.producer()
    axes = ir.convenience.get_const_tensor(node.inputs[1]) if node is not None and node.op_type == "Unsqueeze" else None
    return axes is not None and axes.numpy().reshape(-1).tolist() in ([-1], [1])


def _look_up_numbers(node: ir.Node) -> None:
    """Gather of single numbers as GatherElements."""
    (table, indices), result = node.inputs, node.outputs[0]
    if table is None or indices is None or not table.shape or result.shape is None:
        return
    rank = len(table.shape)
    if len(result.shape) != rank:  # the index has another rank than 1
        return
    if node.attributes.get_int("axis", 0) not in (0, -rank) or any(size != 1 for size in table.shape[1:]):
        return
    if not may_have(result.shape, MANY):
        return
    edit = _Edit(node)
    flat = table if rank == 1 else edit.reshaped(table, [-1])
    found = edit.new("GatherElements", [flat, indices], result, ir.Shape(result.shape[:1]), axis=0)
    edit.finish(found if rank == 1 else edit.reshaped(found, [-1] + [1] * (rank - 1), result.shape))


def _align_scalar(node: ir.Node) -> None:
    """Give a scalar the rank of a tensor whose last axis has size 1."""
    for place in range(2):
        scalar, other = node.inputs[place], node.inputs[1 - place]
        if scalar is None or other is None or scalar.shape is None or other.shape is None:
            continue
        if len(scalar.shape) == 0 and len(other.shape) > 1 and other.shape[-1] == 1 and may_have(other.shape, MANY):
            edit = _Edit(node)
            ones = [1] * len(other.shape)
            tensor = ir.convenience.get_const_tensor(scalar)
            if tensor is None:
                aligned = edit.reshaped(scalar, ones, ir.Shape(ones))
            else:
                aligned = edit.constant(tensor.numpy().reshape(ones))
            inputs = [aligned, other] if place == 0 else [other, aligned]
            edit.finish(edit.new(node.op_type, inputs, node.outputs[0]))
            return


def _drop_axes(node: ir.Node) -> None:
    """A reduction over axes of size 1 is a change of shape."""
    value, result = node.inputs[0], node.outputs[0]
    if value is None or value.shape is None or len(node.inputs) < 2 or node.inputs[1] is None:
        return
    axes = ir.convenience.get_const_tensor(node.inputs[1])
    if axes is None or axes.size == 0 or any(value.shape[axis] != 1 for axis in axes.numpy().reshape(-1).tolist()):
        return
    edit = _Edit(node)
    if node.attributes.get_int("keepdims", 1):
        edit.finish(edit.new("Identity", [value], result))
    else:
        edit.finish(edit.new("Squeeze", [value, node.inputs[1]], result))


class _Edit:
    """The nodes that replace a node."""

    def __init__(self, node: ir.Node) -> None:
        self._node = node
        self._added: list[ir.Node] = []

    def new(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        like: ir.Value,
        shape: ir.Shape | None = None,
        **attributes: int,
    ) -> ir.Value:
        """The output of a new node, of the dtype of `like`, and of its shape unless there is another one."""
        self._added.append(ir.node(op_type, inputs, attributes))
        value = self._added[-1].outputs[0]
        if like.dtype is not None:  # without one, a value with a shape cannot be written to a file
            value.dtype, value.shape = like.dtype, like.shape if shape is None else shape
        return value

    def constant(self, array: np.ndarray) -> ir.Value:
        tensor = ir.tensor(array)
        self._added.append(ir.node("Constant", [], {"value": tensor}))
        value = self._added[-1].outputs[0]
        value.dtype, value.shape = tensor.dtype, tensor.shape
        return value

    def reshaped(self, value: ir.Value, sizes: Sequence[int], shape: ir.Shape | None = None) -> ir.Value:
        """A value in a shape; `sizes` has -1 for the first axis of `value`."""
        if shape is None:
            assert value.shape is not None
            shape = ir.Shape([value.shape[0], *sizes[1:]])
        return self.new("Reshape", [value, self.constant(np.array(sizes, np.int64))], value, shape)

    def finish(self, value: ir.Value) -> None:
        """Put the new nodes in the place of the old one, whose output is now `value`."""
        graph = self._node.graph
        assert isinstance(graph, ir.Graph | ir.Function)
        old = [self._node.outputs[0]]
        ir.convenience.replace_nodes_and_values(graph, self._node, [self._node], self._added, old, [value])
