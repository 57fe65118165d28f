"""What `link` adds to a model, and its removal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import onnx

from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN, OPSET_VERSION, KernelName
from onnx_ops.core.errors import LinkError
from onnx_ops.core.version import __version__
from onnx_ops.graph.functions import Key, called_key, function_key
from onnx_ops.graph.imports import add_import
from onnx_ops.graph.metadata import metadata_of, set_metadata
from onnx_ops.graph.types import without_data
from onnx_ops.graph.walk import function_text, placed_nodes
from onnx_ops.linking.functions import ATTACHED_BY
from onnx_ops.linking.sites import domain_version
from onnx_ops.ops import ALL_VERSIONS, OPS

LINKED_BY = "onnx_ops.version"
"""Metadata key for the version of onnx_ops that has linked a model."""

LINKED_DIGEST = "onnx_ops.digest"
"""Metadata key for a digest of what that version has linked."""

FOR_UNUSED = ("Constant", "Identity")
"""Operators that compute outputs which no node uses, in functions that `link` adds."""

KERNELS = frozenset(op.kernel_name for op in ALL_VERSIONS)


def note_linked(model: onnx.ModelProto) -> None:
    """Record in the metadata of a model that this version of onnx_ops has linked it as it is."""
    set_metadata(model, LINKED_BY, __version__)
    set_metadata(model, LINKED_DIGEST, _digest(model))


def linked_by(model: onnx.ModelProto) -> str | None:
    """The version that has linked a model; None if its metadata has none."""
    return metadata_of(model, LINKED_BY)


def linked_digest(model: onnx.ModelProto) -> str | None:
    """The digest of a model that `link` leaves as it is; None for any other.

    Such a model was linked by this version, and nothing has changed since but the contents of initializers.
    """
    digest = metadata_of(model, LINKED_DIGEST)
    if digest is None or linked_by(model) != __version__ or domain_version(model) > OPSET_VERSION:
        return None
    return digest if digest == _digest(model) else None


def _digest(model: onnx.ModelProto) -> str:
    """A digest of a model without the contents of initializers, and without those of inputs, whose types are known."""
    light = without_data(model, lambda tensor: True)
    inputs = {value.name for value in light.graph.input}
    own = [tensor for tensor in light.graph.initializer if tensor.name not in inputs]
    del light.graph.initializer[:]
    light.graph.initializer.extend(own)
    return hashlib.blake2b(light.SerializeToString(deterministic=True), digest_size=16).hexdigest()


def restore(model: onnx.ModelProto) -> bool:
    """Undo `link`, also on a model that other tools have changed since.

    Nodes of kernels, as inlining or an optimized model leaves them, and calls of added functions, possibly renamed with
    a prefix, become nodes of the domain again. The added functions are removed.

    Returns:
        Whether the model had any.

    Raises:
        LinkError: a function with the name of an op that `link` has not added; kernels of another version of an op than
            the imported version of the domain has.
    """
    attached = {function_key(f): name for f in model.functions if (name := _attached(f))}
    kept = [f for f in model.functions if function_key(f) not in attached]
    brought = {function_key(f) for f in kept}
    for name in OPS:
        if (key := (DOMAIN, name, "")) in brought:
            raise LinkError(f"the model brings a function {function_text(*key)} of its own, which is the name of an op")
    kernels: set[KernelName] = set()
    for _, node in placed_nodes(model):
        if called_key(node) not in brought:
            kernel = KernelName.parsed(node.op_type) if node.domain == KERNEL_DOMAIN else None
            kernels |= {kernel} if kernel else set()
            _restore_node(node, attached, kernel)
    if attached:
        del model.functions[:]
        model.functions.extend(kept)
    if kernels:
        add_import(model, DOMAIN, max(kernel.version for kernel in kernels))
        _check_versions(domain_version(model), kernels)
    return bool(attached)


def called_kernels(model: onnx.ModelProto) -> set[str] | None:
    """The names of the kernels that a linked model calls.

    None if it calls other ops of onnxruntime-extensions, whose domain the kernels have.
    """
    called = {node.op_type for _, node in placed_nodes(model) if node.domain == KERNEL_DOMAIN}
    others = called - KERNELS - {f.name for f in model.functions if f.domain == KERNEL_DOMAIN}
    return None if others else called & KERNELS


def _restore_node(node: onnx.NodeProto, attached: Mapping[Key, str], kernel: KernelName | None) -> None:
    if name := attached.get(called_key(node)):
        node.domain, node.op_type = DOMAIN, name
    elif kernel and not kernel.prefix:
        node.domain, node.op_type = DOMAIN, kernel.op_type
    if node.domain == DOMAIN and node.op_type in OPS:
        node.ClearField("overload")  # the ops have none


def _check_versions(imported: int, kernels: Iterable[KernelName]) -> None:
    """Raise LinkError for a kernel of another version of an op than that which the imported version of the domain has.

    Those that this version of onnx_ops does not have are refused by other checks.
    """
    for kernel in sorted(kernels):
        versions = [op.version for op in ALL_VERSIONS if op.name == kernel.op_type]
        meant = max((version for version in versions if version <= imported), default=None)
        if kernel.version in versions and kernel.version != meant:
            raise LinkError(
                f"the model calls the kernel of version {kernel.version} of {kernel.op_type} and imports version"
                f" {imported} of domain {DOMAIN}, expected the import that it was linked with"
            )


def _attached(function: onnx.FunctionProto) -> str | None:
    """The op for which `link` has added a function, possibly renamed with a prefix; None for any other function."""
    if function.overload:
        return None
    if function.domain == KERNEL_DOMAIN:
        kernel = KernelName.parsed(function.name)
        if kernel is None or kernel.op_type not in OPS:
            return None
        inputs = [list(op.input_names) for op in ALL_VERSIONS if op.name == kernel.op_type]
        return kernel.op_type if not kernel.prefix or list(function.input) in inputs else None
    if function.domain != DOMAIN:
        return None
    if ATTACHED_BY in function.doc_string:
        return next((name for name in OPS if function.name.endswith(name)), None)
    first, *others = function.node or [onnx.NodeProto()]
    op_type = op_of_kernel(first)
    # The other nodes compute unused outputs.
    calls_kernel = op_type and function.name.endswith(op_type) and all(n.op_type in FOR_UNUSED for n in others)
    return op_type if calls_kernel else None


def op_of_kernel(node: onnx.NodeProto) -> str | None:
    """The op whose kernel, possibly renamed with a prefix, a node calls; None if it calls none."""
    kernel = KernelName.parsed(node.op_type) if node.domain == KERNEL_DOMAIN else None
    return kernel.op_type if kernel and kernel.op_type in OPS else None
