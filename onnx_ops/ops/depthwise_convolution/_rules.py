"""Attributes of depthwise convolutions, and the checks of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import MAX_NUMBER, Dim, Shape
from onnx_ops.ops.windows import AXES, LEAD, check_padding


def window_attributes() -> list[OpSchema.Attribute]:
    """The attributes strides, pads and dilations."""
    return [
        attribute("strides", (), "How far places of a filter are apart, along each spatial axis; none: 1."),
        attribute("pads", (), "Zeros before the first element of each axis, then those after the last; none: 0."),
        attribute("dilations", (), "How far the elements of a filter are apart, along each axis; none: 1."),
    ]


class Axis(NamedTuple):
    """A filter along one axis."""

    size: int
    stride: int
    before: int
    after: int
    dilation: int

    def count(self, length: int) -> int:
        """Number of positions on an input of a length; less than 1 if it does not fit."""
        return (length + self.before + self.after - self.dilation * (self.size - 1) - 1) // self.stride + 1


def axes_of(
    filter_size: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> list[Axis]:
    """The filter along each spatial axis, from the attributes."""
    rank = len(filter_size)
    ones, zeros = (1,) * rank, (0,) * 2 * rank
    pads = pads or zeros
    return [
        Axis(*own)
        for own in zip(filter_size, strides or ones, pads[:rank], pads[rank:], dilations or ones, strict=True)
    ]


def check_windows(call: Call, rank: int | None, sized: str | None = None) -> None:
    """Raise OpError for wrong attributes.

    Args:
        call: the call.
        rank: number of spatial axes; None if unknown.
        sized: an attribute with sizes, the last `rank` of which are spatial.
    """
    extra = len(call.attributes[sized]) - (rank or 0) if sized else 0
    if sized and rank is not None and not 1 <= rank <= AXES:
        problem = f"attribute '{sized}' is {call.attributes[sized]}"
        raise call.error(f"{problem}, expected {1 + extra} to {AXES + extra} numbers")
    if sized:
        call.check_range(sized, 1)
    for name, each, least in (("strides", 1, 1), ("pads", 2, 0), ("dilations", 1, 1)):
        given = call.attributes[name]
        if rank is not None and given and len(given) != each * rank:
            raise call.error(f"attribute '{name}' is {given}, expected {each * rank} numbers, or none")
        call.check_range(name, least)


def check_sizes(call: Call, axes: Sequence[Axis], lengths: Sequence[Dim]) -> None:
    """Raise OpError for pads that add too much to an input of spatial sizes `lengths`."""
    check_padding(call, "pads", lengths, [axis.before + axis.after for axis in axes])


def check_rank(call: Call, name: str, rank: int) -> None:
    """Raise OpError for an input whose number of spatial axes is not `rank`."""
    shape = call.shape(name)
    if shape is not None and len(shape) != LEAD + rank:
        raise call.shape_error(name, f"{LEAD + rank} dimensions, {rank} of them spatial")


def check_filter(call: Call, shape: Shape) -> None:
    """Raise OpError for an input `filter` of this shape whose filters are empty, too large or of several channels."""
    if not all(1 <= size <= MAX_NUMBER for size in shape[LEAD:] if isinstance(size, int)):
        raise call.shape_error("filter", f"sizes of at least 1, at most {MAX_NUMBER}")
    call.same_shape("filter", (shape[0], 1, *shape[LEAD:]), "one channel in each filter")


def counts_on(call: Call, axes: Sequence[Axis], filter_size: Sequence[Dim]) -> list[int | None]:
    """The number of positions on `input` along each axis, as far as known; OpError where a filter does not fit."""
    lengths = (call.shape("input") or ())[LEAD:]
    counts: list[int | None] = []
    for place, (axis, length, size) in enumerate(zip(axes, lengths, filter_size, strict=True), LEAD):
        count = axis.count(length) if isinstance(length, int) and isinstance(size, int) else None
        if count is not None and count < 1:
            raise call.shape_error("input", f"a size of axis {place} in which a filter fits")
        counts.append(count)
    return counts


def check_filters(call: Call, name: str, channels: Dim, axis: int = 1) -> None:
    """Raise OpError for an input whose size along an axis, the filters, is not a positive multiple of the channels."""
    shape = call.shape(name)
    filters = shape[axis] if shape is not None else None
    if isinstance(channels, int) and isinstance(filters, int):
        fits = filters == 0 if channels == 0 else filters > 0 and filters % channels == 0
        if not fits:
            raise call.shape_error(name, f"a multiple of the {channels} channels of the input (axis {axis})")
