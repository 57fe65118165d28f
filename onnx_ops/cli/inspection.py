"""Descriptions of ops and of the nodes of a model. All fields have types of JSON."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, checker, shape_inference

from onnx_ops.core.errors import LinkError, OpError, at_node
from onnx_ops.core.op import Op
from onnx_ops.core.schema import Parameter, attribute_type
from onnx_ops.core.types import TensorType, dtype_name
from onnx_ops.graph.files import same_model
from onnx_ops.graph.functions import called_key, function_key
from onnx_ops.graph.reading import load_model
from onnx_ops.graph.walk import function_text, placed_nodes
from onnx_ops.linking.attached import linked_by, op_of_kernel, restore
from onnx_ops.linking.checks import check_imports, check_opset, used_ops
from onnx_ops.linking.link import link_in_place
from onnx_ops.linking.sites import Site, find_calls, opset_of, sites

REFUSALS = (ValueError, checker.ValidationError, shape_inference.InferenceError)
"""What `link` raises for a model: OpError and LinkError, and errors of onnx for an invalid model."""
FUNCTION_BODY = "portable body"
"""The function body in JSON, as the way that a node is run."""


# --- ops -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op; a required one has no default."""

    name: str
    type: str
    default: int | float | list[int] | None
    description: str


@dataclass(frozen=True)
class OpDescription:
    """The schema of an op; minimum_opset is that of its function body."""

    name: str
    minimum_opset: int
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]


def describe(op: Op) -> OpDescription:
    """The description of an op, with inputs in the order of the schema and attributes sorted by name."""
    attributes = (
        Attribute(name, attribute_type(a), op.attribute_defaults.get(name), a.description)
        for name, a in sorted(op.attributes.items())
    )
    return OpDescription(op.name, op.body_opset, op.inputs, op.outputs, tuple(attributes))


# --- models ----------------------------------------------------------------------------------------------------------


class Linked(enum.StrEnum):
    """Whether a model has the functions that `link` adds for its nodes."""

    CURRENT = "current"
    """Those of this version."""
    STALE = "stale"
    """Others: of another version, or for other nodes."""
    BROKEN = "broken"
    """Nodes of kernels without their functions, as in the optimized model that a session with the kernels saves; only
    sessions with the kernels can load it."""
    ABSENT = "absent"
    UNNEEDED = "unneeded"
    """None, and there is no node of the domain."""


@dataclass(frozen=True)
class Tensor:
    """Dtype and shape of a tensor, None where unknown. A dimension is a number, a name or None."""

    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Use:
    """A call of a node: one in a function is called once for each call of the function."""

    inputs: Mapping[str, Tensor | None]
    """By name; None for an omitted one."""
    attributes: Mapping[str, Any]
    """With defaults."""
    outputs: Mapping[str, Tensor | None] | None
    """By name, None for an omitted one; None for a call that the op refuses."""


@dataclass(frozen=True)
class Node:
    """A node of the domain."""

    op: str
    name: str
    outputs: tuple[str, ...]
    place: str
    """The graph, function or subgraph that contains it."""
    bare_kernel: str | None
    """Name of the kernel if the node is one without its function."""
    kernel: str | None
    """Name of the kernel that the linked node calls; None for a node that no op accepts."""
    uses: tuple[Use, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The nodes of a model, and all reasons for which `link` refuses it.

    Attributes:
        opset: imported version of the default domain.
        minimum_opset: the oldest one that its nodes can be linked with; None if there are no nodes.
        linked_by: the version of onnx_ops that has linked it; None if its metadata has none.
        problems: those that concern no single node.
    """

    opset: int
    minimum_opset: int | None
    linked: Linked
    linked_by: str | None
    nodes: tuple[Node, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems and not any(node.problems for node in self.nodes)


def inspect(model: onnx.ModelProto) -> Inspection:
    """Inspect a model; finds all problems, while `link` raises the first one."""
    try:
        own = load_model(model)
        bare = _bare_kernels(own)
        attached = restore(own)
    except LinkError as refusal:
        return Inspection(0, None, Linked.ABSENT, None, (), (str(refusal),))
    found = sites(own)
    used = used_ops(found)
    opset = opset_of(own)
    problems = list(_problems_of_imports(own, used, opset))
    try:
        find_calls(own, found)
    except REFUSALS as refusal:
        problems.append(str(refusal))
    nodes = tuple(_node(site, bare.get((site.place.text, *site.node.output))) for site in found)
    linked = Linked.STALE if attached else Linked.ABSENT if nodes else Linked.UNNEEDED
    if bare:
        linked = Linked.BROKEN
    if not problems and not any(node.problems for node in nodes):
        try:
            linked_anew = load_model(model)
            link_in_place(linked_anew)
            if same_model(linked_anew, model) and attached:
                linked = Linked.CURRENT
        except REFUSALS as refusal:
            problems.append(str(refusal))
    minimum = max((op.body_opset for op in used), default=None)
    return Inspection(opset, minimum, linked, linked_by(model), nodes, tuple(problems))


def _bare_kernels(model: onnx.ModelProto) -> dict[tuple[str, ...], str]:
    """The names of kernels called by nodes without their functions, by place and outputs of the nodes."""
    attached = {function_key(f) for f in model.functions}
    return {
        (place.text, *node.output): function_text(node.domain, node.op_type)
        for place, node in placed_nodes(model)
        if op_of_kernel(node) and called_key(node) not in attached
    }


def _node(site: Site, bare_kernel: str | None) -> Node:
    problems = [str(refusal) for refusal in site.refusals]
    uses = []
    try:
        op = site.op()
    except OpError as refusal:
        problems, calls, kernel = [str(refusal)], [], None
    else:
        calls, kernel = site.calls, op.kernel_name
    for call in calls:
        outputs = None
        try:
            with at_node(site.label):
                inferred = zip(op.output_names, op.infer(call), strict=True)
                outputs = {name: _tensor(tensor) if call.wants(name) else None for name, tensor in inferred}
        except OpError as refusal:
            problems.append(str(refusal))
        inputs = {name: _tensor(tensor) if tensor else None for name, tensor in call.inputs.items()}
        uses.append(Use(inputs, call.attributes, outputs))
    node = site.node
    problems = list(dict.fromkeys(problems))
    place = site.place.text
    return Node(node.op_type, node.name, tuple(node.output), place, bare_kernel, kernel, tuple(uses), tuple(problems))


def _tensor(tensor: TensorType) -> Tensor:
    known = tensor.dtype in TensorProto.DataType.values()
    return Tensor(dtype_name(tensor.dtype) if tensor.dtype is not None and known else None, tensor.shape)


def _problems_of_imports(model: onnx.ModelProto, used: list[Op], opset: int) -> Iterator[str]:
    try:
        check_imports(model)
    except LinkError as refusal:
        yield str(refusal)
    for op in used:
        try:
            check_opset(op, opset)
        except LinkError as refusal:
            yield str(refusal)
