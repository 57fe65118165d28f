"""Traces of code that branches on sizes: whether one of them computes what the code does in all ways."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.tracing.certainty import divisions, is_certain, linear
from onnx_ops.torch.tracing.equality import Sizes, is_same
from onnx_ops.torch.tracing.inputs import Input
from onnx_ops.torch.tracing.limits import within
from onnx_ops.torch.tracing.sizes import RecordedShapes, Roots
from onnx_ops.training.conditions import Condition

PERIODS = 256
"""The largest number whose multiples are looked for."""
GUARDS = 3
"""Guards of a trace up to which all of their ways are traced."""
Ways = frozenset[tuple[sympy.Basic, bool]]
"""Values of conditions on sizes."""


@dataclass(frozen=True)
class Made:
    """A graph of a function, the symbols and inputs of the trace, the conditions on data, and bounds of sizes."""

    graph: torch.fx.GraphModule
    shapes: RecordedShapes
    mode: FakeTensorMode
    inputs: list[Input]
    roots: Roots
    conditions: list[Condition]
    bounds: dict[str, range]

    def bounded_inputs(self) -> list[Input]:
        return [
            dataclasses.replace(
                given, dimensions={axis: within(dim, self.bounds) for axis, dim in given.dimensions.items()}
            )
            for given in self.inputs
        ]


def without_guards(found: Made, made: Callable[[Ways], Made]) -> Made | None:
    """A trace without guards, if code that branches on sizes computes the same in all ways; None if it does not.

    As in `if len(x) >= 64: x = x.contiguous()`.

    Args:
        found: a trace with guards.
        made: makes the trace where conditions have other values than in the example.
    """
    given = {guard.expr for guard in found.shapes.given}
    guards = {g.expr: found.shapes.asked.get(g.expr) for g in found.shapes.guards if g.expr not in given}
    here = frozenset(filter(None, guards.values()))
    if not 0 < len(guards) <= GUARDS or not all(guards.values()):
        return None
    traces = [found]
    for count in range(1, len(guards) + 1):
        for others in itertools.combinations(guards, count):
            changed = frozenset((condition, not value) for condition, value in filter(None, map(guards.get, others)))
            if not _may_be(dict(here) | dict(changed)):
                continue
            try:
                traces.append(other := made(changed))
            except Exception:  # of the user's code, or of PyTorch, for sizes that the example does not have
                return None
            size = _sizes_where(changed)
            conditions = {g.expr for g in other.shapes.guards if g.expr.xreplace(size) is not sympy.true}
            if not conditions <= (given | guards.keys()) - set(others):
                # Other conditions, which those decide: all of them, if guards narrow no ranges.
                return without_guards(made(frozenset()), made) if found.shapes.narrows else None
            if not is_same(found.graph, other.graph):
                return None
    if any(guard.expr in guards for guard in traces[-1].shapes.guards):  # no size has the other value of all conditions
        traces.append(other := made(here))
        if not is_same(found.graph, other.graph):
            return None
    last = traces[-1]
    for ones, line in found.shapes.decided_at_one.items():
        last.shapes.decided_at_one.setdefault(ones, line)
    names = set().union(*(each.bounds for each in traces))
    return dataclasses.replace(
        last, bounds={name: min((e.bounds[name] for e in traces if name in e.bounds), key=len) for name in names}
    )


@dataclass(frozen=True)
class Multiples:
    """The branch that code takes where a size is a multiple of a number, as without padding to one.

    Attributes:
        way: the condition, with its value for other sizes.
        dim: the dimension.
        period: the number.
        least: the smallest size.
    """

    way: tuple[sympy.Basic, bool]
    dim: torch.export.Dim
    period: int
    least: int

    def examples(
        self, examples: Mapping[str, Tensor], dynamic: Mapping[str, Mapping[int, Dimension]], *, multiple: bool
    ) -> dict[str, Tensor] | None:
        """Examples with a size close to theirs that is a multiple, or none; None if the dimension has no such size.

        Args:
            examples: tensors by name.
            dynamic: their dynamic dimensions.
            multiple: whether the size is to be a multiple.
        """
        found = dict(examples)
        for name, axes in dynamic.items():
            for axis, dim in axes.items():
                if (form := self._form(dim)) is None:
                    continue
                factor, offset = form
                example = examples[name]
                if (size := self._size((example.shape[axis] - offset) // factor, multiple=multiple)) is None:
                    return None
                rows = torch.arange(factor * size + offset) % example.shape[axis]
                found[name] = found[name].detach().index_select(axis, rows).requires_grad_(example.requires_grad)
        return found

    def dimensions(self, dynamic: Mapping[str, Mapping[int, Dimension]]) -> dict[str, dict[int, Dimension]]:
        """Dynamic dimensions with the multiples in place of the dimension."""
        count = self.count()

        def replaced(dim: Dimension) -> Dimension:
            if (form := self._form(dim)) is None:
                return dim
            factor, offset = form
            return factor * self.period * count + offset if offset else factor * self.period * count

        return {name: {axis: replaced(dim) for axis, dim in axes.items()} for name, axes in dynamic.items()}

    def count(self) -> torch.export.Dim:
        """The dimension of which those of multiples are multiples."""
        bounds = {} if self.dim.max in (None, int_oo) else {"max": self.dim.max // self.period}
        return torch.export.Dim(f"{self.dim.__name__}_over_{self.period}", min=-(-self.least // self.period), **bounds)

    def _form(self, dim: Dimension) -> tuple[int, int] | None:
        """Factor and offset of a linear function of the dimension, as of itself; None for any other dimension."""
        if not isinstance(dim, torch.export.Dim):
            return None
        if not hasattr(dim, "root"):
            return (1, 0) if dim.__name__ == self.dim.__name__ else None
        offset = int(dim.fn(0))
        return (int(dim.fn(1)) - offset, offset) if dim.root.__name__ == self.dim.__name__ else None

    def _size(self, size: int, *, multiple: bool) -> int | None:
        allowed = range(max(self.least, 2), size + 2 * self.period)
        below = [each for each in allowed if self.dim.max in (None, int_oo) or each <= self.dim.max]
        sizes = [each for each in below if (each % self.period == 0) is multiple]
        return min(sizes, key=lambda each: abs(each - size), default=None)


def on_multiples(found: Made) -> Multiples | None:
    """The first branch in a trace on whether a size is a multiple of a number; None if it has none."""
    dims = {
        found.roots.symbol(dim) if found.roots.has(dim) else symbol: getattr(dim, "root", dim)
        for given in found.inputs
        for symbol, dim in given.symbols()
        if isinstance(dim, torch.export.Dim)
    }
    for guard in found.shapes.guards:
        way = found.shapes.asked.get(guard.expr)
        symbol = next(iter(guard.expr.free_symbols))
        if way is None or len(guard.expr.free_symbols) > 1 or symbol not in dims:
            continue
        period = math.lcm(*(int(division.args[1]) for division in divisions(guard.expr)))
        if not 2 <= period <= PERIODS:
            continue
        values = [_value(guard.expr, symbol, period, remainder) for remainder in range(period)]
        if None in values or values[0] in values[1:]:
            continue
        condition, value = way
        least = dims[symbol].min or (0 if symbol in found.shapes.possibly_zero else 1)
        return Multiples((condition, value is values[1]), dims[symbol], period, least)
    return None


def covers(general: Made, multiples: Made, of: Multiples) -> Made | None:
    """A trace for all sizes, if it computes what code does for multiples of a number too; None if it does not.

    As padding to a multiple does, of which code cuts off the results if there is any.

    Args:
        general: the trace for sizes that are none.
        multiples: that for multiples.
        of: the branch between them.
    """
    values: dict[sympy.Symbol, sympy.Expr] = {}
    for given, also in zip(general.inputs, multiples.inputs, strict=True):
        for one, other in zip(given.fake.shape, also.fake.shape, strict=True):
            if is_symbolic(one) and is_symbolic(other):
                (symbol,) = one.node.expr.free_symbols
                factor, offset = linear(one.node.expr, symbol) or (0, 0)
                if not factor:
                    return None
                values[symbol] = sympy.expand((other.node.expr - offset) / factor)
    if not is_same(general.graph, multiples.graph, Sizes(values, multiples.shapes.var_to_range)):
        return None
    for ones, line in multiples.shapes.decided_at_one.items():
        general.shapes.decided_at_one.setdefault(ones, line)
    bounds = dict(general.bounds)
    for name, sizes in multiples.bounds.items():
        own = name == of.count().__name__
        name, stop = (of.dim.__name__, of.period * (sizes.stop - 1) + 1) if own else (name, sizes.stop)
        bounds[name] = range(min(stop, bounds.get(name, range(stop)).stop))
    return dataclasses.replace(general, bounds=bounds)


def _value(condition: sympy.Basic, symbol: sympy.Symbol, period: int, remainder: int) -> bool | None:
    """The value of a condition for all sizes with a remainder; None if it has several, or that is not known."""
    count = sympy.Symbol("count", integer=True, nonnegative=True)
    ranges = {count: ValueRanges(0, int_oo)}
    for value in (True, False):
        own = (condition if value else sympy.Not(condition)).xreplace({symbol: period * count + remainder})
        if own is sympy.true or (own is not sympy.false and is_certain(own, ranges)):
            return value
    return None


def _sizes_where(values: Ways) -> dict[sympy.Symbol, sympy.Integer]:
    """The only sizes for which equations of one symbol, among conditions with these values, hold."""
    found: dict[sympy.Symbol, sympy.Integer] = {}
    for condition, value in values:
        equation = condition if value else sympy.Not(condition)
        if isinstance(equation, sympy.Eq) and len(symbols := equation.free_symbols) == 1:
            (symbol,) = symbols
            factor, offset = linear(equation.lhs - equation.rhs, symbol) or (0, 0)
            if factor and offset % factor == 0:
                found[symbol] = sympy.Integer(-offset // factor)
    return found


def _may_be(values: Mapping[sympy.Basic, bool]) -> bool:
    """Whether there may be sizes for which conditions have these values; False only if it is certain."""
    expected = [condition if value else sympy.Not(condition) for condition, value in values.items()]
    symbols = set().union(*(condition.free_symbols for condition in values))
    if len(symbols) != 1:
        return True
    try:
        return sympy.reduce_inequalities(expected, symbols) is not sympy.false
    except (NotImplementedError, RecursionError, TypeError, ValueError):  # as those with Mod and with PyTorch's Min
        return True
