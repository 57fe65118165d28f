"""Captures PyTorch models as training steps in ONNX; needs torch and onnxscript, the extra `onnx-ops[torch]`."""

import importlib

for _package in ("torch", "onnxscript"):
    try:
        importlib.import_module(_package)
    except ImportError as error:
        raise ImportError(
            f"onnx_ops.torch needs {_package}, which cannot be imported. Install what it needs with:"
            " pip install 'onnx-ops[torch]'"
        ) from error

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.capture import Capture, gradients, training_step
from onnx_ops.torch.exchange import load_into_torch, state_from_torch
from onnx_ops.torch.lowering.translation import translation_table
from onnx_ops.torch.migration import migrate
from onnx_ops.torch.optimizers.master_weights import MasterWeights
from onnx_ops.torch.optimizers.rules import register_optimizer
from onnx_ops.torch.tracing.substitution import whole_ops

__all__ = [
    "Capture",
    "CaptureError",
    "MasterWeights",
    "gradients",
    "load_into_torch",
    "migrate",
    "register_optimizer",
    "state_from_torch",
    "training_step",
    "translation_table",
    "whole_ops",
]
