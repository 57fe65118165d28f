"""Dropout with a mask that a seed settles."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op
from torch import Tensor

from onnx_ops.ops.dropout.dropout_v3 import reference
from onnx_ops.torch.arrays import to_array, to_tensor
from onnx_ops.torch.whole.operators import Table, aclnn, whole_operator

TABLE: Table = {}


def _forward(input: Any, seed: Any, p: float, offset: int) -> Any:
    return aclnn.DropoutV3(input, seed, p=p, offset=offset)


def _backward(grad: Any, mask: Any, scale: float) -> Any:
    if grad.dtype is ir.DataType.DOUBLE:  # the attribute of the node is a float
        factor, zero = (op.Constant(value=ir.tensor(np.asarray(number, np.float64))) for number in (scale, 0.0))
        return op.Where(mask, op.Mul(grad, factor), zero)
    return aclnn.DropoutBackward(grad, mask, scale=scale)


TABLE[torch.ops.aten.native_dropout_backward.default] = _backward


def _shapes(input: Tensor, seed: Tensor, p: float, offset: int) -> tuple[Tensor, Tensor]:
    return input.new_empty(input.shape), input.new_empty(input.shape, dtype=torch.bool)


@whole_operator(TABLE, _forward, _shapes)
def dropout(input: Tensor, seed: Tensor, p: float, offset: int) -> tuple[Tensor, Tensor]:
    """The input with a random part of it set to 0, and where it was kept."""
    output, mask = reference(to_array(input), to_array(seed), p=p, offset=offset)
    return to_tensor(output), to_tensor(mask)
