"""Fake quantization and its observers, as torch.ao.quantization trains with them.

PyTorch computes both in float32, whatever the dtype of what is quantized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from onnx_ops.torch.base.table import decomposes, provides

aten = torch.ops.aten

SMALLEST_SCALE = float(np.float32(6.1e-5))
"""The least scale that an observer chooses (SMALL_SCALE_THRESHOLD in ATen/native/quantized/cpu/QuantUtils.h)."""


# Quantization and its gradient


def _grid(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """The numbers that x is quantized to, before they are limited; scale and zero_point broadcast to x."""
    ratio = x.to(torch.promote_types(x.dtype, scale.dtype)) * (1 / scale)
    if zero_point.is_floating_point():
        return (ratio + zero_point).to(scale.dtype).round()
    return ratio.round() + zero_point.to(scale.dtype)


def _quantized(x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    """The fake-quantized x, and bool, where it is not limited; NaN becomes the least number, as in PyTorch.

    Numbers beyond int64 become the greatest or least one, also where PyTorch's conversion to int64 is undefined.
    """
    grid = _grid(x, scale, zero_point)
    large = grid >= quant_min
    limited = torch.where(large, grid.clamp(max=quant_max), quant_min)
    # PyTorch's product is in float64 for channels; for integers it has the same bits in float32.
    wide = zero_point.is_floating_point() or (scale.dim() > 0 and x.dtype is torch.float64)
    dtype = torch.float64 if wide else scale.dtype
    output = (limited.to(dtype) - zero_point.to(dtype)) * scale.to(dtype)
    return output.to(x.dtype), large & (grid <= quant_max)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """A number for each element of an axis, to broadcast to x."""
    return values.reshape([-1 if place == axis % x.dim() else 1 for place in range(x.dim())])


@decomposes(aten.fake_quantize_per_tensor_affine_cachemask.default)
def _per_tensor(self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    numbers = torch.full((), scale, dtype=torch.float32), torch.full((), zero_point, dtype=torch.int32)
    return _quantized(self, *numbers, quant_min, quant_max)


@decomposes(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def _per_tensor_of_tensors(
    self: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    output, mask = _quantized(self, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    return torch.where(enabled, output, self), mask | ~enabled


@decomposes(aten.fake_quantize_per_channel_affine_cachemask.default)
def _per_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    return _quantized(self, _along(scale, self, axis), _along(zero_point, self, axis), quant_min, quant_max)


# Learnable scales and zero points (Jain et al., 2020, section 3)


@decomposes(aten._fake_quantize_learnable_per_tensor_affine.default)
def _learnable_per_tensor(
    self: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    rounded = zero_point.reshape(()).round().clamp(quant_min, quant_max).to(torch.int32)
    return _quantized(self, scale.reshape(()), rounded, quant_min, quant_max)[0]


@decomposes(aten._fake_quantize_learnable_per_channel_affine.default)
def _learnable_per_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    rounded = zero_point.round().clamp(quant_min, quant_max).to(torch.int32)
    return _quantized(self, _along(scale, self, axis), _along(rounded, self, axis), quant_min, quant_max)[0]


def _learnable_gradients(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of x, and the terms of the sums that are those of scale and zero_point, each in the shape of x."""
    grid = _grid(x, scale, zero_point.to(torch.int32))
    small, large = grid < quant_min, grid > quant_max
    inner = ((grid - zero_point) * scale - x) * (1 / scale)
    slope = torch.where(small, quant_min - zero_point, torch.where(large, quant_max - zero_point, inner))
    limited = small | large
    return (
        torch.where(limited, 0.0, grad),
        grad * slope * grad_factor,
        torch.where(limited, -grad * scale * grad_factor, 0.0),
    )


@decomposes(aten._fake_quantize_learnable_per_tensor_affine_backward.default)
def _learnable_per_tensor_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Here PyTorch rounds the zero point by adding 0.5, and removes the fraction towards 0."""
    rounded = (zero_point.reshape(()) + 0.5).clamp(quant_min, quant_max).trunc()
    by_x, *terms = _learnable_gradients(grad, self, scale.reshape(()), rounded, quant_min, quant_max, grad_factor)
    by_scale, by_zero_point = (term.sum().reshape(1) for term in terms)
    return by_x, by_scale, by_zero_point


@decomposes(aten._fake_quantize_learnable_per_channel_affine_backward.default)
def _learnable_per_channel_backward(
    grad: Tensor,
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    rounded = zero_point.round().clamp(quant_min, quant_max)
    by_x, *terms = _learnable_gradients(
        grad, self, _along(scale, self, axis), _along(rounded, self, axis), quant_min, quant_max, grad_factor
    )
    others = [place for place in range(self.dim()) if place != axis % self.dim()]
    by_scale, by_zero_point = (term.sum(others) for term in terms)
    return by_x, by_scale, by_zero_point


# Observers


def _parameters(low: Tensor, high: Tensor, quant_min: int, quant_max: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero point (int32) for numbers from low to high.

    As ChooseQuantizationParams in ATen/native/quantized/cpu/QuantUtils.h.
    """
    steps = quant_max - quant_min
    if symmetric:
        below, above = -(steps // 2 + 1), steps // 2
        bound = torch.maximum((low / below).abs(), (high / above).abs())
        both = (low < 0) & (high > 0)
        low, high = torch.where(both, bound * below, low), torch.where(both, bound * above, high)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = (high.double() - low.double()) / steps
    rounded = scale.to(low.dtype)
    scale = torch.where((rounded == 0) | (1 / rounded).isinf(), 0.1, scale)
    small, factor = scale < SMALLEST_SCALE, SMALLEST_SCALE / scale.to(low.dtype)
    extent = SMALLEST_SCALE * steps
    adjusted_low = torch.where(high == 0, -extent, low * factor)
    adjusted_high = torch.where(low == 0, extent, high * factor)
    low = torch.where(small & (low != 0), adjusted_low, low).double()
    high = torch.where(small & ((low == 0) | (high != 0)), adjusted_high, high).double()
    scale = torch.where(small, SMALLEST_SCALE, scale)
    from_low, from_high = quant_min - low / scale, quant_max - high / scale
    nearer = abs(quant_min) - (low / scale).abs() < abs(quant_max) - (high / scale).abs()
    zero_point = torch.where(nearer, from_low, from_high)
    if symmetric:
        zero_point = torch.where((low < 0) & (high > 0), (quant_min + quant_max) / 2, zero_point)
    zero_point = zero_point.clamp(quant_min, quant_max).round()
    return scale.to(rounded.dtype), zero_point.to(torch.int32)


@decomposes(aten._fused_moving_avg_obs_fq_helper.default)
def _observed(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Tensor, Tensor]:
    """Moving averages of the extremes, scale and zero point for them, and quantization with these.

    The two flags are tensors, so that a step has them as state.
    """
    observing, quantizing = observer_on.reshape(()) != 0, fake_quant_on.reshape(()) != 0
    axes = [axis for axis in range(self.dim()) if axis != ch_axis % self.dim()] if per_row_fake_quant else []
    share = float(np.float32(averaging_const))
    for running, found in ((running_min, self.amin(axes)), (running_max, self.amax(axes))):
        now = found.reshape(running.shape).to(running.dtype)
        average = torch.where(running.isinf(), now, running + share * (now - running))
        running.copy_(torch.where(observing, average, running))
    chosen = _parameters(running_min, running_max, quant_min, quant_max, symmetric_quant)
    for kept, new in zip((scale, zero_point), chosen, strict=True):
        kept.copy_(torch.where(quantizing, new.reshape(kept.shape), kept))
    if per_row_fake_quant:
        numbers = _along(scale, self, ch_axis), _along(zero_point, self, ch_axis)
    else:
        numbers = scale.reshape(()), zero_point.reshape(())
    output, mask = _quantized(self, *numbers, quant_min, quant_max)
    return torch.where(quantizing, output, self), mask | ~quantizing


# In float64, in which captures are verified and PyTorch has none of these


class _FakeQuantized(torch.autograd.Function):
    """x, fake-quantized by a function that returns output and mask; the gradient passes where the mask is True."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, quantize: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        output, mask = quantize(x)
        ctx.save_for_backward(mask)
        return output

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


class _LearnablyQuantized(torch.autograd.Function):
    """x, fake-quantized with a learnable scale and zero point, by two functions of these three tensors."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        output: Callable[..., Tensor],
        backward: Callable[..., Any],
    ) -> Tensor:
        ctx.save_for_backward(x, scale, zero_point)
        ctx.of_grad = backward
        return output(x, scale, zero_point)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Any, ...]:
        return *ctx.of_grad(grad, *ctx.saved_tensors), None, None


def _in_float64(
    function: Callable[..., Tensor], place: int
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Run the decorated function in place of one of PyTorch if the argument at a place, a scale, is float64."""

    def enter(wide: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @provides(function)
        def chosen(*args: Any) -> Tensor:
            scale = args[place]
            return (wide if isinstance(scale, Tensor) and scale.dtype is torch.float64 else function)(*args)

        return chosen

    return enter


@_in_float64(torch.fused_moving_avg_obs_fake_quant, 5)
def _fused_wide(x: Tensor, *rest: Any) -> Tensor:
    return _FakeQuantized.apply(x, lambda x: _observed(x, *rest))


@_in_float64(torch.fake_quantize_per_tensor_affine, 1)
def _per_tensor_wide(x: Tensor, scale: Tensor, zero_point: Tensor, *limits: int) -> Tensor:
    numbers = scale.reshape(()), zero_point.reshape(())
    return _FakeQuantized.apply(x, lambda x: _quantized(x, *numbers, *limits))


@_in_float64(torch.fake_quantize_per_channel_affine, 1)
def _per_channel_wide(x: Tensor, *rest: Any) -> Tensor:
    return _FakeQuantized.apply(x, lambda x: _per_channel(x, *rest))


def _learnable_wide(output: Callable[..., Tensor], backward: Callable[..., Any]) -> Callable[..., Tensor]:
    def wide(x: Tensor, scale: Tensor, zero_point: Tensor, *rest: Any) -> Tensor:
        return _LearnablyQuantized.apply(
            x, scale, zero_point, lambda *given: output(*given, *rest), lambda *given: backward(*given, *rest)
        )

    return wide


_in_float64(torch._fake_quantize_learnable_per_tensor_affine, 1)(
    _learnable_wide(_learnable_per_tensor, _learnable_per_tensor_backward)
)
_in_float64(torch._fake_quantize_learnable_per_channel_affine, 1)(
    _learnable_wide(_learnable_per_channel, _learnable_per_channel_backward)
)
