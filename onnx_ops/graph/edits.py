"""Unique names of values, and insertion of nodes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

import onnx

from onnx_ops.graph.walk import Container, Place, containers, places


class Names:
    """Generates unique names."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(2))

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Names:
        """With all names of values in a model taken."""
        taken: set[str] = set()
        for container in containers(model):
            for node in container.node:
                taken.update(node.input, node.output)
            if isinstance(container, onnx.GraphProto):
                taken.update(v.name for v in (*container.input, *container.output, *container.initializer))
                taken.update(sparse.values.name for sparse in container.sparse_initializer)
            else:
                taken.update((*container.input, *container.output))
        return cls(taken)

    def new(self, hint: str) -> str:
        """`hint`, with a number appended if it is taken."""
        name = hint
        while name in self._taken:
            name = f"{hint}_{next(self._numbers[hint])}"
        self._taken.add(name)
        return name


class Insertions:
    """Nodes to insert before others; collected, since each insertion moves the nodes after it.

    Graphs and nodes are compared by identity, and kept, since protobuf makes another Python object of a message, maybe
    with the identity of this one, once nothing refers to it.
    """

    def __init__(self) -> None:
        self._containers: dict[int, tuple[Container, dict[int, tuple[onnx.NodeProto, list[onnx.NodeProto]]]]] = {}

    def before(self, place: Place, node: onnx.NodeProto, made: Sequence[onnx.NodeProto]) -> None:
        """Insert nodes before a node of this place."""
        _, wanted = self._containers.setdefault(id(place.container), (place.container, {}))
        wanted.setdefault(id(node), (node, []))[1].extend(made)

    def has(self, place: Place) -> bool:
        """Whether nodes are inserted into this place."""
        return id(place.container) in self._containers

    def apply(self, model: onnx.ModelProto) -> None:
        """Perform the insertions, innermost subgraphs first: rebuilding a list of nodes copies their subgraphs."""
        for place in reversed(list(places(model))):
            container, wanted = self._containers.get(id(place.container), (None, {}))
            if container is not None:
                nodes = [n for node in container.node for n in (*wanted.get(id(node), (node, ()))[1], node)]
                del container.node[:]
                container.node.extend(nodes)
