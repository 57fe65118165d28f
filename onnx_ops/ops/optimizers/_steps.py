"""What the steps of optimizers share: checks of shapes, numbers in tensors, and blocks of elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.graph.builder import Value
from onnx_ops.loops.memory import number_at
from onnx_ops.loops.primitives import helper
from onnx_ops.loops.records import OK, REFUSED, Job, Kernel
from onnx_ops.loops.shapes import give_shape, same_shape, size_of

BLOCK, MOST_TASKS, LARGEST_BLOCK = 4096, 64, 131072
"""Elements per task: BLOCK up to MOST_TASKS tasks, then more, since longer contiguous reads are faster."""


def check_shapes(call: Call, tensors: Sequence[str], scalars: Sequence[str]) -> None:
    """Raise OpError unless `tensors` have the shape of the first of them, and `scalars` have one element."""
    first, *others = tensors
    for name in others:
        if call.present(name):
            call.same_shape(name, call.shape(first), f"the shape of '{first}'")
    for name in scalars:
        own = call.shape(name)
        if own is not None and own not in ((), (1,), (None,)) and not (len(own) == 1 and isinstance(own[0], str)):
            raise call.shape_error(name, "one number, () or (1,)")


@helper
def plan_blocks(kernel: Kernel, job: Job, tensors: Sequence[int], scalars: Sequence[int], outputs: int) -> int:
    """Check shapes; outputs of the shape of input 0, and one task per block of its elements.

    Args:
        tensors: the other inputs of that shape, a tuple.
        scalars: the inputs of one element, a tuple.
    """
    for i in tensors:
        if kernel.element_type[i] != 0 and not same_shape(job, i, 0):
            return REFUSED
    for i in scalars:
        if kernel.element_type[i] != 0 and (job.rank[i] > 1 or size_of(job, i) != 1):
            return REFUSED
    for k in range(outputs):
        give_shape(job, k, 0)
    block = block_of(size_of(job, 0))
    job.tasks = (size_of(job, 0) + block - 1) // block
    return OK


@helper
def block_of(size: int) -> int:
    """Elements per task, a multiple of BLOCK."""
    return min(max(size // MOST_TASKS // BLOCK, 1) * BLOCK, LARGEST_BLOCK)


@helper
def scalar(kernel: Kernel, job: Job, i: int) -> float:
    """The number in an input of one element, or its default."""
    if kernel.element_type[i] == 0:
        return float(kernel.default[i])
    return number_at(job.data[i], kernel.element_type[i], 0)


def scalar_value(b: Body, name: str) -> Value:
    """An input of one element as a scalar, in the computing dtype of a function body."""
    return b.op("Reshape", b.load(name), b.constant(np.zeros(0, np.int64)), name=f"{name}_number")
