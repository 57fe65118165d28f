"""Maps values of a session, in which onnxruntime has inlined functions, to the nodes that computed them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import onnx

from onnx_ops.core.domain import DOMAIN, INLINED
from onnx_ops.graph.functions import Key, called_key, callees_first, function_key
from onnx_ops.graph.walk import Place, placed_nodes
from onnx_ops.ops import OPS

REPEATED = re.compile(r"_token_\d+(?=_)")
"""Between the two names, from the second call of a function on."""


class Origins:
    """Descriptions of nodes of the domain in a linked model, by the names of their outputs in a session."""

    def __init__(self, model: onnx.ModelProto) -> None:
        functions = {function_key(f): f for f in model.functions if f.domain != DOMAIN or f.name not in OPS}
        placed: defaultdict[Key | None, list[tuple[Place, onnx.NodeProto]]] = defaultdict(list)
        for place, node in placed_nodes(model):
            inside = isinstance(place.importer, onnx.FunctionProto)
            placed[function_key(place.importer) if inside else None].append((place, node))
        made: dict[Key, dict[str, str]] = {}

        def values(nodes: Iterable[tuple[Place, onnx.NodeProto]]) -> dict[str, str]:
            """The description of the node that computes each value, also inside a called function."""
            found: dict[str, str] = {}
            for place, node in nodes:
                key = called_key(node)
                if node.domain == DOMAIN and node.op_type in OPS and key not in made:
                    found.update((value, place.label(node) or "") for value in node.output if value)
                elif key in made:
                    pairs = zip(functions[key].output, node.output, strict=False)
                    found.update((own, made[key][inner]) for inner, own in pairs if inner in made[key])
            return found

        for key in callees_first(functions):
            made[key] = values(placed[key])
        inner = {f"{INLINED}{key[1]}_{value}": label for key in made for value, label in made[key].items()}
        self.labels = inner | values(placed[None])
        """The descriptions by output; for a function that is called several times, by those of its first call."""

    def __call__(self, value: str) -> str | None:
        """The description of the node that computes a value; None if no node of the domain does."""
        if value in self.labels or not value.startswith(INLINED):
            return self.labels.get(value)
        shorter = (value[: m.start()] + value[m.end() :] for m in REPEATED.finditer(value))
        return next((self.labels[name] for name in shorter if name in self.labels), None)
