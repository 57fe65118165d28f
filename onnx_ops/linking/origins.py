"""Which node a value comes from, once onnxruntime has put functions in place of the nodes that call them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import onnx

from onnx_ops.core.domain import DOMAIN
from onnx_ops.graph.functions import Key, called_key, callees_first, function_key
from onnx_ops.graph.walk import Place, placed_nodes
from onnx_ops.ops import OPS

INNER = "_inlfunc_"
"""How onnxruntime begins the name of a value from inside a function; the function's name and the value's own follow."""
REPEATED = re.compile(r"_token_\d+(?=_)")
"""What comes between the two from the second call of a function on."""


class Origins:
    """The nodes of the domain in a linked model, by the values that they make in a session."""

    def __init__(self, model: onnx.ModelProto) -> None:
        functions = {function_key(f): f for f in model.functions if f.domain != DOMAIN or f.name not in OPS}
        placed: defaultdict[Key | None, list[tuple[Place, onnx.NodeProto]]] = defaultdict(list)
        for place, node in placed_nodes(model):
            inside = isinstance(place.importer, onnx.FunctionProto)
            placed[function_key(place.importer) if inside else None].append((place, node))
        made: dict[Key, dict[str, str]] = {}

        def values(nodes: Iterable[tuple[Place, onnx.NodeProto]]) -> dict[str, str]:
            """Words for the node of the domain that makes each value; what a call gives out is made in the function."""
            found: dict[str, str] = {}
            for place, node in nodes:
                key = called_key(node)
                if node.domain == DOMAIN and node.op_type in OPS and key not in made:
                    found.update((value, place.words(node) or "") for value in node.output if value)
                elif key in made:
                    pairs = zip(functions[key].output, node.output, strict=False)
                    found.update((own, made[key][inner]) for inner, own in pairs if inner in made[key])
            return found

        for key in callees_first(functions):
            made[key] = values(placed[key])
        self._words = values(placed[None])
        self._inner_words = {f"{key[1]}_{value}": words for key in made for value, words in made[key].items()}

    def __call__(self, value: str) -> str | None:
        """The words for the node that makes a value of a session; None for what no node of the domain makes."""
        if value in self._words or not value.startswith(INNER):
            return self._words.get(value)
        rest = value.removeprefix(INNER)
        shorter = (rest[: m.start()] + rest[m.end() :] for m in REPEATED.finditer(rest))
        return next((self._inner_words[name] for name in (rest, *shorter) if name in self._inner_words), None)
