"""A training step in one line, for the repr of what holds it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx

from onnx_ops.core.step_format import InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.training.step import Step, numpy_dtype, tensor_text


def summary(model: onnx.ModelProto) -> str:
    """The number of parameters, the size of the state, and the inputs of the batch with dtypes and shapes."""
    step = Step.of(model)
    state = step.state(model)
    parameters = sum(_size(state[name]) for name in step.names(InputRole.PARAMETER))
    batch = ", ".join(f"{name} {tensor_text(tensor)}" for name, tensor in step.batch(model).items())
    return f"{parameters:,} parameters, state of {_bytes_text(state.values())}, batch inputs: {batch or 'none'}"


def _size(tensor: TensorType) -> int:
    """The number of elements of a tensor of the state, whose shape is fixed."""
    return math.prod(dim for dim in tensor.shape or () if isinstance(dim, int))


def _bytes_text(tensors: Iterable[TensorType]) -> str:
    """The memory of tensors: "52 bytes", "1.2 kB", "3.4 MB", "5.6 GB"."""
    size = sum(_size(tensor) * numpy_dtype(tensor).itemsize for tensor in tensors)
    if size < 1000:
        return f"{size} bytes"
    power = min(int(math.log10(size)) // 3, 3)
    return f"{size / 1000**power:,.1f} {('kB', 'MB', 'GB')[power - 1]}"
