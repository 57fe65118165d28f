"""Points of a grid: where they are in an image or volume, and the weights of the elements around them.

Along each axis a point has 1, 2 or 4 taps, elements with a weight each; its corners are the combinations of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import Shape
from onnx_ops.loops.memory import (
    DOUBLE,
    LANES,
    address_of,
    allocate,
    array_at,
    free,
    interleave,
    item_size,
    read_numbers,
    record_at,
    separate,
    size_of,
    tail,
)
from onnx_ops.loops.primitives import Array, Floating, Number, ceil_divide, choose, helper, like, wide
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel, attribute_record, record_of

BILINEAR, NEAREST, BICUBIC = range(3)
INTERPOLATIONS = {BILINEAR: "bilinear", NEAREST: "nearest", BICUBIC: "bicubic"}
ZEROS, BORDER, REFLECTION = range(3)
PADDINGS = {ZEROS: "zeros", BORDER: "border", REFLECTION: "reflection"}
ALIGNMENTS = {0: "False", 1: "True"}
SHARPNESS = -0.75
"""The free parameter of the cubic kernel (Keys 1981), as in PyTorch."""
LEAD = 2
"""Axes before the spatial ones: samples and channels."""

ATTRIBUTES = (
    attribute("interpolation_mode", BILINEAR, "0 bilinear (of volumes trilinear), 1 nearest, 2 bicubic (images only)."),
    attribute("padding_mode", ZEROS, "What is outside: 0 zeros, 1 the nearest element (border), 2 reflections."),
    attribute("align_corners", 0, "1: -1 and 1 are the centers of the first and the last element; 0: their edges."),
)
TEXT = """
A point is at `place` along an axis with `size` elements, for its coordinate x (NaN counts as -1):

    place = (x + 1) / 2 * (size - 1)      with align_corners
    place = ((x + 1) * size - 1) / 2      without

computed in float, or double if the grid is double. With padding mode 1 a place is moved to the nearest one in
[0, size - 1], with 2 reflected at its ends, with align_corners, or else at -0.5 and size - 0.5. Elements outside count
as 0 in mode 0. Linear interpolation takes the elements around a place, the nearest mode the one at the place rounded
half to even, and bicubic interpolation four by four elements with Keys' kernel (1981) for a = -0.75; it moves or
reflects these instead of the place.
"""


def choices(axes: int) -> dict[str, dict[int, str]]:
    """The values of the attributes of an op of so many axes."""
    modes = {mode: name for mode, name in INTERPOLATIONS.items() if axes == 2 or mode != BICUBIC}
    return {"interpolation_mode": modes, "padding_mode": PADDINGS, "align_corners": ALIGNMENTS}


def check_points(call: Call, axes: int) -> tuple[Shape | None, Shape | None]:
    """The shapes of image and grid; raises OpError unless they and the attributes fit an op of so many axes."""
    for name, values in choices(axes).items():
        call.check_choice(name, values)
    call.same_dtype("grid", "input")
    image, grid = call.shape("input"), call.shape("grid")
    for name, shape in (("input", image), ("grid", grid)):
        if shape is not None and len(shape) != LEAD + axes:
            raise call.shape_error(name, f"{LEAD + axes} dimensions")
    if image is not None and 0 in image[LEAD:]:
        raise call.shape_error("input", "at least one element along each spatial axis")
    if grid is not None:
        call.same_shape(
            "grid", (None if image is None else image[0], *grid[1:-1], axes), f"{axes} coordinates per point"
        )
    return image, grid


# --- in NumPy ---------------------------------------------------------------------------------------------------------


class Taps:
    """The taps of all points along one axis, in NumPy.

    Attributes:
        places: int64 (N, points, taps); -1 outside.
        weights: float64, of the same shape; 0 outside.
        slopes: derivatives of the weights with respect to the coordinate.
    """

    def __init__(self, x: np.ndarray, size: int, interpolation: int, padding: int, align: int) -> None:
        """Find them.

        Args:
            x: coordinates (N, points), in the dtype that places are computed in.
            size: of the axis.
            interpolation, padding, align: the attributes.
        """
        self._size, self._padding, self._align = size, padding, align
        one = x.dtype.type(1)
        with np.errstate(all="ignore"):
            x = np.where(np.isnan(x), -one, x)
            at = (x + one) / 2 * x.dtype.type(size - 1) if align else ((x + one) * x.dtype.type(size) - one) / 2
            at = at.astype(np.float64)
            scale = np.full(x.shape, (size - 1) / 2 if align else size / 2)
            if interpolation == BICUBIC:
                low = np.floor(at)
                t = np.where(np.isfinite(at), at - low, 0.0)
                found = [(self._moved(low + k - 1)[0], *_keys(t, k)) for k in range(4)]
            else:
                at, sign = self._moved(at)
                scale = scale * sign
                if interpolation == NEAREST:
                    found = [(np.rint(at), np.ones_like(at), np.zeros_like(at))]
                else:
                    low = np.floor(at)
                    found = [(low, 1 - (at - low), -np.ones_like(at)), (low + 1, at - low, np.ones_like(at))]
            places, weights, slopes = (np.stack(part, -1) for part in zip(*found, strict=True))
            within = (places >= 0) & (places <= size - 1)
            self.places = np.where(within, places, -1).astype(np.int64)
            self.weights = np.where(within, weights, 0.0)
            self.slopes = np.where(within, slopes * scale[..., None], 0.0)

    def _moved(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places after padding, and the derivative of these."""
        sign, last = np.ones_like(at), self._size - 1
        if self._padding == ZEROS:
            return at, sign
        if self._padding == REFLECTION:
            low, span = (0.0, float(last)) if self._align else (-0.5, float(self._size))
            distance = np.abs(at - low)
            turns = np.floor(distance / span) if span else np.zeros_like(at)
            rest = np.where(np.isfinite(distance), distance - turns * span, 0.0) if span else np.zeros_like(at)
            odd = turns % 2 == 1
            sign = np.where(at < low, -1.0, 1.0) * np.where(odd, -1.0, 1.0)
            at = np.where(odd, span - rest, rest) + low
        return np.clip(at, 0, last), np.where((at <= 0) | (at >= last), 0.0, sign)


def _keys(t: np.ndarray, tap: int) -> tuple[np.ndarray, np.ndarray]:
    """Weight and its derivative of one of the four taps of a place that is t behind the second."""
    d = np.abs(t + 1 - tap)
    a = SHARPNESS
    if tap in (1, 2):
        weight, slope = ((a + 2) * d - (a + 3)) * d * d + 1, (3 * (a + 2) * d - 2 * (a + 3)) * d
    else:
        weight, slope = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a, (3 * a * d - 10 * a) * d + 8 * a
    return weight, slope if tap < 2 else -slope


def taps_of(
    image: Shape, grid: np.ndarray, interpolation: int, padding: int, align: int, dtype: np.dtype
) -> list[Taps]:
    """The taps along each axis, whose places are computed in a dtype."""
    points = grid.reshape(grid.shape[0], math.prod(grid.shape[1:-1]), grid.shape[-1]).astype(dtype)
    return [
        Taps(points[..., -1 - axis], int(str(size)), interpolation, padding, align)
        for axis, size in enumerate(image[LEAD:])
    ]


def corners(taps: Sequence[Taps], sizes: Sequence[int], sloped: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Flat places (N, points, corners), -1 outside, and weights, by axis `sloped` their derivatives."""
    places: np.ndarray = np.zeros((1, 1, 1), np.int64)
    weights: np.ndarray = np.ones((1, 1, 1))
    for axis, (own, size) in enumerate(zip(taps, sizes, strict=True)):
        joined = places[..., :, None] * size + own.places[..., None, :]
        joined = np.where((places[..., :, None] < 0) | (own.places[..., None, :] < 0), -1, joined)
        factors = own.slopes if axis == sloped else own.weights
        product = weights[..., :, None] * factors[..., None, :]
        shape = (*joined.shape[:2], joined.shape[2] * joined.shape[3])
        places, weights = joined.reshape(shape), product.reshape(shape)
    return places, weights


def gathered(image: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The elements (N, C, points, corners) at flat places (N, points, corners), 0 outside."""
    samples, channels = image.shape[:2]
    index = places.reshape(samples, 1, places.shape[1] * places.shape[2])
    found = np.take_along_axis(image, np.maximum(index, 0), 2)
    return np.where(index < 0, 0.0, found).reshape(samples, channels, *places.shape[1:])


# --- in kernels -------------------------------------------------------------------------------------------------------

SETTINGS = attribute_record(ATTRIBUTES)
BLOCK = 128
"""Points whose corners are found at once."""
MOST_TAPS, MOST_CORNERS, MOST_AXES = 4, 16, 3
WORK = 1 << 15
"""Approximate number of corners, of all channels, that a task reads."""


class Points(Protocol):
    """Sizes and settings of a run. Channels are in groups of LANES, the last of which has fewer."""

    axes: int
    samples: int
    channels: int
    groups: int  # of a sample
    elements: int  # of a channel of a sample
    points: int  # of a sample
    taps: int  # along an axis
    corners: int
    interpolation: int
    padding: int
    align: int
    step: int  # points of a task
    tasks: int  # of a sample
    image_tasks: int  # that add up the gradient of a group of channels, before those of points


POINTS = record_of(Points)


@helper
def lay_out_points(layout: Points, kernel: Kernel, job: Job, image: int, grid: int, axes: int) -> bool:
    """Write sizes and settings; returns whether the shapes of image and grid fit."""
    settings = record_at(kernel.attributes, SETTINGS)
    mode, padding, align = settings.interpolation_mode, settings.padding_mode, settings.align_corners
    if mode < 0 or mode > 2 or padding < 0 or padding > 2 or align < 0 or align > 1 or (mode == BICUBIC and axes != 2):
        return False
    if job.rank[image] != LEAD + axes or job.rank[grid] != LEAD + axes or job.dims[grid, axes + 1] != axes:
        return False
    if job.dims[image, 0] != job.dims[grid, 0]:
        return False
    layout.axes, layout.samples, layout.channels = axes, job.dims[image, 0], job.dims[image, 1]
    layout.elements, layout.points = 1, 1
    for axis in range(axes):
        layout.elements *= job.dims[image, LEAD + axis]
        layout.points *= job.dims[grid, 1 + axis]
    layout.interpolation, layout.padding, layout.align = mode, padding, align
    layout.taps = 1 if mode == NEAREST else 2 if mode == BILINEAR else 4
    layout.corners = 1
    for _ in range(axes):
        layout.corners *= layout.taps
    layout.groups = ceil_divide(layout.channels, LANES)
    layout.step = max(WORK // max(BLOCK * LANES * layout.groups * layout.corners, 1), 1) * BLOCK
    layout.tasks = ceil_divide(layout.points, layout.step)
    return layout.elements > 0


@helper
def in_float32(x: Number) -> Number:
    """A float64, rounded to float32."""
    return wide(np.float32(x))


@helper
def reflected(at: Number, low: Number, span: Number) -> Number:
    """A place reflected into [low, low + span]."""
    distance = abs(at - low)
    turns = np.floor(distance / span)
    rest = distance - turns * span
    rest = choose(rest - rest == 0.0, rest, 0.0)
    return choose(turns - 2.0 * np.floor(0.5 * turns) > 0.0, span - rest, rest) + low


@helper
def slope_of_reflected(at: Number, low: Number, span: Number) -> Number:
    """The derivative of `reflected`."""
    turns = np.floor(abs(at - low) / span)
    return choose(turns - 2.0 * np.floor(0.5 * turns) > 0.0, -1.0, 1.0) * choose(at < low, -1.0, 1.0)


@helper
def clamped(at: Number, last: Number) -> Number:
    at = choose(at > 0.0, at, 0.0)
    return choose(at < last, at, last)


# Each loop writes to one array, and decides nothing that is the same for all points: else LLVM would not use vectors.


@helper
def move_places(at: Array, count: int, last: Number, padding: int, align: int) -> None:
    """Apply the padding mode to places."""
    if padding == REFLECTION:
        low, span = choose(align == 1, 0.0, -0.5), max(choose(align == 1, last, last + 1.0), 1.0)
        for i in range(count):
            at[i] = reflected(at[i], low, span)
    if padding != ZEROS:
        for i in range(count):
            at[i] = clamped(at[i], last)


@helper
def write_scales(at: Array, count: int, last: Number, scale: Number, padding: int, align: int, scales: Array) -> None:
    """The derivatives, by the coordinate, of places to which the padding mode is applied.

    Args:
        at: the places before that.
        scale: the derivative of these.
    """
    low, span = choose(align == 1, 0.0, -0.5), max(choose(align == 1, last, last + 1.0), 1.0)
    if padding == ZEROS:
        for i in range(count):
            scales[i] = scale
    elif padding == BORDER:
        for i in range(count):
            scales[i] = choose(at[i] > 0.0 and at[i] < last, scale, 0.0)
    else:
        for i in range(count):
            place, slope = reflected(at[i], low, span), scale * slope_of_reflected(at[i], low, span)
            scales[i] = choose(place > 0.0 and place < last, slope, 0.0)


@helper
def write_coordinates(x: Array, axes: int, axis: int, count: int, at: Array) -> None:
    """The coordinates of points along an axis, -1 for NaN; those of the last axis come first."""
    if axes == 2:
        own = tail(x, 1 - axis)
        for i in range(count):
            at[i] = choose(own[2 * i] == own[2 * i], own[2 * i], -1.0)
    else:
        own = tail(x, 2 - axis)
        for i in range(count):
            at[i] = choose(own[3 * i] == own[3 * i], own[3 * i], -1.0)


@helper
def place_coordinates(at: Array, count: int, size: int, align: int, single: bool) -> None:
    """Replace coordinates by places, before padding."""
    last, whole = wide(size - 1), wide(size)
    if align == 1 and single:
        for i in range(count):
            at[i] = in_float32(0.5 * in_float32(at[i] + 1.0) * last)
    elif align == 1:
        for i in range(count):
            at[i] = 0.5 * (at[i] + 1.0) * last
    elif single:
        for i in range(count):
            at[i] = 0.5 * in_float32(in_float32(in_float32(at[i] + 1.0) * whole) - 1.0)
    else:
        for i in range(count):
            at[i] = 0.5 * ((at[i] + 1.0) * whole - 1.0)


@helper
def write_within(at: Array, count: int, last: Number, offset: Number, places: Array) -> None:
    """The elements that are `offset` behind places rounded down; -1 outside."""
    for i in range(count):
        place = np.floor(at[i]) + offset
        places[i] = np.int64(choose(place >= 0.0 and place <= last, place, -1.0))


@helper
def write_linear(at: Array, count: int, scales: Array, tap: int, places: Array, weights: Array, slopes: Array) -> None:
    """Weights and their derivatives of one of the two taps of linear interpolation."""
    if tap == 0:
        for i in range(count):
            weights[i] = choose(places[i] < 0, 0.0, 1.0 - (at[i] - np.floor(at[i])))
        for i in range(count):
            slopes[i] = choose(places[i] < 0, 0.0, -scales[i])
    else:
        for i in range(count):
            weights[i] = choose(places[i] < 0, 0.0, at[i] - np.floor(at[i]))
        for i in range(count):
            slopes[i] = choose(places[i] < 0, 0.0, scales[i])


@helper
def behind(at: Number) -> Number:
    """How far a place is behind the element below; 0 for an infinite one."""
    t = at - np.floor(at)
    return choose(t == t, t, 0.0)


@helper
def near_weight(d: Number) -> Number:
    return ((SHARPNESS + 2.0) * d - (SHARPNESS + 3.0)) * d * d + 1.0


@helper
def far_weight(d: Number) -> Number:
    return ((SHARPNESS * d - 5.0 * SHARPNESS) * d + 8.0 * SHARPNESS) * d - 4.0 * SHARPNESS


@helper
def near_slope(d: Number) -> Number:
    return (3.0 * (SHARPNESS + 2.0) * d - 2.0 * (SHARPNESS + 3.0)) * d


@helper
def far_slope(d: Number) -> Number:
    return (3.0 * SHARPNESS * d - 10.0 * SHARPNESS) * d + 8.0 * SHARPNESS


@helper
def write_cubic(at: Array, count: int, scale: Number, tap: int, places: Array, weights: Array, slopes: Array) -> None:
    """Weights and their derivatives of one of the four taps of cubic interpolation."""
    first, sign = choose(tap < 2, 1.0 - tap, tap - 1.0), choose(tap < 2, 1.0, -1.0)
    is_near = tap == 1 or tap == 2
    for i in range(count):
        d = first + sign * behind(at[i])
        weight = choose(is_near, near_weight(d), far_weight(d))
        weights[i] = choose(places[i] < 0, 0.0, weight)
    for i in range(count):
        d = first + sign * behind(at[i])
        slope = sign * scale * choose(is_near, near_slope(d), far_slope(d))
        slopes[i] = choose(places[i] < 0, 0.0, slope)


@helper
def tap_of(axis: int, tap: int) -> int:
    """Where the taps of an axis are in the buffers of `find_taps`."""
    return (axis * MOST_TAPS + tap) * BLOCK


@helper
def find_taps(
    layout: Points, job: Job, image: int, grid: int, sample: int, first: int, count: int, x: Array, at: Array,
    scales: Array, places: Array, weights: Array, slopes: Array,
) -> None:  # fmt: skip
    """The taps of points of a sample along all axes.

    Args:
        image, grid: the inputs.
        x: BLOCK * MOST_AXES elements to read coordinates into.
        at, scales: BLOCK elements each, to work with.
        places, weights, slopes: BLOCK * MOST_AXES * MOST_TAPS elements each.
    """
    kernel = record_at(job.kernel, KERNEL)
    element_type, axes, align, padding = kernel.element_type[grid], layout.axes, layout.align, layout.padding
    interpolation = layout.interpolation
    source = job.data[grid] + (sample * layout.points + first) * axes * item_size(element_type)
    read_numbers(kernel.read, source, element_type, count * axes, address_of(x))
    for axis in range(axes):
        size = job.dims[image, LEAD + axis]
        last = wide(size - 1)
        scale = 0.5 * choose(align == 1, last, wide(size))
        write_coordinates(x, axes, axis, count, at)
        place_coordinates(at, count, size, align, element_type != DOUBLE)
        if interpolation != BICUBIC:
            write_scales(at, count, last, scale, padding, align, scales)
            move_places(at, count, last, padding, align)
        for tap in range(layout.taps):
            own = tap_of(axis, tap)
            place, weight, slope = tail(places, own), tail(weights, own), tail(slopes, own)
            if interpolation == BICUBIC:
                for i in range(count):
                    scales[i] = np.floor(at[i]) + (tap - 1.0)
                move_places(scales, count, last, padding, align)
                write_within(scales, count, last, 0.0, place)
                write_cubic(at, count, scale, tap, place, weight, slope)
            elif interpolation == BILINEAR:
                write_within(at, count, last, wide(tap), place)
                write_linear(at, count, scales, tap, place, weight, slope)
            else:
                for i in range(count):
                    at[i] = np.rint(at[i])
                write_within(at, count, last, 0.0, place)
                for i in range(count):
                    weight[i] = choose(place[i] < 0, 0.0, 1.0)
                for i in range(count):
                    slope[i] = 0.0


@helper
def combine_places(layout: Points, job: Job, image: int, count: int, places: Array, found: Array) -> None:
    """The flat places of the corners; for one outside that behind the last."""
    for i in range(count):
        found[i] = 0
    corners = 1
    for axis in range(layout.axes):
        size = job.dims[image, LEAD + axis]
        for back in range(corners * layout.taps):
            both = corners * layout.taps - 1 - back
            old, own = both // layout.taps * BLOCK, tap_of(axis, both % layout.taps)
            new = both * BLOCK
            for i in range(count):
                before, place = found[old + i], places[own + i]
                found[new + i] = choose(before < 0 or place < 0, -1, before * size + place)
        corners *= layout.taps
    for first in range(0, corners * BLOCK, BLOCK):
        for i in range(first, first + count):
            found[i] = choose(found[i] < 0, layout.elements, found[i])


@helper
def combine_weights(layout: Points, count: int, weights: Array, slopes: Array, sloped: int, found: Array) -> None:
    """The weights of the corners; with an axis `sloped`, or -1, their derivatives by the coordinate along it."""
    for i in range(count):
        found[i] = 1.0
    corners = 1
    for axis in range(layout.axes):
        for back in range(corners * layout.taps):
            both = corners * layout.taps - 1 - back
            old, own = both // layout.taps * BLOCK, tap_of(axis, both % layout.taps)
            new = both * BLOCK
            if axis == sloped:
                for i in range(count):
                    found[new + i] = found[old + i] * slopes[own + i]
            else:
                for i in range(count):
                    found[new + i] = found[old + i] * weights[own + i]
        corners *= layout.taps


# Channels are interleaved: LANES numbers of a place after those of the place before, 0 where there are fewer channels.


@helper
def group_bytes(layout: Points, size: int) -> int:
    """Bytes of a group of channels of the image, and a place of zeros behind it, which stands for what is outside."""
    return (layout.elements + 1) * LANES * size


@helper
def rows_of(address: int, row_bytes: int, layout: Points, group: int, beyond: int, rows: Array) -> int:
    """Write the addresses of the channels of a group, `beyond` for those that there are not; returns their number.

    Args:
        address: of the channels of all samples, which are `row_bytes` apart.
        group: number among those of all samples.
    """
    first = group % layout.groups * LANES
    count = min(LANES, layout.channels - first)
    start = address + (group // layout.groups * layout.channels + first) * row_bytes
    for lane in range(LANES):
        rows[lane] = start + lane * row_bytes if lane < count else beyond
    return count


@helper
def read_lanes(
    address: int,
    element_type: int,
    row: int,
    layout: Points,
    group: int,
    first: int,
    count: int,
    rows: Array,
    out: Array,
) -> None:
    """Interleave elements [first, first + count) of channels of a group, whose rows have `row` elements."""
    channels = rows_of(address, row * item_size(element_type), layout, group, address, rows)
    interleave(rows, element_type, first, count, out, 0)
    if channels < LANES:
        for i in range(count * LANES):
            out[i] = choose(i % LANES < channels, out[i], like(0, out[i]))


@helper
def interleave_image(job: Job, layout: Points, group: int, image: int, memory: int, dtype: Floating) -> None:
    """Write a group of channels of the image, and zeros, to its memory."""
    kernel = record_at(job.kernel, KERNEL)
    out = array_at(memory + group * group_bytes(layout, size_of(dtype)), (layout.elements + 1) * LANES, dtype)
    own, rows = allocate((LANES, np.int64))
    if own == 0:
        job.failed = NO_MEMORY
        return
    elements = layout.elements
    read_lanes(job.data[image], kernel.element_type[image], elements, layout, group, 0, elements, rows, out)
    for lane in range(LANES):
        out[elements * LANES + lane] = 0.0
    free(own)


@helper
def write_lanes(
    address: int, element_type: int, row: int, layout: Points, group: int, first: int, count: int, beyond: int,
    rows: Array, numbers: Array,
) -> None:  # fmt: skip
    """Inverse of `read_lanes`.

    Args:
        beyond: address of memory for a row of `count` elements, in place of channels that there are not.
    """
    size = item_size(element_type)
    channels = rows_of(address + first * size, row * size, layout, group, beyond, rows)
    if channels > 0:
        separate(numbers, 0, count, rows, element_type, 0)
