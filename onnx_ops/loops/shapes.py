"""Shapes of inputs and outputs, in the plan of a kernel."""

from onnx_ops.loops.primitives import helper
from onnx_ops.loops.records import Job


@helper
def volume(job: Job, i: int, begin: int, end: int) -> int:
    """Product of dimensions [begin, end) of input i."""
    count = 1
    for axis in range(begin, end):
        count *= job.dims[i, axis]
    return count


@helper
def size_of(job: Job, i: int) -> int:
    """Number of elements of input i."""
    return volume(job, i, 0, job.rank[i])


@helper
def same_sizes(job: Job, i: int, other: int, count: int) -> bool:
    """Whether two inputs agree in their first `count` dimensions."""
    same = True
    for axis in range(count):
        same = same and job.dims[i, axis] == job.dims[other, axis]
    return bool(same)


@helper
def same_shape(job: Job, i: int, other: int) -> bool:
    """Whether two inputs have the same shape."""
    return bool(job.rank[i] == job.rank[other] and same_sizes(job, i, other, job.rank[other]))


@helper
def give_shape(job: Job, output: int, i: int) -> None:
    """Set the shape of an output to that of input i."""
    job.output_rank[output] = job.rank[i]
    for axis in range(job.rank[i]):
        job.output_dims[output, axis] = job.dims[i, axis]
