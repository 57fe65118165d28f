"""Sums over the edges of a graph as products of sparse matrices: SparseMatMul and SampledMatMul.

A layer of a graph network looks up the row of each edge's source, multiplies it by a weight of the edge, and adds it to
the row of the edge's target. Operator by operator, each of these reads and writes an array of rows for all edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.tracing.row_indices import ZEROS, added_call, is_zeros, row_index, sizes_of, sums_of_rows

aten = torch.ops.aten
VIEWS = (
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)


@dataclass(frozen=True)
class _Rows:
    """Rows of a tensor that a 1-D index selects.

    Attributes:
        table: the tensor, whose rows are those of its first axis.
        index: one per selected row.
        wraps: whether negative numbers count from the end.
    """

    table: Node
    index: Node
    wraps: bool


def multiply_sparse(module: GraphModule) -> None:
    """Replace sums of weighted rows, and dot products of pairs of rows, in a graph without writes, in place."""
    graph = module.graph
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if node.target is aten.embedding_dense_backward.default:
                replaced = _sum_of_lookups(graph, *node.args)
            elif node.target is aten.scatter_add.default:
                replaced = _scattered(graph, *node.args) or sums_of_rows(graph, *node.args, dynamic=True)
            elif node.target is aten.sum.dim_IntList:
                replaced = _dot_products(graph, node, *node.args)
            else:
                continue
        if replaced is not None:
            node.replace_all_uses_with(replaced)
            graph.erase_node(node)


def _sum_of_lookups(
    graph: Graph, grad: Node, index: Node, count: int, padding: int = -1, scaled: bool = False
) -> Node | None:
    if padding != -1 or scaled or len(sizes_of(index)) != 1:
        return None
    product = _product(graph, grad, index, count)
    return None if product is None else added_call(graph, aten.reshape.default, (product, [count, -1]))


def _scattered(graph: Graph, start: Node, axis: int, index: Node, rows: Node) -> Node | None:
    """Sums upon zeros, of which there are as many as rows are looked up; other numbers have to be static."""
    shape = sizes_of(start)
    if not is_zeros(start) or not shape or axis % len(shape) != 0 or sizes_of(rows) != sizes_of(index):
        return None
    if not start.meta["val"].is_floating_point() or (places := row_index(graph, start, 0, index)) is None:
        return None
    product = _product(graph, rows, places, shape[0])
    return None if product is None else added_call(graph, aten.reshape.default, (product, [-1, *shape[1:]]))


def _product(graph: Graph, terms: Node, row: Node, count: int | sympy.Expr) -> Node | None:
    """Sums of terms with the same `row`, (count, ...); None unless they are rows of a table, maybe with weights."""
    terms = _origin(terms)
    shape = sizes_of(terms)
    if not _has_static_rows(shape):
        return None
    values: Node | None = None
    heads, length = 1, math.prod(shape[1:])
    found = _lookup(terms)
    if found is None and terms.target is aten.mul.Tensor and _is_read_once(terms):
        for weights, rows in (terms.args[:2], terms.args[1::-1]):
            if not isinstance(weights, Node) or not isinstance(rows, Node) or sizes_of(rows) != shape:
                continue
            weights = _unexpanded(weights)
            own = sizes_of(weights)
            axes = next((i for i in range(len(shape), 0, -1) if own == shape[:i] + (1,) * (len(shape) - i)), None)
            # A weight for each number of a row would not be faster.
            if axes is not None and (length == 1 or axes < len(shape)) and (found := _lookup(rows)) is not None:
                values, heads = weights, math.prod(shape[1:axes])
                break
    if found is None or any(
        given.meta["val"].dtype != terms.meta["val"].dtype for given in (found.table, values) if given is not None
    ):
        return None
    size = sizes_of(found.table)[0]
    if not isinstance(count, int) and count != size:
        return None
    length //= heads
    dense = _reshaped(graph, found.table, (size, heads, length) if heads > 1 else (size, length))
    if values is not None:
        values = _reshaped(graph, values, (shape[0], heads) if heads > 1 else (shape[0],))
    arguments = (dense, row, _in_range(graph, found), values)
    rows = {"num_rows": -1 if count == size else count}
    return added_call(graph, domain_ops.SparseMatMul.default, arguments, rows)


def _dot_products(graph: Graph, node: Node, terms: Node, axes: Sequence[int] | None, *options: Any) -> Node | None:
    """A sum over the last axes of the product of two lookups."""
    shape = sizes_of(terms)
    first = len(shape) - len(axes or ())
    if terms.target is not aten.mul.Tensor or not _is_read_once(terms) or not axes or first < 1 or node.kwargs:
        return None
    if sorted(axis % len(shape) for axis in axes) != list(range(first, len(shape))) or not _has_static_rows(shape):
        return None
    factors = terms.args[:2]
    if not all(isinstance(factor, Node) and sizes_of(factor) == shape for factor in factors):
        return None
    left, right = (_lookup(factor) for factor in factors)
    if (
        left is None
        or right is None
        or any(given.table.meta["val"].dtype != terms.meta["val"].dtype for given in (left, right))
    ):
        return None
    heads, length = math.prod(shape[1:first]), math.prod(shape[first:])
    tables = [
        _reshaped(graph, table, (sizes_of(table)[0], *((heads,) if heads > 1 else ()), length))
        for table in (left.table, right.table)
    ]
    indices = [_in_range(graph, given) for given in (left, right)]
    products = added_call(graph, domain_ops.SampledMatMul.default, (*tables, *indices))
    return added_call(graph, aten.reshape.default, (products, [-1, *sizes_of(node)[1:]]))


def _lookup(node: Node) -> _Rows | None:
    """The rows that a node has looked up along the first axis; None for other nodes."""
    shape, node = sizes_of(node), _origin(node)
    if node.target is aten.index_select.default:
        table, axis, index = node.args
    elif node.target is aten.index.Tensor and len(node.args[1]) == 1:
        table, axis, (index,) = node.args[0], 0, node.args[1]
    else:
        return None
    whole = sizes_of(table)
    if not whole or axis % len(whole) != 0 or len(sizes_of(index)) != 1 or not _has_static_rows(shape):
        return None
    if index.meta["val"].dtype not in (torch.int64, torch.int32) or not table.meta["val"].is_floating_point():
        return None
    return _Rows(table, index, node.target is aten.index.Tensor) if _has_static_rows(whole) else None


def _in_range(graph: Graph, rows: _Rows) -> Node:
    """The index of a lookup, without negative numbers."""
    if not rows.wraps:
        return rows.index
    size = sizes_of(rows.table)[0]
    if not isinstance(size, int):
        size = added_call(graph, aten.sym_size.int, (rows.table, 0))
    negative = added_call(graph, aten.lt.Scalar, (rows.index, 0))
    from_end = added_call(graph, aten.add.Tensor, (rows.index, size))
    return added_call(graph, aten.where.self, (negative, from_end, rows.index))


def _is_read_once(node: Node) -> bool:
    """Whether a single node reads the elements of a tensor, not only its shape."""
    return sum(user.target not in ZEROS for user in node.users) == 1


def _origin(node: Node) -> Node:
    """What a node is a copy or view of, or that expanded to its own shape, with the same first axis."""
    while (
        (node.target in VIEWS and sizes_of(node)[:1] == sizes_of(node.args[0])[:1])
        or (node.target is aten.expand.default and sizes_of(node) == sizes_of(node.args[0]))
        or (node.target is aten.permute.default and list(node.args[1]) == sorted(node.args[1]))
    ):
        node = node.args[0]
    return node


def _unexpanded(node: Node) -> Node:
    """What a node is expanded from along other axes than the first."""
    while node.target is aten.expand.default:
        shape = sizes_of(node.args[0])
        if len(shape) != len(sizes_of(node)) or shape[0] != sizes_of(node)[0]:
            break
        node = node.args[0]
    return node


def _has_static_rows(shape: Sequence[Any]) -> bool:
    return len(shape) > 0 and all(isinstance(size, int) and size > 0 for size in shape[1:])


def _reshaped(graph: Graph, node: Node, shape: tuple[Any, ...]) -> Node:
    """A node in a shape with the same first axis."""
    if sizes_of(node) == shape:
        return node
    return added_call(graph, aten.reshape.default, (node, [-1, *shape[1:]]))
