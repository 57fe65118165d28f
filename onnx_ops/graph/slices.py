"""Subgraphs of a graph, between given values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx

from onnx_ops.graph.functions import functions_needed
from onnx_ops.graph.walk import subgraphs


def values_read(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node and its subgraphs read from the graph around it."""
    yield from filter(None, node.input)
    for subgraph in subgraphs(node):
        own = {value.name for value in (*subgraph.input, *subgraph.initializer)}
        own.update(sparse.values.name for sparse in subgraph.sparse_initializer)
        for inner in subgraph.node:
            yield from (name for name in values_read(inner) if name not in own)
            own.update(inner.output)
        yield from (value.name for value in subgraph.output if value.name not in own)


def following(graph: onnx.GraphProto, start: Collection[str], ends: Collection[str] = ()) -> set[str]:
    """`start` and the values computed from them, without paths through `ends`."""
    found = set(start)
    for node in graph.node:
        if any(name in found and name not in ends for name in values_read(node)):
            found.update(filter(None, node.output))
    return found


def part(
    model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """The part of a graph that computes `outputs` from `inputs`.

    Args:
        model: the model.
        inputs: values that become inputs; omitted if the part does not read them.
        outputs: values that become outputs.

    Returns:
        A model with the nodes and initializers that `outputs` need, and the functions they call.
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
    """The node, with the outputs in `given` omitted."""
    if not any(name in given for name in node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = ["" if name in given else name for name in node.output]
    return copy
