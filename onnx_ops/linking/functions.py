"""The two functions that `link` adds for an op: the op itself, which calls its kernel, and its function body."""

from __future__ import annotations

from onnx import AttributeProto, FunctionProto, helper

from onnx_ops.bodies.body import NOTHING, Body
from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN, OMITTED
from onnx_ops.core.op import Op
from onnx_ops.core.schema import attribute_kind
from onnx_ops.core.version import __version__
from onnx_ops.graph.builder import Builder, Reference

ATTACHED_BY = "Attached by onnx_ops "
"""In the doc_string of all functions that `link` adds, followed by the version."""


def body_function(op: Op, body: Body, opset: int) -> FunctionProto:
    """The function body, named after the op's kernel; `opset`: version of the default domain."""
    part = "The op in standard operators, run where its kernel is not registered."
    imports = [helper.make_opsetid("", opset)]
    return body.function(KERNEL_DOMAIN, op.kernel_name, imports, _attributes(op), _documentation(op, part))


def op_function(op: Op, body: Body, version: int, opset: int) -> FunctionProto:
    """The op as a function that calls its kernel.

    Args:
        op: the op.
        body: its function body, which declares the same outputs.
        version: imported version of the domain of kernels.
        opset: imported version of the default domain.
    """
    b = Builder()
    outputs = b.several(
        op.kernel_name,
        *map(b.input, op.input_names),
        names=[name if body.wants(name) else "" for name in body.outputs],
        domain=KERNEL_DOMAIN,
        **{name: Reference(name, attribute_kind(attribute)) for name, attribute in op.attributes.items()},
    )
    imports = [helper.make_opsetid(KERNEL_DOMAIN, version)]
    for name, value in zip(body.outputs, outputs, strict=True):
        formal = f"{OMITTED}{name}" if op.outputs[op.output_names.index(name)].optional else name
        b.output(formal, value if body.wants(name) else NOTHING)
    if not all(map(body.wants, body.outputs)):
        imports.append(helper.make_opsetid("", opset))
    part = "It calls the kernel of the op where it is registered, else the function of that name."
    return b.function(DOMAIN, op.name, imports, _attributes(op), _documentation(op, part))


def _attributes(op: Op) -> list[AttributeProto | str]:
    """Defaults of attributes, names of required ones."""
    return [name if attribute.required else attribute.default_value for name, attribute in op.attributes.items()]


def _documentation(op: Op, part: str) -> str:
    summary = str(op.schema.doc).strip().split("\n\n")[0]
    return f"{DOMAIN}.{op.name}: {' '.join(summary.split())} {part} {ATTACHED_BY}{__version__}."
