"""BatchNormGatherStatsWithCounts: the statistics of a batch from those of its parts."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Tasks
from onnx_ops.loops.memory import (
    address_of,
    allocate,
    free,
    item_size,
    number_at,
    read_numbers,
    record_at,
    write_numbers,
)
from onnx_ops.loops.primitives import Array, fma, helper
from onnx_ops.loops.records import KERNEL, NO_MEMORY, OK, REFUSED, Job, Kernel, attributes_of
from onnx_ops.ops.batch_norm._channels import COUNTS, channels_of, eps_of, inverse_deviation
from onnx_ops.ops.references import rounded

SIGNATURE = Signature(
    "BatchNormGatherStatsWithCounts",
    """
Second step of synchronized batch normalization (aclnnBatchNormGatherStatsWithCounts): every worker merges the
statistics that BatchNormStats has computed on each of the W workers, by parallel variance (Chan, Golub and LeVeque,
1983). For each channel, with sums over the workers w:

    n          = sum(counts)
    mean_all   = sum(counts[w] * mean[w]) / n
    m2         = sum(counts[w] * (1 / invstd[w]^2 - eps + (mean[w] - mean_all)^2))
    invstd_all = 1 / sqrt(m2 / n + eps)
    running_mean_out = (1 - momentum) * running_mean + momentum * mean_all
    running_var_out  = (1 - momentum) * running_var + momentum * m2 / (n - 1)

Shapes: `input` (N, C, ...) of rank 2 to 8, C >= 1; `mean` and `invstd` (W, C); `counts` (W); all others (C). W >= 0.

Dtypes: `input`, `mean`, `invstd`, `running_mean` and `running_var` each float16, bfloat16, float or double; `counts`
int32, float16, bfloat16 or float. `mean_all` and `invstd_all` have the dtype of `mean`, the running outputs those of
their inputs. Computed in double and rounded once. Of `input` only the shape is used.

Edge rules: a worker with count 0 contributes nothing, whatever its statistics are. An `invstd` above 1 / sqrt(eps)
denotes a negative variance, and is used as such. For n = 0, `mean_all` and `invstd_all` are 0 and the running values
are unchanged; for n <= 1 the unbiased variance, m2 / (n - 1), is 0. Each running output may be omitted; one without its
input is an error. Other NaN and infinities propagate as in the formula.

Without a kernel: shapes known only at run time are not checked; they broadcast as in ONNX operators.
""",
    inputs=(
        Input("input", "Input of batch normalization on this worker, (N, C, ...).", Role.SHAPE | Role.UNREAD),
        Input("mean", "Means of the channels on each worker, (W, C)."),
        Input("invstd", "1 / sqrt(variance + eps) of the channels on each worker, (W, C)."),
        Input(
            "running_mean",
            "Running mean of each channel, (C).",
            Role.CHANNEL,
            default=Default(0.0, like="mean", axis=1, dtype_of="mean"),
        ),
        Input(
            "running_var",
            "Running variance of each channel, (C).",
            Role.CHANNEL,
            default=Default(0.0, like="mean", axis=1, dtype_of="mean"),
        ),
        Input("counts", "Number of elements per channel on each worker, (W).", dtypes=COUNTS),
    ),
    outputs=(
        Output("mean_all", "Mean of each channel over all workers, (C).", "mean"),
        Output("invstd_all", "1 / sqrt(biased variance + eps) over all workers, (C).", "mean"),
        Output(
            "running_mean_out",
            "Running mean after this batch, (C).",
            "running_mean",
            optional=True,
            requires="running_mean",
        ),
        Output(
            "running_var_out",
            "Running variance after this batch, (C).",
            "running_var",
            optional=True,
            requires="running_var",
        ),
    ),
    attributes=(
        attribute("momentum", 0.1, "Weight of this batch in the running values."),
        attribute("eps", 1e-5, "Added to the variance; that of BatchNormStats."),
    ),
    ranks=(2, MAX_RANK),
)


def reference(
    input: np.ndarray,
    mean: np.ndarray,
    invstd: np.ndarray,
    running_mean: np.ndarray | None,
    running_var: np.ndarray | None,
    counts: np.ndarray,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """NumPy definition, computed in float64.

    Args:
        input: floating array (N, C, ...); only its shape is used.
        mean, invstd: floating arrays (W, C).
        running_mean, running_var: floating arrays (C), or None.
        counts: int32 or floating array (W).
        momentum, eps: read as float32.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        mean_all (C), invstd_all (C), running_mean_out (C) and running_var_out (C), or None for one without its input.
    """
    counting = counts.astype(np.float64) != 0
    count = counts.astype(np.float64)[counting, None]
    means, spread = mean.astype(np.float64)[counting], invstd.astype(np.float64)[counting]
    n = count.sum()
    with np.errstate(all="ignore"):
        if n == 0:
            total_mean = total_invstd = np.zeros(mean.shape[1])
            share, unbiased = np.float64(0), total_mean
        else:
            variance = 1 / spread**2 - eps_of(eps)
            total_mean = (count * means).sum(axis=0) / n
            m2 = (count * (variance + (means - total_mean) ** 2)).sum(axis=0)
            total_invstd = inverse_deviation(m2 / n, eps)
            share, unbiased = np.float64(np.float32(momentum)), np.zeros_like(m2) if n <= 1 else m2 / (n - 1)
        running = [
            None if old is None else rounded((1 - share) * old.astype(np.float64) + share * new, old.dtype, dtype)
            for old, new in ((running_mean, total_mean), (running_var, unbiased))
        ]
    return rounded(total_mean, mean.dtype, dtype), rounded(total_invstd, mean.dtype, dtype), running[0], running[1]


# --- the kernel: one task per block of channels -----------------------------------------------------------------------

INPUT, MEAN, INVSTD, RUNNING_MEAN, RUNNING_VAR, WORKERS = range(6)
MEAN_ALL, INVSTD_ALL, RUNNING_MEAN_OUT, RUNNING_VAR_OUT = range(4)
ATTRIBUTES = attributes_of(SIGNATURE.schema)
BLOCK = 512
"""Channels per task."""


def plan(kernel: Kernel, job: Job) -> int:
    """Check shapes; one task per block of channels."""
    if job.rank[INPUT] < 2 or job.rank[INPUT] > MAX_RANK or job.dims[INPUT, 1] == 0:
        return REFUSED
    if job.rank[MEAN] != 2 or job.rank[INVSTD] != 2 or job.rank[WORKERS] != 1:
        return REFUSED
    channels, workers = job.dims[INPUT, 1], job.dims[WORKERS, 0]
    for i in (MEAN, INVSTD):
        if job.dims[i, 0] != workers or job.dims[i, 1] != channels:
            return REFUSED
    for i in (RUNNING_MEAN, RUNNING_VAR):
        if kernel.element_type[i] != 0 and (job.rank[i] != 1 or job.dims[i, 0] != channels):
            return REFUSED
    for k in range(4):
        job.output_rank[k] = 1
        job.output_dims[k, 0] = channels
    job.tasks = (channels + BLOCK - 1) // BLOCK
    return OK


@helper
def read_channels(kernel: Kernel, job: Job, i: int, start: int, count: int, row: Array) -> None:
    """Convert `count` elements of input i from index `start` on to float64."""
    element_type = kernel.element_type[i]
    read_numbers(kernel.read, job.data[i] + start * item_size(element_type), element_type, count, address_of(row))


@helper
def write_channels(kernel: Kernel, job: Job, k: int, start: int, count: int, row: Array) -> None:
    """Convert float64 numbers to `count` elements of output k from index `start` on."""
    element_type = kernel.output_type[k]
    write_numbers(kernel.write, address_of(row), element_type, count, job.output[k] + start * item_size(element_type))


def task(job: Job, number: int) -> None:
    """Statistics of the channels of a block."""
    kernel = record_at(job.kernel, KERNEL)
    attributes = record_at(kernel.attributes, ATTRIBUTES)
    eps, momentum = float(attributes.eps), float(attributes.momentum)
    channels, workers = job.dims[INPUT, 1], job.dims[WORKERS, 0]
    count_type = kernel.element_type[WORKERS]
    first = number * BLOCK
    width = min(BLOCK, channels - first)
    numbers = (width, np.float64)
    memory, row, mean, lost, variance, result = allocate(numbers, numbers, numbers, numbers, numbers)
    if memory == 0:
        job.failed = NO_MEMORY
        return
    n = 0.0
    for w in range(workers):
        n += number_at(job.data[WORKERS], count_type, w)
    for c in range(width):
        mean[c] = 0.0
        lost[c] = 0.0
        variance[c] = 0.0
    for w in range(workers):  # compensated sum of counts * means
        count = number_at(job.data[WORKERS], count_type, w)
        if count == 0.0 or n == 0.0:
            continue
        read_channels(kernel, job, MEAN, w * channels + first, width, row)
        for c in range(width):
            product = count * row[c]
            total = mean[c] + product
            part = total - mean[c]
            lost[c] += fma(count, row[c], -product) + ((mean[c] - (total - part)) + (product - part))
            mean[c] = total
    for c in range(width):
        if n != 0.0:
            quotient = mean[c] / n
            correction = (lost[c] - fma(quotient, n, -mean[c])) / n
            mean[c] = quotient + correction if correction == correction else quotient
    for w in range(workers):
        count = number_at(job.data[WORKERS], count_type, w)
        if count == 0.0 or n == 0.0:
            continue
        read_channels(kernel, job, MEAN, w * channels + first, width, row)
        for c in range(width):
            difference = row[c] - mean[c]
            variance[c] += count * (difference * difference)
        read_channels(kernel, job, INVSTD, w * channels + first, width, row)
        for c in range(width):
            variance[c] += count * (1.0 / (row[c] * row[c]) - eps)

    write_channels(kernel, job, MEAN_ALL, first, width, mean)
    for c in range(width):
        result[c] = 0.0 if n == 0.0 else 1.0 / math.sqrt(variance[c] / n + eps)
    write_channels(kernel, job, INVSTD_ALL, first, width, result)
    for c in range(width):
        variance[c] = 0.0 if n <= 1.0 else variance[c] / (n - 1.0)
    for k in range(2):
        output, source = RUNNING_MEAN_OUT + k, RUNNING_MEAN + k
        if kernel.output_type[output] == 0:
            continue
        read_channels(kernel, job, source, first, width, row)
        if n != 0.0:
            for c in range(width):
                row[c] = (1.0 - momentum) * row[c] + momentum * (mean[c] if k == 0 else variance[c])
        write_channels(kernel, job, output, first, width, row)
    free(memory)


def body(b: Body) -> None:
    b.widen()
    counts = b.op("Unsqueeze", b.load("counts"), [1], name="counts_column")
    ignored = counts.equal(0.0).named("ignored")
    n = b.op("ReduceSum", counts, [0], name="n", keepdims=0)
    is_empty = n.equal(0.0).named("is_empty")
    share = (counts / b.op("Where", is_empty, 1.0, n, name="divisor")).named("share")

    def total(numbers: Value, name: str) -> Value:
        """Average over the workers, weighted by their counts."""
        counted = b.op("Where", ignored, 0.0, (share * numbers).named(f"{name}_shares"), name=f"{name}_counted")
        return b.op("ReduceSum", counted, [0], name=name, keepdims=0)

    eps, invstds, means = b.value_of("eps"), b.load("invstd"), b.load("mean")
    own = (1.0 / (invstds * invstds).named("precisions") - eps).named("own")
    mean = total(means, "whole_mean")
    centred = (means - mean).named("centred")
    variance = total((own + (centred * centred).named("squares")).named("variances"), "whole_variance")
    invstd = (1.0 / b.op("Sqrt", variance + eps, name="deviation")).named("inverse")
    b.store("mean_all", mean, "mean")
    b.store("invstd_all", b.op("Where", is_empty, 0.0, invstd, name="whole_invstd"), "mean")

    def updated(name: str, value: Value) -> None:
        if b.wants(f"{name}_out"):
            before, momentum = b.load(name), b.value_of("momentum")
            after = (before * (1.0 - momentum) + value * momentum).named(f"{name}_after")
            b.store(f"{name}_out", b.op("Where", is_empty, before, after, name=f"{name}_result"), name)

    updated("running_mean", mean)
    corrected = (variance * n / (n - 1.0)).named("corrected")
    updated("running_var", b.op("Where", n.less_or_equal(1.0), 0.0, corrected, name="unbiased"))


def infer(call: Call) -> tuple[TensorType, ...]:
    channels = channels_of(SIGNATURE.space.shape(call))
    mean = call.shape("mean")
    if mean is not None and len(mean) != 2:
        raise call.shape_error("mean", "(W, C), one row per worker")
    workers = None if mean is None else mean[0]
    call.same_shape("mean", (workers, channels), "(W, C) with the channels of 'input'")
    call.same_shape("invstd", (workers, channels), "W as in 'mean' and the channels of 'input'")
    call.same_shape("counts", (workers,), "one element per worker, W as in 'mean'")
    shape = (channels,)
    dtypes = map(call.dtype, ("mean", "mean", "running_mean", "running_var"))
    return tuple(TensorType(dtype, shape) for dtype in dtypes)


def kernel(call: Call) -> Tasks:
    return Tasks(plan, task)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "input": [[0.0], [1.0]],
            "mean": [[0.0], [3.0], [9.0]],
            "invstd": [[0.5], [0.5], [0.0]],
            "running_mean": [0.5],
            "running_var": [2.5],
            "counts": [3, 3, 0],  # the third worker has no elements
        },
        {"mean_all": [1.5], "invstd_all": [0.4], "running_mean_out": [1.0], "running_var_out": [4.25]},
        {"momentum": 0.5, "eps": 1.25},
    ),
)
