"""Functions within the transforms of torch.func, and tangents of forward mode, as jvp and jacfwd compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnx_ops.torch.base.table import decomposes, replaces

aten = torch.ops.aten


@decomposes(aten._efficientzerotensor.default)
def _efficientzerotensor(size: Sequence[int], *, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    """The tangent of a tensor that has none."""
    return torch.zeros(size, dtype=dtype)


@decomposes(aten._new_zeros_with_same_feature_meta.default)
def _new_zeros_with_same_feature_meta(self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """The memory of a tangent, which may have batch dimensions that its tensor `other` lacks."""
    return other.new_zeros([*self.shape[:self_num_batch_dims], *other.shape])


def _normalized(input: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    """With mean 0 and variance 1 over some axes, in float32 or float64."""
    values = input.to(torch.promote_types(input.dtype, torch.float32))
    variance, mean = torch.var_mean(values, list(axes), correction=0, keepdim=True)
    return (values - mean) * (variance + eps).rsqrt()


def _scaled(values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    weighted = values if weight is None else values * weight
    return weighted if bias is None else weighted + bias


@replaces(functional.linear, within_transforms=True)
def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """PyTorch's own makes numbers of the sizes of a tensor of three axes, if there is a bias."""
    product = functional.linear(input, weight)
    return product if bias is None else product + bias


@replaces(torch.layer_norm, within_transforms=True)
def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """PyTorch's rules for vmap make numbers of dynamic sizes."""
    values = _normalized(input, range(-len(normalized_shape), 0), eps)
    return _scaled(values, weight, bias).to(input.dtype)


@replaces(torch.group_norm, within_transforms=True)
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    values = _normalized(input.unflatten(1, (num_groups, -1)), range(2, input.dim() + 1), eps).flatten(1, 2)
    shape = [-1, *[1] * (input.dim() - 2)]
    scales = (None if given is None else given.reshape(shape) for given in (weight, bias))
    return _scaled(values, *scales).to(input.dtype)


@replaces(torch.batch_norm, within_transforms=True)
def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    if training and running_mean is not None:  # whose update vmap refuses
        return torch.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
    shape = [-1, *[1] * (input.dim() - 2)]
    if training or running_mean is None or running_var is None:
        values = _normalized(input, [0, *range(2, input.dim())], eps)
    else:
        values = (input - running_mean.reshape(shape)) * (running_var.reshape(shape) + eps).rsqrt()
    scales = (None if given is None else given.reshape(shape) for given in (weight, bias))
    return _scaled(values, *scales).to(input.dtype)


@replaces(torch._C._nn.pad, within_transforms=True)
def _pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Circular pads as concatenations: PyTorch writes into an empty tensor, whose gradient is one of strides."""
    if mode != "circular":
        result: Tensor = torch._C._nn.pad(input, pad, mode, value)
        return result
    for place in range(len(pad) // 2):
        axis, before, after = -1 - place, pad[2 * place], pad[2 * place + 1]
        size = input.shape[axis]
        kept = input.narrow(axis, max(-before, 0), size - max(-before, 0) - max(-after, 0))
        parts = [
            *([kept.narrow(axis, kept.shape[axis] - before, before)] if before > 0 else []),
            kept,
            *([kept.narrow(axis, 0, after)] if after > 0 else []),
        ]
        input = torch.cat(parts, axis)
    return input
