"""Hardshrink as an operator of this domain, and the translation of PyTorch's gradient of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype
from torch import Tensor

from onnx_ops.torch.base.custom_ops import differentiable, domain_ops
from onnx_ops.torch.base.nodes import Value, aclnn, number, op
from onnx_ops.torch.base.table import replaces, translates

differentiable("Hardshrink", {"self": "HardshrinkBackward"}, formula=torch.ops.aten.hardshrink.default)


def _attribute(lambd: float, dtype: ir.DataType) -> float | None:
    """`lambd` rounded to the dtype of the tensor, as PyTorch compares with it; None if no attribute has that value."""
    limit = float(np.asarray(lambd).astype(dtype.numpy()))
    return limit if limit >= 0 and float(np.float32(limit)) == limit else None  # the op takes one below 0 for 0


@translates(torch.ops.aten.hardshrink_backward.default)
def _backward(grad: Value, self: Value, lambd: float) -> Value:
    limit = _attribute(lambd, self.dtype)
    if limit is None:
        return op.Where(op.LessOrEqual(op.Abs(self), number(lambd, self)), number(0.0, self), grad)
    return aclnn.HardshrinkBackward(grad, self, lambd=limit)


@replaces(torch.hardshrink, torch.Tensor.hardshrink, within_transforms=False)
def _functional(input: Tensor, lambd: float = 0.5) -> Tensor:
    limit = _attribute(lambd, from_torch_dtype(input.dtype))
    return torch.where(input.abs() <= lambd, 0.0, input) if limit is None else domain_ops.Hardshrink(input, lambd=limit)
