"""Parts of a graph: the nodes that lie between some of its values and others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx

from onnx_ops.graph.functions import functions_needed
from onnx_ops.graph.walk import subgraphs


def values_read(node: onnx.NodeProto) -> Iterator[str]:
    """The values around a node that it reads, those among them that only its subgraphs read."""
    yield from filter(None, node.input)
    for subgraph in subgraphs(node):
        own = {value.name for value in (*subgraph.input, *subgraph.initializer)}
        own.update(sparse.values.name for sparse in subgraph.sparse_initializer)
        for inner in subgraph.node:
            yield from (name for name in values_read(inner) if name not in own)
            own.update(inner.output)
        yield from (value.name for value in subgraph.output if value.name not in own)


def following(graph: onnx.GraphProto, start: Collection[str], ends: Collection[str] = ()) -> set[str]:
    """The values that are computed from some of `start`, these among them; what `ends` are used for is left out."""
    found = set(start)
    for node in graph.node:
        if any(name in found and name not in ends for name in values_read(node)):
            found.update(filter(None, node.output))
    return found


def part(
    model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """What a graph does between some of its values and others.

    Args:
        model: the whole.
        inputs: values that are given; those among the graph's own inputs that the part does not read are left out.
        outputs: values that are wanted.

    Returns:
        A model of the nodes that compute `outputs` from `inputs` and initializers, with the functions that they call.
    """
    graph = model.graph
    given = {value.name for value in inputs}
    needed = {value.name for value in outputs}
    nodes = []
    for node in reversed(graph.node):
        if any(name in needed and name not in given for name in node.output):
            nodes.append(node)
            needed.update(values_read(node))
    nodes.reverse()
    made = {name for node in nodes for name in node.output if name not in given}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for field in ("node", "input", "output", "initializer", "sparse_initializer", "value_info"):
        result.graph.ClearField(field)
    own = result.graph
    own.node.extend(_without(node, given) for node in nodes)
    own.input.extend(value for value in inputs if value.name in needed)
    own.output.extend(outputs)
    own.initializer.extend(t for t in graph.initializer if t.name in needed and t.name not in given)
    own.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in needed)
    own.value_info.extend(value for value in graph.value_info if value.name in made)
    functions = functions_needed(own, model.functions)
    del result.functions[:]
    result.functions.extend(functions)
    return result


def _without(node: onnx.NodeProto, given: Collection[str]) -> onnx.NodeProto:
    """A node that leaves out the outputs which are given."""
    if not any(name in given for name in node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = ["" if name in given else name for name in node.output]
    return copy
