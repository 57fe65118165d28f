"""Scatters and gathers whose index is the same for all elements of a row, as operators on whole rows.

`x.scatter_add(0, index[:, None].expand_as(y), y)`, as graph networks have it, adds the rows of y to those of x that a
1-D index names. ONNX's ScatterElements and GatherElements read the index of every element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.tracing.indices import OUT_OF_RANGE

aten = torch.ops.aten
ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)
ADDING = (aten.scatter_add.default, aten.scatter_add_.default)
REDUCING = (aten.scatter_reduce.two, aten.scatter_reduce_.two)


def index_rows(traced: GraphModule) -> None:
    """Replace gather, scatter_add and scatter_reduce with an expanded 1-D index by operators on rows.

    These are index_select, embedding_dense_backward, which has floating numbers and a static number of rows (one of the
    other sizes may be dynamic), and ScatterMax. Sums in a dynamic number of rows are left for `multiply_sparse`. Where
    nothing is added, nothing is left.
    """
    graph = traced.graph
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if node.target is aten.gather.default:
                replaced = _selected(graph, *node.args[:3])
            elif node.target in ADDING and 0 in sizes_of(node.args[3]):
                replaced = node.args[0]
            elif node.target in ADDING and _may_be_replaced(node):
                replaced = sums_of_rows(graph, *node.args)
            elif node.target in REDUCING and _may_be_replaced(node):
                replaced = _extremes_of_rows(graph, *node.args, **node.kwargs)
            else:
                continue
        if replaced is not None:
            node.replace_all_uses_with(replaced)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    traced.recompile()


def _may_be_replaced(node: Node) -> bool:
    """Whether nothing else reads the tensor that the operator changes in place, if it does, but copies made before."""
    if node.target in (aten.scatter_add.default, aten.scatter_reduce.two):
        return True
    changed = node.args[0]
    others = [user for user in changed.users if user is not node]
    return changed.target in ZEROS and all(user.target is aten.clone.default and user < node for user in others)


def _selected(graph: Graph, given: Node, axis: int, index: Node) -> Node | None:
    """gather as index_select; None if it selects no rows."""
    axis %= max(len(sizes_of(index)), 1)
    if (places := row_index(graph, given, axis, index)) is None:
        return None
    return added_call(graph, aten.index_select.default, (given, axis, places))


def sums_of_rows(
    graph: Graph, start: Node, axis: int, index: Node, rows: Node, *, dynamic: bool = False
) -> Node | None:
    """scatter_add as the sums of the rows with the same index, added to `start`; None if it adds up no rows.

    Args:
        graph, start, axis, index, rows: the graph, and the arguments of scatter_add.
        dynamic: whether the number of rows of `start` is dynamic.
    """
    shape = list(sizes_of(start))
    axis %= max(len(shape), 1)
    others = [i for i in range(len(shape)) if i != axis]
    static = [size for size in shape if isinstance(size, int)]
    if not start.meta["val"].is_floating_point() or len(static) < len(others) or not all(static):
        return None
    if isinstance(shape[axis], int) == dynamic or sizes_of(rows) != sizes_of(index):
        return None
    if (places := row_index(graph, start, axis, index)) is None:
        return None
    flat = _rows_first(graph, rows, axis)
    if dynamic and math.prod(static) == 1:  # numbers, for which a scatter is one node
        return None
    if dynamic:
        total = _dynamic_sums(graph, flat, places, _rows_first(graph, start, axis))
    else:
        total = added_call(graph, aten.embedding_dense_backward.default, (flat, places, shape[axis], -1, False))
    if len(shape) > 2:
        sizes = [size if isinstance(size, int) else -1 for size in (shape[axis], *(shape[i] for i in others))]
        total = added_call(graph, aten.reshape.default, (total, sizes))
    if axis != 0:
        total = added_call(graph, aten.permute.default, (total, _back(axis, len(shape))))
    return total if is_zeros(start) else added_call(graph, aten.add.Tensor, (start, total))


def _extremes_of_rows(
    graph: Graph, start: Node, axis: int, index: Node, rows: Node, reduce: str, *, include_self: bool = True
) -> Node | None:
    """scatter_reduce as ScatterMax; None for other reductions, and if it compares no rows."""
    rank = len(sizes_of(start))
    axis %= max(rank, 1)
    if reduce not in ("amax", "amin") or not start.meta["val"].is_floating_point():
        return None
    if sizes_of(rows) != sizes_of(index) or (places := row_index(graph, start, axis, index)) is None:
        return None
    start, rows = (_with_first(graph, node, axis) for node in (start, rows))
    if not include_self:
        nothing = added_call(graph, aten.new_zeros.default, (start, [_size(graph, start)]))
        chosen = added_call(graph, aten.scatter.value, (nothing, 0, places, 1))
        chosen = added_call(graph, aten.gt.Scalar, (chosen, 0))
        chosen = added_call(graph, aten.reshape.default, (chosen, [-1, *[1] * (rank - 1)]))
        least = -math.inf if reduce == "amax" else math.inf
        start = added_call(graph, aten.where.ScalarSelf, (chosen, least, start))
    if reduce == "amin":
        start, rows = (added_call(graph, aten.neg.default, (node,)) for node in (start, rows))
    found = added_call(graph, domain_ops.ScatterMax.default, (start, places, rows))
    if reduce == "amin":
        found = added_call(graph, aten.neg.default, (found,))
    if axis != 0:
        found = added_call(graph, aten.permute.default, (found, _back(axis, rank)))
    return found


def _with_first(graph: Graph, node: Node, axis: int) -> Node:
    """A tensor with an axis as its first one."""
    if axis == 0:
        return node
    order = [axis, *(i for i in range(len(sizes_of(node))) if i != axis)]
    return added_call(graph, aten.permute.default, (node, order))


def _back(axis: int, rank: int) -> list[int]:
    """The order of axes that puts the first axis back into its place."""
    return [*range(1, axis + 1), 0, *range(axis + 1, rank)]


def _rows_first(graph: Graph, node: Node, axis: int) -> Node:
    """A tensor as a matrix of its rows along an axis."""
    node = _with_first(graph, node, axis)
    return node if len(sizes_of(node)) == 2 else added_call(graph, aten.flatten.using_ints, (node, 1))


def _dynamic_sums(graph: Graph, rows: Node, places: Node, start: Node) -> Node:
    """The sums of rows as a product with a sparse matrix of ones.

    SparseMatMul has as many results as the matrix that it reads has rows: the rows of `start` are appended to it, and
    the results behind theirs cut off. A lookup refuses indices of these.
    """
    counts = [_size(graph, node) for node in (rows, start)]
    each, allowed = (added_call(graph, aten.arange.default, (count,)) for count in counts)
    places = added_call(graph, aten.index_select.default, (allowed, 0, places))
    dense = added_call(graph, aten.cat.default, ([rows, start],))
    total = added_call(graph, domain_ops.SparseMatMul.default, (dense, places, each, None))
    return added_call(graph, aten.slice.Tensor, (total, 0, 0, counts[1]))


def _size(graph: Graph, node: Node) -> int | Node:
    size = sizes_of(node)[0]
    return size if isinstance(size, int) else added_call(graph, aten.sym_size.int, (node, 0))


def is_zeros(node: Node) -> bool:
    while node.target in (aten.view.default, aten.permute.default, aten.reshape.default):
        node = node.args[0]
    return node.target in ZEROS


def row_index(graph: Graph, given: Node, axis: int, index: Node) -> Node | None:
    """The 1-D index of rows of `given` along an axis; None if `index` is not one that was expanded to whole rows."""
    index, is_refused = _before_refusal(index)
    sizes, shape = sizes_of(index), sizes_of(given)
    if index.target is not aten.expand.default or len(sizes) != len(shape) or len(sizes) < 2:
        return None
    base = index.args[0]
    before = (1,) * (len(sizes) - len(sizes_of(base))) + sizes_of(base)
    rows = before[axis] == sizes[axis] and all(size == 1 for i, size in enumerate(before) if i != axis)
    if not rows or any(one != other for i, (one, other) in enumerate(zip(sizes, shape, strict=True)) if i != axis):
        return None
    places = added_call(graph, aten.reshape.default, (base, [-1]))
    if not is_refused:
        return places
    negative = added_call(graph, aten.lt.Scalar, (places, 0))
    return added_call(graph, aten.where.ScalarSelf, (negative, OUT_OF_RANGE, places))


def _before_refusal(index: Node) -> tuple[Node, bool]:
    """An index, and whether negative numbers in it are replaced by OUT_OF_RANGE."""
    given = index
    while index.target is aten.where.ScalarSelf and index.args[1] == OUT_OF_RANGE:
        index = index.args[2]
    return index, index is not given


def added_call(
    graph: Graph, target: OpOverload, arguments: tuple[Any, ...], options: Mapping[str, Any] = MappingProxyType({})
) -> Node:
    """A call of an operator, with its FakeTensor."""
    node = graph.call_function(target, arguments, dict(options))
    node.meta["val"] = target(*map_arg(arguments, lambda argument: argument.meta["val"]), **options)
    return node


def sizes_of(node: Node) -> tuple[Any, ...]:
    """The shape of a tensor; expressions of its symbols, which can be compared without guards, for dynamic sizes."""
    sizes = node.meta["val"].shape
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)
