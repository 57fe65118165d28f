"""Imported operators by name, on tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_ops.torch.importing.layers import (
    average_pool,
    conv,
    conv_transpose,
    gemm,
    group_norm,
    layer_norm,
    max_pool,
    spatial_axes,
)
from onnx_ops.torch.importing.nodes import Node, Value, axes_of, sizes, tensor, torch_dtype
from onnx_ops.torch.importing.shapes import (
    arange,
    cumsum,
    expand,
    filled,
    flatten,
    gather,
    pad,
    reshape,
    shape_of,
    sliced,
    split_up,
    squeeze,
    trilu,
    unsqueeze,
)


def _unary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, x: function(tensor(x))


def _binary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, x, y: function(tensor(x), tensor(y))


def _folded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fold(node: Node, first: Value, *others: Value) -> Tensor:
        result = tensor(first)
        for other in others:
            result = function(result, tensor(other))
        return result

    return fold


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(node: Node, x: Value, given: Value = None) -> Tensor:
        own, axes = tensor(x), axes_of(node, given)
        if axes is None and node.get("noop_with_empty_axes", 0):
            return own
        return function(own, list(range(own.ndim)) if axes is None else axes, bool(node.get("keepdims", 1)))

    return reduce


def _divided(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _clip(node: Node, x: Value, low: Value = None, high: Value = None) -> Tensor:
    own = tensor(x)
    own = own if low is None else torch.maximum(own, tensor(low))
    return own if high is None else torch.minimum(own, tensor(high))


def _argument(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, x: function(tensor(x), node.get("axis", 0), bool(node.get("keepdims", 1)))


ON_TENSORS: dict[str, Callable[..., Any]] = {
    **{
        name: _unary(function)
        for name, function in {
            **{"Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Exp": torch.exp, "Log": torch.log},
            **{"Sqrt": torch.sqrt, "Neg": torch.neg, "Abs": torch.abs, "Erf": torch.erf, "Floor": torch.floor},
            **{"Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign, "Sin": torch.sin, "Cos": torch.cos},
            **{"Reciprocal": torch.reciprocal, "Not": torch.logical_not, "Softplus": F.softplus},
            **{"Softsign": F.softsign, "HardSwish": F.hardswish, "Mish": F.mish, "Identity": lambda x: x},
            **{"IsNaN": torch.isnan, "Selu": F.selu},
        }.items()
    },
    **{
        name: _binary(function)
        for name, function in {
            **{"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _divided, "Pow": torch.pow},
            **{"Equal": torch.eq, "Less": torch.lt, "Greater": torch.gt, "LessOrEqual": torch.le},
            **{"GreaterOrEqual": torch.ge, "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor},
            **{"MatMul": torch.matmul, "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x)},
        }.items()
    },
    "Min": _folded(torch.minimum),
    "Max": _folded(torch.maximum),
    "Sum": _folded(torch.add),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMin": _reduction(torch.amin),
    "ReduceL2": _reduction(lambda x, axes, kept: torch.linalg.vector_norm(x, 2, axes, kept)),
    "ReduceL1": _reduction(lambda x, axes, kept: x.abs().sum(axes, kept)),
    "ReduceSumSquare": _reduction(lambda x, axes, kept: (x * x).sum(axes, kept)),
    "ReduceLogSumExp": _reduction(torch.logsumexp),
    "ArgMax": _argument(torch.argmax),
    "ArgMin": _argument(torch.argmin),
    "Where": lambda node, condition, x, y: torch.where(tensor(condition), tensor(x), tensor(y)),
    "Elu": lambda node, x: F.elu(tensor(x), node.get("alpha", 1.0)),
    "Celu": lambda node, x: F.celu(tensor(x), node.get("alpha", 1.0)),
    "LeakyRelu": lambda node, x: F.leaky_relu(tensor(x), node.get("alpha", 0.01)),
    "HardSigmoid": lambda node, x: (tensor(x) * node.get("alpha", 0.2) + node.get("beta", 0.5)).clamp(0, 1),
    "Gelu": lambda node, x: F.gelu(tensor(x), approximate=node.get("approximate", "none")),
    "Softmax": lambda node, x: tensor(x).softmax(node.get("axis", -1)),
    "LogSoftmax": lambda node, x: tensor(x).log_softmax(node.get("axis", -1)),
    "Clip": _clip,
    "Gemm": gemm,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": lambda node, x: tensor(x).mean(spatial_axes(tensor(x)), keepdim=True),
    "GlobalMaxPool": lambda node, x: tensor(x).amax(spatial_axes(tensor(x)), keepdim=True),
    "LayerNormalization": layer_norm,
    "RMSNormalization": lambda node, x, weight: F.rms_norm(
        tensor(x), tensor(x).shape[node.get("axis", -1) :], tensor(weight), node.get("epsilon", 1e-5)
    ),
    "GroupNormalization": group_norm,
    "InstanceNormalization": lambda node, x, weight, bias: F.instance_norm(
        tensor(x), weight=tensor(weight), bias=tensor(bias), eps=node.get("epsilon", 1e-5)
    ),
    "Reshape": reshape,
    "Flatten": flatten,
    "Transpose": lambda node, x: tensor(x).permute(node.get("perm", list(reversed(range(tensor(x).ndim))))),
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": lambda node, *parts: torch.cat([tensor(part) for part in parts], node.get("axis")),
    "Split": split_up,
    "Slice": sliced,
    "Gather": gather,
    "GatherElements": lambda node, x, indices: tensor(x).gather(node.get("axis", 0), tensor(indices)),
    "Expand": expand,
    "Tile": lambda node, x, repeats: tensor(x).tile(sizes(repeats)),
    "Pad": pad,
    "Cast": lambda node, x: tensor(x).to(torch_dtype(node.get("to"))),
    "CastLike": lambda node, x, like: tensor(x).to(tensor(like).dtype),
    "Einsum": lambda node, *parts: torch.einsum(node.get("equation"), *(tensor(part) for part in parts)),
    "Trilu": trilu,
    "CumSum": cumsum,
    "Range": arange,
    "ConstantOfShape": filled,
    "Shape": lambda node, x: shape_of(tensor(x).shape, node),
    "Size": lambda node, x: np.array(tensor(x).numel()),
}
