"""Activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from onnx_ops.torch.base.nodes import aclnn
from onnx_ops.torch.base.table import decomposed_by_pytorch, decomposes, replaces, translates

aten = torch.ops.aten

# onnxruntime has no float64 kernels of these, or ONNX takes their numbers as float32.
decomposed_by_pytorch(
    aten._prelu_kernel.default,
    aten._prelu_kernel_backward.default,
    aten.celu.default,
    aten.elu.default,
    aten.elu_backward.default,
    aten.gelu.default,
    aten.hardsigmoid.default,
    aten.hardswish.default,
    aten.hardswish_backward.default,
    aten.hardtanh.default,
    aten.hardtanh_backward.default,
    aten.leaky_relu.default,
    aten.leaky_relu_backward.default,
    aten.log_sigmoid_forward.default,
    aten.log_sigmoid_backward.default,
    aten.selu.default,
    aten.softplus.default,
    aten.softplus_backward.default,
    only=torch.float64,
)


def _activation(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A function with the parameters of an activation of torch.nn.functional, which may work in place."""

    def activation(input: Tensor, inplace: bool = False) -> Tensor:
        # Autograd keeps the argument of the function for the backward pass: it must not be the tensor written to.
        return input.copy_(function(input.clone())) if inplace else function(input)

    return activation


def _mish(input: Tensor) -> Tensor:
    return input * functional.softplus(input).tanh()


def _silu(input: Tensor) -> Tensor:
    return input * input.sigmoid()


replaces(functional.mish)(_activation(_mish))
replaces(functional.silu)(_activation(_silu))


GELUS = {"none": 0, "tanh": 1}
"""Values of the attribute `approximate` of GeluBackwardV2."""


@translates(aten.gelu_backward.default)
def _gelu_backward(grad: Any, self: Any, approximate: str = "none") -> Any:
    return aclnn.GeluBackwardV2(grad, self, approximate=GELUS[approximate])


@decomposes(aten.hardsigmoid_backward.default)
def _hardsigmoid_backward(grad: Tensor, self: Tensor) -> Tensor:
    """PyTorch's 1/6 is a float32 in float64 too."""
    return torch.where((self > -3) & (self < 3), grad * float(np.float32(1 / 6)), 0.0)


@replaces(functional.softshrink)
def _softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.where(input.abs() > lambd, input - lambd * input.detach().sign(), input * 0)
