"""Registers the schemas with onnx."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
from collections.abc import Iterator

import onnx
from onnx import TypeProto, helper
from onnx.shape_inference import InferenceContext
from packaging.version import Version

from onnx_ops.core.errors import at_node, node_label
from onnx_ops.core.op import Op
from onnx_ops.ops import ALL_VERSIONS

HAS_OUTPUT_RELIABLE = Version(onnx.__version__) >= Version("1.23")
"""Before onnx 1.23, has_output is true for omitted outputs."""

_lenient = contextvars.ContextVar("lenient", default=False)


@contextlib.contextmanager
def lenient_inference() -> Iterator[None]:
    """Shape inference skips nodes that their op rejects, leaving their outputs unknown."""
    token = _lenient.set(True)
    try:
        yield
    finally:
        _lenient.reset(token)


def _inference(op: Op, context: InferenceContext) -> None:
    # The rule of an op may fail to read an attribute of a wrong type.
    with contextlib.suppress(TypeError, ValueError) if _lenient.get() else contextlib.nullcontext():
        _infer(op, context)


def _infer(op: Op, context: InferenceContext) -> None:
    with at_node(_node(context)):
        types: list[TypeProto | None] = []
        required = {index for index, parameter in enumerate(op.inputs) if not parameter.optional}
        for index in range(context.get_num_inputs()):
            # Before onnx 1.23, has_input is false for an input of unknown type, too.
            is_there = index in required or context.has_input(index)
            types.append(context.get_input_type(index) or TypeProto() if is_there else None)
        attributes = [a for name in op.attributes if (a := context.get_attribute(name)) is not None]
        op.check_attributes(attributes)
        wanted = [_is_wanted(op, context, index) for index in range(context.get_num_outputs())]
        outputs = op.infer(op.call_of(types, attributes, wanted))
    for index, output in zip(range(context.get_num_outputs()), outputs, strict=False):
        if output.dtype is not None:
            context.set_output_type(index, helper.make_tensor_type_proto(output.dtype, output.shape))


def _is_wanted(op: Op, context: InferenceContext, index: int) -> bool:
    """Whether a node has an output; before onnx 1.23, optional outputs are assumed to be omitted."""
    known = HAS_OUTPUT_RELIABLE or not (index < len(op.output_names) and op.outputs[index].optional)
    return known and bool(context.has_output(index))


def _node(context: InferenceContext) -> str | None:
    """Description of the node from its display name, "node Op[domain] (name)"."""
    _, bracket, name = str(context.get_display_name()).partition(" (")
    return node_label(name.removesuffix(")")) if bracket else None


def register_schemas() -> None:
    """Register the ops with onnx.defs, for its checker and its shape inference."""
    for op in ALL_VERSIONS:
        if not _is_registered(op):
            op.schema.set_type_and_shape_inference_function(functools.partial(_inference, op))
            onnx.defs.register_schema(op.schema)
    # Before onnx 1.23 the process crashes or hangs at exit if onnx still holds a Python function.
    atexit.register(_deregister_schemas)


def _is_registered(op: Op) -> bool:
    domain, version = op.schema.domain, op.version
    has = onnx.defs.has(op.name, version, domain)
    return has and onnx.defs.get_schema(op.name, version, domain).since_version == version


def _deregister_schemas() -> None:
    for op in ALL_VERSIONS:
        if _is_registered(op):
            onnx.defs.deregister_schema(op.name, op.schema.since_version, op.schema.domain)
