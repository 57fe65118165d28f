"""Native code of CtcLoss and CtcLossBackward.

`first` is the index of the input log_probs, which targets, input_lengths and target_lengths follow.
"""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import array_at, number_at
from onnx_ops.loops.primitives import Array, helper
from onnx_ops.loops.records import Job, Kernel
from onnx_ops.ops.ctc._rules import is_class

LANES_FLOAT64 = 8
"""float64 elements of the widest vector (AVX-512)."""


@helper
def longest_target(kernel: Kernel, job: Job, first: int, blank: int) -> int:
    """The greatest target length; -1 if shapes, lengths, labels or blank are invalid."""
    targets, input_lengths, target_lengths = first + 1, first + 2, first + 3
    if job.rank[first] != 3:
        return -1
    steps, batch, classes = job.dims[first, 0], job.dims[first, 1], job.dims[first, 2]
    for i in range(input_lengths, target_lengths + 1):
        if job.rank[i] != 1 or job.dims[i, 0] != batch:
            return -1
    padded = job.rank[targets] == 2
    if not padded and job.rank[targets] != 1:
        return -1
    if padded and job.dims[targets, 0] != batch:
        return -1
    if blank < 0 or blank >= classes:
        return -1
    room = job.dims[targets, 1] if padded else job.dims[targets, 0]
    longest, total = 0, 0
    for n in range(batch):
        used = number_at(job.data[input_lengths], kernel.element_type[input_lengths], n)
        length = number_at(job.data[target_lengths], kernel.element_type[target_lengths], n)
        if used < 0 or used > steps or length < 0 or length > room:
            return -1
        begin = n * room if padded else total
        total += int(length)
        if not padded and total > room:
            return -1
        for k in range(int(length)):
            label = number_at(job.data[targets], kernel.element_type[targets], begin + k)
            if not is_class(label, classes):
                return -1
        longest = max(longest, int(length))
    if not padded and total != room:
        return -1
    return longest


@helper
def write_offsets(kernel: Kernel, job: Job, first: int) -> None:
    """Write the offset of each sample's labels to the scratch memory, (N,) int64."""
    targets, target_lengths = first + 1, first + 3
    batch = job.dims[first, 1]
    offsets, total = array_at(job.scratch, batch, np.int64), 0
    for n in range(batch):
        offsets[n] = n * job.dims[targets, 1] if job.rank[targets] == 2 else total
        total += int(number_at(job.data[target_lengths], kernel.element_type[target_lengths], n))


@helper
def length_of(kernel: Kernel, job: Job, lengths: int, n: int) -> int:
    """The length of sample n in input `lengths`."""
    return int(number_at(job.data[lengths], kernel.element_type[lengths], n))


@helper
def read_labels(kernel: Kernel, job: Job, first: int, n: int, length: int, labels: Array) -> None:
    """Read the labels of sample n."""
    offset = array_at(job.scratch, job.dims[first, 1], np.int64)[n]
    for k in range(length):
        labels[k] = int(number_at(job.data[first + 1], kernel.element_type[first + 1], offset + k))


@helper
def whole(count: int) -> int:
    """count, rounded up to whole vectors."""
    return (count + LANES_FLOAT64 - 1) // LANES_FLOAT64 * LANES_FLOAT64


@helper
def log_sum(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = (a, b) if a > b else (b, a)
    if np.isinf(low):
        return high
    return high + np.log1p(np.exp(low - high))


@helper
def log_product(a: float, b: float) -> float:
    """log(exp(a) * exp(b)), with 0 * anything = 0."""
    return -np.inf if a == -np.inf or b == -np.inf else a + b
