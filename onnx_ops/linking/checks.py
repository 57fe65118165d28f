"""Checks of `link`."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.errors import LinkError, at_node
from onnx_ops.core.op import Op
from onnx_ops.graph.functions import function_key
from onnx_ops.graph.walk import function_text
from onnx_ops.linking.sites import Site, domain_version
from onnx_ops.ops import OPS, op_named


def used_ops(found: Iterable[Site]) -> list[Op]:
    """The ops of the sites, in the order of OPS."""
    present = {site.node.op_type: site.version for site in found}
    return [op_named(name, present[name]) for name in OPS if name in present]


def check_imports(model: onnx.ModelProto) -> None:
    """Raise LinkError if a model, or a function of it, imports a version of the domain that is not supported.

    All import one version: onnxruntime resolves a node by the version that the model imports.
    """
    wanted = domain_version(model)
    importers = [("the model", model), *((f"function {function_text(*function_key(f))}", f) for f in model.functions)]
    for text, importer in importers:
        for entry in importer.opset_import:
            if entry.domain != DOMAIN:
                continue
            imported = f"{text} imports version {entry.version} of domain {DOMAIN}"
            if entry.version > OPSET_VERSION:
                raise LinkError(f"{imported}, expected at most {OPSET_VERSION}: update onnx_ops")
            if entry.version < 1 or entry.version != wanted:
                raise LinkError(f"{imported}, expected {max(wanted, 1)}")


def check_opset(op: Op, opset: int) -> None:
    """Raise LinkError for a default opset that lacks operators of an op's function body."""
    if opset < op.body_opset:
        raise LinkError(
            f"the model imports opset {opset} of the default domain, {op.name} needs {op.body_opset} or newer"
        )


def check_calls(found: Iterable[Site]) -> None:
    """Raise the first error of a node or a call."""
    accepted = set()
    for site in found:
        op = site.op()
        for refusal in site.refusals:
            raise refusal
        for call in site.calls:
            if call.key not in accepted:
                with at_node(site.label):
                    op.infer(call)
                accepted.add(call.key)
