"""Elementary functions of constants, as PyTorch computes them.

Those that are left to the folding of the ONNX graph have NumPy's last digit. Frequencies of a timestep embedding that
differ by it, times a timestep of 1000, change sines and cosines by 1e-4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import Argument
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.tracing.constants import MAX_NUMEL

aten = torch.ops.aten

FUNCTIONS = frozenset(
    getattr(packet, overload)
    for packet in (
        aten.acos, aten.acosh, aten.asin, aten.asinh, aten.atan, aten.atan2, aten.atanh, aten.cos, aten.cosh, aten.erf,
        aten.exp, aten.exp2, aten.expm1, aten.log, aten.log10, aten.log1p, aten.log2, aten.pow, aten.sigmoid, aten.sin,
        aten.sinh, aten.tan, aten.tanh,
    )
    for overload in packet.overloads()
)  # fmt: skip
"""The functions that two libraries may round differently."""


def fold_functions(graph: GraphModule) -> None:
    """Compute the elementary functions of constants in a trace, in place."""
    changed = set(_changed(graph))
    values: dict[Node, Any] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr" and node not in changed:
            values[node] = getattr(graph, node.target)
        if not _is_computable(node, values) or node in changed:
            continue
        with no_dispatch():
            value = node.target(*_valued(node.args, values), **_valued(node.kwargs, values))
        values[node] = value
        if node.target in FUNCTIONS and value.is_floating_point():
            name = f"_folded_{node.name}"
            graph.register_buffer(name, value)
            with graph.graph.inserting_before(node):
                constant = graph.graph.get_attr(name)
            constant.meta = dict(node.meta)
            values[constant] = value
            node.replace_all_uses_with(constant)
            graph.graph.erase_node(node)
    graph.recompile()


def _valued(arguments: Argument, values: dict[Node, Any]) -> Any:
    return torch.fx.map_arg(arguments, values.__getitem__)


def _is_computable(node: Node, values: dict[Node, Any]) -> bool:
    """Whether a node is an operator on constants alone, which returns a tensor of moderate size."""
    operator, made = node.target, node.meta.get("val")
    return (
        isinstance(operator, OpOverload)
        and isinstance(made, torch.Tensor)
        and all(isinstance(size, int) for size in made.shape)
        and made.numel() <= MAX_NUMEL
        and not operator._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in operator.tags
        and all(given in values for given in node.all_input_nodes)
    )


def _changed(graph: GraphModule) -> Iterator[Node]:
    """The nodes whose memory an operator may write to."""
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            left = [given for given in tree_leaves((node.args, node.kwargs)) if isinstance(given, Node)]
            while left:  # views, and what they are views of
                yield (given := left.pop())
                if isinstance(given.target, OpOverload) and any(r.alias_info for r in given.target._schema.returns):
                    left += given.all_input_nodes
