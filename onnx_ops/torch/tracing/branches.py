"""Traces of code that branches on sizes: whether it computes the same in all ways."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from onnx_ops.torch.tracing.certainty import linear
from onnx_ops.torch.tracing.equality import is_same
from onnx_ops.torch.tracing.inputs import Input
from onnx_ops.torch.tracing.limits import within
from onnx_ops.torch.tracing.sizes import RecordedShapes, Roots
from onnx_ops.training.conditions import Condition

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
