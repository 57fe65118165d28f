"""Gradient ops as an ONNX custom-op domain, with kernels for onnxruntime."""

from onnx_ops.domain import DOMAIN, OPSET_VERSION, opset_import
from onnx_ops.errors import KernelsUnavailable, LinkError, OpError, Status
from onnx_ops.linking import inline, link
from onnx_ops.nodes import make_node
from onnx_ops.ops import OPS
from onnx_ops.reference import reference_ops
from onnx_ops.roles import Reduction
from onnx_ops.schemas import register_schemas
from onnx_ops.sessions import InferenceSession, session_options
from onnx_ops.version import __version__ as __version__

__all__ = [
    "DOMAIN",
    "OPS",
    "OPSET_VERSION",
    "InferenceSession",
    "KernelsUnavailable",
    "LinkError",
    "OpError",
    "Reduction",
    "Status",
    "inline",
    "link",
    "make_node",
    "opset_import",
    "reference_ops",
    "session_options",
]

register_schemas()
