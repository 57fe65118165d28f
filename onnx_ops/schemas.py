"""Registers the schemas with onnx."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
from collections.abc import Iterator

import onnx
from onnx import helper
from onnx.shape_inference import InferenceContext

from onnx_ops.errors import OpError
from onnx_ops.linking import tensor_type
from onnx_ops.op import Op
from onnx_ops.ops import OPS
from onnx_ops.signature import TensorType, is_optional

_lenient = contextvars.ContextVar("lenient", default=False)


@contextlib.contextmanager
def lenient_inference() -> Iterator[None]:
    """Shape inference goes past a node that its op refuses, of whose output it then knows nothing."""
    token = _lenient.set(True)
    try:
        yield
    finally:
        _lenient.reset(token)


def _inference(op: Op, context: InferenceContext) -> None:
    # An attribute of a wrong type meets a rule that cannot read it.
    with contextlib.suppress(TypeError, ValueError) if _lenient.get() else contextlib.nullcontext():
        _infer(op, context)


def _infer(op: Op, context: InferenceContext) -> None:
    inputs: list[TensorType | None] = []
    for index, parameter in zip(range(context.get_num_inputs()), op.schema.inputs, strict=False):
        proto = context.get_input_type(index)
        # onnx does not tell an input that was left out from one of which nothing is known.
        unknown = None if is_optional(parameter) else TensorType()
        inputs.append(tensor_type(proto) if proto is not None else unknown)
    attributes = {}
    for name in op.schema.attributes:
        attribute = context.get_attribute(name)
        if attribute is not None and attribute.ref_attr_name:
            raise OpError(op.name, f"attribute '{name}' is '@{attribute.ref_attr_name}', expected a value in a graph")
        if attribute is not None:
            attributes[name] = helper.get_attribute_value(attribute)
    output = op.kernel.infer(op.call(inputs, attributes))
    if output.dtype is not None and context.get_num_outputs():
        context.set_output_type(0, helper.make_tensor_type_proto(output.dtype, output.shape))


def register_schemas() -> None:
    """Make the ops known to onnx.defs, and so to its checker and its shape inference."""
    for op in OPS.values():
        if not onnx.defs.has(op.name, op.schema.domain):
            op.schema.set_type_and_shape_inference_function(functools.partial(_inference, op))
            onnx.defs.register_schema(op.schema)
    # Before onnx 1.23 the process crashes or hangs at exit if onnx still holds a Python function by then.
    atexit.register(_deregister_schemas)


def _deregister_schemas() -> None:
    for op in OPS.values():
        if onnx.defs.has(op.name, op.schema.domain):
            onnx.defs.deregister_schema(op.name, op.schema.since_version, op.schema.domain)
