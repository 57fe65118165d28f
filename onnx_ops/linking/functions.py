"""The two functions that `link` attaches for an op: the op itself, which calls its kernel, and its portable body."""

from __future__ import annotations

from onnx import AttributeProto, FunctionProto, helper

from onnx_ops.bodies.body import NOTHING, Body
from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN, kernel_name
from onnx_ops.core.op import Op
from onnx_ops.core.schema import attribute_kind
from onnx_ops.core.version import __version__
from onnx_ops.graph.builder import Builder, Reference

ATTACHED_BY = "Attached by onnx_ops "
"""Stands, with the version, in the documentation of all functions that `link` attaches."""


def portable_function(op: Op, body: Body, opset: int) -> FunctionProto:
    """A body as a function under the name of the op's kernel; `opset` is the version of the default domain."""
    part = "This is what runs where the op's kernel is not registered: the op in standard operators."
    imports = [helper.make_opsetid("", opset)]
    return body.function(KERNEL_DOMAIN, kernel_name(op.name), imports, _attributes(op), _documentation(op, part))


def public_function(op: Op, body: Body, version: int, opset: int) -> FunctionProto:
    """The op as a function whose body is its kernel.

    Args:
        op: any.
        body: its portable body; both functions declare the same outputs.
        version: of the domain of the kernels, that the model imports.
        opset: of the default domain.
    """
    b = Builder()
    outputs = b.several(
        kernel_name(op.name),
        *map(b.input, op.input_names),
        names=[name if body.wants(name) else "" for name in body.outputs],
        domain=KERNEL_DOMAIN,
        **{name: Reference(name, attribute_kind(attribute)) for name, attribute in op.schema.attributes.items()},
    )
    imports = [helper.make_opsetid(KERNEL_DOMAIN, version)]
    for name, value in zip(body.outputs, outputs, strict=True):
        b.output(name, value if body.wants(name) else NOTHING)
    if not all(map(body.wants, body.outputs)):
        imports.append(helper.make_opsetid("", opset))
    part = "It calls the kernel of the op where one is registered, else the function of that name."
    return b.function(DOMAIN, op.name, imports, _attributes(op), _documentation(op, part))


def _attributes(op: Op) -> list[AttributeProto | str]:
    """The defaults, and the names of the attributes that have none."""
    return [name if attribute.required else attribute.default_value for name, attribute in op.schema.attributes.items()]


def _documentation(op: Op, part: str) -> str:
    summary = str(op.schema.doc).strip().split("\n\n")[0]
    return f"{DOMAIN}.{op.name}: {' '.join(summary.split())} {part} {ATTACHED_BY}{__version__}."
