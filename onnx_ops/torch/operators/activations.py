"""Activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.base.nodes import Value, aclnn, double, op
from onnx_ops.torch.base.table import computes_float64, decomposed_by_pytorch, decomposes, replaces, translates
from onnx_ops.torch.operators.elementary import log1p_of_fraction, log1p_of_fraction_nodes
from onnx_ops.torch.operators.error_function import erf_of_doubles

aten = torch.ops.aten

# onnxruntime has no float64 kernels of these, or ONNX takes their numbers as float32.
decomposed_by_pytorch(
    aten._prelu_kernel.default,
    aten._prelu_kernel_backward.default,
    aten.gelu.default,
    aten.hardsigmoid.default,
    aten.hardswish.default,
    aten.hardtanh.default,
    aten.leaky_relu.default,
    aten.leaky_relu_backward.default,
    aten.selu.default,
    only=torch.float64,
)


@translates(aten._prelu_kernel.default)
def _prelu_kernel(self: Value, weight: Value) -> Value:
    """PyTorch has reshaped the weight, which torch.onnx does anew, for channels that are the second axis."""
    return op.PRelu(self, weight)


def _of_softplus(self: Value, beta: float, threshold: float) -> dict[str, float] | None:
    """The attributes of the ops of softplus; None if they do not hold them, as they are float32."""
    exact = self.dtype is not ir.DataType.DOUBLE or all(float(np.float32(v)) == v for v in (beta, threshold))
    return {"beta": float(beta), "threshold": float(threshold)} if exact else None


@translates(aten.softplus.default)
def _softplus(self: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    if (attributes := _of_softplus(self, beta, threshold)) is not None:
        return aclnn.SoftplusV2(self, **attributes)
    t = op.Mul(self, double(beta))
    curved = op.Add(op.Relu(t), log1p_of_fraction_nodes(op.Exp(op.Neg(op.Abs(t))), self))
    return op.Where(op.Greater(t, double(threshold)), self, op.Div(curved, double(beta)))


@translates(aten.softplus_backward.default)
def _softplus_backward(grad: Value, self: Value, beta: float, threshold: float) -> Value:
    if (attributes := _of_softplus(self, beta, threshold)) is not None:
        return aclnn.SoftplusBackward(grad, self, **attributes)
    t = op.Mul(self, double(beta))
    return op.Where(op.Greater(t, double(threshold)), grad, op.Div(grad, op.Add(op.Exp(op.Neg(t)), double(1.0))))


LINEAR = 17.0
"""From here on softplus is the identity in float32."""
ALWAYS_CURVED = 64.0
"""A threshold from which softplus is the identity in float64 too."""


@replaces(functional.softplus)
def _softplus_function(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Without a gradient, as in an inference graph, of standard operators; 16-bit tensors are computed in float32."""
    if input.requires_grad and torch.is_grad_enabled():
        return aten.softplus(input, beta, threshold)
    x = input if input.dtype is torch.float64 else input.float()
    t = _times(x, beta)
    curved = t.relu() + log1p_of_fraction((-t.abs()).exp())
    curved = curved if beta == 1 else curved / beta
    is_curved = threshold >= (ALWAYS_CURVED if x.dtype is torch.float64 else LINEAR)
    return (curved if is_curved else torch.where(t > threshold, x, curved)).to(input.dtype)


@replaces(functional.logsigmoid)
def _logsigmoid(input: Tensor) -> Tensor:
    return _softplus_function(input, -1, ALWAYS_CURVED)


@decomposes(aten.log_sigmoid_forward.default)
def _log_sigmoid_forward(self: Tensor) -> tuple[Tensor, Tensor]:
    """softplus with a factor of -1; the buffer, which is for the backward pass on CPUs, is not needed."""
    return aten.softplus(self, -1, ALWAYS_CURVED), aten.empty_like(self)


@decomposes(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Tensor) -> Tensor:
    return aten.softplus_backward(grad_output, self, -1, ALWAYS_CURVED)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


@decomposes(aten.elu.default)
def _elu(self: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """Also selu; onnxruntime's Elu takes twice as long, and loses the digits of small results."""
    if self.dtype is torch.float64:
        return _elu_of_doubles(self, alpha, scale, input_scale)
    if self.dtype is not torch.float32:
        return NotImplemented
    # expm1(x) is 2 t / (1 - t) for t = tanh(x / 2); near 0, exp(x) - 1 has few digits.
    tangent = aten.tanh(aten.clamp_max(self, 0) * (input_scale / 2))
    return _times(aten.relu(self), scale) + _times(tangent, 2 * alpha * scale) / (1 - tangent)


@decomposes(aten.celu.default)
def _celu(self: Tensor, alpha: float = 1.0) -> Any:
    if self.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return _elu(self, alpha, 1.0, 1 / alpha)


@decomposes(aten.elu_backward.default)
def _elu_backward(
    grad_output: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Tensor
) -> Any:
    if self_or_result.dtype is torch.float64:
        return _elu_backward_of_doubles(grad_output, alpha, scale, input_scale, is_result, self_or_result)
    if is_result or self_or_result.dtype is not torch.float32:
        return NotImplemented
    power = aten.exp(_times(aten.clamp_max(self_or_result, 0), input_scale))
    slope = _times(power, alpha * scale * input_scale)
    return grad_output * torch.where(self_or_result <= 0, slope, scale)


_elu_of_doubles = torch._decomp.decomposition_table[aten.elu.default]
_elu_backward_of_doubles = torch._decomp.decomposition_table[aten.elu_backward.default]


def _activation(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A function with the parameters of an activation of torch.nn.functional, which may work in place."""

    def activation(input: Tensor, inplace: bool = False) -> Tensor:
        # Autograd keeps the argument of the function for the backward pass: it must not be the tensor written to.
        return input.copy_(function(input.clone())) if inplace else function(input)

    return activation


def _mish(input: Tensor) -> Tensor:
    return input * _softplus_function(input).tanh()


replaces(functional.mish)(_activation(_mish))


GELUS = {"none": 0, "tanh": 1}
"""Values of the attribute `approximate` of GeluBackwardV2."""


@translates(aten.gelu_backward.default)
def _gelu_backward(grad: Value, self: Value, approximate: str = "none") -> Value:
    return aclnn.GeluBackwardV2(grad, self, approximate=GELUS[approximate])


@translates(aten.silu.default)
def _silu(self: Value) -> Value:
    return op.Mul(self, op.Sigmoid(self))


@translates(aten.silu_backward.default)
def _silu_backward(grad_output: Value, self: Value) -> Value:
    return aclnn.SiluBackward(grad_output, self)


@translates(aten.hardsigmoid_backward.default)
def _hardsigmoid_backward(grad: Value, self: Value) -> Value:
    return aclnn.HardsigmoidBackward(grad, self)


@decomposes(aten.hardsigmoid_backward.default, only=torch.float64)
def _hardsigmoid_backward_of_doubles(grad: Tensor, self: Tensor) -> Tensor:
    """PyTorch's 1/6 is a float32 in float64 too."""
    return torch.where((self > -3) & (self < 3), grad * float(np.float32(1 / 6)), 0.0)


@translates(aten.hardswish_backward.default)
def _hardswish_backward(grad: Value, self: Value) -> Value:
    return aclnn.HardswishBackwardV2(grad, self)


@translates(aten.hardtanh_backward.default)
def _hardtanh_backward(grad: Value, self: Value, min_val: float, max_val: float) -> Value:
    if self.dtype is ir.DataType.DOUBLE and any(float(np.float32(bound)) != bound for bound in (min_val, max_val)):
        inside = op.And(op.Greater(self, double(min_val)), op.Less(self, double(max_val)))  # no attribute holds them
        return op.Where(inside, grad, double(0.0))
    return aclnn.HardtanhBackward(grad, self, min=float(min_val), max=float(max_val))


@replaces(functional.softshrink)
def _softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    fixed = input.detach()
    return torch.where(fixed.abs() > lambd, input - fixed.clamp(-lambd, lambd), fixed * 0)


# --- float64 ----------------------------------------------------------------------------------------------------------


def _where_negative(x: Value, negative: Value) -> Value:
    return op.Where(op.Less(x, double(0.0)), negative, x)


@computes_float64("Elu")
def _elu_node(x: Value, alpha: float = 1.0) -> Value:
    return _where_negative(x, op.Mul(op.Sub(op.Exp(x), double(1.0)), double(alpha)))


@computes_float64("Celu")
def _celu_node(x: Value, alpha: float = 1.0) -> Value:
    return _where_negative(x, op.Mul(op.Sub(op.Exp(op.Div(x, double(alpha))), double(1.0)), double(alpha)))


@computes_float64("LeakyRelu")
def _leaky_relu_node(x: Value, alpha: float = 0.01) -> Value:
    return _where_negative(x, op.Mul(x, double(alpha)))


@computes_float64("PRelu")
def _prelu_node(x: Value, slope: Value) -> Value:
    return _where_negative(x, op.Mul(x, slope))


@computes_float64("Softplus")
def _softplus_node(x: Value) -> Value:
    return op.Add(op.Max(x, double(0.0)), op.Log(op.Add(op.Exp(op.Neg(op.Abs(x))), double(1.0))))


@computes_float64("HardSigmoid")
def _hardsigmoid_node(x: Value, alpha: float = 0.2, beta: float = 0.5) -> Value:
    return op.Clip(op.Add(op.Mul(x, double(alpha)), double(beta)), double(0.0), double(1.0))


@computes_float64("HardSwish")
def _hardswish_node(x: Value) -> Value:
    return op.Mul(x, _hardsigmoid_node(x, 1 / 6))


@computes_float64("Gelu")
def _gelu_node(x: Value, approximate: bytes = b"none") -> Value:
    if approximate == b"none":
        shape = erf_of_doubles(op.Mul(x, double(math.sqrt(0.5))))
    else:
        cubic = op.Mul(op.Mul(op.Mul(x, x), x), double(0.044715))
        shape = op.Tanh(op.Mul(op.Add(x, cubic), double(math.sqrt(2 / math.pi))))
    return op.Mul(op.Mul(x, double(0.5)), op.Add(shape, double(1.0)))
