"""BatchNormReduceBackward: sums for the gradient of synchronized batch normalization."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.signature import Default, Input, Output, OutputType, Signature
from onnx_ops.core.space import IndexSpace, Role
from onnx_ops.core.types import MAX_RANK, TensorType
from onnx_ops.loops.loop import Kept, Loop, Operands, Sums
from onnx_ops.loops.primitives import Array, add_any_order, of_channels, wide
from onnx_ops.loops.records import CHUNK
from onnx_ops.ops.batch_norm._channels import (
    along_channels,
    axes_but_channels,
    by_channel,
    channels_of,
    sum_dtype,
    sum_type,
)
from onnx_ops.ops.computing import computing_type
from onnx_ops.ops.references import rounded

SUMS = OutputType(
    "double if `input` is double, else float.", dtypes=(TensorProto.FLOAT, TensorProto.DOUBLE), inputs=("input",)
)
PARAMETERS = OutputType("The type of `weight`, or of `mean` if it is omitted.", inputs=("mean", "weight"))
SIGNATURE = Signature(
    "BatchNormReduceBackward",
    """
First step of the gradient of synchronized batch normalization (aclnnBatchNormReduceBackward): every worker computes
sums over its own elements. Added over the workers, `sum_dy` and `sum_dy_xmu` are inputs of BatchNormElemtBackward, and
`grad_weight` and `grad_bias` are the gradients with respect to the weight and the bias.

    sum_dy      = sum(grad_out)
    sum_dy_xmu  = sum(grad_out * (input - mean))
    grad_weight = sum_dy_xmu * invstd
    grad_bias   = sum_dy

The sums are over all axes but axis 1, the channels.

Shapes: `grad_out` and `input` (N, C, ...) of rank 2 to 8, C >= 1; `mean`, `invstd`, `weight` and all outputs (C).

Dtypes: each input float16, bfloat16, float or double. `sum_dy` and `sum_dy_xmu` are double if `input` is double, else
float; `grad_weight` and `grad_bias` have the dtype of `weight`, or of `mean` if it is omitted. Computed in double and
rounded once.

Edge rules: each output may be omitted, but not all of them. Of `weight` only the dtype is used. Without elements the
sums are 0. NaN and infinities propagate as in the formula.

Without a kernel: the results are the same up to the last digits. Of shapes known only at run time, that of `mean` is
checked. If the model does not declare the dtype of `input`, it must be float or double.
""",
    inputs=(
        Input("grad_out", "Gradient with respect to the output of batch normalization, (N, C, ...).", Role.SAME),
        Input("input", "Input of batch normalization on this worker, (N, C, ...).", Role.SHAPE),
        Input("mean", "Mean of each channel over all workers, (C).", Role.CHANNEL),
        Input("invstd", "1 / sqrt(variance + epsilon) of each channel, (C).", Role.CHANNEL | Role.UNREAD),
        Input(
            "weight",
            "Scale of each channel, (C); determines the dtype of `grad_weight` and `grad_bias`.",
            Role.CHANNEL | Role.UNREAD,
            default=Default(1.0, like="mean", axis=0, dtype_of="mean"),
        ),
    ),
    outputs=(
        Output("sum_dy", "Sum of `grad_out` on this worker, (C).", SUMS, optional=True),
        Output("sum_dy_xmu", "Sum of `grad_out * (input - mean)` on this worker, (C).", SUMS, optional=True),
        Output("grad_weight", "This worker's share of the gradient of the weight, (C).", PARAMETERS, optional=True),
        Output("grad_bias", "This worker's share of the gradient of the bias, (C).", PARAMETERS, optional=True),
    ),
    ranks=(2, MAX_RANK),
)


def reference(
    grad_out: np.ndarray,
    input: np.ndarray,
    mean: np.ndarray,
    invstd: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """NumPy definition, computed in float64.

    Args:
        grad_out, input: floating arrays (N, C, ...).
        mean, invstd, weight: floating arrays (C); weight may be None.
        dtype: dtype of the results instead of those of the outputs.

    Returns:
        sum_dy, sum_dy_xmu, grad_weight and grad_bias, each (C).
    """
    sums, parameter = sum_dtype(input), (mean if weight is None else weight).dtype
    grad = by_channel(grad_out)
    with np.errstate(all="ignore"):
        sum_dy = grad.sum(axis=1)
        sum_dy_xmu = (grad * (by_channel(input) - mean.astype(np.float64)[:, None])).sum(axis=1)
        grad_weight = sum_dy_xmu * invstd.astype(np.float64)
    return (
        rounded(sum_dy, sums, dtype),
        rounded(sum_dy_xmu, sums, dtype),
        rounded(grad_weight, parameter, dtype),
        rounded(sum_dy, parameter, dtype),
    )


def both(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    grad_out, x, mean = operands[0], operands[1], of_channels(operands[2])
    for i in range(count):
        grad = wide(grad_out[i])
        out[i] = grad
        out[CHUNK + i] = grad * (wide(x[i]) - wide(mean[i]))


def both_of_channel(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    """Sums of `both` over elements of one channel."""
    grad_out, x, mean = operands[0], operands[1], wide(of_channels(operands[2])[0])
    total, product = 0.0, 0.0
    for i in range(count):
        grad = wide(grad_out[i])
        total = add_any_order(total, grad)
        product = add_any_order(product, grad * (wide(x[i]) - mean))
    out[0], out[1] = total, product


def gradients(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    grad_out = operands[0]
    for i in range(count):
        out[i] = wide(grad_out[i])


def gradients_of_channel(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    grad_out = operands[0]
    total = 0.0
    for i in range(count):
        total = add_any_order(total, wide(grad_out[i]))
    out[0] = total


def products(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    grad_out, x, mean = operands[0], operands[1], of_channels(operands[2])
    for i in range(count):
        out[i] = wide(grad_out[i]) * (wide(x[i]) - wide(mean[i]))


def products_of_channel(operands: Operands, out: Array, count: int, parameters: Array) -> None:
    grad_out, x, mean = operands[0], operands[1], wide(of_channels(operands[2])[0])
    product = 0.0
    for i in range(count):
        product = add_any_order(product, wide(grad_out[i]) * (wide(x[i]) - mean))
    out[0] = product


def finish_both(
    totals: Operands, channel_inputs: Operands, results: Operands, kept: int, count: int, parameters: Array
) -> None:
    invstd = channel_inputs[1]
    for c in range(kept):
        results[0][c] = totals[0][c]
        results[1][c] = totals[1][c]
        results[2][c] = totals[1][c] * invstd[c]
        results[3][c] = totals[0][c]


def finish_gradients(
    totals: Operands, channel_inputs: Operands, results: Operands, kept: int, count: int, parameters: Array
) -> None:
    for c in range(kept):
        results[0][c] = totals[0][c]
        results[3][c] = totals[0][c]


def finish_products(
    totals: Operands, channel_inputs: Operands, results: Operands, kept: int, count: int, parameters: Array
) -> None:
    invstd = channel_inputs[1]
    for c in range(kept):
        results[1][c] = totals[0][c]
        results[2][c] = totals[0][c] * invstd[c]


def body(b: Body) -> None:
    b.widen()
    grad, axes = b.load("grad_out"), axes_but_channels(b)
    column = along_channels(b)
    parameter = "weight" if b.has("weight") else "mean"
    sum_dy = b.op("ReduceSum", grad, axes, name="grad_sum", keepdims=0)
    product = grad * (b.load("input") - column("mean")).named("centred")
    sum_dy_xmu = b.op("ReduceSum", product.named("products"), axes, name="product_sum", keepdims=0)
    b.store("sum_dy", sum_dy, "input")
    b.store("sum_dy_xmu", sum_dy_xmu, "input")
    b.store("grad_weight", (sum_dy_xmu * b.load("invstd")).named("weight_sum"), parameter)
    b.store("grad_bias", sum_dy, parameter)


SPACE_OF_GRADIENTS = IndexSpace(
    {**SIGNATURE.space.roles, "input": Role.SHAPE | Role.UNREAD, "mean": Role.CHANNEL | Role.UNREAD},
    SIGNATURE.space.ranks,
)
"""For sums of grad_out alone, without input and mean."""


def infer(call: Call) -> tuple[TensorType, ...]:
    shape = (channels_of(SIGNATURE.space.shape(call)),)
    sums = TensorType(sum_type(call), shape)
    parameters = TensorType(call.dtype("weight" if call.present("weight") else "mean"), shape)
    return sums, sums, parameters, parameters


def kernel(call: Call) -> Loop:
    compute = computing_type(call, light=True, per_channel=SIGNATURE.space.having(Role.CHANNEL))
    wants_gradients = call.wants("sum_dy") or call.wants("grad_bias")
    wants_products = call.wants("sum_dy_xmu") or call.wants("grad_weight")
    if wants_gradients and wants_products:
        sums = Sums(both, compute, Kept.CHANNELS, terms=2, totals=both_of_channel, finish=finish_both)
    elif wants_products:
        sums = Sums(products, compute, Kept.CHANNELS, totals=products_of_channel, finish=finish_products)
    else:
        sums = Sums(gradients, compute, Kept.CHANNELS, totals=gradients_of_channel, finish=finish_gradients)
    if compute == TensorProto.DOUBLE:  # reassociated sums are accurate to the last bit in float32 only
        sums = dataclasses.replace(sums, totals=None)
    return Loop(SIGNATURE.space if wants_products else SPACE_OF_GRADIENTS, compute, sums=sums)


OP = Op(
    SIGNATURE,
    infer,
    kernel,
    reference,
    body,
    Example(
        {
            "grad_out": [[1.0, 0.0], [2.0, 4.0]],
            "input": [[1.0, 2.0], [3.0, 6.0]],
            "mean": [2.0, 4.0],
            "invstd": [1.0, 0.5],
        },
        {"sum_dy": [3.0, 4.0], "sum_dy_xmu": [1.0, 8.0], "grad_weight": [1.0, 4.0], "grad_bias": [3.0, 4.0]},
    ),
)
