"""Comparison of a captured update with a step of the optimizers."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from torch.optim.swa_utils import AveragedModel

from onnx_ops.core.step_format import AVERAGES_COUNT, GRAD_SCALE, GRADIENT, GROWTH_TRACKER, NEXT, average_name
from onnx_ops.graph.slices import part
from onnx_ops.torch.base.arrays import as_array, as_tensor
from onnx_ops.torch.base.pairs import as_like, as_real
from onnx_ops.torch.optimizers.plan import Member
from onnx_ops.torch.steps.averaging import averages_of
from onnx_ops.torch.steps.step import JointStep
from onnx_ops.torch.steps.update import Update
from onnx_ops.torch.tracing.program import Tensors
from onnx_ops.torch.verification.graph import Arrays, Graph
from onnx_ops.torch.verification.tolerances import SIXTEEN_BITS, Comparison, compare

LARGE_UPDATE = 2**26
"""Bytes of results of an update above which they are computed for some parameters at a time."""
PARTS = 32
"""Parts of such an update."""
SLICE = 2**20
"""Bytes of a parameter whose update is compared at a time, if it is elementwise."""
ELEMENTWISE = {
    *("Abs", "Add", "Cast", "Clip", "Div", "Equal", "Greater", "IsNaN", "Less", "Max", "Min", "Mul", "Neg", "Pow"),
    *("Reciprocal", "Sign", "Sqrt", "Sub", "Where", "ApplyAdamW", "FusedSgd"),
}
"""Operators of updates whose result has at each place what they compute of the elements there, and of scalars."""


class _Part(NamedTuple):
    """Results of an update that are computed together.

    Attributes:
        graph: computes them from parameters, state and gradients; None if the graph of the step does.
        rounds: the parameters, with the twin of their optimizer.
        slices: rows of a single parameter whose results are computed at a time; None for all of them.
    """

    graph: Graph | None
    rounds: list[_Round]
    slices: Sequence[slice | None]


class _Before(NamedTuple):
    """What an update reads.

    Attributes:
        values: parameters and buffers after the loss has changed them, by name.
        gradients: of the parameters, by name.
        total: their total norm; None if it is not clipped.
        infinite: whether a gradient is not finite and loss scaling skips the update.
    """

    values: Tensors
    gradients: Tensors
    total: torch.Tensor | None
    infinite: bool


class Updates:
    """Steps of the optimizers on copies of their parameters.

    Args:
        joint: the step whose parameters the optimizers update.
        update: the update that was captured of them.
    """

    def __init__(self, joint: JointStep, update: Update) -> None:
        self._model, self._update, self._plan = joint.model, update, update.plan
        self._parameters = joint.parameters
        self._averaged = None if update.averaging is None else copy.deepcopy(update.averaging.averaged)
        self.state = update.state
        members: dict[torch.optim.Optimizer, list[Member]] = {}
        for member in self._plan.members:
            members.setdefault(self._plan.groups[member.group].optimizer, []).append(member)
        twins = [_Twin(optimizer, found, joint) for optimizer, found in members.items()]
        self._parts = [_Part(None, [(twin, some) for twin in twins for some in twin.rounds], [None])]
        self._arguments = joint.arguments.keys()

    def divided(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Divide a large update into parts, as its results may be several times as large as the model.

        Args:
            model: the graph of the step.

        Returns:
            The graph of the other results; all of it if the update is small or not divided, as one that reads more than
            parameters, state and gradients.
        """
        ((_, rounds, _),) = self._parts
        whole = sum(map(self._size, rounds))
        if whole <= LARGE_UPDATE or self._averaged is not None:  # averages are computed from all parameters
            return model
        groups: list[list[_Round]] = [[]]
        for found in rounds:
            if groups[-1] and max(sum(map(self._size, groups[-1])), self._size(found)) * PARTS >= whole:
                groups.append([])
            groups[-1].append(found)
        graph = model.graph
        given = [*graph.input, *(value for value in graph.output if value.name.startswith(GRADIENT))]
        names = [{name for found in group for name in self._results(found)} for group in groups]
        parts = [part(model, given, [value for value in graph.output if value.name in own]) for own in names]
        if any(value.name in self._arguments for own in parts for value in own.graph.input):
            return model
        self._parts = [self._part(own, group) for own, group in zip(parts, groups, strict=True)]
        for twin, _ in rounds:
            twin.state.clear()  # each part begins with the initial state
        of_parts = set[str]().union(*names)
        return part(model, graph.input, [value for value in graph.output if value.name not in of_parts])

    def _part(self, model: onnx.ModelProto, rounds: list[_Round]) -> _Part:
        """A part of the update with this graph; in slices if it is elementwise, of a single large parameter."""
        (name, *others), graph = [member.name for _, some in rounds for member in some], model.graph
        parameter = as_real(self._parameters[name])
        names = {found.removeprefix(NEXT) for each in rounds for found in self._results(each)} | {GRADIENT + name}
        if others or parameter.nbytes <= SLICE or not _is_elementwise(model, parameter.shape, names):
            return _Part(Graph(model), rounds, [None])
        for value in (*graph.input, *graph.output):
            for axis in value.type.tensor_type.shape.dim[:1]:
                axis.dim_param = "rows"
        del graph.value_info[:]
        rows = max(len(parameter) * SLICE // parameter.nbytes, 1)
        return _Part(Graph(model), rounds, [slice(i, i + rows) for i in range(0, len(parameter), rows)])

    def _results(self, found: _Round) -> set[str]:
        """The names of the next parameters and state."""
        _, members = found
        states = {self._plan.state_name(member, key) for member in members for key in member.state}
        return {NEXT + name for name in states | {member.name for member in members}}

    def _size(self, found: _Round) -> int:
        """Bytes of the next parameters and state."""
        _, members = found
        own = sum(self._parameters[member.name].nbytes for member in members)
        return own + sum(tensor.nbytes for member in members for tensor in member.state.values())

    @property
    def names(self) -> set[str]:
        """The names of the graph's outputs that are compared."""
        found = {NEXT + name for name in self.state()} | {NEXT + member.name for member in self._plan.members}
        return found - {NEXT + name for name in self._plan.rates()}

    def compare(self, given: Tensors, changed: Tensors, got: Arrays, *, last: bool) -> None:
        """Compare the graph's next parameters and state with those of a step of the optimizers for its gradients.

        The state of an update in parts is not kept, as it may be twice as large as the model: in the last comparison
        each part is compared from a state that it reaches by an update with the gradients in another order.

        Args:
            given: the values of the graph's inputs, by name.
            changed: those of the parameters and buffers that the loss has changed, after it.
            got: the graph's results; the next parameters, and with `last` the next state of the optimizers, are removed
                once they are compared.
            last: whether the next state is not needed.

        Raises:
            CaptureError: they differ.
        """
        gradients = {member.name: as_tensor(got[GRADIENT + member.name]) for member in self._plan.members}
        clip, scaling = self._update.clip_grad_norm, self._update.scaling
        total = None if clip is None else torch.nn.utils.get_total_norm(list(gradients.values()))
        infinite = scaling is not None and not all(bool(found.isfinite().all()) for found in gradients.values())
        values = given | changed
        before = _Before(values, gradients, total, infinite)
        for graph, rounds, slices in self._parts:
            if graph is None:
                self._compare_rounds(rounds, before, got, last=last)
                continue
            for rows in slices:
                for twin, some in rounds:
                    twin.reset(some, rows)
                states, read = (given, before) if rows is None else self._slice(rounds, rows, given, before)
                if last:
                    states = self._reached(graph, rounds, states, read)
                results = _run(graph, states, read)
                del states
                self._compare_rounds(rounds, read, results, last=True)
            for twin, _ in rounds:
                twin.state.clear()
        if scaling is not None and (tracker := given.get(GROWTH_TRACKER)) is not None:
            scale, count = values[GRAD_SCALE].clone(), tracker.clone()
            settings = scaling.growth_factor, scaling.backoff_factor, scaling.growth_interval
            torch._amp_update_scale_(scale, count, torch.tensor(float(infinite)), *settings)
            wanted = {NEXT + GRAD_SCALE: as_array(scale), NEXT + GROWTH_TRACKER: as_array(count)}
            compare("the optimizer's update", got, wanted)
        if self._averaged is not None:
            reached = {name: as_tensor(got[NEXT + name]) if NEXT + name in got else values[name] for name in values}
            comparison = Comparison("the averages", got)
            for name, array in self._averages(self._averaged, reached).items():
                comparison.add(name, array, before=as_array(given[name.removeprefix(NEXT)]))
            comparison.check()

    def _slice(self, rounds: Sequence[_Round], rows: slice, given: Tensors, before: _Before) -> tuple[Tensors, _Before]:
        """The inputs of a part of the graph, and what the update reads, with these rows of the parameter alone."""
        names = {name.removeprefix(NEXT) for found in rounds for name in self._results(found)}

        def sliced(tensors: Tensors) -> Tensors:
            return tensors | {name: tensors[name][rows] for name in names & tensors.keys() if tensors[name].dim()}

        return sliced(given), before._replace(values=sliced(before.values), gradients=sliced(before.gradients))

    def _reached(self, graph: Graph, rounds: Sequence[_Round], given: Tensors, before: _Before) -> Tensors:
        """The inputs of a part of the graph with the state that it, and the optimizers, reach by an update."""
        rolled = {member.name: before.gradients[member.name].roll(1) for _, some in rounds for member in some}
        another = before._replace(gradients=before.gradients | rolled)
        results = _run(graph, given, another)
        for twin, some in rounds:
            for member in some:
                results.pop(NEXT + member.name, None)
            self._step(twin, some, another, own=True)
            self._share(twin, some, results)
        return given | {name.removeprefix(NEXT): as_tensor(array) for name, array in results.items()}

    def _compare_rounds(self, rounds: Sequence[_Round], before: _Before, results: Arrays, *, last: bool) -> None:
        """Compare the next parameters and state of some parameters, and remove them as described in `compare`.

        Args:
            rounds: the parameters.
            before: what the update reads.
            results: the graph's.
            last: whether the next state is not needed.
        """
        comparison = Comparison("the optimizer's update", results)
        for twin, some in rounds:
            states = twin.copies(some)
            copies = self._step(twin, some, before)
            for member in some:
                narrow = SIXTEEN_BITS if self._plan.groups[member.group].rule.narrow else None
                own = as_array(before.values[member.name])
                comparison.add(NEXT + member.name, as_array(copies[member.name]), narrow, before=own)
                if self._averaged is None:
                    results.pop(NEXT + member.name, None)
                reached = twin.state[member.name]
                for key in member.state.keys() & reached.keys():
                    name = NEXT + self._plan.state_name(member, key)
                    array = as_array(torch.as_tensor(reached[key]))
                    comparison.add(name, array, before=states.pop((member.name, key), None))
            if not last:
                self._share(twin, some, results)
        comparison.check()
        if last and self._averaged is None:
            for found in rounds:
                for name in self._results(found):
                    results.pop(name, None)

    def _step(
        self, twin: _Twin, members: Iterable[Member], before: _Before, *, own: bool = False
    ) -> dict[str, torch.nn.Parameter]:
        """The parameters after a step of the optimizer; with `own` it may change the gradients in their memory."""
        copies = {}
        for member in members:
            copies[member.name] = torch.nn.Parameter(before.values[member.name].clone())
            gradient = before.gradients[member.name]
            copies[member.name].grad = gradient if own else gradient.clone()
        if before.total is not None and (clip := self._update.clip_grad_norm) is not None:
            torch.nn.utils.clip_grads_with_norm_(list(copies.values()), clip, before.total)
        if not before.infinite:
            twin.step(copies)
        return copies

    def _share(self, twin: _Twin, members: Iterable[Member], results: Arrays) -> None:
        """Keep the state of the optimizer in the memory of the graph's results, which are equal up to rounding."""
        for member in members:
            reached = twin.state[member.name]
            for key in member.state.keys() & reached.keys():
                reached[key] = _shared(reached[key], results.get(NEXT + self._plan.state_name(member, key)))

    def _averages(self, averaged: AveragedModel, reached: Tensors) -> Arrays:
        """The averages after an update from these parameters and buffers, by the names of the graph's outputs."""
        own = self._model.named_parameters(), self._model.named_buffers()
        parameters, buffers = ([as_like(reached[name], tensor) for name, tensor in named] for named in own)
        source = SimpleNamespace(parameters=lambda: iter(parameters), buffers=lambda: iter(buffers))
        averaged.update_parameters(source)
        found = {average_name(name): tensor for name, tensor in averages_of(averaged).items()}
        found[AVERAGES_COUNT] = averaged.n_averaged
        return {NEXT + name: as_array(tensor) for name, tensor in found.items()}


class _Twin:
    """A copy of an optimizer that makes steps on given parameters, on a CPU and not differentiated.

    Args:
        optimizer: to be copied, without its parameters and their state.
        members: its parameters that have a gradient.
        joint: the step whose parameters they are.

    Attributes:
        rounds: the parameters that are updated together: one at a time with optimizers of torch.optim, whose updates of
            parameters do not depend on each other.
        state: of each parameter, as in the `state` of the optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, members: Sequence[Member], joint: JointStep) -> None:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        kept = [*own, *(value for state in optimizer.state.values() for value in state.values())]
        self._optimizer = copy.deepcopy(optimizer, {id(value): value for value in kept})
        self._optimizer.state.clear()
        names = {parameter: name for name, parameter in joint.parameters.items()}
        self._groups = {names[p]: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._initial = {member.name: optimizer.state.get(joint.parameters[member.name], {}) for member in members}
        self.state: dict[str, dict[str, Any]] = {}
        self.reset(members)
        alone = type(optimizer).__module__.startswith("torch.optim.")
        self.rounds = [[member] for member in members] if alone else [list(members)]
        for group in self._optimizer.param_groups:
            group |= {key: False for key in ("capturable", "differentiable") if key in group}

    def reset(self, members: Iterable[Member], rows: slice | None = None) -> None:
        """Return to the initial state of parameters, or of these rows of a parameter."""
        for member in members:
            self.state[member.name] = {
                key: _rows(as_real(value), rows).clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
                for key, value in self._initial[member.name].items()
            }

    def copies(self, members: Iterable[Member]) -> dict[tuple[str, str], np.ndarray]:
        """Copies of the tensors in the state of parameters, by the name of the parameter and the key."""
        return {
            (member.name, key): as_array(value.clone())
            for member in members
            for key, value in self.state[member.name].items()
            if isinstance(value, torch.Tensor)
        }

    def step(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        """Update parameters in place, by name, and their state."""
        for i, group in enumerate(self._optimizer.param_groups):
            group["params"] = [parameter for name, parameter in parameters.items() if self._groups[name] == i]
        self._optimizer.state.update({parameter: self.state[name] for name, parameter in parameters.items()})
        self._optimizer.step()
        self.state |= {name: self._optimizer.state[parameter] for name, parameter in parameters.items()}
        self._optimizer.state.clear()  # which keeps the parameters in memory, as the groups do
        for group in self._optimizer.param_groups:
            group["params"] = []


def _rows(tensor: torch.Tensor, rows: slice | None) -> torch.Tensor:
    return tensor[rows] if rows is not None and tensor.dim() else tensor


def _is_elementwise(model: onnx.ModelProto, shape: Sequence[int], names: Collection[str]) -> bool:
    """Whether a graph computes each element of its results from scalars, and from that of inputs of this shape.

    Args:
        model: the graph.
        shape: of its inputs and outputs that are no scalars.
        names: of such inputs.
    """
    graph = model.graph
    values = [(value, [axis.dim_value for axis in value.type.tensor_type.shape.dim]) for value in graph.input]
    return (
        all(node.op_type in ELEMENTWISE for node in graph.node)
        and all(not constant.dims for constant in graph.initializer)
        and not graph.sparse_initializer
        and all(not dims or (value.name in names and dims == list(shape)) for value, dims in values)
    )


def _shared(value: object, array: np.ndarray | None) -> Any:
    """A state in the memory of a result equal to it up to rounding; the state itself if it is no such tensor."""
    if array is None or not isinstance(value, torch.Tensor) or not value.dim() or value.shape != array.shape:
        return value
    other = as_tensor(array)
    return other if other.dtype is value.dtype else value


def _run(graph: Graph, states: Tensors, before: _Before) -> Arrays:
    """The results of a part of an update."""
    return graph.run(states | {GRADIENT + name: tensor for name, tensor in before.gradients.items()})


_Round = tuple[_Twin, list[Member]]
"""Parameters that an optimizer updates together."""
