"""Exports a graph of ATen operators to ONNX."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator

import onnx_ir as ir

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.lowering.lower import lowered
from onnx_ops.torch.lowering.translation import check_translations, registry, translated
from onnx_ops.torch.operators.barriers import lower_barriers
from onnx_ops.torch.operators.marks import take_out_marks
from onnx_ops.torch.rewriting.simplifying import simplify
from onnx_ops.torch.tracing.contexts import only_nodes, without_logs
from onnx_ops.torch.tracing.explanations import Locations, explained
from onnx_ops.torch.tracing.program import Dynamic, Tensors
from onnx_ops.torch.tracing.sizes import size_oblivious
from onnx_ops.torch.tracing.trace import Traced


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without logs and warnings of the exporter about itself, such as packages that are not installed."""
    with without_logs("torch.onnx", "torch.export", "onnxscript", "onnx_ir"), warnings.catch_warnings(action="ignore"):
        yield


def to_onnx(traced: Traced, examples: Tensors, outputs: list[str], opset_version: int, where: Locations) -> ir.Model:
    """Export a graph to standard ONNX operators and ops of this domain.

    Args:
        traced: the graph.
        examples: its inputs, by the names that they get in ONNX.
        outputs: the names of its outputs.
        opset_version: of the standard operators.
        where: the locations of the operators, for error messages.

    Raises:
        CaptureError: an operator has no translation to ONNX.
    """
    with explained(where), _quiet(), size_oblivious(), only_nodes():
        translations = registry(opset_version)
        check_translations(traced.graph, translations, where)
        graph = lowered(traced.graph, translations, traced.mode)
        _check_kept(traced)
        model = translated(graph, translations, opset_version)
        simplify(model)
    rename(model.graph, list(examples), outputs)
    take_out_marks(model)
    lower_barriers(model)
    _rename_dimensions(model.graph, traced.dynamic)
    return model


def _check_kept(traced: Traced) -> None:
    """Check that no dynamic size has become a number while the graph was lowered."""
    replaced = traced.mode.shape_env.replace
    for symbol, dim in traced.symbols.items():
        if replaced(symbol).is_number and not symbol.is_number:
            name = getattr(dim, "__name__", symbol)
            raise CaptureError(
                f"an operator that writes to a part of a tensor makes the number {replaced(symbol)} of the dynamic size"
                f" {name}: make a new tensor, such as by torch.cat, or let dynamic_shapes not name that dimension"
            )


def rename(graph: ir.Graph, inputs: list[str], outputs: list[str]) -> None:
    """Name inputs and outputs; other values with these names, and duplicate names, get a suffix."""
    for value, name in zip(graph.inputs, inputs, strict=True):
        value.name = name
    taken = {*inputs, *outputs}
    for i, (value, name) in enumerate(zip(list(graph.outputs), outputs, strict=True)):
        if value.is_graph_input() or value.is_initializer() or value in graph.outputs[:i]:
            node = ir.node("Identity", [value])
            graph.append(node)
            graph.outputs[i], shape, kind = node.outputs[0], value.shape, value.type
            value = node.outputs[0]
            value.shape, value.type = shape, kind
        value.name = name
    kept = {*graph.inputs, *graph.outputs}
    used, present = set(taken), {value.name for value in _inner(graph)}
    for value in _inner(graph):
        if value in kept or not value.name:
            continue
        name, count = value.name, 0
        while name in used or (count and name in present):
            count += 1
            name = f"{value.name}_{count}"
        used.add(name)
        if name != value.name:
            value.name = name


def _rename_dimensions(graph: ir.Graph, dynamic: Dynamic) -> None:
    """Name dynamic dimensions as dynamic_shapes does, or by the first input and axis that have them."""
    names: dict[str, str] = {}
    for value in graph.inputs:
        for axis, dim in dynamic.get(value.name or "", {}).items():
            size = value.shape[axis] if value.shape is not None else None
            if isinstance(size, ir.SymbolicDim) and size.value:
                names.setdefault(size.value, getattr(dim, "__name__", f"{value.name}_{axis}"))
    if not names:
        return
    old = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
    for value in (*graph.inputs, *graph.outputs, *_inner(graph)):
        if value.shape is not None and any(isinstance(size, ir.SymbolicDim) for size in value.shape):
            value.shape = ir.Shape(
                old.sub(lambda found: names[found.group()], str(size.value))
                if isinstance(size, ir.SymbolicDim)
                else size
                for size in value.shape
            )


def _inner(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value of a graph and its subgraphs, except for the graph's inputs."""
    yield from list(graph.initializers.values())
    for node in graph.all_nodes():
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from attribute.as_graph().inputs
                yield from list(attribute.as_graph().initializers.values())
