"""Gradients of samples: what GridSampler2DBackward and GridSampler3DBackward share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_ops.core.call import Call
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.loops.memory import (
    LANES,
    address_of,
    allocate,
    free,
    item_size,
    record_at,
    write_numbers,
)
from onnx_ops.loops.places import add_to_places, multiply_with_places
from onnx_ops.loops.primitives import Floating, choose, helper, like
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.loops.shapes import give_shape
from onnx_ops.ops.grid_sampling._channels import interleave_image, interleaved, read_lanes, reserve, write_lanes
from onnx_ops.ops.grid_sampling._corners import (
    BLOCK,
    MOST_AXES,
    MOST_CORNERS,
    MOST_TAPS,
    POINTS,
    Points,
    combine_places,
    combine_weights,
    find_taps,
    lay_out_points,
)
from onnx_ops.ops.grid_sampling._points import (
    ATTRIBUTES,
    LEAD,
    NEAREST,
    TEXT,
    check_points,
    choices,
    corners,
    gathered,
    taps_of,
)
from onnx_ops.ops.references import computing_dtype, rounded


def gradient_signature(axes: int, space: str, points: str) -> Signature:
    """The signature of the op for so many spatial axes, `space` of the input and `points` of the samples."""
    name = f"GridSampler{axes}DBackward"
    return Signature(
        name,
        f"""
Gradients of samples of {"an image" if axes == 2 else "a volume"} at the points of a grid (aclnn{name}; Jaderberg et
al. 2015, equations 6 and 7). A node omits the outputs that its outputMask leaves out.

    input_grad[n, c, e]     = sum of weight[n, point, e] * grad_output[n, c, point] over the points
    grid_grad[n, point, i] = sum of slope[n, point, e, i] * input[n, c, e] * grad_output[n, c, point] over c and e

`weight` is that of GridSampler{axes}D, and `slope` its derivative with respect to coordinate i of the point.
{TEXT}
Shapes: `grad_output` (N, C, {points}); `input` and `input_grad` (N, C, {space}); `grid` and `grid_grad`
(N, {points}, {axes}). `input` has at least one element along each spatial axis.

Dtypes: all have one dtype, float16, bfloat16, float or double. Sums are in double, in an order that does not depend on
the number of threads, and rounded once.

Edge rules: each output may be omitted, but not both. In the nearest mode `grid_grad` is 0. With padding modes 1 and 2
the derivative of a place that is at an end of the axis, or was moved there, is 0, as in PyTorch. An element outside of
`input` counts as 0. NaN and infinities propagate as in the formula.

Without a kernel: sums are in float, or double if the dtype is double. Shapes known only at run time are not checked.
""",
        inputs=(
            Input("grad_output", f"Gradient with respect to the samples, (N, C, {points})."),
            Input("input", f"What is sampled, (N, C, {space}).", like="grad_output"),
            Input("grid", f"The points, (N, {points}, {axes}).", like="grad_output"),
        ),
        outputs=(
            Output("input_grad", "Gradient with respect to `input`.", "grad_output", optional=True),
            Output("grid_grad", "Gradient with respect to `grid`.", "grad_output", optional=True),
        ),
        attributes=ATTRIBUTES,
        choices=choices(axes),
    )


def infer_gradients(call: Call, axes: int) -> tuple[TensorType, ...]:
    image, grid = check_points(call, axes)
    call.same_dtype("grad_output", "input")
    if image is not None and grid is not None:
        call.same_shape("grad_output", (*image[:LEAD], *grid[1:-1]), "the samples of 'input' at the points of 'grid'")
    return TensorType(call.dtype("input"), image), TensorType(call.dtype("input"), grid)


def gradients_in_numpy(
    grad_output: np.ndarray,
    input: np.ndarray,
    grid: np.ndarray,
    modes: tuple[int, int, int],
    dtype: npt.DTypeLike | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The definition, with the modes of interpolation and padding, and whether corners are aligned."""
    samples, channels, *sizes = input.shape
    own = computing_dtype((grid,), None)
    taps = taps_of(input.shape, grid, *modes, own)
    places, weights = corners(taps, sizes)
    image = input.astype(np.float64).reshape(samples, channels, math.prod(sizes))
    grad = grad_output.astype(np.float64).reshape(samples, channels, places.shape[1], 1)
    input_grad, grid_grad = np.zeros((samples, channels, image.shape[2] + 1)), np.zeros((*places.shape[:2], len(sizes)))
    with np.errstate(all="ignore"):
        for sample in range(samples):
            for channel in range(channels):  # the last element takes what is outside
                np.add.at(input_grad[sample, channel], places[sample], weights[sample] * grad[sample, channel])
        products = np.where(places < 0, 0.0, (gathered(image, places) * grad).sum(1))
        for axis in range(len(sizes)):
            grid_grad[..., -1 - axis] = (products * corners(taps, sizes, sloped=axis)[1]).sum(-1)
    return (
        rounded(input_grad[..., :-1].reshape(input.shape), input.dtype, dtype),
        rounded(grid_grad.reshape(grid.shape), grid.dtype, dtype),
    )


# --- the kernel: tasks for some channels of input_grad, then those for some points of grid_grad -----------------------

GRAD, INPUT, GRID = range(3)
BY_INPUT, BY_GRID = range(2)


@helper
def lay_out_gradients(address: int, kernel: Kernel, job: Job, axes: int) -> bool:
    """Write the layout and the shapes of the outputs; returns whether the shapes of the inputs fit."""
    layout = record_at(address, POINTS)
    if not lay_out_points(layout, kernel, job, INPUT, GRID, axes) or job.rank[GRAD] != LEAD + axes:
        return False
    fit = job.dims[GRAD, 0] == layout.samples and job.dims[GRAD, 1] == layout.channels
    for axis in range(axes):
        fit = fit and job.dims[GRAD, LEAD + axis] == job.dims[GRID, 1 + axis]
    give_shape(job, BY_INPUT, INPUT)
    give_shape(job, BY_GRID, GRID)
    layout.image_tasks = layout.samples * layout.groups if kernel.output_type[BY_INPUT] != 0 else 0
    job.tasks, job.prepare_tasks = layout.image_tasks, 0
    if kernel.output_type[BY_GRID] != 0:
        job.tasks += layout.samples * layout.tasks
        if layout.interpolation != NEAREST and layout.points > 0:
            job.prepare_tasks = layout.samples * layout.groups
    reserve(layout, job, kernel.element_type[INPUT])
    return bool(fit)


def prepare(job: Job, number: int, dtype: Floating) -> None:
    """Interleave the channels of a group."""
    interleave_image(job, number, INPUT, dtype)


@helper
def add_to_image(job: Job, layout: Points, group: int, buffers: Any) -> None:
    """The gradient of a group of channels of the image."""
    kernel = record_at(job.kernel, KERNEL)
    x, at, scales, taps, weights, slopes, places, factors, grad, rows, sums, beyond = buffers
    elements, element_type = layout.elements, kernel.element_type[GRAD]
    for i in range((elements + 1) * LANES):
        sums[i] = 0.0
    for first in range(0, layout.points, BLOCK):
        count = min(BLOCK, layout.points - first)
        find_taps(
            layout, job, INPUT, GRID, group // layout.groups, first, count, x, at, scales, taps, weights, slopes, False
        )
        combine_places(layout, job, INPUT, count, taps, places)
        combine_weights(layout, count, weights, slopes, -1, factors)
        read_lanes(job.data[GRAD], element_type, layout.points, layout, group, first, count, rows, grad)
        for i in range(count):
            add_to_places(sums, places, factors, i, BLOCK, layout.corners, grad, i)
    for first in range(0, elements, BLOCK):
        count = min(BLOCK, elements - first)
        for i in range(count * LANES):
            grad[i] = like(sums[first * LANES + i], grad[i])
        write_lanes(
            job.output[BY_INPUT], element_type, elements, layout, group, first, count, address_of(beyond), rows, grad
        )


@helper
def differentiate_points(
    job: Job, layout: Points, sample: int, first: int, count: int, buffers: Any, dtype: Floating
) -> None:
    """Into the first buffer: the gradients of the coordinates of some points."""
    kernel = record_at(job.kernel, KERNEL)
    x, at, scales, taps, weights, slopes, places, factors, grad, rows, products, _ = buffers
    axes, corners, elements = layout.axes, layout.corners, layout.elements
    if layout.interpolation == NEAREST:
        for i in range(count * axes):
            x[i] = 0.0
        return
    for i in range(BLOCK * corners):
        products[i] = 0.0
    find_taps(layout, job, INPUT, GRID, sample, first, count, x, at, scales, taps, weights, slopes, True)
    combine_places(layout, job, INPUT, count, taps, places)
    for group in range(sample * layout.groups, (sample + 1) * layout.groups):
        read_lanes(job.data[GRAD], kernel.element_type[GRAD], layout.points, layout, group, first, count, rows, grad)
        table = interleaved(layout, job, group, dtype)
        for i in range(count):
            multiply_with_places(table, places, i, BLOCK, corners, grad, i, products)
    for corner in range(0, corners * BLOCK, BLOCK):
        for i in range(corner, corner + count):
            products[i] = choose(places[i] == elements, 0.0, products[i])
    for axis in range(axes):
        combine_weights(layout, count, weights, slopes, axis, factors)
        for i in range(count):
            at[i] = 0.0
        for corner in range(0, corners * BLOCK, BLOCK):
            for i in range(count):
                at[i] += factors[corner + i] * products[corner + i]
        for i in range(count):
            x[i * axes + axes - 1 - axis] = at[i]


def task(job: Job, number: int, dtype: Floating) -> None:
    """The gradient of a group of channels of the image, or of some points of a sample."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, POINTS)
    most, corners = BLOCK * MOST_AXES * MOST_TAPS, BLOCK * MOST_CORNERS
    of_image = number < layout.image_tasks
    memory, x, at, scales, taps, weights, slopes, places, factors, grad, rows, sums, beyond = allocate(
        (BLOCK * MOST_AXES, np.float64),
        (BLOCK, np.float64),
        (BLOCK, np.float64),
        (most, np.int64),
        (most, np.float64),
        (most, np.float64),
        (corners, np.int64),
        (corners, np.float64),
        (BLOCK * LANES, dtype),
        (LANES, np.int64),
        ((layout.elements + 1) * LANES if of_image else corners, np.float64),
        (BLOCK, np.float64),
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    buffers = (x, at, scales, taps, weights, slopes, places, factors, grad, rows, sums, beyond)
    if of_image:
        add_to_image(job, layout, number, buffers)
    else:
        number -= layout.image_tasks
        sample, begin = number // layout.tasks, number % layout.tasks * layout.step
        for first in range(begin, min(begin + layout.step, layout.points), BLOCK):
            count = min(BLOCK, layout.points - first)
            differentiate_points(job, layout, sample, first, count, buffers, dtype)
            element_type, axes = kernel.output_type[BY_GRID], layout.axes
            target = job.output[BY_GRID] + (sample * layout.points + first) * axes * item_size(element_type)
            write_numbers(kernel.write, address_of(x), element_type, count * axes, target)
    free(memory)
