"""Nodes of the domain in a model, and the calls that each of them makes."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from onnx_ops.core.call import Call
from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.errors import LinkError, OpError, at_node
from onnx_ops.core.op import Op
from onnx_ops.graph.functions import called_key, check_calls, function_key, inlined_counts, inlined_for_types
from onnx_ops.graph.imports import add_import, default_opset, versions
from onnx_ops.graph.reading import MOST_NODES
from onnx_ops.graph.types import Types, skeleton, typed_nodes
from onnx_ops.graph.walk import Place, placed_nodes
from onnx_ops.ops import OPS, op_named
from onnx_ops.ops.schemas import lenient_inference

MOST_NODES_OF_DOMAIN = 50_000
"""Limit for a model with its functions inlined: nested calls grow exponentially."""

MARK = "onnx_ops.site"
UNKNOWN = onnx.TypeProto()


@dataclass(eq=False)
class Site:
    """A node of the domain.

    Attributes:
        place: the graph or function that contains it.
        node: the node in the model.
        version: of the domain, as the model imports it.
        calls: its calls, one per call of the functions that contain it.
        refusals: errors of runs that are no valid calls.
    """

    place: Place
    node: onnx.NodeProto
    version: int
    calls: list[Call] = field(default_factory=list)
    refusals: list[OpError] = field(default_factory=list)

    @property
    def label(self) -> str | None:
        """Description of the node for errors."""
        return self.place.label(self.node)

    def op(self) -> Op:
        """The op; raises OpError for a node that no op accepts."""
        with at_node(self.label):
            op = op_named(self.node.op_type, self.version)
            op.check_attributes(self.node.attribute)
            op.check_outputs(self.node.output)
            return op


def sites(model: onnx.ModelProto) -> list[Site]:
    """The nodes of the domain, except calls of the model's own functions; without their calls."""
    brought = {function_key(f) for f in model.functions}
    version = domain_version(model)
    return [
        Site(place, node, version)
        for place, node in placed_nodes(model)
        if node.domain == DOMAIN and called_key(node) not in brought
    ]


def find_calls(model: onnx.ModelProto, found: list[Site]) -> None:
    """Find the calls of all sites of a model.

    Raises:
        LinkError: functions that cannot be inlined, or expand to too many nodes.
    """
    check_calls(model)
    check_size(model)
    light = skeleton(model)
    numbers = {id(site.node): number for number, site in enumerate(found)}
    for (_, node), (_, copy) in zip(placed_nodes(model), placed_nodes(light), strict=True):
        if (number := numbers.get(id(node))) is not None:
            copy.metadata_props.add(key=MARK, value=str(number))
    for domain, version in ((DOMAIN, domain_version(model)), ("", opset_of(model))):
        add_import(light, domain, version)
    with lenient_inference():
        for node, types in typed_nodes(inlined_for_types(light)):
            if node.domain == DOMAIN and (site := _marked(node, found)):
                _add_call(site, node, types)


def check_size(model: onnx.ModelProto) -> None:
    """Raise LinkError if the functions of a model expand to too many nodes, counted without inlining."""
    if not model.functions:
        return
    limits = ((MOST_NODES, "nodes"), (MOST_NODES_OF_DOMAIN, f"nodes of domain {DOMAIN}"))
    counts = inlined_counts(model, (lambda node: True, lambda node: node.domain == DOMAIN))
    for (most, what), count in zip(limits, counts, strict=True):
        if count > most:
            raise LinkError(f"the model has {count} {what} once its functions are inlined, expected at most {most}")


def _marked(node: onnx.NodeProto, found: list[Site]) -> Site | None:
    numbers = [int(entry.value) for entry in node.metadata_props if entry.key == MARK]
    return found[numbers[-1]] if numbers else None


def _add_call(site: Site, node: onnx.NodeProto, types: Types) -> None:
    """Add the call of a node of the inlined model to its site."""
    try:
        with at_node(site.label):
            op = op_named(node.op_type, site.version)
            op.check_attributes(node.attribute)
            inputs = [types.get(i, UNKNOWN) if i else None for i in node.input]
            site.calls.append(op.call_of(inputs, node.attribute, list(map(bool, node.output))))
    except OpError as refusal:
        site.refusals.append(refusal)


def domain_version(model: onnx.ModelProto) -> int:
    """The imported version of the domain; if there is none, that of the first function with one, else the newest."""
    found = (versions(importer).get(DOMAIN) for importer in (model, *model.functions))
    return next((version for version in found if version is not None), OPSET_VERSION)


def opset_of(model: onnx.ModelProto) -> int:
    """The imported version of the default domain; if there is none, the version its functions or all bodies need."""
    return default_opset(model, max(op.body_opset for op in OPS.values()))
