"""Checks on a graph that no reader of a state can run after the node that overwrites it, in any order of execution."""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Iterator

import onnx

NEXT = "next."
VIEWS = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}
"""Operators whose output onnxruntime may give the memory of their input."""

ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "ApplyAdamW", "aclnn_ApplyAdamW_v1", "FusedSgd", "aclnn_FusedSgd_v1"}


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)
            yield from (value.name for value in graph.output)


def late_readers(model: onnx.ModelProto) -> list[str]:
    """Descriptions of the nodes of a step that may read a value of the state after it has been overwritten.

    A node may only read what it overwrites if it does so element by element, and no view of it.
    """
    graph = model.graph
    maker = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    readers = defaultdict(list)
    needed: dict[int, set[int]] = {}
    for number, node in enumerate(graph.node):
        read = set(filter(None, _read(node)))
        needed[number] = {maker[name] for name in read if name in maker}
        for name in read:
            readers[name].append(number)
    before = [0] * len(graph.node)  # the nodes that each node depends on, as bits
    for number in graphlib.TopologicalSorter(needed).static_order():
        for other in needed[number]:
            before[number] |= before[other] | 1 << other
    late = []
    outputs = [value.name for value in graph.output]
    for output in outputs:
        state = output.removeprefix(NEXT)
        if not output.startswith(NEXT):
            continue
        update = maker[output]
        views, found = [state], {state}
        while views:
            value = views.pop()
            if value in outputs:
                late.append(f"the output {value} is the memory of {state}")
            for reader in readers[value]:
                node = graph.node[reader]
                if node.op_type in VIEWS and reader != update:
                    new = set(node.output) - found
                    found |= new
                    views += new
                elif reader == update:
                    if node.op_type not in ELEMENTWISE or value != state:
                        late.append(f"{node.op_type} overwrites {state} while it reads it")
                elif not before[update] >> reader & 1:
                    late.append(f"{node.op_type} {node.output[0]} reads {state} after {graph.node[update].op_type}")
    return late
