"""What `link` adds to a model, and its removal."""

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
"""Metadata key for the version of onnx_ops that has linked a model."""

FOR_UNUSED = ("Constant", "Identity")
"""Operators that compute outputs which no node uses, in functions that `link` adds."""


def note_version(model: onnx.ModelProto) -> None:
    entry = next((e for e in model.metadata_props if e.key == LINKED_BY), None) or model.metadata_props.add()
    entry.key, entry.value = LINKED_BY, __version__


def linked_by(model: onnx.ModelProto) -> str | None:
    """The version that has linked a model; None if its metadata has none."""
    return next((entry.value for entry in model.metadata_props if entry.key == LINKED_BY), None)


def restore(model: onnx.ModelProto) -> bool:
    """Undo `link`, also on a model that other tools have changed since.

    Nodes of kernels, as inlining or an optimized model leaves them, and calls of added functions, possibly renamed with
    a prefix, become nodes of the domain again. The added functions are removed.

    Returns:
        Whether the model had any.

    Raises:
        LinkError: a function with the name of an op that `link` has not added.
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
    """The op for which `link` has added a function, possibly renamed with a prefix; None for any other function."""
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
    # The other nodes compute unused outputs.
    calls_kernel = op and function.name.endswith(op.name) and all(n.op_type in FOR_UNUSED for n in others)
    return op if calls_kernel else None


def kernel_op(name: str) -> Op | None:
    """The op whose kernel has this name, possibly after a prefix."""
    return next((op for op in OPS.values() if name.endswith(kernel_name(op.name))), None)
