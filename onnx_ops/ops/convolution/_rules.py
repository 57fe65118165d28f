"""Attributes of convolutions, and the checks of calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import MAX_NUMBER, Shape
from onnx_ops.ops.windows import AXES, LEAD, check_padding

LISTS = {"stride": 1, "padding": 0, "dilation": 1}
"""The attributes with a number for each spatial axis, and their least values, which are the defaults."""


def window_attributes() -> list[OpSchema.Attribute]:
    """The attributes stride, padding, dilation and groups."""
    return [
        attribute("stride", (), "How far windows are apart, along each spatial axis; none: 1."),
        attribute("padding", (), "Zeros added at both ends of each spatial axis of the input; none: 0."),
        attribute("dilation", (), "How far the elements of a window are apart, along each axis; none: 1."),
        attribute("groups", 1, "Number of groups of channels, each convolved by itself."),
    ]


class Axis(NamedTuple):
    """A kernel along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    def count(self, length: int) -> int:
        """Number of windows on an input of a length; less than 1 if none fits."""
        return (length + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    def inside(self, element: int, length: int, count: int) -> tuple[int, int]:
        """The first one of `count` windows in which an element of the kernel lies in the input, and the end of them."""
        begin = self.padding - element * self.dilation
        first = max(-(-begin // self.stride), 0)
        return first, max(min((length - 1 + begin) // self.stride + 1, count), first)


def axes_of(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[Axis]:
    """The kernel along each spatial axis."""
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    return [Axis(*own) for own in zip(kernel, stride or ones, padding or zeros, dilation or ones, strict=True)]


def elements_of(
    axes: Sequence[Axis], lengths: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]]:
    """For each element of a kernel: its index, those of the windows in which it lies in the input, and its places.

    All are indices of arrays with three axes before the spatial ones.

    Args:
        axes: the kernel along each spatial axis.
        lengths: of the input.
        counts: of windows.
    """
    whole = (slice(None),) * 3
    for element in itertools.product(*(range(axis.kernel) for axis in axes)):
        windows, met = [], []
        for e, axis, length, count in zip(element, axes, lengths, counts, strict=True):
            first, end = axis.inside(e, length, count)
            begin = first * axis.stride + e * axis.dilation - axis.padding
            windows.append(slice(first, end))
            met.append(slice(begin, begin + (end - first) * axis.stride, axis.stride))
        yield (*whole, *element), (*whole, *windows), (*whole, *met)


def check_attributes(call: Call) -> None:
    """Raise OpError for attributes that are wrong whatever the shapes."""
    for name, least in LISTS.items():
        call.check_range(name, least)
    call.check_range("groups", 1)


def check_convolution(call: Call, windows: str | None) -> Shape | None:
    """Check the shapes of `input`, `weight` and, if it is given, of the input with an element for each window.

    Returns:
        The shape of the output of the convolution; None if unknown.

    Raises:
        OpError: a shape, or an attribute that does not fit the shapes.
    """
    names = [name for name in (windows, "input", "weight") if name]
    known = [shape for name in names if (shape := call.shape(name)) is not None]
    if not known:
        return None
    rank = len(known[0])
    spatial = rank - LEAD
    if not 1 <= spatial <= AXES:
        name = next(name for name in names if call.shape(name) is not None)
        raise call.shape_error(name, f"{LEAD + 1} to {LEAD + AXES} dimensions")
    for name in names:
        shape = call.shape(name)
        if shape is not None and len(shape) != rank:
            raise call.shape_error(name, f"{rank} dimensions, as the other inputs have")
    for name in LISTS:
        given = call.attributes[name]
        if given and len(given) != spatial:
            raise call.error(f"attribute '{name}' is {given}, expected {spatial} numbers, or none")
    x, weight, groups = call.shape("input"), call.shape("weight"), call.attributes["groups"]
    if weight is None:
        return None
    if not all(1 <= size <= MAX_NUMBER for size in weight[LEAD:] if isinstance(size, int)):
        raise call.shape_error("weight", f"sizes of at least 1, at most {MAX_NUMBER}")
    if isinstance(weight[0], int) and weight[0] % groups != 0:
        raise call.shape_error("weight", f"a multiple of the {groups} groups of 'groups' (axis 0)")
    if x is None:
        return None
    if isinstance(weight[1], int) and isinstance(x[1], int) and x[1] != weight[1] * groups:
        problem = f"{weight[1] * groups} channels (axis 1): {groups} groups of the {weight[1]} of 'weight'"
        raise call.shape_error("input", problem)
    padding = call.attributes["padding"] or (0,) * spatial
    check_padding(call, "padding", x[LEAD:], [2 * p for p in padding])
    counts: list[int | None] = []
    sizes = [size if isinstance(size, int) else 0 for size in weight[LEAD:]]
    axes = axes_of(sizes, *(call.attributes[name] for name in LISTS))
    for axis, (own, length, size) in enumerate(zip(axes, x[LEAD:], weight[LEAD:], strict=True), LEAD):
        count = own.count(length) if isinstance(length, int) and isinstance(size, int) else None
        if count is not None and count < 1:
            raise call.shape_error("input", f"a size of axis {axis} in which a kernel fits")
        counts.append(count)
    return (x[0], weight[0], *counts)
