"""The inputs of a trace, and the sizes of their dynamic dimensions that the trace is valid for."""

from __future__ import annotations

import dataclasses
import sys
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
from torch.utils._sympy.numbers import int_oo

from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.certainty import certain_sizes, largest_size
from onnx_ops.torch.tracing.explanations import Locations, holding_where
from onnx_ops.torch.tracing.frames import Line
from onnx_ops.torch.tracing.sizes import RecordedShapes, Roots, allowed_sizes

USUAL = 1024
"""Sizes of a dimension up to this number are to be possible without a bound that the user gives."""


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


def take_bounds(shapes: ShapeEnv, inputs: list[Input], roots: Roots) -> dict[str, int]:
    """Remove the guards that hold up to a size of a dimension without a bound, and return these sizes by its name.

    Code may branch on whether there are too many elements, as before an operator that takes fewer than 2**31. Bounds
    that small batches reach are left to the user.
    """
    dims = dict(symbol for given in inputs for symbol in given.symbols())
    dims |= {roots.symbol(dim): dim.root for dim in list(dims.values()) if roots.has(dim)}
    sizes = {symbol: dim for symbol, dim in dims.items() if has_no_bound(dim)}
    bounds: dict[str, int] = {}
    for guard in list(shapes.guards):
        symbols = guard.expr.free_symbols
        dim = sizes.get(next(iter(symbols))) if len(symbols) == 1 else None
        most = None if dim is None else largest_size(guard.expr)
        if dim is not None and most is not None and most >= USUAL:
            bounds[dim.__name__] = min(most, bounds.get(dim.__name__, most))
            shapes.guards.remove(guard)
    return bounds


def bounded(inputs: list[Input], roots: Roots, bounds: Mapping[str, int]) -> list[Input]:
    """The inputs, with the largest sizes of dimensions without a bound, by the names of these."""

    def bound(dim: Dimension) -> Dimension:
        if roots.has(dim):
            root = bound(dim.root)
            return dim if root is dim.root else type(dim)(dim.__name__, root, dim.fn)
        if not has_no_bound(dim) or dim.__name__ not in bounds:
            return dim
        return torch.export.Dim(dim.__name__, min=dim.min, max=bounds[dim.__name__])

    return [
        dataclasses.replace(given, dimensions={axis: bound(dim) for axis, dim in given.dimensions.items()})
        for given in inputs
    ]


def has_no_bound(dim: Dimension) -> bool:
    """Whether a dimension may be of any size, as far as is given."""
    return isinstance(dim, torch.export.Dim) and not hasattr(dim, "root") and dim.max in (None, int_oo)


def valid_sizes(shapes: RecordedShapes, inputs: list[Input]) -> dict[str, range]:
    """The sizes for which the guards on a dimension hold, by name, of dimensions that allow others too.

    A convolution takes no fewer elements than its filter has, for example. The range ends with `sys.maxsize` if it has
    the largest size that is allowed. Guards that hold for no other size than that of the example are left out, and
    those on several dimensions.
    """
    given = {guard.expr for guard in shapes.given}
    guards = [guard.expr for guard in shapes.guards if guard.expr not in given]
    found: dict[str, range] = {}
    for size, dim in (named for own in inputs for named in own.named()):
        symbol, allowed = size.node.expr, allowed_sizes(dim, least=2)
        if hasattr(dim, "root") or not symbol.is_Symbol:
            continue
        narrowed = shapes.var_to_range[symbol]
        of_guards = [
            certain_sizes(guard, symbol, allowed, size.node.hint) for guard in guards if guard.free_symbols == {symbol}
        ]
        valid = [
            range(int(narrowed.lower), int(narrowed.upper) + 1 if narrowed.upper < allowed.upper else sys.maxsize),
            *(sizes for sizes in of_guards if sizes is not None and len(sizes) > 1),
            *([found[dim.__name__]] if dim.__name__ in found else []),
        ]
        sizes = range(max(each.start for each in valid), min(each.stop for each in valid))
        if sizes != range(int(allowed.lower), sys.maxsize) and len(sizes) > 1:
            found[dim.__name__] = sizes
    return found


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
