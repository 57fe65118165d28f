"""Traversal of a model: its graph, functions and subgraphs, their nodes and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, TensorProto

from onnx_ops.core.errors import node_label

Container = onnx.GraphProto | onnx.FunctionProto
Importer = onnx.ModelProto | onnx.FunctionProto


@dataclass(frozen=True)
class Place:
    """A graph, function or subgraph of a model.

    Attributes:
        container: the graph or function with the nodes.
        importer: the model or function whose imports apply.
        text: "graph", "function me.f", "graph / If 'choose' / then_branch".
    """

    container: Container
    importer: Importer
    text: str

    def label(self, node: onnx.NodeProto) -> str | None:
        """Description of a node of this place, for errors."""
        whole = self.text == GRAPH
        return node_label(node.name, next(filter(None, node.output), ""), "" if whole else self.text)


GRAPH = "graph"
GRAPHS = {AttributeProto.GRAPH, AttributeProto.GRAPHS}


def places(model: onnx.ModelProto) -> Iterator[Place]:
    """The graph, the functions, and their subgraphs."""
    pending = [Place(f, f, f"function {function_text(f.domain, f.name, f.overload)}") for f in model.functions]
    pending = [*reversed(pending), Place(model.graph, model, GRAPH)]
    while pending:
        place = pending.pop()
        yield place
        inner = [
            Place(subgraph, place.importer, f"{place.text} / {_title(node)} / {subgraph.name}")
            for node in place.container.node
            if node.attribute  # as most have none, several times as fast
            for subgraph in subgraphs(node)
        ]
        pending.extend(reversed(inner))


def function_text(domain: str, name: str, overload: str = "") -> str:
    """A function in text: "me.f" or "me.f:overload"."""
    return f"{domain}.{name}:{overload}" if overload else f"{domain}.{name}"


def _title(node: onnx.NodeProto) -> str:
    return " ".join([node.op_type, *([node.name] if node.name else node.output[:1])])


def containers(model: onnx.ModelProto) -> Iterator[Container]:
    """The graph, the functions, and their subgraphs."""
    return (place.container for place in places(model))


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    return [
        g for a in node.attribute if a.type in GRAPHS for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)
    ]


def all_nodes(container: Container) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or function, and of the subgraphs in it."""
    pending: list[Container] = [container]
    while pending:
        for node in pending.pop().node:
            yield node
            if node.attribute:
                pending.extend(subgraphs(node))


def placed_nodes(model: onnx.ModelProto) -> Iterator[tuple[Place, onnx.NodeProto]]:
    """All nodes of a model, each with its place."""
    for place in places(model):
        for node in place.container.node:
            yield place, node


def tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, in initializers and attributes."""
    for container in containers(model):
        if isinstance(container, onnx.GraphProto):
            yield from container.initializer
            for sparse in container.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in container.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
