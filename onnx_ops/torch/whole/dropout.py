"""Dropout whose mask is a function of a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op
from torch import Tensor

from onnx_ops.torch.base.custom_ops import operators
from onnx_ops.torch.whole.operators import Table, aclnn


def _backward(grad: Any, mask: Any, scale: float) -> Any:
    if grad.dtype is ir.DataType.DOUBLE:  # the attribute of the node is a float
        factor, zero = (op.Constant(value=ir.tensor(np.asarray(number, np.float64))) for number in (scale, 0.0))
        return op.Where(mask, op.Mul(grad, factor), zero)
    return aclnn.DropoutBackward(grad, mask, scale=scale)


TABLE: Table = {torch.ops.aten.native_dropout_backward.default: _backward}


def dropout(input: Tensor, seed: Tensor, p: float, offset: int) -> tuple[Tensor, Tensor]:
    """The input with random elements set to 0 and the others scaled, and the mask of those kept."""
    return operators.DropoutV3(input, seed, p=p, offset=offset)
