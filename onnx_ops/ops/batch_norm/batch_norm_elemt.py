"""BatchNormElemt: batch normalization with given statistics."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Default, Input, Output, Signature
from onnx_ops.core.space import Role
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.loops.loop import Loop, Operands
from onnx_ops.loops.primitives import Array, fma, helper, like, of_channels, wide
from onnx_ops.ops.batch_norm._channels import MODERATE, along_channels, column_of
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import rounded

SIGNATURE = Signature(
    "BatchNormElemt",
    """
Third step of synchronized batch normalization (aclnnBatchNormElemt): every worker normalizes its own elements with the
statistics of the whole batch from BatchNormGatherStatsWithCounts.

    out = (input - mean) * invstd * weight + bias

Shapes: `input` and `out` (N, C, ...) of rank 2 to 8, C >= 1; `weight`, `bias`, `mean` and `invstd` (C).

Dtypes: each input float16, bfloat16, float or double, independently of the others; `out` has the dtype of `input`.
Computed in double, or in float if `input` is float16, and rounded once.

Edge rules: an omitted `weight` is 1, an omitted `bias` 0. NaN and infinities propagate as in the formula. An empty
`input` gives an empty output.

Without a kernel: computed in double if an input is double, else in float, so the last digits may differ. Of shapes
known only at run time, those of the per-channel inputs are checked.
""",
    inputs=(
        Input("input", "Input of batch normalization, (N, C, ...).", Role.SHAPE),
        Input("weight", "Scale of each channel, (C).", Role.CHANNEL, default=Default(1.0, like="mean", axis=0)),
        Input(
            "bias",
            "Offset of each channel, added after scaling, (C).",
            Role.CHANNEL,
            default=Default(0.0, like="mean", axis=0),
        ),
        Input("mean", "Mean of each channel over all workers, (C).", Role.CHANNEL),
        Input("invstd", "1 / sqrt(variance + epsilon) of each channel, (C).", Role.CHANNEL),
    ),
    outputs=(Output("out", "Output of batch normalization, (N, C, ...).", "input"),),
    attributes=(attribute("eps", 1e-5, "Ignored: `invstd` includes it. An attribute of aclnnBatchNormElemt."),),
    ranks=(2, MAX_RANK),
)


def reference(
    input: np.ndarray,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    mean: np.ndarray,
    invstd: np.ndarray,
    *,
    eps: float = 1e-5,
    dtype: npt.DTypeLike | None = None,
) -> np.ndarray:
    """NumPy definition, computed in float64.

    Args:
        input: floating array (N, C, ...).
        weight, bias, mean, invstd: floating arrays (C); weight defaults to 1, bias to 0.
        eps: ignored.
        dtype: dtype of the result instead of input's.

    Returns:
        Array of input's shape.
    """
    mu, inv, w, b = (
        np.float64(instead) if a is None else column_of(a.astype(np.float64), input.ndim)
        for a, instead in ((mean, 0), (invstd, 1), (weight, 1), (bias, 0))
    )
    with np.errstate(all="ignore"):
        return rounded((input.astype(np.float64) - mu) * (inv * w) + b, input.dtype, dtype)


def normalize(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """In float64, as subtracting the mean or adding the bias may cancel."""
    x, weight, bias = operands[0], of_channels(operands[1]), of_channels(operands[2])
    mean, invstd = of_channels(operands[3]), of_channels(operands[4])
    for i in range(count):
        out[i] = (wide(x[i]) - wide(mean[i])) * (wide(invstd[i]) * wide(weight[i])) + wide(bias[i])


@helper
def normalize_channel(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`normalize` for elements of one channel."""
    x, bias, mean = operands[0], wide(of_channels(operands[2])[0]), wide(of_channels(operands[3])[0])
    scale = wide(of_channels(operands[4])[0]) * wide(of_channels(operands[1])[0])
    for i in range(count):
        out[i] = (wide(x[i]) - mean) * scale + bias


def normalize_channel_of_halves(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """`normalize_channel` for float16, in float32 unless it may overflow; rounding errors are negligible in float16."""
    x, bias, mean = operands[0], of_channels(operands[2])[0], of_channels(operands[3])[0]
    scale = like(wide(of_channels(operands[4])[0]) * wide(of_channels(operands[1])[0]), mean)
    if abs(mean) < MODERATE and abs(scale) < MODERATE:
        for i in range(count):
            out[i] = fma(x[i] - mean, scale, bias)
    else:
        normalize_channel(operands, out, count, parameters)


def body(b: Body) -> None:
    column = along_channels(b)
    scale = (column("invstd") * column("weight")).named("scale") if b.has("weight") else column("invstd")
    centred = (b.load("input") - column("mean")).named("centred")
    result = (centred * scale).named("scaled")
    b.store("out", (result + column("bias")).named("result") if b.has("bias") else result, "input")


def infer(call: Call) -> tuple[TensorType, ...]:
    SIGNATURE.space.shape(call)
    return (TensorType(call.dtype("input"), call.shape("input")),)


def kernel(call: Call) -> Loop:
    compute = computing_type(call, light=True, per_channel=SIGNATURE.space.having(Role.CHANNEL))
    return Loop(
        SIGNATURE.space,
        compute,
        normalize,
        core_uniform=normalize_channel_of_halves if compute == TensorProto.FLOAT16 else normalize_channel,
        uniform=("weight", "bias", "mean", "invstd"),
    )


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "input": [[1.0, 2.0], [3.0, 6.0]],
            "weight": [2.0, 4.0],
            "bias": [0.5, -1.0],
            "mean": [2.0, 4.0],
            "invstd": [1.0, 0.5],
        },
        {"out": [[-1.5, -5.0], [2.5, 3.0]]},
    ),
)
