"""BatchNormElemtBackward: last step of the gradient of synchronized batch normalization."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.loops.loop import Loop, Operands
from onnx_ops.loops.primitives import Array, fma, helper, of_channels, wide
from onnx_ops.ops.batch_norm._channels import COUNTS, MODERATE, along_channels, column_of
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import computing_dtype, rounded

SIGNATURE = Signature(
    "BatchNormElemtBackward",
    """
Last step of the gradient of synchronized batch normalization (aclnnBatchNormElemtBackward): every worker computes the
gradient of its own elements from the sums of BatchNormReduceBackward, added over all workers.

    n = sum(counter)
    grad_input = ((grad_out - sum_dy/n) - (input - mean) * (invstd^2 * (sum_dy_xmu/n))) * invstd * weight

Shapes: `input`, `grad_out` and `grad_input` (N, C, ...) of rank 2 to 8, C >= 1; `mean`, `invstd`, `weight`, `sum_dy`
and `sum_dy_xmu` (C); `counter` of any shape of rank 0 to 8, such as an element per worker. Its sum n is the number of
elements per channel on all workers.

Dtypes: `grad_out`, `input` and the per-channel inputs float16, bfloat16, float or double, independently of each other;
`counter` int32, float16, bfloat16 or float; `grad_input` has the dtype of `input`. Per-channel factors are computed in
double; elements are computed in double if `grad_out`, `input` or a per-channel input is double, else in float.

Edge rules: an omitted `weight` is 1. NaN, infinities and n = 0 propagate as in the formula. Empty inputs give an empty
output.

Without a kernel: all of the formula is computed in the dtype of the elements, so the last digits may differ. Of shapes
known only at run time, those of the per-channel inputs are checked; the others broadcast as in ONNX operators.
""",
    inputs=(
        Input("grad_out", "Gradient with respect to the output of batch normalization, (N, C, ...).", Role.SAME),
        Input("input", "Input of batch normalization, (N, C, ...).", Role.SHAPE),
        Input("mean", "Mean of each channel over all workers, (C).", Role.CHANNEL),
        Input("invstd", "1 / sqrt(variance + epsilon) of each channel, (C).", Role.CHANNEL),
        Input("weight", "Scale of each channel, (C).", Role.CHANNEL, default=Default(1.0, like="mean", axis=0)),
        Input("sum_dy", "Sum of `grad_out` over all workers, (C).", Role.CHANNEL),
        Input("sum_dy_xmu", "Sum of `grad_out * (input - mean)` over all workers, (C).", Role.CHANNEL),
        Input(
            "counter",
            "Number of elements per channel of each worker: the product of N and the axes after C.",
            Role.COUNT,
            dtypes=COUNTS,
        ),
    ),
    outputs=(Output("grad_input", "Gradient with respect to `input`, (N, C, ...).", "input"),),
    ranks=(2, MAX_RANK),
)


def reference(
    grad_out: np.ndarray,
    input: np.ndarray,
    mean: np.ndarray,
    invstd: np.ndarray,
    weight: np.ndarray | None,
    sum_dy: np.ndarray,
    sum_dy_xmu: np.ndarray,
    counter: np.ndarray,
    *,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition.

    Args:
        grad_out, input: floating arrays (N, C, ...).
        mean, invstd, weight, sum_dy, sum_dy_xmu: floating arrays (C); weight defaults to 1.
        counter: int32 or floating array of any shape.
        dtype: dtype to compute in and of the result instead of input's.

    Returns:
        Array of input's shape.
    """
    compute = computing_dtype((grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu), dtype)
    mu, inv, w, dy, dy_xmu = (
        np.float64(1) if a is None else column_of(a.astype(np.float64), input.ndim)
        for a in (mean, invstd, weight, sum_dy, sum_dy_xmu)
    )
    with np.errstate(all="ignore"):
        n = counter.astype(np.float64).sum()
        offset, slope, scale = (np.asarray(a).astype(compute) for a in (dy / n, inv * inv * (dy_xmu / n), inv * w))
        centred = input.astype(compute) - mu.astype(compute)
        out = ((grad_out.astype(compute) - offset) - centred * slope) * scale
    return rounded(out, input.dtype, dtype)


def gradient(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """(grad_out - offset - (x - mean) * slope) * scale, in float64: in float32 errors would exceed 4 ulp.

    `prepare` has put the scale into weight, the offset into sum_dy and the slope into sum_dy_xmu.
    """
    grad_out, x, mean = operands[0], operands[1], of_channels(operands[2])
    scale, offset, slope = of_channels(operands[4]), of_channels(operands[5]), of_channels(operands[6])
    for i in range(count):
        centred = wide(x[i]) - wide(mean[i])
        out[i] = ((wide(grad_out[i]) - wide(offset[i])) - centred * wide(slope[i])) * wide(scale[i])


@helper
def gradient_of_channel(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`gradient` for elements of one channel."""
    grad_out, x, mean = operands[0], operands[1], wide(of_channels(operands[2])[0])
    scale, offset, slope = of_channels(operands[4])[0], of_channels(operands[5])[0], of_channels(operands[6])[0]
    for i in range(count):
        out[i] = ((wide(grad_out[i]) - wide(offset)) - (wide(x[i]) - mean) * wide(slope)) * wide(scale)


def gradient_of_channel_of_halves(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`gradient_of_channel` for float16, in float32 unless it may overflow; rounding errors are negligible."""
    grad_out, x, mean = operands[0], operands[1], of_channels(operands[2])[0]
    scale, offset, slope = of_channels(operands[4])[0], of_channels(operands[5])[0], of_channels(operands[6])[0]
    if abs(mean) < MODERATE and abs(scale) < MODERATE and abs(offset) < MODERATE and abs(slope) < MODERATE:
        for i in range(count):
            out[i] = fma(mean - x[i], slope, grad_out[i] - offset) * scale
    else:
        gradient_of_channel(operands, out, count, parameters)


def prepare(channel_inputs: Operands, channels: int, count: Array) -> None:
    invstd, weight, sum_dy, sum_dy_xmu = channel_inputs[1], channel_inputs[2], channel_inputs[3], channel_inputs[4]
    n = count[0]
    for c in range(channels):
        weight[c] *= invstd[c]
        sum_dy[c] /= n
        sum_dy_xmu[c] = (invstd[c] * invstd[c]) * (sum_dy_xmu[c] / n)


def body(b: Body) -> None:
    grad, x = b.load("grad_out"), b.load("input")
    column = along_channels(b)
    count = b.inputs["counter"].cast(b.compute).named("count")
    n = b.op("ReduceSum", count, name="n", keepdims=0)
    invstd = column("invstd")
    offset = (column("sum_dy") / n).named("offset")
    mean_dy_xmu = (column("sum_dy_xmu") / n).named("mean_dy_xmu")
    slope = (mean_dy_xmu * (invstd * invstd).named("variance_inverse")).named("slope")
    scale = (invstd * column("weight")).named("scale") if b.has("weight") else invstd
    centred = (x - column("mean")).named("centred")
    grad_centred = (grad - offset).named("grad_centred")
    grad_projected = (grad_centred - (centred * slope).named("along_input")).named("grad_projected")
    b.store("grad_input", (grad_projected * scale).named("result"), "input")


def infer(call: Call) -> tuple[TensorType, ...]:
    SIGNATURE.space.shape(call)
    return (TensorType(call.dtype("input"), call.shape("input")),)


def kernel(call: Call) -> Loop:
    compute = computing_type(call, "counter", light=True, per_channel=SIGNATURE.space.having(Role.CHANNEL))
    return Loop(
        SIGNATURE.space,
        compute,
        gradient,
        prepare=prepare,
        core_uniform=gradient_of_channel_of_halves if compute == TensorProto.FLOAT16 else gradient_of_channel,
        uniform=("mean", "invstd", "weight", "sum_dy", "sum_dy_xmu"),
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "grad_out": [[1.0, 0.0], [0.0, 0.0], [0.0, 2.0], [0.0, 0.0]],
            "input": [[-1.0, 2.0], [-1.0, 4.0], [1.0, 4.0], [1.0, 2.0]],
            "mean": [0.0, 3.0],
            "invstd": [1.0, 1.0],
            "weight": [2.0, 0.5],
            "sum_dy": [1.0, 2.0],
            "sum_dy_xmu": [-1.0, 2.0],
            "counter": [1, 3],  # of two workers
        },
        {"grad_input": [[1.0, 0.0], [-1.0, -0.5], [0.0, 0.5], [0.0, 0.0]]},
    ),
)
