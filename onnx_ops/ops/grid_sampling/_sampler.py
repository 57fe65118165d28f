"""Samples of an image or volume: what GridSampler2D and GridSampler3D share."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnx_ops.core.call import Call
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import Shape, TensorType
from onnx_ops.loops.memory import (
    LANES,
    address_of,
    allocate,
    free,
    record_at,
)
from onnx_ops.loops.places import add_from_places
from onnx_ops.loops.primitives import Floating, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, Job, Kernel
from onnx_ops.ops.grid_sampling._channels import interleave_image, interleaved, reserve, write_lanes
from onnx_ops.ops.grid_sampling._corners import (
    BLOCK,
    MOST_AXES,
    MOST_CORNERS,
    MOST_TAPS,
    POINTS,
    combine_places,
    combine_weights,
    find_taps,
    lay_out_points,
)
from onnx_ops.ops.grid_sampling._points import ATTRIBUTES, LEAD, TEXT, check_points, choices, corners, gathered, taps_of
from onnx_ops.ops.references import computing_dtype, rounded


def sampler_signature(axes: int, space: str, points: str) -> Signature:
    """The signature of the op for so many spatial axes, `space` of the input and `points` of the output."""
    name = f"GridSampler{axes}D"
    return Signature(
        name,
        f"""
Samples of {"an image" if axes == 2 else "a volume"} at the points of a grid (aclnn{name}), as spatial transformers take
them (Jaderberg et al. 2015, equation 3).

    out[n, c, point] = sum of weight[n, point, e] * input[n, c, e] over the elements e around a point
{TEXT}
Shapes: `input` (N, C, {space}); `grid` (N, {points}, {axes}), where the last axis has the coordinates of a point, that
along the last axis of `input` first; `out` (N, C, {points}). `input` has at least one element along each spatial axis.

Dtypes: `input` and `grid` have one dtype, float16, bfloat16, float or double, and `out` the same. Sums are in double,
and rounded once.

Edge rules: an element outside of `input` contributes 0. NaN and infinities in `input` propagate to the points around,
also where their weight is 0.

Without a kernel: sums are in float, or double if the dtype is double. Shapes known only at run time are not checked.
""",
        inputs=(
            Input("input", f"What is sampled, (N, C, {space})."),
            Input("grid", f"The points, (N, {points}, {axes}).", like="input"),
        ),
        outputs=(Output("out", f"The samples, (N, C, {points}).", "input"),),
        attributes=ATTRIBUTES,
        choices=choices(axes),
    )


def infer_samples(call: Call, axes: int) -> tuple[TensorType, ...]:
    image, grid = check_points(call, axes)
    shape: Shape | None = None
    if image is not None and grid is not None:
        shape = (image[0], image[1], *grid[1:-1])
    return (TensorType(call.dtype("input"), shape),)


def sampled_in_numpy(
    input: np.ndarray, grid: np.ndarray, modes: tuple[int, int, int], dtype: npt.DTypeLike | None
) -> np.ndarray:
    """The definition, with the modes of interpolation and padding, and whether corners are aligned."""
    samples, channels, *sizes = input.shape
    own = computing_dtype((grid,), None)
    taps = taps_of(input.shape, grid, *modes, own)
    places, weights = corners(taps, sizes)
    image = input.astype(np.float64).reshape(samples, channels, math.prod(sizes))
    found = gathered(image, places)
    with np.errstate(all="ignore"):
        out = (found * weights[:, None]).sum(-1)
    return rounded(out.reshape(samples, channels, *grid.shape[1:-1]), input.dtype, dtype)


# --- the kernel: one task for some points of a sample -----------------------------------------------------------------

INPUT, GRID = range(2)


@helper
def lay_out_samples(address: int, kernel: Kernel, job: Job, axes: int) -> bool:
    """Write the layout and the shape of the output; returns whether the shapes of the inputs fit."""
    layout = record_at(address, POINTS)
    if not lay_out_points(layout, kernel, job, INPUT, GRID, axes):
        return False
    job.output_rank[0], job.output_dims[0, 0], job.output_dims[0, 1] = LEAD + axes, layout.samples, layout.channels
    for axis in range(axes):
        job.output_dims[0, LEAD + axis] = job.dims[GRID, 1 + axis]
    job.tasks = layout.samples * layout.tasks if layout.channels > 0 else 0
    job.prepare_tasks = layout.samples * layout.groups if layout.points > 0 else 0
    reserve(layout, job, kernel.element_type[INPUT])
    return True


def prepare(job: Job, number: int, dtype: Floating) -> None:
    """Interleave the channels of a group."""
    interleave_image(job, number, INPUT, dtype)


def task(job: Job, number: int, dtype: Floating) -> None:
    """Some points."""
    kernel, layout = record_at(job.kernel, KERNEL), record_at(job.scratch, POINTS)
    element_type = kernel.output_type[0]
    most = BLOCK * MOST_AXES * MOST_TAPS
    memory, x, at, scales, taps, weights, slopes, places, factors, sums, rows, beyond = allocate(
        (BLOCK * MOST_AXES, np.float64),
        (BLOCK, np.float64),
        (BLOCK, np.float64),
        (most, np.int64),
        (most, np.float64),
        (most, np.float64),
        (BLOCK * MOST_CORNERS, np.int64),
        (BLOCK * MOST_CORNERS, np.float64),
        (BLOCK * LANES, dtype),
        (LANES, np.int64),
        (BLOCK, np.float64),
    )
    if memory == 0:
        job.failed = NO_MEMORY
        return
    sample, begin = number // layout.tasks, number % layout.tasks * layout.step
    for first in range(begin, min(begin + layout.step, layout.points), BLOCK):
        count = min(BLOCK, layout.points - first)
        find_taps(layout, job, INPUT, GRID, sample, first, count, x, at, scales, taps, weights, slopes, False)
        combine_places(layout, job, INPUT, count, taps, places)
        combine_weights(layout, count, weights, slopes, -1, factors)
        for group in range(sample * layout.groups, (sample + 1) * layout.groups):
            table = interleaved(layout, job, group, dtype)
            for i in range(count):
                add_from_places(table, places, factors, i, BLOCK, layout.corners, sums, i)
            write_lanes(
                job.output[0], element_type, layout.points, layout, group, first, count, address_of(beyond), rows, sums
            )
    free(memory)
