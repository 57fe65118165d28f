"""Losses, layers and their gradients as an ONNX custom-op domain, with kernels for onnxruntime."""

from onnx_ops.arrays.execution import run
from onnx_ops.core.domain import DOMAIN, OPSET_VERSION, opset_import
from onnx_ops.core.errors import Error, KernelsUnavailableError, LinkError, OpError, Status
from onnx_ops.core.headers import include_directory
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.step_format import InputRole
from onnx_ops.core.version import __version__ as __version__
from onnx_ops.fitting.evaluation import evaluate
from onnx_ops.fitting.fit import fit
from onnx_ops.fitting.run import Epoch
from onnx_ops.fitting.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    Schedule,
    SequentialLR,
)
from onnx_ops.graph.files import ModelFileError
from onnx_ops.integrations.nodes import make_node
from onnx_ops.integrations.reference import reference_ops
from onnx_ops.integrations.sessions import InferenceSession, register_kernels, session_options
from onnx_ops.linking.inlining import inline
from onnx_ops.linking.link import link
from onnx_ops.ops.info import op_infos
from onnx_ops.ops.schemas import register_schemas
from onnx_ops.training.errors import StateLostError, StepError, WorkerError
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model
from onnx_ops.training.trainer import Trainer
from onnx_ops.training.trainer_step import TrainerStep

__all__ = [
    "DOMAIN",
    "OPS",
    "OPSET_VERSION",
    "ConstantLR",
    "CosineAnnealingLR",
    "Epoch",
    "Error",
    "InferenceSession",
    "InputRole",
    "KernelsUnavailableError",
    "LinearLR",
    "LinkError",
    "ModelFileError",
    "OneCycleLR",
    "OpError",
    "ReduceLROnPlateau",
    "Reduction",
    "Schedule",
    "SequentialLR",
    "StateLostError",
    "Status",
    "Step",
    "StepError",
    "Trainer",
    "TrainerStep",
    "WorkerError",
    "evaluate",
    "fit",
    "include_directory",
    "inline",
    "link",
    "make_node",
    "opset_import",
    "reference_ops",
    "register_kernels",
    "run",
    "session_options",
    "step_model",
]

OPS = op_infos()
"""The ops by name: schema, documentation and definition in NumPy of each."""

register_schemas()
