"""Golden functions of operators of CANN's graphs that are no call of one op with other names.

Each is written into golden files with all that it uses (`golden.py`). The definition of an op has the name of the op.
Source: the operators' definitions and kernels in CANN's repository ops-nn 9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx_ops.core.reduction import Reduction
from onnx_ops.ops.batch_norm._channels import inverse_deviation
from onnx_ops.ops.batch_norm.batch_norm_elemt_backward import reference as batch_norm_elemt_backward
from onnx_ops.ops.ctc.ctc_loss import reference as ctc_loss
from onnx_ops.ops.embedding.embedding_dense_backward import reference as embedding_dense_backward
from onnx_ops.ops.kl_div.kl_div_backward import reference as kl_div_backward
from onnx_ops.ops.kl_div.kl_div_target_backward import reference as kl_div_target_backward
from onnx_ops.ops.lstm.thnn_fused_lstm_cell import reference as thnn_fused_lstm_cell
from onnx_ops.ops.lstm.thnn_fused_lstm_cell_backward import reference as thnn_fused_lstm_cell_backward
from onnx_ops.ops.max_pool.max_pool2d_with_indices import reference as max_pool2d_with_indices
from onnx_ops.ops.max_pool.max_pool2d_with_indices_backward import reference as max_pool2d_with_indices_backward
from onnx_ops.ops.optimizers.apply_adam_w import reference as apply_adam_w
from onnx_ops.ops.references import computing_dtype, divisor, rounded

INT32 = 3
"""ge::DT_INT32."""


def apply_adam_w_golden(
    var: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    beta1_power: np.ndarray,
    beta2_power: np.ndarray,
    lr: np.ndarray,
    weight_decay: np.ndarray,
    beta1: np.ndarray,
    beta2: np.ndarray,
    epsilon: np.ndarray,
    grad: np.ndarray,
    max_grad_norm: np.ndarray | None = None,
    *,
    amsgrad: bool = False,
    maximize: bool = False,
    **kwargs: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ApplyAdamW, whose powers are those of the steps before this one."""
    beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon = (
        setting.astype(np.float64) for setting in (beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)
    )
    new_var, new_m, new_v, _ = apply_adam_w(
        var,
        m,
        v,
        beta1_power * beta1,
        beta2_power * beta2,
        lr,
        weight_decay,
        beta1,
        beta2,
        epsilon,
        grad,
        max_grad_norm if amsgrad else None,
        maximize=int(maximize),
    )
    return new_var, new_m, new_v


def ctc_loss_v2_golden(
    log_probs: np.ndarray,
    targets: np.ndarray,
    input_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
    **kwargs: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """CTCLossV2: the loss of each sample, and log_alpha, as wide as the longest target needs."""
    loss, log_alpha, _ = ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank=blank, zero_infinity=int(zero_infinity)
    )
    return loss, log_alpha[:, :, : 2 * max(target_lengths.tolist(), default=0) + 1]


def embedding_dense_grad_golden(
    grad: np.ndarray,
    indices: np.ndarray,
    *,
    num_weights: int,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    **kwargs: Any,
) -> np.ndarray:
    """EmbeddingDenseGrad: a padding_idx that is no row has no effect."""
    return embedding_dense_backward(
        grad,
        indices,
        num_weights=num_weights,
        padding_idx=padding_idx if 0 <= padding_idx < num_weights else -1,
        scale_grad_by_freq=int(scale_grad_by_freq),
    )


def kl_div_loss_grad_golden(
    grad: np.ndarray,
    input: np.ndarray,
    target: np.ndarray,
    *,
    reduction: str = "mean",
    log_target: bool = False,
    **kwargs: Any,
) -> np.ndarray:
    """KlDivLossGrad: has the shape to which all inputs broadcast, and divides by the size of the input."""
    return over_broadcast_shape(kl_div_backward, (grad, input, target), input.shape, reduction, log_target)


def kl_div_target_loss_grad_golden(
    grad: np.ndarray,
    input: np.ndarray,
    target: np.ndarray,
    *,
    reduction: str = "mean",
    log_target: bool = False,
    **kwargs: Any,
) -> np.ndarray:
    """KlDivTargetLossGrad: has the shape to which all inputs broadcast, and divides by the size of the target."""
    return over_broadcast_shape(kl_div_target_backward, (grad, input, target), target.shape, reduction, log_target)


def over_broadcast_shape(
    gradient: Callable[..., np.ndarray],
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray],
    divided: tuple[int, ...],
    reduction: str,
    log_target: bool,
) -> np.ndarray:
    """A gradient that is not summed over broadcast axes, with the divisor of an index space."""
    number, log = int(Reduction[reduction.upper()]), int(log_target)
    if divided == np.broadcast_shapes(*(array.shape for array in inputs)):
        spread = [inputs[0], *np.broadcast_arrays(*inputs)[1:]]
        return gradient(*spread, reduction=number, log_target=log)
    wide = (array.astype(np.float64) for array in np.broadcast_arrays(*inputs))
    terms = gradient(*wide, reduction=0, log_target=log)
    return rounded(terms / divisor(number, divided), inputs[1].dtype, None)


def channels_first(array: np.ndarray, data_format: str) -> np.ndarray:
    """NCHW of the given format."""
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if data_format == "NHWC" else array


def channels_as(array: np.ndarray, data_format: str) -> np.ndarray:
    """The given format of NCHW."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if data_format == "NHWC" else array


def max_pool_with_argmax_v3_golden(
    x: np.ndarray,
    *,
    ksize: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dtype: int = INT32,
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    data_format: str = "NCHW",
    **kwargs: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """MaxPoolWithArgmaxV3: the maxima of windows, and their places in a plane of the input."""
    out, indices = max_pool2d_with_indices(
        channels_first(x, data_format),
        kernel_size=ksize,
        stride=strides,
        padding=pads,
        dilation=dilation,
        ceil_mode=int(ceil_mode),
    )
    whole = indices.astype(np.int32 if dtype == INT32 else np.int64)
    return channels_as(out, data_format), channels_as(whole, data_format)


def max_pool_grad_with_argmax_v3_golden(
    x: np.ndarray,
    grad: np.ndarray,
    argmax: np.ndarray,
    *,
    ksize: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dtype: int = INT32,
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    data_format: str = "NCHW",
    **kwargs: Any,
) -> np.ndarray:
    """MaxPoolGradWithArgmaxV3: the gradient of MaxPoolWithArgmaxV3."""
    out = max_pool2d_with_indices_backward(
        channels_first(grad, data_format),
        channels_first(x, data_format),
        channels_first(argmax, data_format).astype(np.int64),
        kernel_size=ksize,
        stride=strides,
        padding=pads,
        dilation=dilation,
        ceil_mode=int(ceil_mode),
    )
    return channels_as(out, data_format)


def sync_batch_norm_backward_elemt_golden(
    grad_output: np.ndarray,
    save_input: np.ndarray,
    mean: np.ndarray,
    invstd: np.ndarray,
    weight: np.ndarray,
    mean_dy: np.ndarray,
    mean_dy_xmu: np.ndarray,
    **kwargs: Any,
) -> np.ndarray:
    """SyncBatchNormBackwardElemt, whose inputs have one shape: batch norm of one sample with a channel per element."""
    grad, x = grad_output.reshape(1, -1), save_input.reshape(1, -1)
    mu, inv, w, dy, dy_xmu = (array.reshape(-1) for array in (mean, invstd, weight, mean_dy, mean_dy_xmu))
    out = batch_norm_elemt_backward(grad, x, mu, inv, w, dy, dy_xmu, np.ones(1, np.int32))
    return out.reshape(save_input.shape)


def sync_batch_norm_backward_reduce_golden(
    sum_dy: np.ndarray, sum_dy_dx_pad: np.ndarray, mean: np.ndarray, invert_std: np.ndarray, **kwargs: Any
) -> tuple[np.ndarray, np.ndarray]:
    """SyncBatchNormBackwardReduce: sum_dy_xmu, and the gradient of the weight, of sums of dy and of dy * x."""
    with np.errstate(all="ignore"):
        sum_dy_xmu = sum_dy_dx_pad.astype(np.float64) - mean.astype(np.float64) * sum_dy.astype(np.float64)
        y = sum_dy_xmu * invert_std.astype(np.float64)
    return rounded(sum_dy_xmu, sum_dy.dtype, None), rounded(y, sum_dy.dtype, None)


def sync_batch_norm_gather_stats_golden(
    total_sum: np.ndarray,
    total_square_sum: np.ndarray,
    sample_count: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
    **kwargs: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """SyncBatchNormGatherStats: mean and inverse standard deviation of all devices, and the new running statistics."""
    share = np.float64(np.float32(momentum))
    with np.errstate(all="ignore"):
        count = sample_count.sum(dtype=np.float64)
        batch_mean = total_sum.astype(np.float64).sum(axis=0) / count
        spread = total_square_sum.astype(np.float64).sum(axis=0) / count - batch_mean**2
        running_mean = (1 - share) * mean.astype(np.float64) + share * batch_mean
        running_var = (1 - share) * variance.astype(np.float64) + share * (spread * (count / (count - 1)))
        results = batch_mean, inverse_deviation(spread, eps), running_mean, running_var
    first, second, third, fourth = (rounded(result, mean.dtype, None) for result in results)
    return first, second, third, fourth


def thnn_fused_lstm_cell_golden(
    input_gates: np.ndarray,
    hidden_gates: np.ndarray,
    cx: np.ndarray,
    input_bias: np.ndarray,
    hidden_bias: np.ndarray,
    **kwargs: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ThnnFusedLstmCell: a step of an LSTM after its matrix products, with biases."""
    compute = computing_dtype((cx,), None)
    gates, hidden, state = (array.astype(compute) for array in (input_gates, hidden_gates, cx))
    bias = input_bias.astype(compute) + hidden_bias.astype(compute)
    results = thnn_fused_lstm_cell(gates, hidden + bias, state)
    hy, cy, storage = (rounded(result, cx.dtype, None) for result in results)
    return hy, cy, storage


def thnn_fused_lstm_cell_grad_golden(
    dhy: np.ndarray | None,
    dc: np.ndarray | None,
    cx: np.ndarray,
    cy: np.ndarray,
    storage: np.ndarray,
    *,
    has_bias: bool = False,
    **kwargs: Any,
) -> tuple[np.ndarray, ...]:
    """ThnnFusedLstmCellGrad: dgates, dc_prev and, with has_bias, the gradient of the biases."""
    dgates, dc_prev = thnn_fused_lstm_cell_backward(dhy, dc, cx, cy, storage)
    if not has_bias:
        return dgates, dc_prev
    dh, d = (None if array is None else array.astype(np.float64) for array in (dhy, dc))
    exact, _ = thnn_fused_lstm_cell_backward(dh, d, *(array.astype(np.float64) for array in (cx, cy, storage)))
    return dgates, dc_prev, rounded(exact.reshape(-1, exact.shape[-1]).sum(axis=0), cx.dtype, None)
