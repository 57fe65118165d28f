"""Shapes of group normalization, and the layout of kernels that go through the channels of samples.

A row is what is normalized together: a group of channels of a sample. Each channel of a sample is measured first, and
then written with the results of all channels of its row. A task does both for some rows, which are in the cache then,
or, where rows are long, one set of tasks measures channels and another one writes them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from onnx_ops.core.call import Call
from onnx_ops.core.types import MAX_RANK, Shape
from onnx_ops.loops.memory import array_at, size_of, whole_lines
from onnx_ops.loops.primitives import ceil_divide, helper
from onnx_ops.loops.records import Job, record_of
from onnx_ops.loops.shapes import volume

LEAST_RANK = 2
WORK = 1 << 14
"""Approximate number of elements per task."""
LONGEST = 1 << 16
"""Elements of a row up to which a task measures and writes it."""
CHUNK = 2048
"""Elements whose sums are in the computing dtype; sums of chunks are in float64."""
MEASURES = 4
"""Numbers that are kept of each channel of a sample."""


class Channels(Protocol):
    """The layout of a run."""

    channels: int  # of a sample
    per_group: int
    places: int  # elements of a channel of a sample
    rows: int
    step: int  # rows of a task, or channels of it


LAYOUT = record_of(Channels)


@helper
def write_channels(layout: Channels, job: Job, image: int, groups: int) -> bool:
    """Write the layout and the numbers of tasks; returns whether the shape of an input fits.

    Args:
        image: index of the input.
        groups: groups of channels.
    """
    rank = job.rank[image]
    if rank < LEAST_RANK or groups < 1 or job.dims[image, 1] % groups != 0:
        return False
    layout.channels, layout.places = job.dims[image, 1], volume(job, image, LEAST_RANK, rank)
    layout.per_group, layout.rows = layout.channels // groups, job.dims[image, 0] * groups
    row = layout.per_group * layout.places
    job.scratch_bytes = whole_lines(size_of(LAYOUT)) + layout.rows * layout.per_group * MEASURES * 8
    if row <= LONGEST:
        layout.step, job.prepare_tasks = max(WORK // max(row, 1), 1), 0
        job.tasks = ceil_divide(layout.rows, layout.step)
    else:
        layout.step = max(WORK // layout.places, 1)
        job.prepare_tasks = ceil_divide(layout.rows * layout.per_group, layout.step)
        job.tasks = job.prepare_tasks
    return True


@helper
def measures_of(job: Job, layout: Channels, index: int) -> Any:
    """The numbers that are kept of a channel of a sample, and of those after it; float64."""
    begin = job.scratch + whole_lines(size_of(LAYOUT))
    return array_at(begin + index * MEASURES * 8, (layout.rows * layout.per_group - index) * MEASURES, np.float64)


@helper
def channels_of_block(layout: Channels) -> int:
    """Channels of a sample that are read together; one whose elements are more than a chunk is read in several."""
    return max(CHUNK // max(layout.places, 1), 1)


@helper
def row_of(layout: Channels, index: int) -> int:
    """The row of a channel of a sample."""
    return int(index // layout.per_group)


def check_groups(call: Call, name: str) -> Shape | None:
    """Check a tensor (N, C, ...) and the attribute `group`; returns (N, group), None if unknown."""
    call.check_range("group", 1)
    shape, group = call.shape(name), call.attributes["group"]
    if shape is None:
        return None
    if len(shape) < LEAST_RANK:
        raise call.shape_error(name, f"{LEAST_RANK} to {MAX_RANK} dimensions, of samples and channels first")
    if isinstance(shape[1], int) and shape[1] % group:
        raise call.shape_error(name, f"a number of channels at axis 1 that is a multiple of the {group} groups")
    return (shape[0], group)
