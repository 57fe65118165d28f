"""What gradients of depthwise convolutions share: windows, the checks of calls, and boxes of planes in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import MAX_NUMBER, Dim
from onnx_ops.loops.primitives import LANES, helper, interleave, like, setting
from onnx_ops.ops.windows import adds_too_much, check_padding

AXES = 3
"""Spatial axes at most. With fewer of them the first ones have the size 1, and filters of that size."""
LEAD = 2
"""Axes before the spatial ones."""


def window_attributes() -> list[OpSchema.Attribute]:
    """Those that say how filters move."""
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
        """How many places it has; less than 1 if there is none."""
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


def check_windows(call: Call, sized: str, rank: int) -> None:
    """Refuse wrong attributes; the one named `sized` has sizes, of them `rank` of spatial axes."""
    sizes = call.attributes[sized]
    extra = len(sizes) - rank
    if not 1 <= rank <= AXES:
        raise call.error(f"attribute '{sized}' is {sizes}, expected {1 + extra} to {AXES + extra} numbers")
    for name, count, least in (
        (sized, len(sizes), 1),
        ("strides", rank, 1),
        ("pads", 2 * rank, 0),
        ("dilations", rank, 1),
    ):
        given = call.attributes[name]
        if given and len(given) != count:
            raise call.error(f"attribute '{name}' is {given}, expected {count} numbers, or none")
        call.check_range(name, least)


def check_sizes(call: Call, axes: Sequence[Axis], lengths: Sequence[Dim]) -> None:
    """Refuse pads that add too much to an input of these lengths."""
    check_padding(call, "pads", lengths, [axis.before + axis.after for axis in axes])


def check_rank(call: Call, name: str, rank: int) -> None:
    """Refuse an input that has not so many spatial axes."""
    shape = call.shape(name)
    if shape is not None and len(shape) != LEAD + rank:
        raise call.shape_error(name, f"{LEAD + rank} dimensions, {rank} of them spatial")


def check_filters(call: Call, name: str, channels: Dim) -> None:
    """Refuse an input whose axis 1 does not have one or more filters of each channel."""
    shape = call.shape(name)
    filters = shape[1] if shape is not None else None
    if isinstance(channels, int) and isinstance(filters, int):
        fits = filters == 0 if channels == 0 else filters > 0 and filters % channels == 0
        if not fits:
            raise call.shape_error(name, f"a multiple of the {channels} channels of the input (axis 1)")


# --- for kernels -----------------------------------------------------------------------------------------------------

BOX = 2048
"""Places that filters see at a time, unless one filter sees more."""
LONGEST = 64
"""Places of a filter in one row of a box at most."""
WORK = 1 << 17
"""Products and numbers of a task, about, unless one sample has more."""

# What the table at the beginning of the scratch memory has, for each spatial axis and then for the whole.
LENGTH, COUNT, FILTER, STRIDE, BEFORE, DILATION, STEP, REACH, FIELDS = range(9)
SAMPLES, CHANNELS, FILTERS, ABREAST, TOGETHER_SAMPLES, BLOCKS, CHUNK_GROUPS, CHUNKS, NUMBERS = range(9)
TABLE = FIELDS * AXES + NUMBERS
"""
LENGTH of the input; COUNT of places of a filter; FILTER, STRIDE, BEFORE (padding), DILATION as the attributes say;
STEP, places of the result in a box, and REACH, what they see.

SAMPLES, CHANNELS, FILTERS: the sizes; ABREAST: filters, or channels, in the lanes, which make a block;
TOGETHER_SAMPLES: samples in the lanes, which make a group; BLOCKS; CHUNK_GROUPS, groups that a task has; CHUNKS of
groups.
"""


@helper
def product(table: Any, field: int) -> int:
    return int(table[field * AXES] * table[field * AXES + 1] * table[field * AXES + 2])


@helper
def number(table: Any, place: int) -> int:
    return int(table[FIELDS * AXES + place])


@helper
def quotient_up(a: int, b: int) -> int:
    return (a + b - 1) // b


@helper
def write_windows(table: Any, attributes: Any, spatial: int) -> bool:
    """STRIDE, BEFORE and DILATION; whether they fit LENGTH, COUNT and FILTER, which are there."""
    plane, padded = 1.0, 1.0
    for i in range(AXES):
        axis = i - (AXES - spatial)
        stride, before, after, dilation = 1, 0, 0, 1
        if axis >= 0:
            stride = setting(attributes.strides, attributes.strides_count, axis, 1)
            before = setting(attributes.pads, attributes.pads_count, axis, 0)
            after = setting(attributes.pads, attributes.pads_count, spatial + axis, 0)
            dilation = setting(attributes.dilations, attributes.dilations_count, axis, 1)
        length, filter_size = table[LENGTH * AXES + i], table[FILTER * AXES + i]
        if filter_size > MAX_NUMBER:
            return False
        rest = length + before + after - dilation * (filter_size - 1) - 1
        if rest < 0 or rest // stride + 1 != table[COUNT * AXES + i]:
            return False
        table[STRIDE * AXES + i], table[BEFORE * AXES + i], table[DILATION * AXES + i] = stride, before, dilation
        plane, padded = plane * length, padded * (length + before + after)
    return not adds_too_much(plane, padded)


@helper
def write_lanes(table: Any, samples: int, channels: int, filters: int, planes: int, work: float) -> bool:
    """How the planes of a sample, and samples, go into lanes and tasks; whether the channels fit the filters.

    work: products and numbers of the samples of a group; in float64, where it does not wrap.
    """
    if filters % max(channels, 1) != 0 or (filters == 0) != (channels == 0):
        return False
    abreast = min(max(planes, 1), LANES)
    together = LANES // abreast
    groups, of_task = quotient_up(samples, together), int(max(WORK / max(work, 1.0), 1.0))
    whole = FIELDS * AXES
    table[whole + SAMPLES], table[whole + CHANNELS], table[whole + FILTERS] = samples, channels, filters
    table[whole + ABREAST], table[whole + TOGETHER_SAMPLES] = abreast, together
    table[whole + BLOCKS] = quotient_up(planes, abreast)
    table[whole + CHUNK_GROUPS], table[whole + CHUNKS] = of_task, quotient_up(groups, of_task)
    return True


@helper
def reach_of(table: Any, axis: int, step: int) -> int:
    """How much of the input so many places of a filter see, along an axis."""
    span = table[DILATION * AXES + axis] * (table[FILTER * AXES + axis] - 1) + 1
    return int((step - 1) * table[STRIDE * AXES + axis] + span)


@helper
def clear(numbers: Any, begin: int, end: int) -> None:
    for i in range(begin, end):
        numbers[i] = like(0, numbers[0])


@helper
def bring_box(
    sources: Any, element_type: int, lengths: Any, begins: Any, sizes: Any, box: Any, start: int, rim: bool
) -> None:
    """A box of planes of some lengths into lanes, from box[start*LANES] on; if `rim`, with zeros beside the planes."""
    first, end = max(begins[2], 0), min(begins[2] + sizes[2], lengths[2])
    low, high = max(begins[1], 0), min(begins[1] + sizes[1], lengths[1])
    if rim:
        clear(box, start * LANES, (start + sizes[0] * sizes[1] * sizes[2]) * LANES)
    for z in range(max(begins[0], 0), min(begins[0] + sizes[0], lengths[0])):
        row = (z * lengths[1] + low) * lengths[2] + first
        at = start + ((z - begins[0]) * sizes[1] + low - begins[1]) * sizes[2] + first - begins[2]
        if end - first == lengths[2] and lengths[2] == sizes[2]:  # rows that follow each other in memory
            interleave(sources, element_type, row, (high - low) * lengths[2], box, at)
        elif end > first:
            for y in range(high - low):
                interleave(sources, element_type, row + y * lengths[2], end - first, box, at + y * sizes[2])


@helper
def find_planes(
    sources: Any, table: Any, block: int, group: int, address: int, lanes: int, planes: int, place: int, size: int
) -> None:
    """The address of the plane of each lane.

    Lanes for which there is no plane, or no sample, have the last one once more.

    Args:
        sources: where the addresses go.
        block, group: which planes and samples lie in the lanes.
        address: of the tensor.
        lanes: how many lanes a sample would fill.
        planes: how many planes the tensor has for a sample, of which several lanes may have one in common, or one lane
            may have several.
        place: which of its planes a lane shall have.
        size: bytes of a plane.
    """
    abreast = number(table, ABREAST)
    shared, own = max(lanes // planes, 1), max(planes // lanes, 1)
    sample, lane_of_sample = group * number(table, TOGETHER_SAMPLES), 0
    for lane in range(LANES):
        if lane_of_sample == abreast:
            sample, lane_of_sample = sample + 1, 0
        plane = min(block * abreast + lane_of_sample, lanes - 1)
        plane = plane * own + place if shared == 1 else plane // shared  # a division takes its time
        sources[lane] = address + (min(sample, number(table, SAMPLES) - 1) * planes + plane) * size
        lane_of_sample += 1
