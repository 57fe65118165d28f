"""Transposes that onnxruntime computes element by element, as two that it computes by copies of blocks.

onnxruntime moves a single axis, or blocks of elements where the last axis stays, in 0.1 to 0.8 ns per element; other
transposes, such as those of patches of images, take it 2.3 to 3.8 ns. Each of these is a move of one axis after or
before a transpose in which the last axis stays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import may_have, replace_node

MIN_ELEMENTS = 2048
"""Below this number of elements, where it is known, three more nodes take longer than they save."""
MIN_BLOCK = 4
"""The least number of elements in a block for which copies of blocks are faster than those of elements."""
ASSUMED = 32
"""The size of an axis where it is not known."""


def split_transposes(model: ir.Model) -> None:
    """Replace slow transposes by two fast ones each, in place."""
    for node in list(model.graph.all_nodes()):
        shape = _shape(node) if (node.domain, node.op_type) == ("", "Transpose") else None
        if shape is None or not may_have(shape, MIN_ELEMENTS):
            continue
        perm = _perm(node, len(shape))
        first = _first_of_two(perm, [size if isinstance(size, int) else ASSUMED for size in shape])
        if first is not None:
            _split(node, first, [first.index(axis) for axis in perm])


def _perm(node: ir.Node, rank: int) -> list[int]:
    return list(node.attributes.get_ints("perm", range(rank)[::-1]))


def _shape(node: ir.Node) -> Sequence[Any] | None:
    """The shape of what is transposed; that of the result in its order, within the translation of an operator."""
    given, result = node.inputs[0], node.outputs[0].shape
    if given is not None and given.shape is not None:
        return list(given.shape)
    if result is None:
        return None
    perm = _perm(node, len(result))
    return [result[perm.index(axis)] for axis in range(len(perm))]


def _first_of_two(perm: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """The first of two transposes, the one that moves a single axis or the other one; None if one is as fast."""
    if not _is_slow([axis for axis in perm if sizes[axis] != 1]):
        return None
    given = list(range(len(perm)))
    moved_first, moved_last = _with_end(given, perm), _with_end(perm, given)
    blocks = {_block(moved_first, perm, sizes): moved_first, _block(moved_last, given, sizes): moved_last}
    largest = max(blocks)
    return blocks[largest] if largest >= MIN_BLOCK else None


def _is_slow(perm: Sequence[int]) -> bool:
    """Whether the last axis does not stay the last, and more than one (group of adjacent axes) moves."""
    given = sorted(perm)
    following = dict(itertools.pairwise(given))
    starts = [axis for i, axis in enumerate(perm) if i == 0 or axis != following.get(perm[i - 1])]  # of the groups
    ordered = sorted(starts)
    moves_one = any(_without(starts, axis) == _without(ordered, axis) for axis in starts)
    return bool(perm) and perm[-1] != given[-1] and not moves_one


def _without(axes: Sequence[int], one: int) -> list[int]:
    return [axis for axis in axes if axis != one]


def _with_end(axes: Sequence[int], of: Sequence[int]) -> list[int]:
    """Axes in their order, but for those that end another order and are adjacent here, which come last."""
    place = {axis: i for i, axis in enumerate(axes)}
    start = len(of) - 1
    while start > 0 and place[of[start - 1]] == place[of[start]] - 1:
        start -= 1
    end = list(of[start:])
    return [axis for axis in axes if axis not in end] + end


def _block(first: Sequence[int], second: Sequence[int], sizes: Sequence[int]) -> int:
    """The number of elements that stay together where axes are brought from one order into another one."""
    pairs = zip(reversed(first), reversed(second), strict=True)
    same = next((i for i, (one, other) in enumerate(pairs) if one != other), len(first))
    return math.prod(sizes[axis] for axis in first[len(first) - same :])


def _split(node: ir.Node, first: Sequence[int], second: Sequence[int]) -> None:
    """Put two transposes in place of one. An axis of size 1 keeps onnxruntime from joining them again."""
    rank = len(first)
    wider, narrower = (
        ir.node("Constant", [], {"value": ir.tensor(np.array(shape, np.int64))})
        for shape in ([0] * rank + [1], [0] * rank)  # 0: the size of that axis
    )
    moved = ir.node("Transpose", node.inputs, {"perm": list(first)})
    widened = ir.node("Reshape", [moved.outputs[0], wider.outputs[0]])
    placed = ir.node("Transpose", widened.outputs, {"perm": [*second, rank]})
    narrowed = ir.node("Reshape", [placed.outputs[0], narrower.outputs[0]])
    replace_node(node, wider, moved, widened, placed, narrower, narrowed)
