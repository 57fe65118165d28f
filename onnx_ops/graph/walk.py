"""Walking a model: its graph, functions and subgraphs, their nodes and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, TensorProto

from onnx_ops.core.errors import node_words

Container = onnx.GraphProto | onnx.FunctionProto
Importer = onnx.ModelProto | onnx.FunctionProto


@dataclass(frozen=True)
class Place:
    """A graph, function or subgraph of a model.

    Attributes:
        container: what holds the nodes.
        importer: what has the imports that count there: the model, or the function.
        text: "graph", "function me.f", "graph / If 'choose' / then_branch".
    """

    container: Container
    importer: Importer
    text: str

    def words(self, node: onnx.NodeProto) -> str | None:
        """How a refusal names a node that stands here."""
        whole = self.text == GRAPH
        return node_words(node.name, next(filter(None, node.output), ""), "" if whole else self.text)


GRAPH = "graph"
GRAPHS = {AttributeProto.GRAPH, AttributeProto.GRAPHS}


def places(model: onnx.ModelProto) -> Iterator[Place]:
    """The graph, the functions, and the subgraphs of both."""
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
    """How a function is named: "me.f", or "me.f:overload"."""
    return f"{domain}.{name}:{overload}" if overload else f"{domain}.{name}"


def _title(node: onnx.NodeProto) -> str:
    return " ".join([node.op_type, *([node.name] if node.name else node.output[:1])])


def containers(model: onnx.ModelProto) -> Iterator[Container]:
    """The graph, the functions, and the subgraphs of both."""
    return (place.container for place in places(model))


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs among a node's attributes."""
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
    """All nodes of a model, with what they stand in."""
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
