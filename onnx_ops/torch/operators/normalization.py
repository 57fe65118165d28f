"""Instance, group and layer norms, and weight norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.base.nodes import Value, aclnn, double, integers, op
from onnx_ops.torch.base.sizes import may_be_zero
from onnx_ops.torch.base.table import computes_float64, decomposed_by_pytorch, decomposes, replaces, translates
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.function_transforms import batch_norm, group_norm

aten = torch.ops.aten

decomposed_by_pytorch(aten.native_layer_norm.default, only=torch.float64)  # onnxruntime has no such kernel


@decomposes(aten.native_group_norm.default)
def _group_norm(input: Tensor, *rest: Any) -> Any:
    """PyTorch's decomposition in float64, for which onnxruntime has no kernel, and where there may be no samples."""
    if input.dtype is not torch.float64 and not may_be_zero(input.shape[0]):
        return NotImplemented
    return torch._decomp.decomposition_table[aten.native_group_norm.default](input, *rest)


@decomposes(aten.native_layer_norm_backward.default)
def _with_dynamic_shape(grad_out: Tensor, input: Tensor, normalized_shape: Sequence[int], *rest: Any) -> Any:
    """PyTorch's decomposition, where normalized axes are dynamic: sizes are attributes of the op."""
    if all(isinstance(size, int) for size in normalized_shape):
        return NotImplemented
    decomposition = torch._decomp.decomposition_table[aten.native_layer_norm_backward.default]
    return decomposition(grad_out, input, normalized_shape, *rest)


@translates(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value, ...]:
    return aclnn.LayerNormBackward(grad_out, input, mean, rstd, weight, normalized_shape=list(normalized_shape))


@translates(aten.native_group_norm_backward.default)
def _group_norm_backward(
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    samples: int | Value,
    channels: int | Value,
    places: int | Value,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Value, ...]:
    return aclnn.GroupNormBackward(grad_out, input, mean, rstd, weight, group=group)


def _moments(x: Value, axes: list[int]) -> tuple[Value, Value, Value]:
    """The mean of a tensor along axes, its difference from that, and its variance."""
    mean = op.ReduceMean(x, integers(axes))
    centered = op.Sub(x, mean)
    return mean, centered, op.ReduceMean(op.Mul(centered, centered), integers(axes))


@computes_float64("InstanceNormalization")
def _of_instances(x: Value, scale: Value, bias: Value, epsilon: float = 1e-5) -> Value:
    axes = list(range(2, len(x.shape)))
    _, centered, variance = _moments(x, axes)
    normal = op.Div(centered, op.Sqrt(op.Add(variance, double(epsilon))))
    by_channel = integers([1, -1] + [1] * len(axes))
    return op.Add(op.Mul(normal, op.Reshape(scale, by_channel)), op.Reshape(bias, by_channel))


@computes_float64("LayerNormalization")
def _of_layers(
    x: Value, scale: Value, bias: Value | None = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value, Value]:
    mean, centered, variance = _moments(x, list(range(axis % len(x.shape), len(x.shape))))
    inverse = op.Reciprocal(op.Sqrt(op.Add(variance, double(epsilon))))
    scaled = op.Mul(op.Mul(centered, inverse), scale)
    return scaled if bias is None else op.Add(scaled, bias), mean, inverse


@replaces(functional.instance_norm)
def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """A batch norm whose channels are those of each sample; running statistics are updated with their mean.

    Where there may be no samples, and so no channels, it is a group norm.
    """
    if not use_input_stats:
        if within_transforms():
            return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
        return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if math.prod(input.shape[2:]) == 1:
        raise ValueError(f"an instance norm needs more than one place of space in training, got {tuple(input.shape)}")
    if within_transforms() or may_be_zero(input.shape[0]):
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                variance, mean = torch.var_mean(input.detach(), tuple(range(2, input.dim())))
                running_mean.mul_(1 - momentum).add_(mean.mean(0), alpha=momentum)
                running_var.mul_(1 - momentum).add_(variance.mean(0), alpha=momentum)
        return (group_norm if within_transforms() else torch.group_norm)(input, input.shape[1], weight, bias, eps)
    samples, channels = input.shape[:2]

    def repeated(given: Tensor | None) -> Tensor | None:
        return None if given is None else given.repeat(samples)

    with torch.no_grad():
        running = repeated(running_mean), repeated(running_var)
    rows = input.reshape(1, -1, *input.shape[2:])
    normal = functional.batch_norm(rows, *running, repeated(weight), repeated(bias), True, momentum, eps)
    with torch.no_grad():
        for given, updated in zip((running_mean, running_var), running, strict=True):
            if given is not None and updated is not None:
                given.copy_(updated.reshape(samples, channels).mean(0))
    return normal.reshape(input.shape)


@replaces(torch._weight_norm)
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.dim()) if axis != dim % v.dim()] if dim != -1 else list(range(v.dim()))
    return v * (g / v.square().sum(axes, keepdim=True).sqrt())
