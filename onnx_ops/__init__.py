"""Losses, layers and their gradients as an ONNX custom-op domain, with kernels for onnxruntime."""

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION, opset_import
from onnx_ops.core.errors import KernelsUnavailable, LinkError, OpError, Status
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.version import __version__ as __version__
from onnx_ops.integrations.nodes import make_node
from onnx_ops.integrations.reference import reference_ops
from onnx_ops.integrations.sessions import InferenceSession, session_options
from onnx_ops.linking.inlining import inline
from onnx_ops.linking.link import link
from onnx_ops.ops import OPS
from onnx_ops.ops.schemas import register_schemas
from onnx_ops.training.step import StepError
from onnx_ops.training.trainer import Trainer
from onnx_ops.training.workers import WorkerError

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
    "StepError",
    "Trainer",
    "WorkerError",
    "inline",
    "link",
    "make_node",
    "opset_import",
    "reference_ops",
    "session_options",
]

register_schemas()
