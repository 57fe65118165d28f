"""Instance, group and layer norms, and weight norm."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.base.nodes import double, integers, op
from onnx_ops.torch.base.table import computes_float64, decomposed_by_pytorch, replaces
from onnx_ops.torch.base.transforms import within_transforms
from onnx_ops.torch.operators.function_transforms import batch_norm, group_norm

aten = torch.ops.aten

# onnxruntime has no float64 kernels of these.
decomposed_by_pytorch(
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    only=torch.float64,
)


def _moments(x: Any, axes: list[int]) -> tuple[Any, Any, Any]:
    """The mean of a tensor along axes, its difference from that, and its variance."""
    mean = op.ReduceMean(x, integers(axes))
    centered = op.Sub(x, mean)
    return mean, centered, op.ReduceMean(op.Mul(centered, centered), integers(axes))


@computes_float64("InstanceNormalization")
def _of_instances(x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> Any:
    axes = list(range(2, len(x.shape)))
    _, centered, variance = _moments(x, axes)
    normal = op.Div(centered, op.Sqrt(op.Add(variance, double(epsilon))))
    by_channel = integers([1, -1] + [1] * len(axes))
    return op.Add(op.Mul(normal, op.Reshape(scale, by_channel)), op.Reshape(bias, by_channel))


@computes_float64("LayerNormalization")
def _of_layers(
    x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Any, Any, Any]:
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
    """A group norm whose groups are the channels; running statistics are updated with the mean over the batch."""
    if not use_input_stats:
        if within_transforms():
            return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
        return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    axes = tuple(range(2, input.dim()))
    if math.prod(input.shape[2:]) == 1:
        raise ValueError(f"an instance norm needs more than one place of space in training, got {tuple(input.shape)}")
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            variance, mean = torch.var_mean(input.detach(), axes)
            running_mean.mul_(1 - momentum).add_(mean.mean(0), alpha=momentum)
            running_var.mul_(1 - momentum).add_(variance.mean(0), alpha=momentum)
    of_groups = group_norm if within_transforms() else functional.group_norm
    return of_groups(input, input.shape[1], weight, bias, eps)


@replaces(torch._weight_norm)
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.dim()) if axis != dim % v.dim()] if dim != -1 else list(range(v.dim()))
    return v * (g / v.square().sum(axes, keepdim=True).sqrt())
