"""The gradient of softmax."""

from __future__ import annotations

import torch

from onnx_ops.torch.base.nodes import Value, aclnn, op
from onnx_ops.torch.base.table import translates

aten = torch.ops.aten


@translates(aten._softmax_backward_data.default)
def _softmax_backward(grad_output: Value, output: Value, dim: int, input_dtype: int) -> Value:
    return op.Cast(aclnn.SoftmaxBackward(grad_output, output, dim=dim), to=input_dtype)
