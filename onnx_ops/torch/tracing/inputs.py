"""The inputs of a trace, and the sizes of their dynamic dimensions that the trace is valid for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource, TensorProperty, TensorPropertySource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    EqualityConstraint,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    is_symbolic,
)

from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.explanations import Locations, holding_where
from onnx_ops.torch.tracing.frames import Line
from onnx_ops.torch.tracing.sizes import RecordedShapes, Roots, allowed_sizes


@dataclass(frozen=True)
class Input:
    """An input of a trace: a FakeTensor, and the source and constraints of its symbolic sizes."""

    fake: torch.Tensor
    source: ConstantSource
    context: StatelessSymbolicContext
    dimensions: Mapping[int, Dimension]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, dimensions: Mapping[int, Dimension], mode: FakeTensorMode) -> Input:
        axes = range(tensor.dim())
        context = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if axis in dimensions else DimDynamic.STATIC for axis in axes],
            constraint_sizes=[_allowed(dimensions[axis]) if axis in dimensions else None for axis in axes],
        )
        source = ConstantSource(name)
        return cls(mode.from_tensor(tensor, symbolic_context=context, source=source), source, context, dimensions)

    def named(self) -> Iterator[tuple[torch.SymInt, torch.export.Dim]]:
        """The sizes of dimensions that have names."""
        for axis, dim in self.dimensions.items():
            size = self.fake.shape[axis]
            if isinstance(dim, torch.export.Dim) and isinstance(size, torch.SymInt):
                yield size, dim

    def symbols(self) -> Iterator[tuple[Any, Dimension]]:
        """The symbol of each dynamic dimension, with the dimension."""
        for axis, dim in self.dimensions.items():
            if is_symbolic(self.fake.shape[axis]):
                yield self.fake.shape[axis].node.expr, dim

    def kept(self, shapes: ShapeEnv) -> dict[int, Dimension]:
        """The dimensions that stay dynamic: all but those of Dim.AUTO that a guard restricts."""
        limited = {symbol for guard in shapes.guards for symbol in guard.expr.free_symbols}
        return {
            axis: dim
            for axis, dim in self.dimensions.items()
            if dim is not torch.export.Dim.AUTO or not self.fake.shape[axis].node._expr.free_symbols & limited
        }


def _allowed(dim: Dimension) -> StrictMinMaxConstraint | None:
    """The constraint on a dimension's size, which is at least 2; None for Dim.AUTO, which PyTorch may restrict."""
    if dim is torch.export.Dim.AUTO:
        return None
    return StrictMinMaxConstraint(vr=allowed_sizes(dim, least=2), warn_only=False)


def possibly_zero(inputs: list[Input]) -> set[sympy.Symbol]:
    """The symbols of dimensions that may have the size 0: not that of the samples, of which a step takes at least 1."""
    first = {getattr(given.dimensions[0], "__name__", "") for given in inputs if 0 in given.dimensions}
    samples = first if len(first) == 1 else set()
    return {
        symbol
        for given in inputs
        for size, dim in given.named()
        if not dim.min and (dim.root if hasattr(dim, "root") else dim).__name__ not in samples
        for symbol in size.node.expr.free_symbols
    }


def restrictions(shapes: RecordedShapes, inputs: list[Input]) -> dict[str, Line]:
    """The line of code that restricts a dynamic dimension, by the name that PyTorch's errors give the dimension."""
    equal: dict[str, list[torch.SymInt]] = {}  # PyTorch has one symbol, of any of them, for those that are one
    for given in inputs:
        for size, dim in given.named():
            equal.setdefault(dim.__name__, []).append(size)
    lines = {
        f"{given.source.name}.size()[{axis}]": shapes.line_of(equal.get(getattr(dim, "__name__", ""), [size]))
        for given in inputs
        for axis, dim in given.dimensions.items()
        if isinstance(size := given.fake.shape[axis], torch.SymInt)
    }
    return {name: line for name, line in lines.items() if line is not None}


def unify_sizes(inputs: list[Input]) -> None:
    """Make the sizes of dimensions with the same torch.export.Dim one symbol, unless the examples contradict it."""
    first: dict[str, torch.SymInt] = {}
    for given in inputs:
        for size, dim in given.named():
            known = first.setdefault(dim.__name__, size)
            if known.node.hint == size.node.hint:
                torch._check(known == size)


def check_sizes(shapes: ShapeEnv, inputs: list[Input], roots: Roots, where: Locations) -> None:
    """Raise PyTorch's error or a CaptureError for a graph that is valid only for some sizes of the dynamic dimensions.

    Conditions on sizes, such as `if len(x) > 4`, were evaluated for the examples.
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
        (place, places[dim.root.__name__][0] if dim.root.__name__ in places else roots.symbol(dim), dim.fn)
        for dim, place in named
        if hasattr(dim, "root")
    ]
    others = {
        given.fake.shape[axis].node.expr: TensorPropertySource(given.source, TensorProperty.SIZE, axis).name
        for given in inputs
        for axis in given.dimensions
        if is_symbolic(given.fake.shape[axis])
    }
    for name, condition in roots.conditions(others):
        dim, place = next((dim, place) for dim, place in named if roots.has(dim) and dim.root.__name__ == name)
        raise CaptureError(holding_where(place.name, condition, where, int(dim.fn(1) - dim.fn(0))))
    shapes.produce_guards(
        [given.fake for given in inputs],
        [given.source for given in inputs],
        input_contexts=[given.context for given in inputs],
        equalities_inputs=EqualityConstraint(
            source_pairs=equal,
            derived_equalities=derived,
            phantom_symbols=[*roots],
            relaxed_sources=set(),
            warn_only=False,
        ),
    )
