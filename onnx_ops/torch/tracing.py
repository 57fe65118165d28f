"""From a function of tensors to its graph, in PyTorch's operators and then in ONNX's."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import onnx_ir as ir
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource, TensorProperty, TensorPropertySource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution
from torch.fx.experimental import _config as symbolic_shapes_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    EqualityConstraint,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    is_symbolic,
)
from torch.onnx._internal.exporter import _core as exporter
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from onnx_ops.torch.constants import Constants
from onnx_ops.torch.explanations import NoAutocast, Whereabouts, explained
from onnx_ops.torch.indices import index_ranges
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.operators.gradient_marks import take_out_marks
from onnx_ops.torch.preserving import preserved
from onnx_ops.torch.simplifying import simplify
from onnx_ops.torch.substitution import Substitution, whole_ops
from onnx_ops.torch.translation import check_translations, registry
from onnx_ops.training.ranges import IndexRange

Tensors = dict[str, torch.Tensor]
Dynamic = Mapping[str, Mapping[int, Any]]
"""The dynamic dimensions of tensors: name, axis, and what torch.export calls it."""


@contextlib.contextmanager
def portable_kernels() -> Iterator[None]:
    """PyTorch's operators are chosen among those whose derivatives are operators too, not calls of a CPU library."""
    with (
        warnings.catch_warnings(action="ignore"),  # the flags warn of a TF32 setting that nobody touches
        torch.backends.mkldnn.flags(enabled=False),
        torch.backends.nnpack.flags(enabled=False),  # which it asks for by the size of the batch
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        yield


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """PyTorch computes itself what a trace would record: attention out of the same operators, which draw in the same
    order, and what it has on GPUs only."""
    with Substitution(TABLE.missing), portable_kernels():
        yield


def _unchecked_distributions() -> contextlib.AbstractContextManager[Any]:
    """torch.distributions looks at no values to check arguments; PyTorch has checked those of the example."""
    return mock.patch.object(Distribution, "_validate_args", False)


def _sizes_taken_for_large() -> contextlib.AbstractContextManager[None]:
    """PyTorch itself does not ask whether dynamic sizes, and those computed from them, are 0 or 1.

    A graph that fits all other sizes fits these.
    """
    patched: contextlib.AbstractContextManager[None] = symbolic_shapes_config.patch(backed_size_oblivious=True)
    return patched


@dataclass(frozen=True)
class Traced:
    """A function's graph in PyTorch's operators.

    Attributes:
        graph: from the tensors it was traced with, in their order, to those that the function returned.
        dynamic: the dimensions of those tensors for whose other sizes the graph is right too.
        symbols: what stands for a dynamic dimension in shapes, and what torch.export calls the dimension.
        ranges: which numbers those tensors may have that are indices.
    """

    graph: torch.fx.GraphModule
    dynamic: Dynamic
    symbols: Mapping[Any, Any]
    ranges: Sequence[IndexRange]

    def dimension(self, size: Any) -> Any:
        """What torch.export calls a size that the trace has met."""
        replaced = size.node.shape_env.replace  # symbols that have turned out to be equal are written as one
        same = (dim for symbol, dim in self.symbols.items() if replaced(symbol) == size.node.expr)
        return next(same, torch.export.Dim.AUTO)


def trace(function: Callable[[Tensors], Tensors], examples: Tensors, dynamic: Dynamic, where: Whereabouts) -> Traced:
    """The operators that the function runs, differentiation within it included. The model stays as it was.

    Dimensions that are not dynamic count as numbers, so that two sizes that happen to be equal are not taken for one.
    """
    shapes = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    inputs = [_Input.of(name, tensor, dynamic.get(name, {}), mode) for name, tensor in examples.items()]

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with preserved(where.model), where, Constants(mode), _unchecked_distributions(), NoAutocast(where), whole_ops():
            return list(function(dict(zip(examples, tensors, strict=True))).values())

    with explained(where):
        with mode, enable_python_dispatcher(), portable_kernels(), _sizes_taken_for_large():
            fakes = [given.fake for given in inputs]
            # All of core ATen would be more than torch.onnx can translate: SiLU's gradient then ends in empty_permuted.
            graph = make_fx(flat, decomposition_table=TABLE.decompositions, _allow_non_fake_inputs=True)(*fakes)
        _check_sizes(shapes, inputs)
    kept = {name: given.kept(shapes) for name, given in zip(examples, inputs, strict=True)}
    symbols = {symbol: dim for given in inputs for symbol, dim in given.symbols()}
    return Traced(graph, kept, symbols, index_ranges(graph, list(examples)))


@dataclass(frozen=True)
class _Input:
    """A tensor that a function is traced with: one without contents, and where its sizes come from."""

    fake: torch.Tensor
    source: ConstantSource
    context: StatelessSymbolicContext
    dimensions: Mapping[int, Any]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, dimensions: Mapping[int, Any], mode: FakeTensorMode) -> _Input:
        axes = range(tensor.dim())
        context = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if axis in dimensions else DimDynamic.STATIC for axis in axes],
            constraint_sizes=[_allowed(dimensions[axis]) if axis in dimensions else None for axis in axes],
        )
        source = ConstantSource(name)
        return cls(mode.from_tensor(tensor, symbolic_context=context, source=source), source, context, dimensions)

    def symbols(self) -> Iterator[tuple[Any, Any]]:
        """What stands for the sizes that may change, each with its dimension."""
        for axis, dim in self.dimensions.items():
            if is_symbolic(self.fake.shape[axis]):
                yield self.fake.shape[axis].node.expr, dim

    def kept(self, shapes: ShapeEnv) -> dict[int, Any]:
        """The dimensions that stay dynamic; those of Dim.AUTO for which only some sizes will do do not."""
        limited = {symbol for guard in shapes.guards for symbol in guard.expr.free_symbols}
        return {
            axis: dim
            for axis, dim in self.dimensions.items()
            if dim is not torch.export.Dim.AUTO or not self.fake.shape[axis].node._expr.free_symbols & limited
        }


def _allowed(dim: Any) -> StrictMinMaxConstraint | None:
    """The sizes that a dimension must be able to have, 0 and 1 apart; None for those that PyTorch may limit itself."""
    if dim is torch.export.Dim.AUTO:
        return None
    least, most = getattr(dim, "min", None), getattr(dim, "max", None)
    return StrictMinMaxConstraint(vr=ValueRanges(max(least or 2, 2), int_oo if most is None else most), warn_only=False)


def _check_sizes(shapes: ShapeEnv, inputs: list[_Input]) -> None:
    """Refuse a graph that holds only for some sizes of the dynamic dimensions.

    What the function asked about sizes, such as `if len(x) > 4`, it answered for the examples.
    """
    named = [
        (dim, TensorPropertySource(given.source, TensorProperty.SIZE, axis))
        for given in inputs
        for axis, dim in given.dimensions.items()
        if isinstance(dim, torch.export.Dim)
    ]
    places: dict[str, list[TensorPropertySource]] = {}
    for dim, place in named:
        places.setdefault(dim.__name__, []).append(place)
    equal = [(first, other) for first, *others in places.values() for other in others]
    derived = [  # such as 2 * Dim("N")
        (place, places[dim.root.__name__][0], dim.fn)
        for dim, place in named
        if hasattr(dim, "root") and dim.root.__name__ in places
    ]
    shapes.produce_guards(
        [given.fake for given in inputs],
        [given.source for given in inputs],
        input_contexts=[given.context for given in inputs],
        equalities_inputs=EqualityConstraint(
            source_pairs=equal, derived_equalities=derived, phantom_symbols=[], relaxed_sources=set(), warn_only=False
        ),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter warns of within itself, such as packages that are not installed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _Flat(torch.nn.Module):
    """A graph as the module that torch.export wants."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__()
        self.graph_module = graph

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.graph_module(*tensors)


def to_onnx(traced: Traced, examples: Tensors, outputs: list[str], opset_version: int, where: Whereabouts) -> ir.Model:
    """The graph in ONNX's operators and those of this domain, with inputs and outputs under the names given."""
    shapes = tuple(dict(traced.dynamic[name]) or None for name in examples)
    with explained(where), torch.no_grad(), _quiet(), _sizes_taken_for_large():
        translations = registry(opset_version)
        check_translations(traced.graph, translations, where)
        given = tuple(examples.values())
        program = torch.export.export(_Flat(traced.graph), given, dynamic_shapes=(shapes,), strict=False)
        exported = exporter.export(
            program,
            registry=translations,
            verbose=False,
            optimize=False,
            opset_version=opset_version,
        )
        model = exported.model
        simplify(model)
    rename(model.graph, list(examples), outputs)
    take_out_marks(model)
    _rename_dimensions(model.graph, traced.dynamic)
    return model


def rename(graph: ir.Graph, inputs: list[str], outputs: list[str]) -> None:
    """Give inputs and outputs their names; a value inside that has one of them gets another."""
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
    """Dynamic dimensions get the names that dynamic_shapes gives them, or those of their first places."""
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
    """Every value of a graph and its subgraphs."""
    yield from list(graph.initializers.values())
    for node in graph.all_nodes():
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from attribute.as_graph().inputs
                yield from list(attribute.as_graph().initializers.values())
