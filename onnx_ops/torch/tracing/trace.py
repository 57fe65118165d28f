"""Traces a function of tensors to a graph of ATen operators."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.profiler import record_function
from torch.distributions import Distribution
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
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
from onnx_ops.torch.operators.attention import causal_biases
from onnx_ops.torch.operators.von_mises import bounded_rejections
from onnx_ops.torch.tracing.assignments import assignments
from onnx_ops.torch.tracing.branches import GUARDS, Made, Multiples, covers, on_multiples, without_guards
from onnx_ops.torch.tracing.caches import bypassed_caches, dictionaries_of_sizes, hashes_a_size, without_traced_values
from onnx_ops.torch.tracing.constants import Constants
from onnx_ops.torch.tracing.control_flow import written_control_flow
from onnx_ops.torch.tracing.conversions import Conversions
from onnx_ops.torch.tracing.data_dependence import DataDependence, Example, ExampleRequired, Recording, single_reads
from onnx_ops.torch.tracing.explanations import Locations, causes, explained
from onnx_ops.torch.tracing.extremes import symbolic_extremes
from onnx_ops.torch.tracing.fake_tensors import FakeTensors, unchanged_conversions
from onnx_ops.torch.tracing.folding import fold_functions
from onnx_ops.torch.tracing.frames import Line
from onnx_ops.torch.tracing.indices import index_ranges
from onnx_ops.torch.tracing.inputs import Input, check_sizes, possibly_zero, restrictions, unify_sizes
from onnx_ops.torch.tracing.limits import take_bounds, taken_sizes, valid_sizes, within
from onnx_ops.torch.tracing.mathematics import quotients_of_nodes
from onnx_ops.torch.tracing.mixed_precision import Float32Computation
from onnx_ops.torch.tracing.preserving import preserved
from onnx_ops.torch.tracing.real_parts import RealParts, has_complex_numbers
from onnx_ops.torch.tracing.repeated_gradients import repeated_gradients
from onnx_ops.torch.tracing.row_indices import index_rows
from onnx_ops.torch.tracing.sizes import RecordedShapes, Roots, size_oblivious, symbolic_sizes
from onnx_ops.torch.tracing.substitution import Substitution, WholeOps
from onnx_ops.torch.tracing.symbolic_arrays import symbolic_arrays
from onnx_ops.torch.tracing.texts import symbolic_texts
from onnx_ops.torch.tracing.zero_sums import make_zeros_positive
from onnx_ops.training.conditions import Condition
from onnx_ops.training.ranges import IndexRange

WITHOUT_NUMBERS = (torch.nn.functional.scaled_dot_product_attention,)
"""Functions whose replacements read no numbers from data, and take longer than PyTorch's own."""

Tensors = dict[str, torch.Tensor]
Dynamic = Mapping[str, Mapping[int, Dimension]]
"""The dynamic dimensions of tensors, by the name of the tensor and the axis."""


@contextlib.contextmanager
def portable_kernels() -> Iterator[None]:
    """PyTorch runs ATen operators whose derivatives are ATen operators too, instead of calls of a CPU library.

    Functions that torch.compile or torch.jit.script has compiled run as they are written.
    """
    with (
        mock.patch.object(torch.jit.ScriptFunction, "__call__", _called_as_written(torch.jit.ScriptFunction.__call__)),
        torch.compiler.set_stance("force_eager"),
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),
        mock.patch.object(torch.backends.mha, "_is_fastpath_enabled", False),  # nested tensors, in evaluation mode
        warnings.catch_warnings(action="ignore"),  # the flags warn of a TF32 setting that stays unchanged
        torch.backends.mkldnn.flags(enabled=False),
        torch.backends.nnpack.flags(enabled=False),  # its selection depends on the size of the batch
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        yield


def _called_as_written(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a function of TorchScript, whose integers may then be dynamic sizes."""

    def called(script: torch.jit.ScriptFunction, *args: Any, **kwargs: Any) -> Any:
        written = getattr(script, "_torchdynamo_inline", None)
        return call(script, *args, **kwargs) if written is None else written(*args, **kwargs)

    return called


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """PyTorch runs the operators that a trace records.

    Attention consists of the same operators, which draw random numbers in the same order, functions that PyTorch has on
    GPUs only are available, and gradients that PyTorch's kernels get wrong are right.
    """
    with (
        Substitution(TABLE.missing | TABLE.corrections),
        portable_kernels(),
        causal_biases(),
        bounded_rejections(),
        written_control_flow(),
    ):
        yield


@contextlib.contextmanager
def _symbolic_distributions() -> Iterator[None]:
    """torch.distributions does not validate its arguments, as a trace has no values; the eager run has done it.

    It broadcasts shapes with dynamic sizes.
    """
    with (
        mock.patch.object(Distribution, "_validate_args", False),
        mock.patch.object(torch._C, "_infer_size", torch.broadcast_shapes),
    ):
        yield


@contextlib.contextmanager
def _without_anomaly_detection() -> Iterator[None]:
    """Autograd does not look for NaN among the numbers of gradients, which a trace does not have."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        with mock.patch.object(torch, "set_anomaly_enabled"):
            yield
    finally:
        torch.set_anomaly_enabled(*before)


@contextlib.contextmanager
def _without_profiles() -> Iterator[None]:
    """The ranges of torch.profiler.record_function, as in DataParallel, are no operators of a trace."""
    with mock.patch.multiple(record_function, __enter__=lambda self: self, __exit__=lambda *_: None):
        yield


@contextlib.contextmanager
def without_logs(*names: str) -> Iterator[None]:
    """Without the logs of some loggers, except for critical ones."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def only_nodes() -> Iterator[None]:
    """A context in which graphs are nodes with FakeTensors, as nothing else is used.

    They are not compiled to Python, and have no TensorMetadata, for which PyTorch looks for a memory format.
    """
    with _use_lazy_graph_module(True), mock.patch.object(proxy_tensor, "_extract_tensor_metadata", _no_metadata):
        yield


def _no_metadata(tensor: torch.Tensor) -> None:
    """In place of the TensorMetadata of a tensor."""


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
    program = _Program(function, examples, dynamic, where, followed, constants, refuses, conversions)
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


@dataclass(frozen=True)
class _Program:
    """What is traced: the arguments of `trace`.

    Attributes:
        conversions: what Python's int() and float() call numbers of the example.
        example: what depends on data in the examples; None before it is needed.
    """

    function: Callable[[Tensors], Tensors]
    examples: Tensors
    dynamic: Dynamic
    where: Locations
    followed: Collection[str]
    constants: Collection[str]
    refuses: Callable[[Mapping[str, Mapping[int, int]]], bool] | None
    conversions: Conversions
    example: Example | None = None

    def taken_sizes(self, valid: Mapping[str, range]) -> dict[str, range]:
        """Some sizes that dimensions are to have, as a trace is valid for these alone; none for an error."""
        if (refuses := self.refuses) is None:
            return {}
        places: dict[str, list[tuple[str, int]]] = {}
        dims: dict[str, Dimension] = {}
        for own, axes in self.dynamic.items():
            for axis, dim in axes.items():
                name = getattr(dim, "__name__", "")
                places.setdefault(name, []).append((own, axis))
                dims[name] = dim

        def example(name: str) -> int:
            own, axis = places[name][0]
            return self.examples[own].shape[axis]

        def are_refused(name: str, size: int) -> bool:
            sizes: dict[str, dict[int, int]] = {}
            for own, axis in places[name]:
                sizes.setdefault(own, {})[axis] = size
            return refuses(sizes)

        return taken_sizes(valid, dims, example, are_refused, specialize=self.where.specialize)

    def within(self, sizes: Mapping[str, range]) -> _Program:
        """The program, whose dimensions have sizes within ranges, by name."""
        dynamic = {
            name: {axis: within(dim, sizes) for axis, dim in axes.items()} for name, axes in self.dynamic.items()
        }
        return dataclasses.replace(self, dynamic=dynamic)

    def on_one_way(self, branch: Multiples, *, multiple: bool) -> _Program | None:
        """The program with examples that take one way of a branch, for multiples alone if it is that of multiples.

        None if no size takes that way.
        """
        if (examples := branch.examples(self.examples, self.dynamic, multiple=multiple)) is None:
            return None
        dynamic = branch.dimensions(self.dynamic) if multiple else self.dynamic
        program = dataclasses.replace(self, examples=examples, dynamic=dynamic)
        return program if self.example is None else dataclasses.replace(program, example=program.recorded())

    def recorded(self) -> Example:
        """What depends on data in a run of the function with its examples, by the operators of a trace."""
        recording = Recording(tensor for name, tensor in self.examples.items() if name not in self.constants)
        with preserved(self.where.model), portable_kernels(), recording, _substituted(WITHOUT_NUMBERS):
            self.function(self.examples)
        return recording.example


def _followed(program: _Program) -> Traced:
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


def _trace(program: _Program) -> Traced:
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


def _of_multiples_too(program: _Program, found: Made, ways: Mapping[sympy.Basic, bool] | None = None) -> Made | None:
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


def _of_all_sizes(program: _Program, ways: Mapping[sympy.Basic, bool]) -> Made | None:
    """A trace without guards, with values of conditions; None if that is not possible."""
    made = _made(dataclasses.replace(program, where=Locations(program.where.model)), ways)
    given = {guard.expr for guard in made.shapes.given}
    return made if all(g.expr in given for g in made.shapes.guards) else _of_multiples_too(program, made, ways)


def _made(program: _Program, ways: Mapping[sympy.Basic, bool] | None = None) -> Made:
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
            _substituted(),
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
            _without_anomaly_detection(),
            _without_profiles(),
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


@contextlib.contextmanager
def _substituted(native: Collection[Any] = ()) -> Iterator[None]:
    """A context in which functions of PyTorch are replaced as in a trace.

    Args:
        native: functions that are not replaced.
    """
    with (
        _symbolic_distributions(),
        causal_biases(),
        bounded_rejections(),
        assignments(),
        symbolic_arrays(),
        Float32Computation(),
        single_reads(),
        symbolic_texts(),
        symbolic_extremes(),
        unchanged_conversions(),
        written_control_flow(),
        WholeOps(native),
    ):
        yield
