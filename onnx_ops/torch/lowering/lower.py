"""Lowers a traced graph to operators that have a translation to ONNX: without writes, with explicit type promotion.

torch.export would trace the whole graph again for each of these. A graph without writes remains as it is here, but for
the few operators that have a decomposition in place of a translation.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.fx.node import Argument
from torch.onnx._internal.exporter import _decomp, _fx_passes
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.fx.passes.type_promotion import (
    TypePromotionTable,
    _TypePromotionInterpreter,
    get_type_promotion_rule,
)
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from onnx_ops.torch.lowering.dynamic_numbers import type_numbers
from onnx_ops.torch.lowering.sparse_products import multiply_sparse
from onnx_ops.torch.lowering.writes import signature, without_writes
from onnx_ops.torch.operators.sigmoid import refine_sigmoids

aten = torch.ops.aten

OF_TENSORS = (aten.sym_numel.default, aten.sym_stride.int, aten.sym_storage_offset.default)
"""Numbers that have no translation."""

Decompositions = Mapping[OpOverload, Callable[..., Any]]


def lowered(graph: GraphModule, registry: ONNXRegistry, mode: FakeTensorMode) -> GraphModule:
    """A graph of operators that have a translation, as far as PyTorch has decompositions to such operators.

    Args:
        graph: a graph of ATen operators, which is changed.
        registry: the translations.
        mode: the mode of the FakeTensors in the graph.
    """
    with mode, enable_python_dispatcher(), torch.no_grad():
        graph = without_writes(graph)
        _fx_passes.remove_assertion_nodes(graph)
        decompositions = decompositions_of(registry)
        for module in _graphs(graph):
            _enter_constants(module)
            _enter_sizes(module)
            multiply_sparse(module)
            refine_sigmoids(module)
            _decompose(module, decompositions)
            _name_dtypes(module)
            _share_sizes(module)
            _Promotion(module, _type_promotion()).run(*(None for _ in module.graph.find_nodes(op="placeholder")))
            module.graph.eliminate_dead_code()
            type_numbers(module)
    return graph


@functools.cache
def decompositions_of(registry: ONNXRegistry) -> Decompositions:
    """PyTorch's decompositions of operators that have no translation."""
    return _decomp.create_onnx_friendly_decomposition_table(set(_decomp.get_onnx_implemented_overloads(registry)))


def _graphs(graph: GraphModule) -> Iterator[GraphModule]:
    """A graph and its subgraphs."""
    return (module for module in graph.modules() if isinstance(module, GraphModule))


def _enter_constants(module: GraphModule) -> None:
    """Set the values of the nodes that are constant tensors, where translations look for them."""
    for node in module.graph.find_nodes(op="get_attr"):
        constant = operator.attrgetter(node.target)(module)
        if isinstance(constant, torch.Tensor):
            node.meta["val"] = constant


def _enter_sizes(module: GraphModule) -> None:
    """Make integers of sizes that are symbols which have to be numbers: translations take them for dynamic sizes.

    But for those of tensors whose sizes are measured, as a condition that they are these numbers does.
    """
    for node in module.graph.nodes:
        value = node.meta.get("val")
        measured = any(user.target is torch.ops.onnx_ops.measured_size.default for user in node.users)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and not measured:
            known = [is_symbolic(size) and size.node.expr.is_number for size in value.shape]
            if any(known):
                shape = [int(size) if whole else size for size, whole in zip(value.shape, known, strict=True)]
                node.meta["val"] = value.new_empty_strided(shape, value.stride())


def _decompose(module: GraphModule, decompositions: Decompositions) -> None:
    """Replace operators by their decompositions, in place."""
    known: dict[Any, GraphModule] = {}
    for node in list(module.graph.nodes):
        if isinstance(node.target, OpOverload) and node.target in decompositions and node.users:
            leaves, structure = tree_flatten((node.args, node.kwargs))
            places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]
            values = {i: leaves[i].meta["val"] for i in places}
            key = node.target, structure, *(signature(values.get(i, leaf)) for i, leaf in enumerate(leaves))
            if key not in known:
                known[key] = _decomposition(node.target, leaves, values, structure, decompositions)
            _inline(node, known[key], [leaves[i] for i in places])


def _decomposition(
    target: OpOverload,
    leaves: list[Any],
    values: Mapping[int, Any],
    structure: TreeSpec,
    decompositions: Decompositions,
) -> GraphModule:
    """The decomposition of a call of an operator, as a graph of the arguments that `values` has by their place."""

    def call(*given: Any) -> Any:
        new = dict(zip(values, given, strict=True))
        args, kwargs = tree_unflatten([new.get(i, leaf) for i, leaf in enumerate(leaves)], structure)
        return target(*args, **kwargs)

    traced = make_fx(
        torch.func.functionalize(call), decomposition_table=dict(decompositions), _allow_non_fake_inputs=True
    )
    return traced(*values.values())


def _inline(node: Node, body: GraphModule, arguments: list[Node]) -> None:
    """Replace a node by the nodes of a graph."""
    graph, module = node.graph, node.graph.owning_module
    copies = dict(zip(body.graph.find_nodes(op="placeholder"), arguments, strict=True))
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "get_attr":
                name = f"{node.name}_{inner.target}"
                setattr(module, name, constant := operator.attrgetter(inner.target)(body))
                copies[inner] = graph.get_attr(name)
                copies[inner].meta["val"] = constant
            elif inner.op == "call_function":
                copies[inner] = graph.node_copy(inner, copies.__getitem__)
    results = body.graph.output_node().args[0]
    if isinstance(results, Node):
        node.replace_all_uses_with(copies[results])
    else:
        for user in list(node.users):
            assert user.target is operator.getitem
            result = results[user.args[1]]
            if result is not None:  # a gradient that is not wanted, which nothing reads
                user.replace_all_uses_with(copies[result])
            graph.erase_node(user)
    graph.erase_node(node)


def _name_dtypes(module: GraphModule) -> None:
    """Give new tensors, such as torch.ones(3), their dtype: without one, torch.onnx takes it for float32."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(node.target, OpOverload) or not isinstance(value, torch.Tensor):
            continue
        if any(isinstance(given.meta.get("val"), torch.Tensor) for given in node.all_input_nodes):
            continue  # others are sizes
        named = any(argument.name == "dtype" for argument in node.target._schema.arguments)
        if named and node.kwargs.get("dtype") is None and value.dtype is torch.get_default_dtype() is not torch.float32:
            node.kwargs = node.kwargs | {"dtype": value.dtype}


def _share_sizes(module: GraphModule) -> None:
    """Compute each symbolic size once, from the sizes of inputs where possible."""
    graph = module.graph
    inputs = graph.find_nodes(op="placeholder")
    known: dict[Any, Node] = {}
    with graph.inserting_after(inputs[-1] if inputs else None):
        for given in inputs:
            value = given.meta.get("val")
            for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if is_symbolic(size) and size.node.expr not in known:
                    known[size.node.expr] = node = graph.call_function(aten.sym_size.int, (given, axis))
                    node.meta["val"] = size
    roots = {symbol: expression for expression in known for symbol in expression.free_symbols - known.keys()}
    for node in list(graph.nodes):
        size = node.meta.get("val")
        if node.op != "call_function" or not isinstance(size, torch.SymInt) or node in known.values():
            continue
        expression = size.node.expr
        symbols = expression.free_symbols
        for symbol in symbols & roots.keys() - known.keys():
            known[symbol] = _root(node, symbol, roots[symbol], known[roots[symbol]])
        if expression not in known and node.target in OF_TENSORS:
            # Through the known parts of it: sizes of resized images have functions that only their own nodes compute.
            parts = {part: sympy.Dummy(integer=True) for part in known}
            whole, sizes = expression.xreplace(parts), {parts[part]: size for part, size in known.items()}
            if whole.free_symbols <= sizes.keys():
                used = {symbol: sizes[symbol] for symbol in whole.free_symbols}
                known[expression] = _computed(node, whole, used)
        if known.setdefault(expression, node) is not node:
            node.replace_all_uses_with(known[expression])


def _root(node: Node, symbol: sympy.Symbol, expression: sympy.Expr, size: Node) -> Node:
    """N of a dimension such as 2 * Dim("N"), whose size is an expression in its symbol, as nodes before a node."""
    whole, factor = sympy.Symbol("size", integer=True), expression.coeff(symbol)
    return _computed(node, FloorDiv(whole - expression.coeff(symbol, 0), factor), {whole: size})


def _computed(node: Node, expression: sympy.Expr, sizes: Mapping[sympy.Symbol, Node]) -> Node:
    """An expression of sizes as nodes before a node."""
    before = node.prev
    with node.graph.inserting_before(node):
        tracer = torch.fx.proxy.GraphAppendingTracer(node.graph)
        proxies = {symbol: torch.fx.Proxy(size, tracer) for symbol, size in sizes.items()}
        result: Node = sympy_interp(PythonReferenceAnalysis, proxies, expression).node
    while before.next is not node:
        before = before.next
        before.meta["val"] = before.target(*torch.fx.map_arg(before.args, lambda given: given.meta["val"]))
    return result


@functools.cache
def _type_promotion() -> TypePromotionTable:
    return TypePromotionTable()


def _is_floating(number: Argument) -> bool:
    return isinstance(number.meta["val"] if isinstance(number, Node) else number, float | torch.SymFloat)


class _Promotion(_TypePromotionInterpreter):
    """The pass InsertTypePromotion of torch.onnx, which runs only the operators that it changes."""

    def run_node(self, n: Node) -> Any:
        if n.target is aten.clamp.default and any(map(_is_floating, n.args[1:])):
            # A bound that is an integer would become a tensor, and the operator takes two numbers or two tensors.
            n.args = tuple(float(bound) if isinstance(bound, int) else bound for bound in n.args)
        rule = get_type_promotion_rule(n, self.type_promotion_table)
        if rule is not None:
            with self._set_current_node(n):
                self._maybe_promote_node(n, rule)
        return n.meta.get("val")

    def _rerun_node_after_type_promotion(self, node: Node, expected_out_dtype: torch.dtype) -> None:
        """The number in `1.0 - mask` is a tensor for operators that require one there."""
        number, other = node.args[:2] if len(node.args) > 1 else (None, None)
        if isinstance(number, int | float) and isinstance(other, Node):
            options = {"dtype": other.meta["val"].dtype}
            with node.graph.inserting_before(node):
                constant = self._create_node(
                    node.graph, "call_function", aten.scalar_tensor.default, (number,), options
                )
            node.args = (constant, *node.args[1:])
        super()._rerun_node_after_type_promotion(node, expected_out_dtype)
