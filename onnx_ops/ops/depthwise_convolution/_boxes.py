"""Kernels of depthwise convolutions: the layout of a run, and boxes of planes whose elements are interleaved.

A plane is the spatial elements of one channel of one sample. LANES planes are interleaved, so that one vector operation
processes all of them: planes of adjacent channels, and of several samples where there are fewer channels than lanes.
Planes are processed in boxes that fit the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from onnx_ops.core.types import MAX_NUMBER
from onnx_ops.loops.memory import LANES, interleave, item_size, separate, setting, size_of, whole_lines
from onnx_ops.loops.primitives import Array, ceil_divide, helper, like
from onnx_ops.loops.records import Job, Numbers, record_of
from onnx_ops.ops.windows import AXES, adds_too_much

BOX = 2048
"""Greatest number of elements that a box reads per lane, unless a single position of a filter reads more."""
LONGEST = 64
"""Greatest number of positions of a filter in one row of a box."""
WORK = 1 << 17
"""Approximate number of products and elements per task, unless one group of samples has more."""


class Boxes(Protocol):
    """The layout of a depthwise convolution and its gradients."""

    # by spatial axis
    length: Annotated[Numbers, AXES]  # of the input
    count: Annotated[Numbers, AXES]  # positions of a filter, the size of output and out_backprop
    filter: Annotated[Numbers, AXES]
    stride: Annotated[Numbers, AXES]
    before: Annotated[Numbers, AXES]  # padding before the first element
    dilation: Annotated[Numbers, AXES]
    step: Annotated[Numbers, AXES]  # size of a box, in elements of one tensor
    reach: Annotated[Numbers, AXES]  # and of the other one, which they are computed from or with
    samples: int
    channels: int
    filters: int
    block: int  # planes of a sample that are interleaved
    blocks: int
    group: int  # samples that are interleaved
    groups: int  # groups per task
    chunks: int  # tasks per block


LAYOUT = record_of(Boxes)


@helper
def write_windows(layout: Boxes, attributes: Any, spatial: int, counts: bool) -> bool:
    """Write stride, before and dilation; returns whether they fit length, filter and count.

    Args:
        counts: whether count is known; else it is written.
    """
    plane, padded = 1.0, 1.0
    for i in range(AXES):
        axis = i - (AXES - spatial)
        stride, before, after, dilation = 1, 0, 0, 1
        if axis >= 0:
            stride = setting(attributes.strides, attributes.strides_count, axis, 1)
            before = setting(attributes.pads, attributes.pads_count, axis, 0)
            after = setting(attributes.pads, attributes.pads_count, spatial + axis, 0)
            dilation = setting(attributes.dilations, attributes.dilations_count, axis, 1)
        length, filter_size = layout.length[i], layout.filter[i]
        if filter_size > MAX_NUMBER:
            return False
        rest = length + before + after - dilation * (filter_size - 1) - 1
        if rest < 0 or (counts and rest // stride + 1 != layout.count[i]):
            return False
        layout.count[i] = rest // stride + 1
        layout.stride[i], layout.before[i], layout.dilation[i] = stride, before, dilation
        plane, padded = plane * length, padded * (length + before + after)
    return not adds_too_much(plane, padded)


@helper
def write_lanes(
    layout: Boxes, job: Job, samples: int, channels: int, filters: int, planes: int, work: float, task_bytes: int
) -> bool:
    """Split planes and samples into lanes and tasks; returns whether the filters fit the channels.

    Args:
        planes: of a sample.
        work: products and elements of a group of samples; in float64, which does not wrap.
        task_bytes: scratch memory of a task.
    """
    if filters % max(channels, 1) != 0 or (filters == 0) != (channels == 0):
        return False
    layout.samples, layout.channels, layout.filters = samples, channels, filters
    layout.block = min(max(planes, 1), LANES)
    layout.blocks = ceil_divide(planes, layout.block)
    layout.group = LANES // layout.block
    layout.groups = int(max(WORK / max(work, 1.0), 1.0))
    layout.chunks = ceil_divide(ceil_divide(samples, layout.group), layout.groups)
    job.tasks = layout.blocks * layout.chunks
    job.scratch_bytes = whole_lines(size_of(LAYOUT)) + job.tasks * task_bytes
    return True


@helper
def groups_of_task(layout: Boxes, task: int) -> tuple[int, int]:
    """First group of samples of a task and the one after its last."""
    first = task % layout.chunks * layout.groups
    return first, min(first + layout.groups, ceil_divide(layout.samples, layout.group))


@helper
def box_count(sizes: Sequence[int], step: Sequence[int]) -> int:
    """Number of boxes of a plane."""
    count = 1
    for i in range(AXES):
        count *= ceil_divide(sizes[i], max(step[i], 1))
    return count


@helper
def box_of(sizes: Sequence[int], step: Sequence[int], number: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """First element and size of a box of a plane, along the spatial axes."""
    row, x = number // ceil_divide(sizes[2], step[2]), number % ceil_divide(sizes[2], step[2])
    z, y = row // ceil_divide(sizes[1], step[1]), row % ceil_divide(sizes[1], step[1])
    first = (z * step[0], y * step[1], x * step[2])
    return first, (
        min(step[0], sizes[0] - first[0]),
        min(step[1], sizes[1] - first[1]),
        min(step[2], sizes[2] - first[2]),
    )


@helper
def reach_of(layout: Boxes, axis: int, positions: int) -> int:
    """Number of adjacent input elements that adjacent positions of a filter read, along an axis."""
    extent = layout.dilation[axis] * (layout.filter[axis] - 1) + 1
    return int((positions - 1) * layout.stride[axis] + extent)


@helper
def write_positions(layout: Boxes) -> None:
    """Write step and reach of boxes of positions of a filter, and of the elements of the input that they read."""
    read = 1
    for i in range(AXES - 1, -1, -1):
        step = min(layout.count[i], max((BOX // read - reach_of(layout, i, 1)) // layout.stride[i] + 1, 1))
        if i == AXES - 1:
            step = min(step, LONGEST)
        layout.step[i], layout.reach[i] = step, reach_of(layout, i, step)
        read *= layout.reach[i]


@helper
def seen_by(
    layout: Boxes, first: Sequence[int], steps: Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """First element and size of the box of the input that a box of positions reads."""
    stride, before = layout.stride, layout.before
    begins = (
        first[0] * stride[0] - before[0],
        first[1] * stride[1] - before[1],
        first[2] * stride[2] - before[2],
    )
    return begins, (reach_of(layout, 0, steps[0]), reach_of(layout, 1, steps[1]), reach_of(layout, 2, steps[2]))


@helper
def write_offsets(layout: Boxes, height: int, width: int, offsets: Array) -> None:
    """Write the offset of each element of a filter at the first position in a box of this height and width."""
    rows, columns = layout.filter[1], layout.filter[2]
    for a in range(layout.filter[0]):
        for b in range(rows):
            row = (a * layout.dilation[0] * height + b * layout.dilation[1]) * width
            for c in range(columns):
                offsets[(a * rows + b) * columns + c] = row + c * layout.dilation[2]


@helper
def clear(numbers: Array, begin: int, end: int) -> None:
    for i in range(begin, end):
        numbers[i] = like(0, numbers[0])


@helper
def load_box(
    sources: Array,
    element_type: int,
    lengths: Sequence[int],
    begins: Sequence[int],
    sizes: Sequence[int],
    box: Array,
    start: int,
    rim: bool,
) -> None:
    """Interleave a box of LANES planes at box[start*LANES].

    Args:
        sources: addresses of the planes.
        lengths: sizes of a plane.
        begins: first element of the box, which may lie outside of the plane.
        sizes: of the box.
        rim: whether to write zeros for elements outside of the plane.
    """
    first, end = max(begins[2], 0), min(begins[2] + sizes[2], lengths[2])
    low, high = max(begins[1], 0), min(begins[1] + sizes[1], lengths[1])
    if rim:
        clear(box, start * LANES, (start + sizes[0] * sizes[1] * sizes[2]) * LANES)
    for z in range(max(begins[0], 0), min(begins[0] + sizes[0], lengths[0])):
        row = (z * lengths[1] + low) * lengths[2] + first
        at = start + ((z - begins[0]) * sizes[1] + low - begins[1]) * sizes[2] + first - begins[2]
        if end - first == lengths[2] and lengths[2] == sizes[2]:  # contiguous rows
            interleave(sources, element_type, row, (high - low) * lengths[2], box, at)
        elif end > first:
            for y in range(high - low):
                interleave(sources, element_type, row + y * lengths[2], end - first, box, at + y * sizes[2])


@helper
def store_box(
    sums: Array, lengths: Sequence[int], first: Sequence[int], sizes: Sequence[int], targets: Array, element_type: int
) -> None:
    """Write a box of LANES planes, rounded once.

    Args:
        sums: (elements of the box, LANES).
        lengths: sizes of a plane.
        first: first element of the box, which lies inside of the plane.
        sizes: of the box.
        targets: addresses of the planes.
    """
    for layer in range(sizes[0]):
        place = layer * sizes[1] * sizes[2]
        at = ((first[0] + layer) * lengths[1] + first[1]) * lengths[2] + first[2]
        if sizes[2] == lengths[2]:  # contiguous rows
            separate(sums, place, sizes[1] * sizes[2], targets, element_type, at)
        else:
            for row in range(sizes[1]):
                separate(sums, place + row * sizes[2], sizes[2], targets, element_type, at + row * lengths[2])


@helper
def find_planes(
    sources: Array, layout: Boxes, block: int, group: int, address: int, lanes: int, planes: int, place: int, size: int
) -> None:
    """Write the address of the plane of each lane; a lane without a plane, or a sample, repeats the last one.

    Args:
        sources: (LANES,) receives the addresses.
        block, group: which planes of a sample and which samples are interleaved.
        address: of the tensor.
        lanes: lanes per sample, if there were as many.
        planes: planes per sample; a multiple or a divisor of `lanes`.
        place: which one of the planes of a lane, if there are more planes than lanes.
        size: bytes of a plane.
    """
    shared, own = max(lanes // planes, 1), max(planes // lanes, 1)
    first, last = block * layout.block, lanes - 1
    sample, begin = group * layout.group, 0
    while begin < LANES:
        start = address + min(sample, layout.samples - 1) * planes * size
        end = min(begin + layout.block, LANES)
        if shared == 1:  # a division is slow
            for lane in range(begin, end):
                sources[lane] = start + (min(first + lane - begin, last) * own + place) * size
        else:
            for lane in range(begin, end):
                sources[lane] = start + min(first + lane - begin, last) // shared * size
        sample, begin = sample + 1, end


@helper
def interleave_filters(
    sources: Array,
    layout: Boxes,
    block: int,
    address: int,
    lanes: int,
    place: int,
    element_type: int,
    count: int,
    out: Array,
    start: int,
) -> None:
    """Interleave `count` numbers of one filter per lane at out[start*LANES]; all samples have those of the first.

    Args:
        sources: (LANES,) receives addresses.
        block: which planes of a sample are interleaved.
        address: of the tensor, with `count` numbers per filter.
        lanes: lanes per sample, if there were as many.
        place: which one of the filters of a lane.
    """
    find_planes(sources, layout, block, 0, address, lanes, layout.filters, place, count * item_size(element_type))
    for lane in range(layout.block, LANES):
        sources[lane] = sources[lane % layout.block]
    interleave(sources, element_type, 0, count, out, start)
