"""PyTorch models as training steps in ONNX; needs torch and onnxscript, the extra `onnx-ops[torch]`."""

from onnx_ops.torch.capture import Capture, gradients, training_step
from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.exchange import from_torch, to_torch
from onnx_ops.torch.table import translation_table
from onnx_ops.torch.whole.substitution import whole_ops

__all__ = [
    "Capture",
    "CaptureError",
    "from_torch",
    "gradients",
    "to_torch",
    "training_step",
    "translation_table",
    "whole_ops",
]
