"""Nodes of standard operators, as translations write them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir
from onnxscript import opset18 as op  # in which the exporter writes; it converts the whole graph afterwards
from onnxscript.values import Opset

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION

__all__ = [
    "Extent",
    "Value",
    "aclnn",
    "constant_integers",
    "double",
    "integer",
    "integers",
    "is_read_once",
    "is_standard",
    "may_have",
    "number",
    "op",
    "sizes",
    "taps",
    "unneeded",
]

aclnn = Opset(DOMAIN, OPSET_VERSION)

if TYPE_CHECKING:
    Value: TypeAlias = ir.Value
else:  # torch.onnx evaluates the annotations of translations, and takes a class with `dtype` for one of ONNX Script
    Value = Any

LAST = np.iinfo(np.int64).max
"""The end of a Slice to the end of an axis."""


def number(value: float, like: Value) -> Value:
    """A scalar of the dtype of another value."""
    return op.Constant(value=ir.tensor(np.asarray(value).astype(like.dtype.numpy())))


def double(value: float) -> Value:
    """A float64 scalar."""
    return op.Constant(value=ir.tensor(np.float64(value)))


def integer(value: int) -> Value:
    """An int64 scalar."""
    return op.Constant(value=ir.tensor(np.int64(value)))


def integers(values: Sequence[int]) -> Value:
    """An int64 vector, of sizes, axes or indices."""
    return op.Constant(value=ir.tensor(np.array(values, np.int64)))


def may_have(shape: Iterable[Any], count: int) -> bool:
    """Whether there may be at least `count` elements in a shape; dynamic sizes may be of any number."""
    known = list(shape)
    return not all(isinstance(size, int) for size in known) or math.prod(known) >= count


def replace_node(node: ir.Node, *added: ir.Node, along: Sequence[ir.Node] = ()) -> None:
    """Put new nodes, the last of which has its first output, in the place of a node, and remove those `along` too."""
    old, new = node.outputs[0], added[-1].outputs[0]
    new.shape, new.type = old.shape, old.type
    ir.convenience.replace_nodes_and_values(node.graph, node, [node, *along], added, [old], [new])


def is_standard(node: ir.Node, op_type: str) -> bool:
    """Whether a node is of this operator of standard ONNX."""
    return node.domain == "" and node.op_type == op_type


def constant_integers(value: Value | None) -> list[int] | None:
    """The elements of a constant of integers, such as axes; None for a value that is not constant, or none."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy().reshape(-1).tolist()


def is_read_once(value: Value) -> bool:
    """Whether a single input of a node is all that reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def unneeded(replaced: Collection[Value], read: Collection[Value]) -> set[ir.Node]:
    """The nodes that nothing needs once other nodes, which read some values, compute those that are replaced."""
    dead: set[ir.Node] = set()

    def is_unused(value: Value) -> bool:
        if value in replaced:
            return True
        return not value.is_graph_output() and value not in read and all(user in dead for user, _ in value.uses())

    pending = [value.producer() for value in replaced]
    while pending:
        node = pending.pop()
        if node is not None and node not in dead and all(map(is_unused, node.outputs)):
            dead.add(node)
            pending += [value.producer() for value in node.inputs if value is not None]
    return dead


def sizes(value: Value) -> list[int]:
    """The shape of a value, -1 for dynamic sizes."""
    return [size if isinstance(size, int) else -1 for size in value.shape]


class Extent:
    """The sizes of some axes: integers, or if one of them is dynamic an int64 vector of the graph."""

    def __init__(self, sizes: list[int] | Value) -> None:
        self._sizes = sizes

    @classmethod
    def of(cls, value: Value, count: int) -> Extent:
        """The sizes of the last axes of a value."""
        found = sizes(value)[len(value.shape) - count :]
        return cls(op.Shape(value, start=len(value.shape) - count) if -1 in found else found)

    @classmethod
    def given(cls, sizes: Sequence[int | Value]) -> Extent:
        """Sizes each of which may be a value."""
        if all(isinstance(size, int) for size in sizes):
            return cls(list(sizes))
        rows = [integers([size]) if isinstance(size, int) else op.Reshape(size, integers([1])) for size in sizes]
        return cls(op.Concat(*rows, axis=0))

    @property
    def numbers(self) -> list[int] | None:
        """None where one of them is dynamic."""
        return self._sizes if isinstance(self._sizes, list) else None

    @property
    def product(self) -> int:
        """For Reshape: -1 where it is dynamic."""
        return -1 if self.numbers is None else math.prod(self.numbers)

    def times(self, factors: Sequence[int]) -> Extent:
        if self.numbers is None:
            return Extent(op.Mul(self._sizes, integers(factors)))
        return Extent([size * factor for size, factor in zip(self.numbers, factors, strict=True)])

    def plus(self, other: Extent) -> Extent:
        return self._elementwise(other, op.Add, operator.add)

    def over(self, divisors: Sequence[int]) -> Extent:
        """Divided and rounded down."""
        if self.numbers is None:
            return Extent(op.Div(self._sizes, integers(divisors)))
        return Extent([size // divisor for size, divisor in zip(self.numbers, divisors, strict=True)])

    def minus(self, other: Extent) -> Extent:
        return self._elementwise(other, op.Sub, operator.sub)

    def _elementwise(self, other: Extent, node: Callable[..., Any], function: Callable[[int, int], int]) -> Extent:
        if self.numbers is None or other.numbers is None:
            return Extent(node(self.value, other.value))
        return Extent(list(map(function, self.numbers, other.numbers)))

    def after(self, *leading: int) -> Value:
        """A shape: some numbers, then these sizes."""
        if self.numbers is None:
            return op.Concat(integers(leading), self._sizes, axis=0)
        return integers([*leading, *self.numbers])

    @property
    def value(self) -> Value:
        return self._sizes if self.numbers is None else integers(self.numbers)


def taps(
    x: Value,
    axes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    out: Extent,
) -> Iterator[Value]:
    """For each tap of a kernel the elements that it meets as the kernel moves over `axes` of x, already padded.

    Where `out`, the number of windows, is dynamic, there are as many as fit.
    """
    trivial = all(k == 1 for k in kernel) and all(s == 1 for s in stride)
    for places in itertools.product(*map(range, kernel)):
        starts = [place * d for place, d in zip(places, dilation, strict=True)]
        if out.numbers is None:  # counted from the end of x
            ends = [start - (k - 1) * d or LAST for start, k, d in zip(starts, kernel, dilation, strict=True)]
        else:
            ends = [start + (size - 1) * s + 1 for start, size, s in zip(starts, out.numbers, stride, strict=True)]
        yield x if trivial else op.Slice(x, integers(starts), integers(ends), integers(axes), integers(stride))
