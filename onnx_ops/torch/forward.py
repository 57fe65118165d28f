"""Forward graphs in evaluation mode, captured along with a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.types import py_sym_types

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.step_format import SEED
from onnx_ops.core.version import __version__
from onnx_ops.graph.neutral import protect_constants
from onnx_ops.linking.inlining import inline
from onnx_ops.torch.base.arguments import leaves, tensors
from onnx_ops.torch.base.arrays import as_array
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.lowering.export import to_onnx
from onnx_ops.torch.operators.sparse_matrices import SparseMatrix
from onnx_ops.torch.steps.calls import FunctionCall, ModelCall, RunInfo
from onnx_ops.torch.steps.step import JointStep
from onnx_ops.torch.tracing.contexts import eager_mode
from onnx_ops.torch.tracing.explanations import Locations, ties_explained, vectors_explained
from onnx_ops.torch.tracing.multiples import dimensions
from onnx_ops.torch.tracing.preserving import preserved
from onnx_ops.torch.tracing.program import Dynamic, Tensors
from onnx_ops.torch.tracing.randomness import Random
from onnx_ops.torch.tracing.trace import Traced, trace
from onnx_ops.torch.verification.graph import Graph, arrays
from onnx_ops.torch.verification.single import Sizes, named_dimensions, refused_at_one
from onnx_ops.torch.verification.tolerances import SIXTEEN_BITS, TOLERANCES, Tolerance, compare
from onnx_ops.torch.verification.trials import with_sizes
from onnx_ops.torch.verification.widening import rounds_to_16_bits, rounds_to_float32
from onnx_ops.training.conditions import CONDITION_NODE, Condition

_Verify = Callable[[Tensors, Tensors], None]


class Forward:
    """Captures forward graphs in evaluation mode.

    Args:
        joint: the step.
        traced: its trace, which has the dynamic dimensions.
        opset_version: of the standard operators.
        where: the locations of operators, for error messages.
        check: whether to compare the graphs with PyTorch.
        followed: the tensors, by name, on whose elements the model may branch; None for all. The graphs go the way of
            the example, and a run fails for numbers that would take another way.
        constants: the names of the buffers that are constants.
    """

    def __init__(
        self,
        joint: JointStep,
        traced: Traced,
        opset_version: int,
        where: Locations,
        check: bool,
        followed: Collection[str] | None,
        constants: Collection[str],
    ) -> None:
        self._joint, self._traced, self._opset_version = joint, traced, opset_version
        self._where, self._check, self._followed, self._constants = where, check, followed, constants

    def of_function(self, function: Callable[..., Any]) -> onnx.ModelProto | None:
        """The graph of a function of the model and of arguments of the loss; None as for the first call."""
        call = self._joint.call_of(function)
        return self._graph(call, {name: self._traced.dynamic[name] for name, _ in tensors(call.arguments)})

    def of_first_call(self, eager: RunInfo, seen: RunInfo) -> onnx.ModelProto | None:
        """The graph of the loss's first call of the model, without what only a loss needs.

        Args:
            eager: of a run.
            seen: of the trace.

        Returns:
            The graph; None if there is no call, if it returns nothing but the loss, or no tensors, such as a
            distribution, if it draws random numbers, or if an argument is a sparse matrix that the loss makes, which a
            graph cannot take, or a number that depends on a dynamic size, which would be a constant of the graph.
        """
        if eager.call is None or seen.call is None or eager.returns_loss:
            return None
        if any(isinstance(leaf, py_sym_types) for leaf in leaves(seen.call.arguments)):
            return None
        if any(isinstance(tensor, SparseMatrix) for _, tensor in tensors(seen.call.arguments)):
            return None
        sizes = {
            name: {axis: size for axis, size in enumerate(tensor.shape) if is_symbolic(size)}
            for name, tensor in tensors(seen.call.arguments)
        }
        for name, tensor in tensors(eager.call.arguments):
            for axis in sizes.get(name, ()):
                if tensor.shape[axis] < 2:
                    raise CaptureError(
                        f"the first call of the model has '{name}' of shape {tuple(tensor.shape)}, whose axis {axis} is"
                        " dynamic: expected an example for which it is at least 2"
                    )
        return self._graph(eager.call, dimensions(sizes, self._traced.symbols), remove_losses=True)

    def of_loss(self, state: Collection[str], compared: Iterable[Callable[[], Tensors]]) -> onnx.ModelProto:
        """The graph of the loss and the further outputs.

        Args:
            state: the inputs of the graph that are state; other buffers become constants.
            compared: what makes the states and batches for which the graph is compared with PyTorch.

        Raises:
            CaptureError: random numbers that only evaluation mode draws, so that the step has no seed for them.
        """
        joint = self._joint
        values = joint.state() | joint.argument_values()
        outputs: list[str] = []
        draws = 0

        def forward(given: Tensors) -> Tensors:
            nonlocal draws
            with Random(given[SEED]) as random:
                result = joint.evaluate(given)
            outputs[:], draws = result, random.used
            return result

        dynamic = {name: self._traced.dynamic[name] for name in joint.arguments}
        followed = values if self._followed is None else self._followed
        traced = trace(forward, values, dynamic, self._where, followed, self._constants)
        joint.check_constants(traced.graph, joint.buffers)
        if draws and SEED not in state:
            raise CaptureError(
                "the loss draws random numbers in evaluation mode only, for which the step has no seed: pass them in as"
                " arguments"
            )
        exported, conditions = self._exported(traced, values, outputs)
        _fail_where_violated(exported.graph, conditions)
        RemoveUnusedNodesPass()(exported)  # onnxruntime warns of constants that nothing reads
        graph = exported.graph
        for value in list(graph.inputs):
            name = value.name or ""
            used = bool(value.uses())
            if name in joint.arguments or (used and name in state):
                continue
            graph.inputs.remove(value)
            if used:
                make_constant(graph, value, values[name])
        proto = model_proto(exported)

        def run(given: Tensors = values) -> Tensors:
            with preserved(joint.model), eager_mode(), joint.with_parameters(given) as own:
                return self._evaluated(own)

        verify: _Verify | None = None
        if self._check:
            session, tolerance = Graph(proto), _tolerance(proto)

            def verify(given: Tensors, found: Tensors) -> None:
                compare("outputs in evaluation mode", session.run(given), arrays(found), tolerance)

            for make in compared:
                given = make()
                with vectors_explained(traced.graph), ties_explained(traced.graph, functools.partial(run, given)):
                    verify(given, run(given))
        if refused := _refused_at_one(traced, graph, values, joint.arguments, run, verify):
            _fail_at_one(graph, refused)
            proto = model_proto(exported)
        return proto

    def _exported(self, traced: Traced, values: Tensors, outputs: list[str]) -> tuple[ir.Model, dict[str, ir.Value]]:
        """The graph of a trace, and its conditions: for each a name, and (1,) bool, whether it holds."""
        exported = to_onnx(traced, values, [*outputs, *traced.condition_outputs()], self._opset_version, self._where)
        return exported, _taken_out(exported.graph, traced.conditions)

    def _evaluated(self, values: Tensors) -> Tensors:
        """The outputs of PyTorch with the random numbers of the seed."""
        with Random(values[SEED]):
            return self._joint.evaluate(values)

    def _graph(
        self, call: ModelCall | FunctionCall, dynamic: Dynamic, *, remove_losses: bool = False
    ) -> onnx.ModelProto | None:
        """The graph of a call; None if it draws random numbers, and of the model if it returns no tensors."""
        joint = self._joint
        # Sparse matrices that the loss has not made are constants.
        arguments = {
            name: tensor.detach().clone() for name, tensor in tensors(call.arguments) if tensor.layout is torch.strided
        }
        values = joint.state() | arguments
        random = Random(values.pop(SEED))
        outputs: list[str] = []

        def forward(given: Tensors) -> Tensors:
            with random:
                result = joint.infer(given, call)
            outputs[:] = result
            return result

        followed = values if self._followed is None else self._followed
        traced = trace(forward, values, dynamic, self._where, followed, self._constants)
        joint.check_constants(traced.graph, joint.buffers)
        if not outputs and isinstance(call, FunctionCall):
            raise CaptureError(
                "the function for inference returns no tensors: let it return some, such as `distribution.mean`"
            )
        if random.used or not outputs:
            return None
        exported, conditions = self._exported(traced, values, outputs)
        removed = _remove_losses(exported, arguments) if remove_losses else set()
        _fail_where_violated(
            exported.graph, {name: holds for name, holds in conditions.items() if removed.isdisjoint(_sources([holds]))}
        )
        RemoveUnusedNodesPass()(exported)
        graph = exported.graph
        for value in [value for value in graph.inputs if not value.uses()]:
            graph.inputs.remove(value)

        def run(given: Tensors = values) -> Tensors:
            with preserved(joint.model), eager_mode():
                return joint.infer(given, call)

        verify: _Verify | None = None
        if self._check:  # while the state is not in the graph, for the memory
            proto = model_proto(exported)
            session, tolerance = Graph(proto), _tolerance(proto)
            del proto

            def verify(given: Tensors, found: Tensors) -> None:
                wanted = arrays({value.name or "": found[value.name or ""] for value in graph.outputs})
                compare("outputs in evaluation mode", session.run(given), wanted, tolerance)

            with vectors_explained(traced.graph), ties_explained(traced.graph, run):
                verify(values, run())
        _fail_at_one(graph, _refused_at_one(traced, graph, values, arguments, run, verify))
        verify = None
        exported = _in_standard_operators(exported)
        graph = exported.graph
        for value in [value for value in graph.inputs if value.name not in arguments]:
            graph.inputs.remove(value)
            make_constant(graph, value, values[value.name or ""])
        proto = model_proto(exported)
        for value in graph.initializers.values():  # onnxscript's rewrite rules keep the last graph, and its constants
            value.const_value = None
        return proto


def _in_standard_operators(model: ir.Model) -> ir.Model:
    """A model with the function bodies in place of the nodes of ops, as of losses that are part of a forward pass."""
    if all(node.domain != DOMAIN for node in model.graph.all_nodes()):
        return model
    return ir.from_proto(inline(model_proto(model)))


def make_constant(graph: ir.Graph, value: ir.Value, tensor: torch.Tensor) -> None:
    """Make a value that was an input an initializer, in the memory of a tensor."""
    value.const_value = ir.tensor(as_array(tensor), name=value.name)
    graph.register_initializer(value)


def model_proto(model: ir.Model) -> onnx.ModelProto:
    """A model as a proto, without the exporter's metadata, which names files of this machine."""
    ClearMetadataAndDocStringPass()(model)
    for value in (*model.graph.inputs, *(value for node in model.graph.all_nodes() for value in node.outputs)):
        value.metadata_props.clear()
    proto = ir.to_proto(model)
    protect_constants(proto)
    proto.producer_name, proto.producer_version = "onnx_ops", __version__
    return proto


def _tolerance(model: onnx.ModelProto) -> Tolerance | None:
    """For a graph that rounds to fewer bits than its results have; None for that of the results."""
    if rounds_to_16_bits(model):
        return SIXTEEN_BITS
    return TOLERANCES[np.dtype(np.float32)] if rounds_to_float32(model) else None


def _taken_out(graph: ir.Graph, conditions: Sequence[Condition]) -> dict[str, ir.Value]:
    """Take the outputs with the conditions out of a graph: for each a name, and () bool, whether it holds."""
    if not conditions:
        return {}
    holds, _ = graph.outputs[-2:]
    del graph.outputs[-2:]
    names = [f"{CONDITION_NODE} {i + 1}: {condition.line} ({condition.code})" for i, condition in enumerate(conditions)]
    producer = holds.producer()
    if producer is not None and producer.op_type == "Concat" and len(producer.inputs) == len(names):
        # Not through the whole, so that each condition depends on what it needs only.
        return {name: row for name, row in zip(names, producer.inputs, strict=True) if row is not None}
    rows = ir.node("Split", [holds], {"axis": 0, "num_outputs": len(names)}, num_outputs=len(names))
    graph.append(rows)
    return dict(zip(names, rows.outputs, strict=True))


def _fail_where_violated(graph: ir.Graph, conditions: Mapping[str, ir.Value], suffix: str = "unchecked") -> None:
    """Make the runs of a graph fail where a condition, (1,) bool, does not hold.

    They fail at a node that has the name of the condition, which is in onnxruntime's message. `suffix` is that of the
    names of the results that are returned where all of them hold.
    """
    if not conditions:
        return
    nodes: list[ir.Node] = []

    def add(op_type: str, *inputs: ir.Value, name: str | None = None, **attributes: int) -> ir.Value:
        nodes.append(ir.node(op_type, inputs, attributes, name=name))
        return nodes[-1].outputs[0]

    def constant(*values: int) -> ir.Value:
        nodes.append(ir.node("Constant", [], {"value": ir.tensor(np.array(values, np.int64))}))
        return nodes[-1].outputs[0]

    # Each index is 0, and out of range in the list of one element for a condition that does not hold.
    index = constant(0)
    for name, holds in conditions.items():
        violated = add("Cast", add("Not", holds), to=ir.DataType.INT64)
        index = add("Gather", constant(0), add("Add", violated, index), name=name)
    for place, result in enumerate(graph.outputs):
        rows = add("Unsqueeze", result, constant(0))
        checked = add("Squeeze", add("Gather", rows, index), constant(0))
        checked.shape, checked.type = result.shape, result.type
        checked.name, result.name = result.name, f"{result.name}.{suffix}"
        graph.outputs[place] = checked
    graph.extend(nodes)


def _refused_at_one(
    traced: Traced,
    graph: ir.Graph,
    values: Tensors,
    arguments: Collection[str],
    run: Callable[[Tensors], Tensors],
    verify: _Verify | None,
) -> set[str]:
    """The names of dynamic dimensions whose size 1 a graph is not right for.

    Args:
        traced: its trace.
        graph: the graph.
        values: the example, by name.
        arguments: the names of those of them that have other sizes in a batch of another size.
        run: runs PyTorch.
        verify: compares results of the graph for values with those of PyTorch; None without a check.
    """

    def is_right(sizes: Sizes) -> bool | None:
        if verify is None:
            return None
        given = values | with_sizes({name: values[name] for name in arguments}, sizes)
        try:
            found = run(given)
        except Exception:  # the user's code or PyTorch refuses the sizes
            return None
        try:
            verify(given, found)
        except (CaptureError, KeyError):  # which it is for another result than that of the example
            return False
        return True

    dynamic = {name: traced.dynamic[name] for name in arguments}
    names = named_dimensions(graph)
    return refused_at_one(dynamic, traced.decided_at_one, names, is_right, all_of_them=verify is not None)


def _fail_at_one(graph: ir.Graph, refused: Collection[str]) -> None:
    """Make the runs of a graph fail where dynamic dimensions, by their names, have the size 1."""
    places = {size: place for place, size in reversed(named_dimensions(graph).items())}
    inputs = {value.name: value for value in graph.inputs}
    holds: dict[str, ir.Value] = {}
    for name in sorted(refused):
        of, axis = places[name]
        size = ir.node("Shape", [inputs[of]], {"start": axis, "end": axis + 1})
        one = ir.node("Constant", [], {"value": ir.tensor(np.array([1], np.int64))})
        above = ir.node("Greater", [size.outputs[0], one.outputs[0]])
        graph.extend([size, one, above])
        holds[f"{CONDITION_NODE}: {name} > 1"] = above.outputs[0]
    _fail_where_violated(graph, holds, "of_all_sizes")


def _remove_losses(model: ir.Model, arguments: Collection[str]) -> set[ir.Value]:
    """Remove the outputs that need arguments on which only losses depend; the inputs with these arguments.

    Losses are outputs that are one floating number. If there are no other outputs, all of them stay.
    """
    graph = model.graph
    others = [value for value in graph.outputs if not _is_number(value)]
    needed = _sources(others or graph.outputs)
    only = {value for value in graph.inputs if value.name in arguments and value not in needed}
    for value in [value for value in graph.outputs if not only.isdisjoint(_sources([value]))]:
        graph.outputs.remove(value)
    return only


def _is_number(value: ir.Value) -> bool:
    return (
        value.shape is not None and not len(value.shape) and value.dtype is not None and value.dtype.is_floating_point()
    )


def _sources(values: Iterable[ir.Value]) -> set[ir.Value]:
    """All values that values are computed from, the inputs of the graph among them."""
    pending, seen = list(values), set()
    while pending:
        value = pending.pop()
        if value not in seen:
            seen.add(value)
            pending.extend(_read(value.producer()))
    return seen


def _read(node: ir.Node | None) -> Iterator[ir.Value]:
    """The values that a node and its subgraphs read."""
    if node is None:
        return
    yield from filter(None, node.inputs)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            subgraph = attribute.as_graph()
            yield from subgraph.outputs
            for inner in subgraph:
                yield from _read(inner)
