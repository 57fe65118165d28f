"""The gradient of threshold and ReLU: a Where of standard operators runs on one thread, and waits for a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op

from onnx_ops.torch.whole.operators import Table, aclnn


def _backward(grad: Any, self: Any, threshold: float) -> Any:
    if self.dtype is ir.DataType.DOUBLE and float(np.float32(threshold)) != threshold:  # which no attribute can say
        limit, zero = (op.Constant(value=ir.tensor(np.asarray(number, np.float64))) for number in (threshold, 0.0))
        return op.Where(op.LessOrEqual(self, limit), zero, grad)
    # PyTorch compares with the threshold in the dtype of the tensor.
    return aclnn.ThresholdBackward(grad, self, threshold=float(np.asarray(threshold).astype(self.dtype.numpy())))


TABLE: Table = {torch.ops.aten.threshold_backward.default: _backward}
