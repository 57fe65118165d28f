"""What there is to say of an op, and of the nodes of a model. All fields are of types that JSON has."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, checker, helper, shape_inference
from onnx.defs import OpSchema

from onnx_ops.body import attribute_type
from onnx_ops.domain import DOMAIN
from onnx_ops.errors import LinkError, OpError
from onnx_ops.files import same_model
from onnx_ops.linking import (
    Container,
    Types,
    call_of,
    check_node,
    check_opset,
    check_version,
    default_opset,
    link,
    load,
    remove_functions,
    subgraphs,
    uses,
)
from onnx_ops.op import Op
from onnx_ops.ops import OPS
from onnx_ops.schemas import lenient_inference
from onnx_ops.signature import Call, TensorType, allowed_dtypes, dtype_name, is_optional

REFUSALS = (ValueError, checker.ValidationError, shape_inference.InferenceError)
"""What `link` raises for a model: OpError and LinkError, and what onnx has for one that is not valid."""


# --- ops -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """An input or an output of an op."""

    name: str
    optional: bool
    dtypes: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str
    default: int | float
    description: str


@dataclass(frozen=True)
class OpDescription:
    """The facts of an op's schema; minimum_opset is that of its portable body."""

    name: str
    minimum_opset: int
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]


def describe(op: Op) -> OpDescription:
    """The facts of an op: inputs in the order of its schema; its attributes have none, and come by name."""
    attributes = (
        Attribute(name, attribute_type(a), helper.get_attribute_value(a.default_value), a.description)
        for name, a in sorted(op.schema.attributes.items())
    )
    inputs, outputs = (tuple(_parameter(op.schema, p) for p in ps) for ps in (op.schema.inputs, op.schema.outputs))
    return OpDescription(op.name, op.body_opset, inputs, outputs, tuple(attributes))


def _parameter(schema: OpSchema, parameter: OpSchema.FormalParameter) -> Parameter:
    dtypes = tuple(allowed_dtypes(schema, parameter))
    return Parameter(parameter.name, is_optional(parameter), dtypes, parameter.description)


# --- models ----------------------------------------------------------------------------------------------------------


class Linked(enum.StrEnum):
    """Whether a model has attached what its nodes need to run."""

    CURRENT = "current"
    """What `link` of this version attaches."""
    STALE = "stale"
    """Something else: of another version, or for other nodes."""
    ABSENT = "absent"
    UNNEEDED = "unneeded"
    """Nothing, and there is no node of the domain."""


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor; None is what is not. A dimension is a number, a name or None."""

    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Use:
    """A node as it is run: one in a function has as many uses as the function has calls."""

    inputs: Mapping[str, Tensor | None]
    """By name; None for one that is left out."""
    attributes: Mapping[str, Any]
    """Defaults filled in."""
    output: Tensor | None
    """None for a use that the op refuses."""


@dataclass(frozen=True)
class Node:
    """A node of the domain."""

    op: str
    name: str
    outputs: tuple[str, ...]
    place: str
    """The graph, function or subgraph that it stands in."""
    uses: tuple[Use, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """A model, and everything that `link` would refuse in it.

    Attributes:
        opset: the version of the default domain that it imports.
        minimum_opset: the oldest that its nodes can be linked with; None if there are none.
        problems: those of no single node.
    """

    opset: int
    minimum_opset: int | None
    linked: Linked
    nodes: tuple[Node, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems and not any(node.problems for node in self.nodes)


def inspect(model: onnx.ModelProto) -> Inspection:
    """The nodes of the domain in a model, with all problems that `link` would find, where it stops at the first."""
    own = load(model)
    remove_functions(own)
    attached = len(own.functions) != len(model.functions)
    placed = list(_placed_nodes(own))
    problems = []
    try:
        calls = _calls(own, [node for _, node in placed])
    except REFUSALS as refusal:
        problems.append(str(refusal))
        calls = [[] for _ in placed]
    nodes = tuple(_node(own, place, node, runs) for (place, node), runs in zip(placed, calls, strict=True))
    used = [op for op in OPS.values() if any(node.op == op.name for node in nodes)]
    opset = default_opset(model)
    problems.extend(_problems_of_imports(own, used, opset))
    linked = Linked.STALE if attached else Linked.ABSENT if nodes else Linked.UNNEEDED
    if not problems and not any(node.problems for node in nodes):
        try:
            if same_model(link(model), model) and attached:
                linked = Linked.CURRENT
        except REFUSALS as refusal:
            problems.append(str(refusal))
    return Inspection(opset, max((op.body_opset for op in used), default=None), linked, nodes, tuple(problems))


def _placed_nodes(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """The nodes of the domain and where they stand, but for those of functions that the model itself brings."""
    brought = {f.name for f in model.functions if f.domain == DOMAIN}
    places = [("graph", model.graph), *((f"function {f.domain}.{f.name}", f) for f in model.functions)]
    for place, container in places:
        for inner_place, node in _below(place, container):
            if node.op_type not in brought:
                yield inner_place, node


def _below(place: str, container: Container) -> Iterator[tuple[str, onnx.NodeProto]]:
    for node in container.node:
        if node.domain == DOMAIN:
            yield place, node
        for subgraph in subgraphs(node):
            yield from _below(f"{place} / {_title(node)} / {subgraph.name}", subgraph)


def _title(node: onnx.NodeProto) -> str:
    return " ".join([node.op_type, *([node.name] if node.name else node.output[:1])])


def _calls(model: onnx.ModelProto, chosen: list[onnx.NodeProto]) -> list[list[Call | OpError]]:
    with lenient_inference():
        return [[_call(*run) for run in runs] for runs in uses(model, chosen)]


def _call(node: onnx.NodeProto, types: Types) -> Call | OpError:
    try:
        return call_of(node, types)
    except OpError as refusal:
        return refusal


def _node(model: onnx.ModelProto, place: str, node: onnx.NodeProto, calls: list[Call | OpError]) -> Node:
    problems: dict[str, None] = {}  # a set that keeps its order
    found = []
    try:
        check_node(model, node)
    except OpError as refusal:
        problems[str(refusal)] = None
        calls = []
    for call in calls:
        if isinstance(call, OpError):
            problems[str(call)] = None
            continue
        output = None
        try:
            output = _tensor(OPS[node.op_type].kernel.infer(call))
        except ValueError as refusal:  # not only OpError: a number may stand for no dtype at all
            problems[str(refusal)] = None
        inputs = {name: _tensor(tensor) if tensor else None for name, tensor in call.inputs.items()}
        found.append(Use(inputs, call.attributes, output))
    return Node(node.op_type, node.name, tuple(node.output), place, tuple(found), tuple(problems))


def _tensor(tensor: TensorType) -> Tensor:
    known = tensor.dtype in TensorProto.DataType.values()
    return Tensor(dtype_name(tensor.dtype) if tensor.dtype is not None and known else None, tensor.shape)


def _problems_of_imports(model: onnx.ModelProto, used: list[Op], opset: int) -> Iterator[str]:
    try:
        check_version(model)
    except LinkError as refusal:
        yield str(refusal)
    for op in used:
        try:
            check_opset(op, opset)
        except LinkError as refusal:
            yield str(refusal)
