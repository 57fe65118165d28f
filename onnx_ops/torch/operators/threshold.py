"""The gradient of threshold and ReLU. A Where of standard operators runs on one thread, after a comparison."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from onnx_ops.torch.base.nodes import Value, aclnn, double, op
from onnx_ops.torch.base.table import translates


@translates(torch.ops.aten.threshold_backward.default)
def _backward(grad: Value, self: Value, threshold: float) -> Value:
    if self.dtype is ir.DataType.DOUBLE and float(np.float32(threshold)) != threshold:  # which no attribute can hold
        return op.Where(op.LessOrEqual(self, double(threshold)), double(0.0), grad)
    # PyTorch compares with the threshold in the dtype of the tensor.
    return aclnn.ThresholdBackward(grad, self, threshold=float(np.asarray(threshold).astype(self.dtype.numpy())))
