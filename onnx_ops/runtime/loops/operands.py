"""The index space of a run, and the strides of each operand in it."""

from __future__ import annotations

from numba import njit

from onnx_ops.core.space import Role
from onnx_ops.core.types import MAX_RANK
from onnx_ops.runtime.memory import i8_at, number_at, stack
from onnx_ops.runtime.native import OPTIONS

# Kinds of operands.
ABSENT, SCALAR, LINEAR, STRIDED = 0, 1, 2, 3

SHAPE, INTO, SAME, CHANNEL, COUNT, UNREAD = (
    int(Role.SHAPE), int(Role.INTO), int(Role.SAME), int(Role.CHANNEL), int(Role.COUNT), int(Role.UNREAD),
)  # fmt: skip
AXES = 8 * MAX_RANK


@njit(**OPTIONS)
def broadcast_shapes(kernel, loop, job, layout):
    """Set the index space, the broadcast shape of inputs with a shaping role; False if they do not broadcast."""
    rank = 0
    for i in range(kernel.inputs):
        if loop.role[i] & SHAPE and kernel.element_type[i] != 0:
            rank = max(rank, job.rank[i])
    layout.axes = rank
    for axis in range(rank):
        layout.extent[axis] = 1
    for i in range(kernel.inputs):
        if loop.role[i] & SHAPE and kernel.element_type[i] != 0:
            lead = rank - job.rank[i]
            for axis in range(job.rank[i]):
                size = job.dims[i, axis]
                if size != 1:
                    if layout.extent[lead + axis] != 1 and layout.extent[lead + axis] != size:
                        return False
                    layout.extent[lead + axis] = size
    layout.size = 1
    for axis in range(rank):
        layout.size *= layout.extent[axis]
    return loop.ranks[0] <= rank <= loop.ranks[1]


@njit(**OPTIONS)
def fits(loop, job, layout, i):
    """Whether the shape of an input fits its role in the index space."""
    role = loop.role[i]
    if role & COUNT:
        return True
    if role & CHANNEL:
        return job.rank[i] == 1 and job.dims[i, 0] == layout.extent[1] and layout.extent[1] >= 1
    lead = layout.axes - job.rank[i]
    if lead < 0 or (role & SAME and lead != 0):
        return False
    for axis in range(job.rank[i]):
        size, extent = job.dims[i, axis], layout.extent[lead + axis]
        if size != extent and (role & SAME or size != 1):
            return False
    return True


@njit(**OPTIONS)
def lay_out(layout, i, dims, lead, rank, order):
    """Set the strides of an operand over the index space, axes in `order`, contiguous neighbours merged.

    The operand's axes, of sizes `dims`, are axes `lead` and following of the index space.
    """
    steps_address = stack(AXES)
    steps = i8_at(steps_address)
    step = 1
    for axis in range(layout.axes - 1, -1, -1):
        own = axis - lead
        size = dims[own] if 0 <= own < rank else 1
        steps[axis] = 0 if size == 1 else step
        step *= size
    count = 0
    for place in range(layout.axes):
        axis = order[place]
        extent, stride = layout.extent[axis], steps[axis]
        if extent == 1:
            continue
        if count > 0 and layout.operand_stride[i, count - 1] == stride * extent:
            layout.operand_extent[i, count - 1] *= extent
            layout.operand_stride[i, count - 1] = stride
        else:
            layout.operand_extent[i, count] = extent
            layout.operand_stride[i, count] = stride
            count += 1
    layout.operand_axes[i] = count
    if count == 0 or (count == 1 and layout.operand_stride[i, 0] == 0):
        layout.kind[i] = SCALAR
    elif count == 1 and layout.operand_stride[i, 0] == 1:
        layout.kind[i] = LINEAR
    else:
        layout.kind[i] = STRIDED


@njit(**OPTIONS)
def count_up(job, i, element_type):
    """Sum of all elements of an input, in float64."""
    size, total = 1, 0.0
    for axis in range(job.rank[i]):
        size *= job.dims[i, axis]
    for index in range(size):
        total += number_at(job.data[i], element_type, index)
    return total


@njit(**OPTIONS)
def element_offset(layout, i, index, axes):
    """Offset of an operand, in elements, at a linear index over its first `axes` axes."""
    offset = 0
    for axis in range(axes - 1, 0, -1):
        extent = layout.operand_extent[i, axis]
        offset += (index % extent) * layout.operand_stride[i, axis]
        index //= extent
    return offset + index * layout.operand_stride[i, 0]
