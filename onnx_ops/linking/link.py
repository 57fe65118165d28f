"""Makes a model with ops of this domain self-contained.

A node of the domain stays as it is, but for outputs that it leaves out: all nodes of an op list as many, with "" for
those, as its functions declare. What `link` attaches is two model-local functions for each op that is used: the op
itself, whose body is one node with the name of its kernel, and a function of that very name in standard operators.
Where the kernel is registered, onnxruntime takes it; where it is not, the second function runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import onnx

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN, OPSET_VERSION
from onnx_ops.core.errors import LinkError
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.graph.edits import Insertions, Names
from onnx_ops.graph.imports import add_import, versions
from onnx_ops.graph.reading import load_model
from onnx_ops.linking.attached import note_version, restore
from onnx_ops.linking.checks import check_calls, check_imports, check_opset, used_ops
from onnx_ops.linking.functions import portable_function, public_function
from onnx_ops.linking.settling import (
    declare_outputs,
    fill_missing,
    mixtures,
    settle_dtypes,
    spell_out_where_uses_differ,
)
from onnx_ops.linking.sites import Site, find_calls, opset_of, sites

FUNCTIONS_SINCE_IR = 8


def link(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model that any session can run.

    Args:
        model: a ModelProto, its bytes, or a path; external data stays external.

    Returns:
        The model with, for each op of the domain that is used in its graph, a subgraph or a function, what the op needs
        to run attached, and the version of onnx_ops in its metadata. Everything else is as it was; a model that this
        version has linked comes back the same. What other tools have made of a linked model is linked anew: nodes of
        kernels, renamed functions.

    Raises:
        OSError: a file that cannot be read.
        OpError: a node that its op refuses, by inputs, attributes, dtypes or shapes as far as the model tells them.
        LinkError: what is no model; one whose default opset is too old, whose nodes no one portable body can serve, or
            whose functions cannot be called as they are.
    """
    linked, _ = link_with_calls(model)
    return linked


def link_with_calls(
    model: onnx.ModelProto | bytes | str | os.PathLike[str],
) -> tuple[onnx.ModelProto, list[tuple[Op, Call]]]:
    """As `link`, and how the linked model calls ops, as far as it tells."""
    linked = load_model(model)
    restore(linked)
    found = sites(linked)
    check_imports(linked)
    if not found:
        return linked, []
    find_calls(linked, found)
    check_calls(found)
    used = used_ops(found)
    insertions, names = Insertions(), Names.of(linked)
    for op in used:
        fill_missing(op, _of(op, found), insertions, names)
    opset = opset_of(linked)
    attached = []
    for op in used:
        check_opset(op, opset)
        own = _of(op, found)
        spell_out_where_uses_differ(op, own)
        body = _body(op, own)
        if body.misfits:
            settle_dtypes(op, own, body.misfits, insertions, names)
            body = _body(op, own)
        if misfit := body.misfit():
            several = [site.words for site in own if len(mixtures(op, site)) > 1]
            raise LinkError(f"{misfit}: {', '.join(filter(None, several))}" if several else misfit)
        declare_outputs(own, len(body.outputs))
        version = versions(linked).get(KERNEL_DOMAIN, 1)
        attached.extend([portable_function(op, body, opset), public_function(op, body, version, opset)])
    for site in found:  # a function that has been given a node in standard operators, or never imported the domain
        add_import(site.place.importer, DOMAIN, OPSET_VERSION)
        if insertions.has(site.place):
            add_import(site.place.importer, "", opset)
    insertions.apply(linked)
    # A function after those that it calls: ReferenceEvaluator looks no further than what came before.
    brought = list(linked.functions)
    del linked.functions[:]
    linked.functions.extend([*attached, *brought])
    for domain, version in ((DOMAIN, OPSET_VERSION), (KERNEL_DOMAIN, 1), ("", opset)):
        add_import(linked, domain, version)
    linked.ir_version = max(linked.ir_version, FUNCTIONS_SINCE_IR)
    note_version(linked)
    return linked, [(op, call) for op in used for site in _of(op, found) for call in site.calls]


def _of(op: Op, found: Iterable[Site]) -> list[Site]:
    return [site for site in found if site.node.op_type == op.name]


def _body(op: Op, own: Iterable[Site]) -> Body:
    """The body that serves all calls; one of which nothing is known if there is none, as in a function never called."""
    calls = {call.key: call for site in own for call in site.calls}
    wanted = {name for site in own for name, given in zip(op.output_names, site.node.output, strict=False) if given}
    unknown = op.call([TensorType()] * len(op.input_names), op.required_attributes)
    return Body(op, list(calls.values()) or [unknown], wanted)
