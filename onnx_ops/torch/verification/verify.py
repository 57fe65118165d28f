"""Verification of a captured graph: compares two steps, the second from the state of the first, with PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch.optim.swa_utils import AveragedModel

from onnx_ops.core.step_format import (
    AVERAGES_COUNT,
    CONDITION_NUMBERS,
    CONDITIONS,
    GRAD_SCALE,
    GRADIENT,
    GROWTH_TRACKER,
    NEXT,
    average_name,
)
from onnx_ops.core.types import TensorType
from onnx_ops.graph.slices import part
from onnx_ops.integrations.sessions import InferenceSession, OwnOptions
from onnx_ops.integrations.values import BFLOAT16, input_value, output_array
from onnx_ops.linking.link import link
from onnx_ops.torch.base.arrays import as_array, as_tensor, to_array
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import as_like, as_real
from onnx_ops.torch.optimizers.plan import Member
from onnx_ops.torch.steps.averaging import averages_of
from onnx_ops.torch.steps.calls import RunInfo
from onnx_ops.torch.steps.step import JointStep
from onnx_ops.torch.steps.update import Update
from onnx_ops.torch.tracing.preserving import preserved
from onnx_ops.torch.tracing.trace import Tensors, eager_mode
from onnx_ops.torch.verification.tolerances import (
    SIXTEEN_BITS,
    WIDENED,
    Comparison,
    Tolerance,
    compare,
    largest_of,
    rounding,
)
from onnx_ops.torch.verification.trials import Trial, disturbances
from onnx_ops.torch.verification.widening import Float64Computation, rounds_to_16_bits, to_float64
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.conditions import check_conditions
from onnx_ops.training.errors import StepError
from onnx_ops.training.freed_memory import return_freed_memory
from onnx_ops.training.step import Step

Arrays = dict[str, np.ndarray]
DISTURBANCE = 1e-5
"""Relative change of the inputs that changes the sign of more inputs of ReLUs than rounding does."""
LARGE = 2**20
"""Bytes of parameters that are updated together, after which freed memory is returned."""
DRAWS = 8
"""Such changes that are tried: which inputs change their sign, and how much gradients depend on them, is random."""


class Graph:
    """A captured graph in onnxruntime.

    Args:
        model: the graph.
        session: creates its session from the model and options.

    Raises:
        CaptureError: onnxruntime cannot create the session.
    """

    def __init__(self, model: onnx.ModelProto, session: Callable[..., ort.InferenceSession] = InferenceSession) -> None:
        options = OwnOptions()
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False  # which would keep the memory of the outputs
        self._types = {v.name: TensorType.of_proto(v.type) for v in (*model.graph.input, *model.graph.output)}
        try:
            self._session = session(model, options)
        except Exception as error:  # onnxruntime's errors have no common class
            raise _not_run(error) from error

    def run(self, values: Tensors) -> Arrays:
        """The outputs for these inputs, by name; further values are ignored. CaptureError if onnxruntime fails.

        They may be in the memory of inputs or of the session.
        """
        try:
            feeds = {
                value.name: input_value(as_array(values[value.name]), self._types[value.name].dtype or 0)
                for value in self._session.get_inputs()
            }
            names = [value.name for value in self._session.get_outputs()]
            results = self._session.run_with_ort_values(names, feeds)
            return {
                name: output_array(result, BFLOAT16) if numpy_dtype(self._types[name]) == BFLOAT16 else result.numpy()
                for name, result in zip(names, results, strict=True)
            }
        except Exception as error:
            raise _not_run(error) from error


def _not_run(error: Exception) -> CaptureError:
    return CaptureError(f"onnxruntime does not run the captured graph: {error}")


def arrays(tensors: Tensors) -> Arrays:
    """Tensors as arrays, in their memory where they are contiguous."""
    return {name: as_array(tensor) for name, tensor in tensors.items()}


class Updates:
    """Steps of the optimizers on copies of their parameters.

    Args:
        joint: the step whose parameters the optimizers update.
        update: the update that was captured of them.
    """

    def __init__(self, joint: JointStep, update: Update) -> None:
        self._model, self._update, self._plan = joint.model, update, update.plan
        self._averaged = None if update.averaging is None else copy.deepcopy(update.averaging.averaged)
        self.state = update.state
        members: dict[torch.optim.Optimizer, list[Member]] = {}
        for member in self._plan.members:
            members.setdefault(self._plan.groups[member.group].optimizer, []).append(member)
        self._twins = [_Twin(optimizer, found, joint) for optimizer, found in members.items()]

    @property
    def names(self) -> set[str]:
        """The names of the graph's outputs that are compared."""
        found = {NEXT + name for name in self.state()} | {NEXT + member.name for member in self._plan.members}
        return found - {NEXT + name for name in self._plan.rates()}

    def compare(self, values: Tensors, got: Arrays, tracker: torch.Tensor | None) -> None:
        """Compare the graph's next parameters and state with those of a step of the optimizers for its gradients.

        Args:
            values: parameters and buffers, by name, after the loss has changed them.
            got: the graph's results; the parameters are removed once they are compared.
            tracker: the state of that name of the loss scaling.

        Raises:
            CaptureError: they differ.
        """
        largest = largest_of({name: got[name] for name in self.names if name in got})
        comparison = Comparison("the optimizer's update", got, largest)
        members, clip, scaling = self._plan.members, self._update.clip_grad_norm, self._update.scaling
        gradients = {member.name: as_tensor(got[GRADIENT + member.name]) for member in members}
        total = None if clip is None else torch.nn.utils.get_total_norm(list(gradients.values()))
        infinite = scaling is not None and not all(bool(found.isfinite().all()) for found in gradients.values())
        for twin in self._twins:
            for some in twin.rounds:
                copies = {}
                for member in some:
                    copies[member.name] = torch.nn.Parameter(values[member.name].clone())
                    copies[member.name].grad = gradients[member.name].clone()
                if clip is not None and total is not None:
                    torch.nn.utils.clip_grads_with_norm_(list(copies.values()), clip, total)
                if not infinite:
                    twin.step(copies)
                for member in some:
                    narrow = SIXTEEN_BITS if self._plan.groups[member.group].rule.narrow else None
                    comparison.add(NEXT + member.name, as_array(copies[member.name]), narrow)
                    if self._averaged is None:
                        got.pop(NEXT + member.name, None)
                    reached = twin.state[member.name]
                    for key in member.state.keys() & reached.keys():
                        name = NEXT + self._plan.state_name(member, key)
                        comparison.add(name, as_array(torch.as_tensor(reached[key])))
                        reached[key] = _shared(reached[key], got.get(name))
                if sum(tensor.nbytes for tensor in copies.values()) > LARGE:
                    del copies
                    return_freed_memory()
        if scaling is not None and tracker is not None:
            scale, count = values[GRAD_SCALE].clone(), tracker.clone()
            settings = scaling.growth_factor, scaling.backoff_factor, scaling.growth_interval
            torch._amp_update_scale_(scale, count, torch.tensor(float(infinite)), *settings)
            comparison.add(NEXT + GRAD_SCALE, as_array(scale))
            comparison.add(NEXT + GROWTH_TRACKER, as_array(count))
        comparison.check()
        if self._averaged is not None:
            reached = {name: as_tensor(got[NEXT + name]) if NEXT + name in got else values[name] for name in values}
            compare("the averages", got, self._averages(self._averaged, reached))

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
        self.state: dict[str, dict[str, Any]] = {
            member.name: {
                key: copy.deepcopy(as_real(value) if isinstance(value, torch.Tensor) else value)
                for key, value in optimizer.state.get(joint.parameters[member.name], {}).items()
            }
            for member in members
        }
        alone = type(optimizer).__module__.startswith("torch.optim.")
        self.rounds = [[member] for member in members] if alone else [list(members)]
        for group in self._optimizer.param_groups:
            group |= {key: False for key in ("capturable", "differentiable") if key in group}

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


def _shared(value: Any, array: np.ndarray | None) -> Any:
    """A state in the memory of a result equal to it up to rounding; the state itself if it is no such tensor."""
    if array is None or not isinstance(value, torch.Tensor) or not value.dim() or value.shape != array.shape:
        return value
    other = as_tensor(array)
    return other if other.dtype is value.dtype else value


def _plain_session(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session of function bodies without optimization, as onnxruntime's fusions round some factors to float32."""
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(link(model).SerializeToString(), options)


class Verification:
    """Compares successive steps of a graph with PyTorch's.

    Args:
        model: the graph, whose outputs include the gradients.
        joint: the same step in PyTorch.
        updates: the optimizer's steps; None if the graph has no update.
    """

    def __init__(self, model: onnx.ModelProto, joint: JointStep, updates: Updates | None) -> None:
        self._model, self._joint, self._updates = model, joint, updates
        self._graph = Graph(model)
        self._conditions = Step.of(model).conditions
        self._tolerance = SIXTEEN_BITS if rounds_to_16_bits(model) else None
        self._state = {} if updates is None else updates.state()

    def step(self, trial: Trial) -> str | None:
        """Compare the next step.

        Returns:
            The message about a condition that the trial violates, which is then not compared; None if all hold.

        Raises:
            CaptureError: the results differ from PyTorch's, or onnxruntime does not run the graph.
        """
        return_freed_memory()  # of the step before
        values = trial.make()
        try:
            got = self._run(self._state | values)
        except StepError as violated:
            return str(violated)
        return_freed_memory()
        # The update first: afterwards the new parameters are not in memory while PyTorch computes the gradients. But
        # wrong gradients, which may be the cause of a wrong update, are reported before it.
        difference: CaptureError | None = None
        if self._updates is not None:
            changed = {name.removeprefix(NEXT): tensor for name, tensor in trial.state.items()}
            try:
                self._updates.compare(values | changed, got, self._state.get(GROWTH_TRACKER))
            except CaptureError as error:
                difference = error
            return_freed_memory()
        # Parameters that both the loss and the optimizer change are compared after the update only.
        updated = set() if self._updates is None else self._updates.names
        expected = trial.run(values)
        self._check(got, {name: expected[name] for name in expected if name not in updated}, values)
        if difference is not None:
            raise difference
        self._state |= {name: as_tensor(got[NEXT + name]) for name in self._state if NEXT + name in got}
        return None

    def _run(self, values: Tensors) -> Arrays:
        """The graph's results; StepError if a condition is violated, which may be why onnxruntime does not run it."""
        try:
            got = self._graph.run(values)
        except CaptureError:
            if self._conditions:
                graph = self._model.graph
                outputs = [value for value in graph.output if value.name in (CONDITIONS, CONDITION_NUMBERS)]
                check_conditions(self._conditions, Graph(part(self._model, graph.input, outputs)).run(values))
            raise
        check_conditions(self._conditions, got)
        return got

    def _check(self, got: Arrays, expected: Tensors, values: Tensors) -> None:
        """Compare outputs with those of PyTorch; in float64 too if they differ.

        Rounding changes the sign of some inputs of ReLUs, and thereby gradients: by percents in deep networks with
        batch norm, in PyTorch too.
        """
        theirs = arrays(expected)
        try:
            compare("outputs", got, theirs, self._tolerance)
        except CaptureError as refused:
            exact = self._in_double(values, theirs)
            if exact is None:
                raise
            rounded = {name: array.astype(theirs[name].dtype) for name, array in exact.items()}
            if not _agree(got, rounded, self._tolerance) and not self._is_rounding(got, theirs, exact, values):
                raise refused from None

    def _in_double(self, values: Tensors, names: Iterable[str]) -> Arrays | None:
        """PyTorch's outputs with all floating tensors in float64; None if the model or the loss fails in float64."""
        wide = _wide(values)
        rounded = {name: wide[name].to(own.dtype, copy=True) for name, own in self._joint.state().items()}
        try:
            with preserved(self._joint.model), eager_mode(), self._joint.with_parameters(rounded), Float64Computation():
                found = self._joint.run(wide, RunInfo())
                return {name: to_array(found[name]) for name in names}
        except Exception:  # the user's code requires another dtype
            return None

    @functools.cached_property
    def _wide_graph(self) -> Graph:
        """The graph in float64."""
        return Graph(to_float64(self._model), _plain_session)

    def _is_rounding(self, got: Arrays, theirs: Arrays, exact: Arrays, values: Tensors) -> bool:
        """Whether the graph is correct in float64, and its errors in float32 are within the tolerance for rounding."""
        try:
            computed = self._wide_graph.run(_wide(self._state | values))
        except CaptureError:  # onnxruntime lacks a float64 kernel
            return False
        wide = _wide(values)
        near = (self._in_double(dict(disturbances(wide, DISTURBANCE, seed)), exact) or exact for seed in range(DRAWS))
        return _agree(computed, exact, WIDENED) and any(
            _agree(got, exact, rounding(theirs, results, exact)) for results in near
        )


def _wide(values: Tensors) -> Tensors:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in values.items()}


def _agree(got: Arrays, wanted: Arrays, tolerance: Tolerance | None = None) -> bool:
    try:
        compare("outputs", got, wanted, tolerance)
    except CaptureError:
        return False
    return True
