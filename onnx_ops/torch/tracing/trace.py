"""Traces a function of tensors to a graph of ATen operators."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    is_symbolic,
)
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts

from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS, SEED
from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.tracing.branches import GUARDS, Made, covers, on_multiples, without_guards
from onnx_ops.torch.tracing.caches import bypassed_caches, dictionaries_of_sizes, hashes_a_size, without_traced_values
from onnx_ops.torch.tracing.constants import Constants
from onnx_ops.torch.tracing.contexts import (
    only_nodes,
    portable_kernels,
    substituted,
    without_anomaly_detection,
    without_logs,
    without_profiles,
)
from onnx_ops.torch.tracing.conversions import Conversions
from onnx_ops.torch.tracing.data_dependence import DataDependence, ExampleRequired
from onnx_ops.torch.tracing.explanations import Locations, causes, explained
from onnx_ops.torch.tracing.fake_tensors import FakeTensors
from onnx_ops.torch.tracing.folding import fold_functions
from onnx_ops.torch.tracing.frames import Line
from onnx_ops.torch.tracing.indices import index_ranges
from onnx_ops.torch.tracing.inputs import Input, check_sizes, possibly_zero, restrictions, unify_sizes
from onnx_ops.torch.tracing.limits import take_bounds, valid_sizes
from onnx_ops.torch.tracing.mathematics import quotients_of_nodes
from onnx_ops.torch.tracing.preserving import preserved
from onnx_ops.torch.tracing.program import Dynamic, Program, Tensors
from onnx_ops.torch.tracing.real_parts import RealParts, has_complex_numbers
from onnx_ops.torch.tracing.repeated_gradients import repeated_gradients
from onnx_ops.torch.tracing.row_indices import index_rows
from onnx_ops.torch.tracing.sizes import RecordedShapes, Roots, size_oblivious, symbolic_sizes
from onnx_ops.torch.tracing.zero_sums import make_zeros_positive
from onnx_ops.training.conditions import Condition
from onnx_ops.training.ranges import IndexRange


@dataclass(frozen=True)
class Traced:
    """A function's graph of ATen operators.

    Attributes:
        graph: the graph; inputs and outputs are the function's, in their order.
        dynamic: the dynamic dimensions of the inputs: the graph is valid for other sizes of them too.
        symbols: the symbol of each dynamic dimension, with the dimension.
        ranges: the valid values of inputs that are indices.
        conditions: on data, for the graph to be valid; its last outputs say which of them hold, and the numbers that
            they depend on.
        mode: the mode of the FakeTensors in the graph.
        decided_at_one: dynamic dimensions, each as an input and an axis of it, with which the code does something else
            if their size is 1 (all sizes of a set), with the line.
        never_empty: dynamic dimensions, likewise, for whose size 0 PyTorch raises an error.
    """

    graph: torch.fx.GraphModule
    dynamic: Dynamic
    symbols: Mapping[Any, Dimension]
    ranges: Sequence[IndexRange]
    conditions: Sequence[Condition]
    mode: FakeTensorMode
    decided_at_one: Mapping[frozenset[tuple[str, int]], Line | None]
    never_empty: Collection[tuple[str, int]]

    def condition_outputs(self) -> list[str]:
        """The names of the outputs with the conditions."""
        return [CONDITIONS, CONDITION_NUMBERS] if self.conditions else []


def trace(
    function: Callable[[Tensors], Tensors],
    examples: Tensors,
    dynamic: Dynamic,
    where: Locations,
    followed: Collection[str] = (),
    constants: Collection[str] = (),
    refuses: Callable[[Mapping[str, Mapping[int, int]]], bool] | None = None,
) -> Traced:
    """Trace the operators that a function runs, differentiation within it included. The model stays unchanged.

    Args:
        function: named tensors to named tensors.
        examples: its inputs.
        dynamic: their dynamic dimensions. Two of the same size in the example are different dimensions, unless they
            have the same torch.export.Dim.
        where: records the locations of the operators for error messages.
        followed: the names of inputs on whose elements the function may branch: the trace goes the way of the examples.
        constants: the names of inputs that always have the values of the examples.
        refuses: whether PyTorch raises an error for other sizes, by input and axis. The trace is then for fewer sizes
            than those given where that is so, where it is valid for those of usual batches, or, if it follows elements,
            for those with which code does what it does for the example. With None it is not.

    Raises:
        CaptureError: the function cannot be traced, or is valid only for some sizes of the dynamic dimensions.
    """
    conversions = Conversions()
    program = Program(function, examples, dynamic, where, followed, constants, refuses, conversions)
    first: Traced | None = None
    while True:
        known = len(conversions.modules)
        try:
            found = _followed(program)
        except CaptureError as error:
            for cause in causes(error):
                conversions.note_checks(cause)
            if len(conversions.modules) > known:
                continue
            if first is None:
                raise
            return first
        if len(conversions.modules) == known:
            return found
        first = first or found


def _followed(program: Program) -> Traced:
    """As `trace`."""
    try:
        return _trace(program)
    except ExampleRequired:
        pass
    except CaptureError as error:
        # The exit of a context manager of the model may have raised another one, as those of tensordict do.
        if not any(isinstance(cause, ExampleRequired) for cause in causes(error)):
            raise
    return _trace(dataclasses.replace(program, example=program.recorded()))


def _trace(program: Program) -> Traced:
    """As `_followed`; ExampleRequired is raised if there is no example, and it is needed."""
    examples, where = program.examples, program.where
    with explained(where), without_traced_values(), only_nodes():
        made = _made(program)
        inputs = made.bounded_inputs()
        where.restrictions = restrictions(made.shapes, inputs)
        sizes = valid_sizes(made.shapes, inputs)
        where.sizes = {
            f"{own.source.name}.size()[{axis}]": sizes[dim.__name__]
            for own in inputs
            for axis, dim in own.dimensions.items()
            if getattr(dim, "__name__", "") in sizes
        }
        try:
            check_sizes(made.shapes, inputs, made.roots, where)
        except Exception:  # PyTorch's, or that of a root of dimensions
            one_way = without_guards(
                made,
                functools.cache(
                    lambda ways: _made(dataclasses.replace(program, where=Locations(where.model)), dict(ways))
                ),
            )
            one_way = one_way or _of_multiples_too(program, made)
            if one_way is None:
                if not (taken := program.taken_sizes(sizes)):
                    raise
                return _trace(program.within(taken))
            made = one_way
            inputs = made.bounded_inputs()
            check_sizes(made.shapes, inputs, made.roots, where)
        graph, shapes = made.graph, made.shapes
        fold_functions(graph)
    index_rows(graph)
    make_zeros_positive(graph)
    kept = {name: given.kept(shapes) for name, given in zip(examples, inputs, strict=True)}
    if any(kept[name].keys() != program.dynamic.get(name, {}).keys() for name in examples):
        # With the sizes of the other dimensions as numbers.
        return _trace(dataclasses.replace(program, dynamic=kept))
    symbols = {symbol: dim for given in inputs for symbol, dim in given.symbols()}
    places = {
        size.node.expr: (given.source.name, axis)
        for given in reversed(inputs)
        for axis in given.dimensions
        if is_symbolic(size := given.fake.shape[axis])
    }
    decided = {
        frozenset(places[symbol] for symbol in symbols): line
        for symbols, line in shapes.decided_at_one.items()
        if symbols <= places.keys()
    }
    never_empty = {places[symbol] for symbol in shapes.never_empty & places.keys()}
    ranges = index_ranges(graph, list(examples))
    return Traced(graph, kept, symbols, ranges, made.conditions, made.mode, decided, never_empty)


def _of_multiples_too(program: Program, found: Made, ways: Mapping[sympy.Basic, bool] | None = None) -> Made | None:
    """A trace without guards for code that branches on whether sizes are multiples of numbers; None for other code.

    Args:
        program: what is traced.
        found: its trace, which has guards.
        ways: conditions with the values that they have in the trace.
    """
    if len(ways := ways or {}) == GUARDS or (branch := on_multiples(found)) is None:
        return None
    try:
        others, multiples = (program.on_one_way(branch, multiple=multiple) for multiple in (False, True))
        if others is None or multiples is None:
            return None
        general = _of_all_sizes(others, dict([*ways.items(), branch.way]))
        special = None if general is None else _of_all_sizes(multiples, {})
    except Exception:  # of the user's code, or of PyTorch, for sizes that the example does not have
        return None
    return None if general is None or special is None else covers(general, special, branch)


def _of_all_sizes(program: Program, ways: Mapping[sympy.Basic, bool]) -> Made | None:
    """A trace without guards, with values of conditions; None if that is not possible."""
    made = _made(dataclasses.replace(program, where=Locations(program.where.model)), ways)
    given = {guard.expr for guard in made.shapes.given}
    return made if all(g.expr in given for g in made.shapes.guards) else _of_multiples_too(program, made, ways)


def _made(program: Program, ways: Mapping[sympy.Basic, bool] | None = None) -> Made:
    """The graph of a function, and what it is valid for; as `_trace`.

    Args:
        program: what is traced.
        ways: conditions on sizes, which have these values for code that branches on them; with None, guards narrow
            the ranges of sizes, and thereby decide further conditions.
    """
    examples, dynamic, where = program.examples, program.dynamic, program.where
    shapes = RecordedShapes(where.line, ways, duck_shape=False)
    mode = FakeTensors(shape_env=shapes, allow_non_fake_inputs=True)
    inputs = [Input.of(name, tensor, dynamic.get(name, {}), mode) for name, tensor in examples.items()]
    sizes = {dim.__name__: size for given in inputs for size, dim in given.named() if not hasattr(dim, "root")}
    roots = Roots(shapes, sizes)
    for given in inputs:
        roots.derive((size, dim) for size, dim in given.named() if hasattr(dim, "root"))
    shapes.possibly_zero = possibly_zero(inputs)
    where.number_at = lambda line: program.recorded().text_at(line)
    conditions: list[Condition] = []

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        named = dict(zip(examples, tensors, strict=True))
        known = [tensor for name, tensor in named.items() if name in program.followed]
        dependence = DataDependence(shapes, program.example, known, named.get(SEED))
        where.random = dependence.random
        known_values = Constants(mode)
        for name in program.constants:
            known_values.enter(named[name], examples[name])
        with (
            preserved(where.model),
            symbolic_sizes(),
            where,
            known_values,
            dependence,
            substituted(),
            program.conversions,
            repeated_gradients(),
        ):
            outputs = list(program.function(named).values())
        found = dependence.conditions(size for tensor in tensors for size in tensor.shape if is_symbolic(size))
        if found is not None:
            conditions[:] = found.records
            outputs += [found.holds, found.numbers]
        return outputs

    def traced() -> torch.fx.GraphModule:
        shapes.deferred_runtime_asserts.clear()
        with (
            mode,
            enable_python_dispatcher(),
            portable_kernels(),
            size_oblivious(),
            without_anomaly_detection(),
            without_profiles(),
            without_logs(ShapeEnv.__module__, FakeTensorMode.__module__),
        ):
            fakes = [given.fake for given in inputs]
            unify_sizes(inputs)
            shapes.given = list(shapes.guards)
            # The decompositions to core ATen end in operators without a translation: SiLU's gradient in empty_permuted.
            graph = make_fx(flat, decomposition_table=TABLE.decompositions, _allow_non_fake_inputs=True)(*fakes)
            if has_complex_numbers(graph):
                graph.graph.eliminate_dead_code()
                real = RealParts(graph, where).run
                graph = make_fx(real, decomposition_table=TABLE.decompositions, _allow_non_fake_inputs=True)(*fakes)
            return graph

    graph = None
    try:
        graph = traced()
    except TypeError as error:
        if not hashes_a_size(error):
            raise
    if graph is None:  # out of the handler, as the error would be the cause of those that follow
        with bypassed_caches(), dictionaries_of_sizes(where.model):
            graph = traced()
    with quotients_of_nodes():
        insert_deferred_runtime_asserts(graph, shapes, "step", export=True)  # for the operators' sizes in an export
    return Made(graph, shapes, mode, inputs, roots, conditions, take_bounds(shapes, inputs, roots))
