"""Operators that torch.onnx lacks, or translates wrongly, taken apart before it sees them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from onnx_ops.torch.composed import elementary, likelihoods, padding, pools, scattering

NAMES = (
    "logsumexp",  # onnxruntime's ReduceLogSumExp takes -inf, -450 for -inf
)
"""Those that PyTorch takes apart itself, if asked."""

DOUBLE_NAMES = (
    "_prelu_kernel",
    "_prelu_kernel_backward",
    "addcdiv",
    "addcmul",
    "celu",
    "elu",
    "elu_backward",
    "gelu",
    "gelu_backward",
    "hardsigmoid",
    "hardswish",
    "hardswish_backward",
    "hardtanh",
    "hardtanh_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "linalg_vector_norm",
    "log_sigmoid_forward",
    "log_sigmoid_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "selu",
    "softplus",
    "softplus_backward",
)
"""Those of which onnxruntime has no kernel for doubles, or ONNX takes numbers as float32."""

OWN = (elementary, likelihoods, padding, pools, scattering)


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """What `make_fx` takes apart.

    All of core ATen would be more than torch.onnx can translate: SiLU's gradient then ends in empty_permuted.
    """
    known = torch._decomp.decomposition_table
    table = {overload: known[overload] for overload in map(_overload, NAMES)}
    table |= {overload: _for_doubles(known[overload]) for overload in map(_overload, DOUBLE_NAMES)}
    return table | {operator: ours for part in OWN for operator, ours in part.OPERATORS.items()}


def _overload(name: str) -> Any:
    return getattr(torch.ops.aten, name).default


def _for_doubles(taken_apart: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of calls with a tensor of float64."""

    @functools.wraps(taken_apart)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        double = any(isinstance(arg, torch.Tensor) and arg.dtype is torch.float64 for arg in args)
        return taken_apart(*args, **kwargs) if double else NotImplemented

    return chosen
