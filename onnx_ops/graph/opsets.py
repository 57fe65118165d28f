"""Converts models to another version of the default domain."""

from __future__ import annotations

import onnx
from onnx import checker, version_converter

from onnx_ops.core.errors import LinkError
from onnx_ops.graph.imports import versions
from onnx_ops.graph.walk import tensors


def with_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """A copy of a model that imports a version of the default domain, by onnx's converter; the model if it does so.

    Raises:
        LinkError: a model that the converter refuses or makes invalid, that has functions of its own, or external data.
    """
    own = versions(model).get("", opset)
    if own == opset:
        return model
    problem = f"the model cannot be converted from opset {own} to {opset}"
    if model.functions:
        raise LinkError(f"{problem}: it has functions, expected none; onnx.inliner replaces them")
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors(model)):
        raise LinkError(f"{problem}: it has external data, expected all data in the model")
    try:
        result = version_converter.convert_version(model, opset)
        checker.check_model(result)
    except (RuntimeError, ValueError, checker.ValidationError) as error:
        raise LinkError(f"{problem}: {error}") from error
    return result
