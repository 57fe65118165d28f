"""The identity of the op domain."""

import onnx
from onnx import helper

DOMAIN = "aclnn"
OPSET_VERSION = 1

KERNEL_DOMAIN = "ai.onnx.contrib"
"""Where onnxruntime-extensions puts the kernels it hosts."""


def kernel_name(op_type: str) -> str:
    """Name of an op's kernel, and of its function body, in `KERNEL_DOMAIN`."""
    return f"{DOMAIN}_{op_type}"


def opset_import() -> onnx.OperatorSetIdProto:
    """What a model with ops of this domain lists in its opset_import."""
    return helper.make_opsetid(DOMAIN, OPSET_VERSION)
