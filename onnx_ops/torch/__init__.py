"""PyTorch models as training steps in ONNX; needs torch and onnxscript, the extra `onnx-ops[torch]`."""

from onnx_ops.torch.capture import Capture, gradients, training_step
from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.table import translation_table
from onnx_ops.torch.whole.substitution import whole_ops

__all__ = ["Capture", "CaptureError", "gradients", "training_step", "translation_table", "whole_ops"]
