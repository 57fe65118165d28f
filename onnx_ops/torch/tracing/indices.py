"""The inputs of a traced graph that are indices, such as labels and tokens, and their valid ranges.

PyTorch raises an error for an index out of range. ONNX accepts negative indices, counted from the end, also in
operators whose counterparts in PyTorch refuse them; there they are replaced by an index that is out of range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.operators.labels import LABEL
from onnx_ops.training.ranges import Cut, IndexRange

aten = torch.ops.aten

FROM_THE_START: dict[Any, tuple[int | None, int]] = {
    aten.gather.default: (1, 2),
    aten.index_select.default: (1, 2),
    aten.scatter.src: (1, 2),
    aten.scatter.value: (1, 2),
    aten.scatter_add.default: (1, 2),
    aten.scatter_reduce.two: (1, 2),
    aten.embedding.default: (None, 1),
}
"""Operators that refuse negative indices: the positions of the arguments axis (None: axis 0) and index."""

FROM_EITHER_END = (aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default)
"""Operators that accept negative indices; their arguments are a tensor and a list of indices, one per axis."""

SAME_SHAPE = (aten.alias.default, aten.clone.default, aten.detach.default, aten._to_copy.default)
OTHER_SHAPE = (
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.reshape.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.t.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
)
"""Operators whose result has the elements of the first argument and no others."""

END = 2**63 - 1
OUT_OF_RANGE = 2**31 - 1
"""An index that is larger than any axis."""


@dataclass(frozen=True)
class _Lookup:
    """An index and its valid values: [0, size), or [-size, size) with `negative`, and `ignored`."""

    index: Node
    size: Size
    negative: bool = False
    ignored: int | None = None


def index_ranges(traced: GraphModule, names: Sequence[str]) -> list[IndexRange]:
    """The valid ranges of the inputs that are indices into axes of a static size.

    Args:
        traced: a graph. Negative indices are replaced by OUT_OF_RANGE in it where PyTorch refuses them.
        names: the names of its inputs.
    """
    inputs = dict(zip(traced.graph.find_nodes(op="placeholder"), names, strict=True))
    given = _computed_from(filter(_is_integer, inputs), traced.graph.nodes)
    found: dict[IndexRange, None] = {}
    for node in list(traced.graph.nodes):
        for lookup in _lookups(node):
            source, cuts = _source(lookup.index)
            if source in inputs and _is_integer(source) and cuts is not None and isinstance(lookup.size, int):
                least = -lookup.size if lookup.negative else 0
                found[IndexRange(inputs[source], least, lookup.size, lookup.ignored, cuts)] = None
            if node.target in FROM_THE_START and lookup.index in given:
                _refuse_negative(node, lookup.index)
    traced.recompile()
    return list(found)


def _computed_from(inputs: Iterable[Node], nodes: Iterable[Node]) -> set[Node]:
    """The inputs and the integer nodes computed from them, except for labels, whose range is checked."""
    found = set(inputs)
    for node in nodes:
        if node.target is not LABEL and _is_integer(node) and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_integer(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype is not torch.bool


def _lookups(node: Node) -> Iterator[_Lookup]:
    """The lookups of a node, one per index."""
    if node.target is LABEL:
        index, classes, *ignored = node.args
        yield _Lookup(index, classes, ignored=ignored[0] if ignored else None)
    elif node.target is aten.embedding_dense_backward.default:
        yield _Lookup(node.args[1], node.args[2])
    elif node.target in FROM_THE_START:
        axis, place = FROM_THE_START[node.target]
        shape = _shape(node.args[0]) or (1,)
        yield _Lookup(node.args[place], shape[0 if axis is None else node.args[axis]])
    elif node.target in FROM_EITHER_END:
        indices = [index for index in node.args[1] if index is not None]
        if not any(index.meta["val"].dtype is torch.bool for index in indices):  # a mask may index several axes
            for index, size in zip(node.args[1], _shape(node.args[0]), strict=False):
                if index is not None:
                    yield _Lookup(index, size, negative=True)


def _shape(node: Node) -> tuple[Size, ...]:
    return tuple(node.meta["val"].shape)


def _source(index: Node) -> tuple[Node, tuple[Cut, ...] | None]:
    """The node whose elements an index has, and the slices of it; None if it was reshaped before a slice."""
    cuts: list[Cut] | None = []
    while index.op == "call_function":
        if index.target in OTHER_SHAPE:
            cuts = None if cuts else cuts
        elif (cut := _cut(index)) is not None:
            cuts = None if cuts is None or not all(isinstance(number, int) for number in cut) else [cut, *cuts]
        elif index.target not in SAME_SHAPE:
            break
        index = index.args[0]
    return index, None if cuts is None else tuple(cuts)


def _cut(node: Node) -> tuple[Any, ...] | None:
    """Axis and position of a select, or axis, start, stop and step of a slice; None for another node."""
    if node.target is aten.select.int:
        return _axis(node), node.args[2]
    if node.target is aten.slice.Tensor:
        given: list[Any] = [*node.args[2:], None, None, None]
        start, stop, step = given[:3]
        return _axis(node), start or 0, END if stop is None else stop, 1 if step is None else step
    return None


def _axis(node: Node) -> int:
    axis: Any = node.args[1] if len(node.args) > 1 else 0
    return int(axis) % len(_shape(node.args[0]))


def _refuse_negative(node: Node, index: Node) -> None:
    """Replace negative values of an index by OUT_OF_RANGE."""
    graph = node.graph
    with graph.inserting_before(node):
        negative = graph.call_function(aten.lt.Scalar, (index, 0))
        refused = graph.call_function(aten.where.ScalarSelf, (negative, OUT_OF_RANGE, index))
    refused.meta["val"] = index.meta["val"]
    negative.meta["val"] = torch.empty_like(refused.meta["val"], dtype=torch.bool)
    node.replace_input_with(index, refused)
