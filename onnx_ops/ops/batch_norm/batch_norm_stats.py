"""BatchNormStats: mean and inverse standard deviation of each channel."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, OutputType, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.graph.builder import Value
from onnx_ops.loops.loop import Kept, Loop, Operands, Sums
from onnx_ops.loops.primitives import Array, add_any_order, choose, helper, of_channels, wide
from onnx_ops.loops.records import CHUNK
from onnx_ops.ops.batch_norm._channels import (
    axes_but_channels,
    by_channel,
    channel_count,
    channels_of,
    inverse_deviation,
    sum_dtype,
    sum_type,
)
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import rounded

STATISTICS = OutputType(
    "double if `input` is double, else float.", dtypes=(TensorProto.FLOAT, TensorProto.DOUBLE), inputs=("input",)
)
SIGNATURE = Signature(
    "BatchNormStats",
    """
First step of synchronized batch normalization (aclnnBatchNormStats). Several workers share a batch; every worker
computes the statistics of its own elements, and BatchNormGatherStatsWithCounts merges them.

    mean   = sum(input) / n
    invstd = 1 / sqrt(sum((input - mean)^2) / n + eps)

The sums are over all axes but axis 1, the channels; n is the number of elements per channel.

Shapes: `input` (N, C, ...) of rank 2 to 8, C >= 1; `mean` and `invstd` (C).

Dtypes: `input` float16, bfloat16, float or double; `mean` and `invstd` are double if `input` is double, else float.
Computed in double and rounded once.

Edge rules: for n = 0, `mean` and `invstd` are 0. There is no cancellation where the mean is much larger than the
standard deviation. NaN and infinities propagate as in the formula.

Without a kernel: the results are the same up to the last digits. If the model does not declare the dtype of `input`, it
must be float or double.
""",
    inputs=(Input("input", "Input of batch normalization on this worker, (N, C, ...).", Role.SHAPE),),
    outputs=(
        Output("mean", "Mean of each channel, (C).", STATISTICS),
        Output("invstd", "1 / sqrt(biased variance + eps) of each channel, (C).", STATISTICS),
    ),
    attributes=(attribute("eps", 1e-5, "Added to the variance."),),
    ranks=(2, MAX_RANK),
)


def reference(
    input: np.ndarray, *, eps: float = 1e-5, dtype: npt.DTypeLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64.

    Args:
        input: floating array (N, C, ...).
        eps: read as a float32.
        dtype: dtype of the results instead of float64 for float64, else float32.

    Returns:
        mean (C) and invstd (C).
    """
    x = by_channel(input)
    if x.shape[1] == 0:
        mean = invstd = np.zeros(x.shape[0])
    else:
        with np.errstate(all="ignore"):
            mean = x.mean(axis=1)
            invstd = inverse_deviation(((x - mean[:, None]) ** 2).mean(axis=1), eps)
    out = sum_dtype(input)
    return rounded(mean, out, dtype), rounded(invstd, out, dtype)


@helper
def moments(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """Differences from the pivot, a median of some elements of the channel, and their squares.

    If the pivot is far from the mean, so are half of those elements, hence the variance is large, and `finish` does not
    cancel when it subtracts the square of that distance.
    """
    x, pivot = operands[0], of_channels(operands[1])
    for i in range(count):
        difference = wide(x[i]) - wide(pivot[i])
        out[i] = difference
        out[CHUNK + i] = difference * difference


def moments_in_double(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`moments`, and the elements themselves: in double, a mean much smaller than the pivot would lose digits."""
    moments(operands, out, count, parameters)
    for i in range(count):
        out[2 * CHUNK + i] = operands[0][i]


def moments_of_channel(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """Sums of `moments` over elements of one channel."""
    x, pivot = operands[0], wide(of_channels(operands[1])[0])
    total, squares = 0.0, 0.0
    if pivot == 0.0:  # saves a subtraction per element
        for i in range(count):
            value = wide(x[i])
            total = add_any_order(total, value)
            squares = add_any_order(squares, value * value)
    else:
        for i in range(count):
            difference = wide(x[i]) - pivot
            total = add_any_order(total, difference)
            squares = add_any_order(squares, difference * difference)
    out[0], out[1] = total, squares


@helper
def finish(
    totals: Operands, channel_inputs: Operands, results: Operands, kept: int, count: int, parameters: Array
) -> None:
    """Mean and invstd from the sums of `moments`; parameters[1]: eps."""
    pivots, sums, squares, mean, invstd = channel_inputs[0], totals[0], totals[1], results[0], results[1]
    eps = parameters[1]
    for c in range(kept):
        shift = sums[c] / max(count, 1)
        variance = (squares[c] - shift * sums[c]) / max(count, 1)
        beyond = (squares[c] == math.inf) & (shift - shift == 0.0)  # only the squares overflow
        variance = choose(beyond, math.inf, variance)
        variance = choose(variance < 0.0, 0.0, variance)
        mean[c] = pivots[c] + shift
        invstd[c] = choose(count > 0, 1.0 / math.sqrt(variance + eps), 0.0)


def finish_in_double(
    totals: Operands, channel_inputs: Operands, results: Operands, kept: int, count: int, parameters: Array
) -> None:
    """Mean and invstd from the sums of `moments_in_double`."""
    finish(totals, channel_inputs, results, kept, count, parameters)
    if count > 0:
        for c in range(kept):
            results[0][c] = totals[2][c] / count


def body(b: Body) -> None:
    b.widen()
    x, axes, channels = b.load("input"), axes_but_channels(b), channel_count(b)
    n = (b.op("Size", x, name="size") / channels).named("n")
    count = b.op("Max", n, [1], name="n_or_one").cast(b.compute).named("count")

    def average(values: Value, name: str) -> Value:
        return (b.op("ReduceSum", values, axes, name=f"{name}_sum", keepdims=1) / count).named(name)

    mean = average(x, "mean_column")
    centred = (x - mean).named("centred")
    variance = average((centred * centred).named("squares"), "variance")
    invstd = (1.0 / b.op("Sqrt", variance + b.value_of("eps"), name="deviation")).named("inverse")
    no_elements = n.equal([0]).named("no_elements")
    invstd = b.op("Where", no_elements, 0.0, invstd, name="invstd_column")
    for name, value in (("mean", mean), ("invstd", invstd)):
        b.store(name, b.op("Reshape", value, channels, name=f"{name}_result"), "input")


def infer(call: Call) -> tuple[TensorType, ...]:
    statistics = TensorType(sum_type(call), (channels_of(SIGNATURE.space.shape(call)),))
    return statistics, statistics


def kernel(call: Call) -> Loop:
    compute = computing_type(call, light=True)
    if compute == TensorProto.DOUBLE:
        # Without `totals`: reassociated sums are accurate to the last bit in float32, but not in double.
        sums = Sums(moments_in_double, compute, Kept.CHANNELS, terms=3, finish=finish_in_double, pivot="input")
    else:
        sums = Sums(moments, compute, Kept.CHANNELS, terms=2, totals=moments_of_channel, finish=finish, pivot="input")
    return Loop(SIGNATURE.space, compute, sums=sums, parameters=(float(call.attributes["eps"]),))


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {"input": [[1.0, 0.0], [3.0, 2.0]]},
        {"mean": [2.0, 1.0], "invstd": [0.8, 0.8]},
        {"eps": 0.5625},
    ),
)
