"""Products of transposed matrices read the matrices as they are.

onnxruntime fuses a Transpose with the product that is its only reader, if nothing is between them. The transpose of a
weight has a second reader, as the gradient of the product transposes it back: each step would compute the transposes of
all weights. In batches of products, as of attention, a Reshape is between them, and the gradient of a transposed
operand is a product that is transposed itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import is_read_once

RANK = 2
GEMM = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The dtypes for which MatMul becomes Gemm: not all versions of onnxruntime have a Gemm of others."""


def fuse_transposes(model: ir.Model) -> None:
    """Let Gemm transpose its operands, and let products with a transposed second operand be Gemm, in place."""
    for node in model.graph.all_nodes():
        if node.domain != "" or node.op_type not in ("MatMul", "Gemm"):
            continue
        for operand, flag in enumerate(("transA", "transB")):
            source, is_transposed = _source(node.inputs[operand])
            if source is None or source is node.inputs[operand]:
                continue
            if is_transposed:
                if node.op_type == "MatMul":
                    if not (operand == 1 and _is_matrix(node.inputs[0]) and source.dtype in GEMM):
                        continue
                    node.op_type = "Gemm"
                node.attributes[flag] = ir.AttrInt64(flag, 1 - node.attributes.get_int(flag, 0))
            node.replace_input_with(operand, source)


def _source(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """The matrix that a value is, or is the transpose of, and whether it is the transpose."""
    is_transposed = False
    while value is not None and (node := value.producer()) is not None:
        if node.domain != "" or node.op_type != "Transpose" or not _is_matrix(node.inputs[0]):
            break
        if tuple(node.attributes.get_ints("perm", (1, 0))) == (1, 0):
            is_transposed = not is_transposed
        value = node.inputs[0]
    return value, is_transposed


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == RANK


def transpose_next_to_products(model: ir.Model) -> None:
    """Move transposes of matrices in batches next to the products that read them, and before those they read, in place.

    - MatMul(Reshape(Transpose(x)), y) is MatMul(Transpose(Reshape(x)), y).
    - Transpose(Reshape(MatMul(Transpose(x), y))) is Reshape(MatMul(Transpose(y), x)).
    """
    for node in list(model.graph.all_nodes()):
        if (node.domain, node.op_type) == ("", "MatMul"):
            for operand in range(2):
                _transpose_last(node, operand)
    for node in list(model.graph.all_nodes()):
        if _matrix_transposed_by(node) is not None:
            _transpose_operands(node)


def _transpose_last(product: ir.Node, operand: int) -> None:
    """Let the operand of a product be transposed after it is reshaped, and not twice."""
    reshapes: list[tuple[ir.Node, bool]] = []
    value, found, is_transposed = product.inputs[operand], 0, False
    source = value
    while value is not None and (node := value.producer()) is not None:
        if (matrices := _matrix_transposed_by(node)) is not None:
            is_transposed = not is_transposed
            value, source, found = matrices, matrices, len(reshapes)
        elif _keeps_matrices(node):
            reshapes.append((node, is_transposed))
            value = node.inputs[0]
        else:
            break
    if source is None or not found:
        return
    for node, is_transposed_after in reversed(reshapes[:found]):
        source = _reshaped(source, node, before=product, swap=is_transposed != is_transposed_after)
    product.replace_input_with(operand, _transposed(source, before=product) if is_transposed else source)


def _transpose_operands(transpose: ir.Node) -> None:
    """Replace the transpose of a product of which an operand is transposed."""
    reshapes: list[ir.Node] = []
    value, node = transpose.inputs[0], transpose
    while value is not None and _is_read_by(node, value) and (source := value.producer()) is not None:
        node = source
        if not _keeps_matrices(node):
            break
        reshapes.append(node)
        value = node.inputs[0]
    x, y = node.inputs if (node.domain, node.op_type) == ("", "MatMul") else (None, None)
    if x is None or y is None or all(_matrix_transposed_by(v.producer()) is None for v in (x, y)):
        return
    shape = node.outputs[0].shape
    if x.shape is None or y.shape is None or shape is None or min(len(x.shape), len(y.shape)) <= RANK:
        return
    operands = [_transposed(v, before=transpose) for v in (y, x)]
    result = _added(ir.node("MatMul", operands), _swapped(shape), x.dtype, before=transpose)
    for reshape in reversed(reshapes):
        result = _reshaped(result, reshape, before=transpose, swap=True)
    ir.convenience.replace_all_uses_with(transpose.outputs[0], result, replace_graph_outputs=True)


def _is_read_by(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node of the same graph is all that reads a value."""
    source = value.producer()
    return is_read_once(value) and source is not None and source.graph is node.graph


def _matrix_transposed_by(node: ir.Node | None) -> ir.Value | None:
    """What a node transposes, if it swaps the last two of more axes; else None."""
    if node is None or (node.domain, node.op_type) != ("", "Transpose"):
        return None
    perm = list(node.attributes.get_ints("perm", ()))
    return node.inputs[0] if len(perm) > RANK and perm == _swapped(range(len(perm))) else None


def _keeps_matrices(node: ir.Node) -> bool:
    """Whether a node is a Reshape that changes leading axes only."""
    if (node.domain, node.op_type) != ("", "Reshape") or node.inputs[0] is None or node.inputs[1] is None:
        return False
    before, after, target = node.inputs[0].shape, node.outputs[0].shape, node.inputs[1].const_value
    if before is None or after is None or min(len(before), len(after)) <= RANK:
        return False
    if target is not None and not target.numpy().all():  # a copied size, at the same place of both shapes
        return False
    known = all(isinstance(size, int) or size.value is not None for size in after[-RANK:])
    return known and list(before[-RANK:]) == list(after[-RANK:])


def _transposed(value: ir.Value, before: ir.Node) -> ir.Value:
    """The matrices of a value transposed, by a new node."""
    assert value.shape is not None
    node = ir.node("Transpose", [value], {"perm": _swapped(range(len(value.shape)))})
    return _added(node, _swapped(value.shape), value.dtype, before)


def _reshaped(value: ir.Value, like: ir.Node, before: ir.Node, swap: bool) -> ir.Value:
    """A value reshaped as a node does, or if its matrices are the transposes of the node's, to these transposed."""
    target, shape = like.inputs[1], like.outputs[0].shape
    assert target is not None
    assert shape is not None
    if swap:
        places = ir.node("Constant", [], {"value": ir.tensor(np.array(_swapped(range(len(shape)))))})
        before.graph.insert_before(before, places)
        target = _added(ir.node("Gather", [target, places.outputs[0]]), [len(shape)], ir.DataType.INT64, before)
    shape = _swapped(shape) if swap else shape
    return _added(ir.node("Reshape", [value, target], like.attributes), shape, value.dtype, before)


def _swapped(axes: Iterable[Any]) -> list[Any]:
    """Axes, or their sizes, with the last two swapped."""
    *leading, row, column = axes
    return [*leading, column, row]


def _added(node: ir.Node, shape: Iterable[Any], dtype: ir.DataType | None, before: ir.Node) -> ir.Value:
    """The output of a node, which is added before another."""
    assert before.graph is not None
    before.graph.insert_before(before, node)
    result = node.outputs[0]
    result.shape = ir.Shape(shape)
    if dtype is not None:
        result.dtype = dtype
    return result
