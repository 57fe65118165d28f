"""Makes a model with ops of this domain self-contained.

`link` adds two model-local functions for each op in use: the op itself, with a body of one node that has the name of
its kernel, and a function of that name in standard operators. onnxruntime runs the kernel where it is registered, else
the second function. Nodes of the domain stay, but list all declared outputs of the functions, "" for omitted ones.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from onnx_ops.bodies.body import Body
from onnx_ops.core.call import Call
from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN
from onnx_ops.core.errors import LinkError
from onnx_ops.core.op import Op
from onnx_ops.core.types import TensorType
from onnx_ops.graph.edits import Insertions, Names
from onnx_ops.graph.imports import add_import, versions
from onnx_ops.graph.reading import load_model
from onnx_ops.linking.attached import linked_digest, note_linked, restore
from onnx_ops.linking.checks import check_calls, check_imports, check_opset, used_ops
from onnx_ops.linking.functions import body_function, op_function
from onnx_ops.linking.rewrites import (
    combinations,
    declare_outputs,
    materialize_omitted,
    resolve_dtypes,
    spell_out_attributes,
)
from onnx_ops.linking.sites import Site, domain_version, find_calls, opset_of, sites

FUNCTIONS_SINCE_IR = 8


def link(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of a model that any session can run.

    Args:
        model: a ModelProto, its bytes, or a path; external data stays external.

    Returns:
        The model with two functions for each op of the domain that its graph, subgraphs or functions use; its metadata
        have the version of onnx_ops and a digest. The rest is unchanged, as is a model that this version has linked. A
        linked model that other tools have changed, by inlining functions or renaming them, is linked again.

    Raises:
        OSError: a file that cannot be read.
        OpError: a node that its op rejects by inputs, attributes, dtypes or shapes, as far as the model has them.
        LinkError: not a model; a default opset that is too old; nodes that one function body cannot serve; or functions
            that cannot be called.
    """
    linked = load_model(model)
    if not linked_digest(linked):
        link_in_place(linked)
    return linked


def link_in_place(linked: onnx.ModelProto) -> list[tuple[Op, Call]]:
    """Link a model, or link it again, in place.

    Returns:
        The calls of its ops, as far as their types are known.

    Raises:
        OpError, LinkError: as `link`; the model may be changed in part.
    """
    restore(linked)
    found = sites(linked)
    check_imports(linked)
    if not found:
        return []
    find_calls(linked, found)
    check_calls(found)
    used = used_ops(found)
    insertions, names = Insertions(), Names.of(linked)
    for op in used:
        materialize_omitted(op, _of(op, found), insertions, names)
    opset, imported = opset_of(linked), domain_version(linked)
    attached: list[onnx.FunctionProto] = []
    for op in used:
        check_opset(op, opset)
        own = _of(op, found)
        spell_out_attributes(op, own)
        version = versions(linked).get(KERNEL_DOMAIN, 1)
        made = _attached(_Uses.of(op, own), version, opset)
        if made.misfits:
            resolve_dtypes(op, own, made.misfits, insertions, names)
            made = _attached(_Uses.of(op, own), version, opset)
        if made.misfit:
            several = [site.label for site in own if len(combinations(op, site)) > 1]
            raise LinkError(f"{made.misfit}: {', '.join(filter(None, several))}" if several else made.misfit)
        declare_outputs(own, made.outputs)
        attached.extend(made.functions)
    for site in found:  # a function with inserted nodes, or one that never imported the domain
        add_import(site.place.importer, DOMAIN, imported)
        if insertions.has(site.place):
            add_import(site.place.importer, "", opset)
    insertions.apply(linked)
    # Callees first: ReferenceEvaluator resolves only functions that precede the caller.
    brought = list(linked.functions)
    del linked.functions[:]
    linked.functions.extend([*attached, *brought])
    for domain, version in ((DOMAIN, imported), (KERNEL_DOMAIN, 1), ("", opset)):
        add_import(linked, domain, version)
    linked.ir_version = max(linked.ir_version, FUNCTIONS_SINCE_IR)
    note_linked(linked)
    return [(op, call) for op in used for site in _of(op, found) for call in site.calls]


def _of(op: Op, found: Iterable[Site]) -> list[Site]:
    return [site for site in found if site.node.op_type == op.name]


@dataclass(frozen=True)
class _Uses:
    """The uses of an op in a model, from which its functions follow.

    Attributes:
        op: the op.
        calls: all calls; a call of unknown types if there is none, as in a function that is never called.
        wanted: the outputs that a node has.
        key: equal for uses with equal functions, besides the name of the kernel.
    """

    op: Op = field(compare=False)
    calls: Sequence[Call] = field(compare=False)
    wanted: frozenset[str]
    key: tuple[Hashable, ...]

    @classmethod
    def of(cls, op: Op, own: Iterable[Site]) -> _Uses:
        calls = {call.key: call for site in own for call in site.calls}
        wanted = {name for site in own for name, given in zip(op.output_names, site.node.output, strict=False) if given}
        unknown = op.call([TensorType()] * len(op.input_names), op.required_attributes)
        # As text, for 0.0 == -0.0 and 1 == 1.0.
        attributes = str([call.attributes for call in calls.values()])
        return cls(op, list(calls.values()) or [unknown], frozenset(wanted), (op.kernel_name, attributes, *calls))


@dataclass(frozen=True)
class _Attached:
    """The functions of an op, or why one body cannot serve all of its uses.

    Attributes:
        misfits, misfit: as of the body.
        outputs: the number of outputs that the functions declare.
        functions: the function body, and the op as a function; none if there is a misfit.
    """

    misfits: Mapping[str, Sequence[str]]
    misfit: str | None
    outputs: int
    functions: Sequence[onnx.FunctionProto]


@functools.lru_cache(maxsize=256)
def _attached(uses: _Uses, version: int, opset: int) -> _Attached:
    """Write the functions; kept, as models of one process often use an op alike, such as the steps of a trainer.

    Args:
        uses: the uses of an op.
        version: imported version of the domain of kernels.
        opset: imported version of the default domain.
    """
    op, body = uses.op, Body(uses.op, uses.calls, uses.wanted)
    misfit = body.misfit()
    functions = () if misfit else (body_function(op, body, opset), op_function(op, body, version, opset))
    return _Attached(body.misfits, misfit, len(body.outputs), functions)
