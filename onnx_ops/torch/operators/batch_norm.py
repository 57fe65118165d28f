"""Batch norm, and the functions of synchronized batch norm, which PyTorch has on GPUs only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.base.nodes import Value, aclnn, double, op
from onnx_ops.torch.base.second_derivatives import gradients_of
from onnx_ops.torch.base.table import corrects, differentiates, provides, translates
from onnx_ops.torch.base.transforms import within_transforms

aten = torch.ops.aten


# Translations


def _is_double(value: Value) -> bool:
    return value.dtype is ir.DataType.DOUBLE


def _is_narrow(value: Value) -> bool:
    return value.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _count(input: Value) -> Value:
    """The number of elements of a channel, int32 (1,)."""
    sizes = [size for axis, size in enumerate(input.shape) if axis != 1]
    if all(isinstance(size, int) for size in sizes):
        return op.Constant(value=ir.tensor(np.asarray([np.prod(sizes)], np.int32)))
    channels = op.Shape(input, start=1, end=2)
    return op.Cast(op.Div(op.Reshape(op.Size(input), op.Constant(value_ints=[1])), channels), to=ir.DataType.INT32)


def _inverse_deviation(variance: Value, eps: float) -> Value:
    if _is_double(variance):
        return op.Reciprocal(op.Sqrt(op.Add(variance, double(eps))))
    variance = op.Cast(variance, to=ir.DataType.FLOAT)
    return op.Reciprocal(op.Sqrt(op.Add(variance, op.Constant(value_float=eps))))


def _statistics(input: Value, eps: float) -> tuple[Value, Value, Value]:
    """Mean and 1 / sqrt(variance + eps) of the channels, and the latter as BatchNormStats returns it.

    Attributes are float32, too coarse for float64 tensors: there BatchNormStats has eps = 0, and other nodes add it.
    """
    if not _is_double(input):
        mean, inverse = aclnn.BatchNormStats(input, eps=eps)
        return mean, inverse, inverse
    mean, inverse = aclnn.BatchNormStats(input, eps=0.0)
    variance = op.Reciprocal(op.Mul(inverse, inverse))
    variance.dtype = input.dtype
    return mean, _inverse_deviation(variance, eps), inverse


def _tracked(
    input: Value, mean: Value, inverse: Value, running: tuple[Value, Value], momentum: float, eps: float
) -> tuple[Value, Value]:
    """The running mean and variance after a batch."""
    rows = [op.Unsqueeze(value, op.Constant(value_ints=[0])) for value in (mean, inverse)]
    if not _is_double(input):
        return aclnn.BatchNormGatherStatsWithCounts(input, *rows, *running, _count(input), momentum=momentum, eps=eps)[
            2:
        ]
    # With momentum 1 these are the mean and the unbiased variance of the batch.
    now = aclnn.BatchNormGatherStatsWithCounts(input, *rows, mean, mean, _count(input), momentum=1.0, eps=0.0)[2:]
    kept, entering = double(1 - momentum), double(momentum)
    first, second = (op.Add(op.Mul(old, kept), op.Mul(new, entering)) for old, new in zip(running, now, strict=True))
    return first, second


def _trained(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running: tuple[Value, Value] | None,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    mean, inverse, gathered = _statistics(input, eps)
    output = aclnn.BatchNormElemt(input, weight, bias, mean, inverse)
    after = () if running is None else _tracked(input, mean, gathered, running, momentum, eps)
    if _is_narrow(input):  # in PyTorch these statistics have the dtype of the input, and the running ones are float32
        mean, inverse = (op.Cast(value, to=input.dtype) for value in (mean, inverse))
        after = tuple(op.Cast(value, to=ir.DataType.FLOAT) for value in after)
    return output, mean, inverse, *after


def _unrounded(statistics: Value) -> Value:
    """Statistics before a Cast to 16 bits."""
    node = statistics.producer()
    return node.inputs[0] if node is not None and node.op_type == "Cast" else statistics


@translates(aten._native_batch_norm_legit_functional.default)
def _batch_norm_functional(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    running = (running_mean, running_var)
    if training:
        return _trained(input, weight, bias, running, momentum, eps)
    return *_batch_norm_evaluated(input, weight, bias, *running, momentum, eps), *map(op.Identity, running)


@translates(aten._native_batch_norm_legit.no_stats)
def _batch_norm_without_running(
    input: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, ...]:
    return _trained(input, weight, bias, None, momentum, eps)


@translates(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_evaluated(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    values = (input, weight, bias, running_mean, running_var)
    if all(value is not None and value.dtype is ir.DataType.FLOAT for value in values):
        output = op.BatchNormalization(*values, epsilon=eps)
    else:  # for other dtypes it rounds eps to float32, or has no kernel
        output = aclnn.BatchNormElemt(input, weight, bias, running_mean, _inverse_deviation(running_var, eps))
    nothing = op.CastLike(op.Constant(value=ir.tensor(np.zeros(0, np.float32))), input)
    return output, nothing, nothing


@translates(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    grad: Value,
    input: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Value, ...]:
    if train:
        mean, inverse = _unrounded(save_mean), _unrounded(save_invstd)
    else:
        mean, inverse = running_mean, _inverse_deviation(running_var, eps)
    *sums, by_weight, by_bias = aclnn.BatchNormReduceBackward(grad, input, mean, inverse, weight)
    if train:
        by_input = aclnn.BatchNormElemtBackward(grad, input, mean, inverse, weight, *sums, _count(input))
    else:
        by_input = aclnn.BatchNormElemt(grad, weight, None, op.Sub(mean, mean), inverse)
    return by_input, by_weight, by_bias


@differentiates(aten.native_batch_norm_backward.default)
def _gradients_again(
    grads: Sequence[Tensor | None],
    grad: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> list[Tensor | None]:
    axes, wide = [0, *range(2, input.dim())], torch.promote_types(input.dtype, torch.float32)

    def by_channel(values: Tensor) -> Tensor:
        return values.to(wide).reshape(-1, *[1] * (input.dim() - 2))

    def gradients(grad: Tensor, input: Tensor, weight: Tensor | None) -> list[Tensor]:
        grad, x = grad.to(wide), input.to(wide)
        if train:
            variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        else:
            assert running_mean is not None
            assert running_var is not None
            variance, mean = by_channel(running_var), by_channel(running_mean)
        inverse = (variance + eps).rsqrt()
        normal = (x - mean) * inverse
        by_input = grad
        if train:
            by_input = grad - grad.mean(axes, True) - normal * (grad * normal).mean(axes, True)
        by_input = by_input * inverse * (1 if weight is None else by_channel(weight))
        return [by_input.to(input.dtype), (grad * normal).sum(axes), grad.sum(axes)]

    return gradients_of(gradients, (grad, input, weight), grads)


# PyTorch's backward kernels for CPUs take the elements of a gradient in another order where an axis of the image or the
# batch has the size 1, and the channels are the last axis in memory either of the gradient or of the image.


@corrects(torch.batch_norm)
def _batch_norm(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _with_gradient_in_order(torch.batch_norm(input, *args, **kwargs), input)


@corrects(torch.instance_norm)
def _instance_norm(*args: Any, **kwargs: Any) -> Tensor:
    output = torch.instance_norm(*args, **kwargs)
    return _with_gradient_in_order(output, output)  # which is computed from a contiguous image


def _with_gradient_in_order(output: Tensor, image: Tensor) -> Tensor:
    """An output whose gradient has the order in memory of an image."""
    strides = torch.empty_like(image, device="meta").stride()

    def ordered(gradient: Tensor) -> Tensor:
        return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)

    if output.requires_grad and not within_transforms():
        output.register_hook(ordered)
    return output


@contextlib.contextmanager
def cumulative_averages() -> Iterator[None]:
    """Batch norms with momentum=None compute their average in tensors; PyTorch calls `item` on num_batches_tracked."""
    forward = _BatchNorm.forward
    _BatchNorm.forward = lambda self, input: _cumulative(self, input) if _is_cumulative(self) else forward(self, input)
    try:
        yield
    finally:
        _BatchNorm.forward = forward


def _is_cumulative(module: _BatchNorm) -> bool:
    return module.momentum is None and module.training and module.track_running_stats


def _cumulative(module: _BatchNorm, input: Tensor) -> Tensor:
    module._check_input_dim(input)
    module.num_batches_tracked.add_(1)
    eps = 0.0 if input.dtype is torch.float64 else module.eps  # as for the statistics that it is normalized with
    with torch.no_grad():
        mean, inverse = domain_ops.BatchNormStats(input, eps=eps)
        count = torch.full((1,), input.numel() // input.shape[1], dtype=torch.int32)
        _, _, *now = domain_ops.BatchNormGatherStatsWithCounts(
            input, mean[None], inverse[None], mean, mean, count, momentum=1.0, eps=eps
        )
        for running, of_batch in zip((module.running_mean, module.running_var), now, strict=True):
            running.add_((of_batch.to(running.dtype) - running) / module.num_batches_tracked.to(running.dtype))
    return functional.batch_norm(input, None, None, module.weight, module.bias, True, 0.0, module.eps)


# Functions of synchronized batch norm


@provides(torch.batch_norm_stats)
def _stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return domain_ops.BatchNormStats(input, eps=eps)


@provides(torch.batch_norm_gather_stats_with_counts)
def _gather_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    running = (None, None) if running_mean is None or running_var is None else (running_mean, running_var)
    settings = {"momentum": momentum, "eps": eps}
    *merged, new_mean, new_var = domain_ops.BatchNormGatherStatsWithCounts(
        input, mean, invstd, *running, counts, **settings
    )
    if running_mean is not None and running_var is not None:
        running_mean.copy_(new_mean)
        running_var.copy_(new_var)
    return tuple(merged)


@provides(torch.batch_norm_gather_stats)
def _gather(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    counts = torch.full((mean.shape[0],), count, dtype=torch.int32)
    return _gather_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


@provides(torch.batch_norm_elemt)
def _elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    return domain_ops.BatchNormElemt(input, weight, bias, mean, invstd)


@provides(torch.batch_norm_backward_reduce)
def _backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:
    results = domain_ops.BatchNormReduceBackward(grad_out, input, mean, invstd, weight)
    wanted = (input_g, input_g, weight_g, bias_g)
    return tuple(result if wants else None for result, wants in zip(results, wanted, strict=True))


provides(torch.batch_norm_backward_elemt)(domain_ops.BatchNormElemtBackward)
