"""Transposes that onnxruntime computes element by element, as ones that it computes by copies of blocks.

onnxruntime exchanges two groups of adjacent axes at the end, and copies long blocks where the last axis stays, in 0.4
to 1 ns per element. Other transposes take it 2 to 12 ns: those of short blocks, those that move more groups, such as
of patches of images, and exchanges with axes of size 1 after them. Nearly all of these are two fast ones in sequence.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_ops.torch.base.nodes import may_have, replace_node

MIN_ELEMENTS = 2048
"""Below this number of elements, where it is known, the added nodes take longer than they save."""
ASSUMED = 32
"""The size of an axis where it is not known."""
MOST_AXES = 6
"""The largest number of groups of axes of which all orders are tried."""

# ns per element of float32
EXCHANGE = 0.6
BLOCKWISE = 0.5
EACH_BLOCK = 14.0
"""In addition, per block."""
ELEMENTWISE = 8.0
GAIN = 1.2
"""What the added nodes have to save."""


def split_transposes(model: ir.Model) -> None:
    """Replace slow transposes by one or two fast ones each, in place."""
    for node in list(model.graph.all_nodes()):
        shape = _shape(node) if (node.domain, node.op_type) == ("", "Transpose") else None
        if shape is None or 0 in shape or not may_have(shape, MIN_ELEMENTS):
            continue
        perm = _perm(node, len(shape))
        moved = [axis for axis in perm if shape[axis] != 1]
        if moved == sorted(moved):  # a copy
            continue
        sizes = [size if isinstance(size, int) else ASSUMED for size in shape]
        groups = _groups(perm, shape)
        places = tuple(sorted(range(len(groups)), key=lambda i: perm.index(groups[i][0])))
        cost, orders = _fastest(places, tuple(math.prod(sizes[axis] for axis in group) for group in groups))
        if cost + GAIN < _cost(range(len(perm)), perm, sizes):
            _replace(node, perm, shape, groups, orders)


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


def _groups(perm: Sequence[int], shape: Sequence[Any]) -> list[list[int]]:
    """The axes in their order, those that stay adjacent as one and without those of size 1, if a Reshape can say so."""
    if not _can_be_reshaped(shape):
        return [[axis] for axis in range(len(perm))]
    moved = [axis for axis in perm if shape[axis] != 1]
    return sorted(_runs(sorted(moved), moved))


def _can_be_reshaped(shape: Sequence[Any]) -> bool:
    """Whether the numbers of a Reshape, with -1 for one dynamic size, say all sizes."""
    dynamic = sum(not isinstance(size, int) for size in shape)
    return dynamic == 0 or (dynamic == 1 and 0 not in shape)  # beside a size of 0 any would do for -1


def _runs(before: Sequence[int], after: Sequence[int]) -> list[list[int]]:
    """The axes that are adjacent in both orders, in the second one."""
    following = dict(itertools.pairwise(before))
    runs: list[list[int]] = []
    for axis in after:
        if runs and following.get(runs[-1][-1]) == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _cost(before: Sequence[int], after: Sequence[int], sizes: Sequence[int]) -> float:
    """The time of one transpose, in ns per element."""
    runs = _runs(before, after)
    places = [before.index(run[0]) for run in runs]
    if len(runs) == 1:
        return 0.0
    stays = places[-1] == max(places)
    block = math.prod(sizes[axis] for axis in runs[-1])
    if stays and block > 1:
        return min(ELEMENTWISE, BLOCKWISE + EACH_BLOCK / block)
    if stays:
        runs.pop()
        places.pop()
    exchanges = [*places[:-2], places[-1], places[-2]] == sorted(places)
    of_one_axis = min(map(len, runs[-2:])) == 1
    return EXCHANGE if exchanges and (of_one_axis or not stays) else ELEMENTWISE


@functools.cache
def _fastest(order: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """The time of the fastest one or two transposes to an order of axes, and the orders after them."""
    given, last = tuple(range(len(order))), len(order)
    fastest: tuple[float, tuple[tuple[int, ...], ...]] = (_cost(given, order, sizes), (order,))
    for middle in itertools.permutations(given) if last <= MOST_AXES else ():
        if middle not in (given, order):
            second = _cost((*middle, last), (*order, last), (*sizes, 1))
            fastest = min(fastest, (_cost(given, middle, sizes) + second, (middle, order)))
    return fastest


def _replace(
    node: ir.Node,
    perm: Sequence[int],
    shape: Sequence[Any],
    groups: Sequence[Sequence[int]],
    orders: Sequence[Sequence[int]],
) -> None:
    """Put transposes of groups of axes in place of one.

    Axes of size 1 keep onnxruntime from joining two of them. It takes a Reshape that moves such an axis for a transpose
    too, which the last one is not, as it changes the rank.
    """
    added: list[ir.Node] = []

    def reshaped(value: ir.Value | None, sizes: Sequence[int]) -> ir.Value:
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
        added.extend((constant, ir.node("Reshape", [value, constant.outputs[0]])))
        return added[-1].outputs[0]

    known, count, rank = _can_be_reshaped(shape), len(groups), len(perm)
    numbers = [size if isinstance(size, int) else -1 for size in shape]
    merged = [-1 if -1 in of else math.prod(of) for of in ([numbers[axis] for axis in group] for group in groups)]
    value = node.inputs[0] if count == rank else reshaped(node.inputs[0], merged)
    before: Sequence[int] = range(count)
    ones = 0
    for order in orders:
        if before != range(count):
            ones = 2 if rank == count + 1 else 1
            value = reshaped(value, [*([merged[group] for group in before] if known else [0] * count), *[1] * ones])
        moved = [*(before.index(group) for group in order), *range(count, count + ones)]
        added.append(ir.node("Transpose", [value], {"perm": moved}))
        value, before = added[-1].outputs[0], order
    if count + ones != rank:
        reshaped(value, [numbers[axis] for axis in perm] if known else [0] * rank)
    replace_node(node, *added)
