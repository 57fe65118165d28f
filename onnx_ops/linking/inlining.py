"""Converts a model with ops of this domain to standard operators."""

from __future__ import annotations

import os

import onnx

from onnx_ops.core.step_format import CARRIED_DOMAIN
from onnx_ops.graph.functions import (
    add_function_imports,
    check_calls,
    inlined,
    inlined_function,
    spell_out_defaults,
)
from onnx_ops.graph.imports import add_import, normalized
from onnx_ops.graph.metadata import remove_metadata
from onnx_ops.graph.reading import load_model
from onnx_ops.graph.types import skeleton
from onnx_ops.graph.walk import containers
from onnx_ops.linking.attached import LINKED_DIGEST, restore
from onnx_ops.linking.link import link_in_place
from onnx_ops.linking.sites import check_size, opset_of


def inline(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model in standard operators only, for runtimes without the domain or without functions.

    Args:
        model: as for `link`.

    Returns:
        The linked model with all its functions inlined; it runs the function bodies even where kernels are registered.
        The inference graph of a training step, a function that no node calls, stays, with its callees inlined.

    Raises:
        OpError, LinkError: as `link`; LinkError also for a function that imports another version of a domain than the
            model, except the default domain.
    """
    plain = load_model(model)
    restore(plain)
    check_calls(plain)
    check_size(plain)
    link_in_place(plain)
    remove_metadata(plain, LINKED_DIGEST)
    light = skeleton(plain)
    add_import(light, "", opset_of(light))
    add_function_imports(light)
    spell_out_defaults(light)
    graph = inlined(light).graph
    del graph.initializer[:]
    graph.initializer.extend(plain.graph.initializer)
    plain.graph.CopyFrom(graph)
    del plain.functions[:]
    plain.functions.extend(inlined_function(light, f) for f in light.functions if f.domain == CARRIED_DOMAIN)
    inner = [node for container in containers(plain) for node in container.node]
    for named in (*inner, *plain.opset_import):
        named.domain = normalized(named.domain)
    used = {"", *(named.domain for named in (*inner, *plain.functions))}
    for entry in light.opset_import:  # including those of functions
        add_import(plain, entry.domain, entry.version)
    for entry in [entry for entry in plain.opset_import if entry.domain not in used]:
        plain.opset_import.remove(entry)
    return plain
