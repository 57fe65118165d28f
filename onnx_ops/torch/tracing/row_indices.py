"""Scatters and gathers whose index is the same for all elements of a row, as operators on whole rows.

`x.scatter_add(0, index[:, None].expand_as(y), y)`, as graph networks have it, adds the rows of y to those of x that a
1-D index names. ONNX's ScatterElements and GatherElements read the index of every element.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)
ADDING = (aten.scatter_add.default, aten.scatter_add_.default)


def index_rows(traced: GraphModule) -> None:
    """Replace gather and scatter_add with an expanded 1-D index by index_select and embedding_dense_backward.

    The latter has floating numbers, and a static number of rows; one of the other sizes may be dynamic.
    """
    graph = traced.graph
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if node.target is aten.gather.default:
                replaced = _selected(graph, *node.args[:3])
            elif node.target in ADDING and _may_be_replaced(node):
                replaced = _summed(graph, *node.args)
            else:
                continue
        if replaced is not None:
            node.replace_all_uses_with(replaced)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    traced.recompile()


def _may_be_replaced(node: Node) -> bool:
    """Whether nothing else reads the tensor that the operator changes in place, if it does."""
    return node.target is aten.scatter_add.default or (
        node.args[0].target in ZEROS and list(node.args[0].users) == [node]
    )


def _selected(graph: Graph, given: Node, axis: int, index: Node) -> Node | None:
    """gather as index_select; None if it selects no rows."""
    axis %= max(len(sizes_of(index)), 1)
    if (places := row_index(graph, given, axis, index)) is None:
        return None
    return added_call(graph, aten.index_select.default, (given, axis, places))


def _summed(graph: Graph, start: Node, axis: int, index: Node, rows: Node) -> Node | None:
    """scatter_add as the sums of the rows with the same index, added to `start`; None if it adds up no rows."""
    shape = list(sizes_of(start))
    axis %= max(len(shape), 1)
    others = [i for i in range(len(shape)) if i != axis]
    static = [shape[i] for i in others if isinstance(shape[i], int)]
    if not start.meta["val"].is_floating_point() or not isinstance(shape[axis], int) or len(others) > len(static) + 1:
        return None
    if not all((shape[axis], *static)) or sizes_of(rows) != sizes_of(index):
        return None
    if (places := row_index(graph, start, axis, index)) is None:
        return None
    flat = rows if axis == 0 else added_call(graph, aten.permute.default, (rows, [axis, *others]))
    if len(shape) > 2:
        flat = added_call(graph, aten.flatten.using_ints, (flat, 1))
    total = added_call(graph, aten.embedding_dense_backward.default, (flat, places, shape[axis], -1, False))
    if len(shape) > 2:
        sizes = [shape[i] if isinstance(shape[i], int) else -1 for i in others]
        total = added_call(graph, aten.reshape.default, (total, [shape[axis], *sizes]))
    if axis != 0:
        back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
        total = added_call(graph, aten.permute.default, (total, back))
    return total if is_zeros(start) else added_call(graph, aten.add.Tensor, (start, total))


def is_zeros(node: Node) -> bool:
    while node.target in (aten.view.default, aten.permute.default, aten.reshape.default):
        node = node.args[0]
    return node.target in ZEROS


def row_index(graph: Graph, given: Node, axis: int, index: Node) -> Node | None:
    """The 1-D index of rows of `given` along an axis; None if `index` is not one that was expanded to whole rows."""
    sizes, shape = sizes_of(index), sizes_of(given)
    if index.target is not aten.expand.default or len(sizes) != len(shape) or len(sizes) < 2:
        return None
    base = index.args[0]
    before = (1,) * (len(sizes) - len(sizes_of(base))) + sizes_of(base)
    rows = before[axis] == sizes[axis] and all(size == 1 for i, size in enumerate(before) if i != axis)
    if not rows or any(one != other for i, (one, other) in enumerate(zip(sizes, shape, strict=True)) if i != axis):
        return None
    return added_call(graph, aten.reshape.default, (base, [-1]))


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
