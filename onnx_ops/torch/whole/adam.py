"""A step of Adam for one parameter, as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnx_ops.torch.whole.operators import Table, aclnn, whole_operator

TABLE: Table = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # nothing in PyTorch is this step of one parameter


def _node(*inputs: Any) -> Any:
    *given, largest = inputs
    return aclnn.ApplyAdamW(*given) if largest is None else aclnn.ApplyAdamW(*given, largest)


def _shapes(var: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    return [var.new_empty(var.shape) for _ in range(3 if inputs[-1] is None else 4)]


@whole_operator(TABLE, _node, _shapes)
def apply_adam_w(
    var: Tensor,
    m: Tensor,
    v: Tensor,
    beta1_power: Tensor,
    beta2_power: Tensor,
    lr: Tensor,
    weight_decay: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    epsilon: Tensor,
    grad: Tensor,
    max_grad_norm: Tensor | None,
) -> list[Tensor]:
    """The parameter, its averages, and the largest average of squares if it is asked for, after a step."""
    average = m + (grad - m) * (1 - beta1).to(m.dtype)
    square = v * beta2.to(v.dtype) + grad * grad * (1 - beta2).to(v.dtype)
    largest = square if max_grad_norm is None else torch.maximum(max_grad_norm, square)
    divisor = largest.sqrt() / (1 - beta2_power).sqrt().to(v.dtype) + epsilon.to(v.dtype)
    kept = var * (1 - lr * weight_decay).to(var.dtype)
    stepped = kept - (lr / (1 - beta1_power)).to(var.dtype) * (average / divisor)
    return [stepped, average, square, *([] if max_grad_norm is None else [largest])]
