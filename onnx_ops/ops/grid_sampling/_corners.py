"""Taps and corners of points in kernels, BLOCK points at a time; `_points` says what these are."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from onnx_ops.loops.memory import DOUBLE, LANES, address_of, item_size, read_numbers, record_at, tail
from onnx_ops.loops.primitives import Array, Number, ceil_divide, choose, helper, wide
from onnx_ops.loops.records import KERNEL, Job, Kernel, attribute_record, record_of
from onnx_ops.ops.grid_sampling._points import (
    ATTRIBUTES,
    BICUBIC,
    BILINEAR,
    BORDER,
    LEAD,
    NEAREST,
    REFLECTION,
    SHARPNESS,
    ZEROS,
)

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
    else:  # the product is rounded before 1 is subtracted, so in two loops: in one LLVM would fuse these
        for i in range(count):
            at[i] = (at[i] + 1.0) * whole
        for i in range(count):
            at[i] = 0.5 * (at[i] - 1.0)


@helper
def write_within(at: Array, count: int, last: Number, offset: Number, places: Array) -> None:
    """The elements that are `offset` behind places rounded down; -1 outside."""
    for i in range(count):
        place = np.floor(at[i]) + offset
        places[i] = np.int64(choose(place >= 0.0 and place <= last, place, -1.0))


@helper
def write_linear(at: Array, count: int, tap: int, places: Array, weights: Array) -> None:
    """Weights of one of the two taps of linear interpolation."""
    if tap == 0:
        for i in range(count):
            weights[i] = choose(places[i] < 0, 0.0, 1.0 - (at[i] - np.floor(at[i])))
    else:
        for i in range(count):
            weights[i] = choose(places[i] < 0, 0.0, at[i] - np.floor(at[i]))


@helper
def write_linear_slopes(scales: Array, count: int, tap: int, places: Array, slopes: Array) -> None:
    """The derivatives of the weights of one of the two taps of linear interpolation."""
    sign = choose(tap == 0, -1.0, 1.0)
    for i in range(count):
        slopes[i] = choose(places[i] < 0, 0.0, sign * scales[i])


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
def write_cubic(at: Array, count: int, tap: int, places: Array, weights: Array) -> None:
    """Weights of one of the four taps of cubic interpolation."""
    first, sign = choose(tap < 2, 1.0 - tap, tap - 1.0), choose(tap < 2, 1.0, -1.0)
    is_near = tap == 1 or tap == 2
    for i in range(count):
        d = first + sign * behind(at[i])
        weight = choose(is_near, near_weight(d), far_weight(d))
        weights[i] = choose(places[i] < 0, 0.0, weight)


@helper
def write_cubic_slopes(at: Array, count: int, scale: Number, tap: int, places: Array, slopes: Array) -> None:
    """The derivatives of the weights of one of the four taps of cubic interpolation."""
    first, sign = choose(tap < 2, 1.0 - tap, tap - 1.0), choose(tap < 2, 1.0, -1.0)
    is_near = tap == 1 or tap == 2
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
    scales: Array, places: Array, weights: Array, slopes: Array, with_slopes: bool,
) -> None:  # fmt: skip
    """The taps of points of a sample along all axes.

    Args:
        image, grid: the inputs.
        x: BLOCK * MOST_AXES elements to read coordinates into.
        at, scales: BLOCK elements each, to work with.
        places, weights, slopes: BLOCK * MOST_AXES * MOST_TAPS elements each.
        with_slopes: whether to write the derivatives of the weights; not in the nearest mode.
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
            if with_slopes:
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
                write_cubic(at, count, tap, place, weight)
                if with_slopes:
                    write_cubic_slopes(at, count, scale, tap, place, slope)
            elif interpolation == BILINEAR:
                write_within(at, count, last, wide(tap), place)
                write_linear(at, count, tap, place, weight)
                if with_slopes:
                    write_linear_slopes(scales, count, tap, place, slope)
            else:
                for i in range(count):
                    at[i] = np.rint(at[i])
                write_within(at, count, last, 0.0, place)
                for i in range(count):
                    weight[i] = choose(place[i] < 0, 0.0, 1.0)


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
