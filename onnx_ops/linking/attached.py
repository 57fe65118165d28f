"""What `link` attaches to a model, and a model made what it was before."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN, kernel_name
from onnx_ops.core.errors import LinkError
from onnx_ops.core.op import Op
from onnx_ops.core.version import __version__
from onnx_ops.graph.functions import Key, called_key, function_key
from onnx_ops.graph.walk import function_text, placed_nodes
from onnx_ops.linking.functions import ATTACHED_BY
from onnx_ops.ops import OPS

LINKED_BY = "onnx_ops.version"
"""The key of a linked model's metadata under which stands the version that has linked it."""

FOR_UNWANTED = ("Constant", "Identity")
"""The operators by which a function makes outputs that no node wants."""


def note_version(model: onnx.ModelProto) -> None:
    entry = next((e for e in model.metadata_props if e.key == LINKED_BY), None) or model.metadata_props.add()
    entry.key, entry.value = LINKED_BY, __version__


def linked_by(model: onnx.ModelProto) -> str | None:
    """The version that has linked a model, if its metadata tells."""
    return next((entry.value for entry in model.metadata_props if entry.key == LINKED_BY), None)


def restore(model: onnx.ModelProto) -> bool:
    """Make a linked model what it was before, also if other tools have changed it since.

    Nodes that use an op by other names become nodes of the domain: those of a kernel, as an inliner or an optimised
    model leaves them, and calls of attached functions that have got a prefix. Attached functions go.

    Returns:
        Whether anything was attached.

    Raises:
        LinkError: a function of the model has the name of an op, but is none that `link` attaches.
    """
    attached = {function_key(f): op for f in model.functions if (op := _attached(f))}
    kept = [f for f in model.functions if function_key(f) not in attached]
    brought = {function_key(f) for f in kept}
    for op in OPS.values():
        if (key := (DOMAIN, op.name, "")) in brought:
            raise LinkError(f"the model brings a function {function_text(*key)} of its own, which is the name of an op")
    for _, node in placed_nodes(model):
        if called_key(node) not in brought:
            _restore_node(node, attached)
    if attached:
        del model.functions[:]
        model.functions.extend(kept)
    return bool(attached)


def _restore_node(node: onnx.NodeProto, attached: Mapping[Key, Op]) -> None:
    if op := attached.get(called_key(node)):
        node.domain, node.op_type = DOMAIN, op.name
    elif node.domain == KERNEL_DOMAIN and node.op_type.startswith(kernel_name("")):
        node.domain, node.op_type = DOMAIN, node.op_type.removeprefix(kernel_name(""))
    if node.domain == DOMAIN and node.op_type in OPS:
        node.ClearField("overload")  # the ops have none


def _attached(function: onnx.FunctionProto) -> Op | None:
    """The op that `link` has attached a function for, under its own name or with a prefix."""
    if function.overload:
        return None
    if function.domain == KERNEL_DOMAIN:
        op = kernel_op(function.name)
        same = op and (function.name == kernel_name(op.name) or list(function.input) == list(op.input_names))
        return op if same else None
    if function.domain != DOMAIN:
        return None
    if ATTACHED_BY in function.doc_string:
        return next((op for op in OPS.values() if function.name.endswith(op.name)), None)
    first, *others = function.node or [onnx.NodeProto()]
    op = kernel_op(first.op_type) if first.domain == KERNEL_DOMAIN else None
    # The others stand for outputs that nothing wants.
    calls_kernel = op and function.name.endswith(op.name) and all(n.op_type in FOR_UNWANTED for n in others)
    return op if calls_kernel else None


def kernel_op(name: str) -> Op | None:
    """The op whose kernel has this name, or this name behind a prefix."""
    return next((op for op in OPS.values() if name.endswith(kernel_name(op.name))), None)
