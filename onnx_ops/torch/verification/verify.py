"""Verification of a captured graph: compares two steps, the second from the state of the first, with PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch.optim.swa_utils import AveragedModel

from onnx_ops.core.step_format import AVERAGES_COUNT, GRAD_SCALE, GRADIENT, GROWTH_TRACKER, NEXT, average_name
from onnx_ops.core.types import TensorType
from onnx_ops.integrations.sessions import InferenceSession
from onnx_ops.linking.link import link
from onnx_ops.torch.averaging import averages_of
from onnx_ops.torch.base.arrays import as_array, as_tensor, to_array, to_tensor
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.preserving import preserved
from onnx_ops.torch.steps import JointStep, RunInfo
from onnx_ops.torch.tracing import Tensors, eager_mode
from onnx_ops.torch.update import Update
from onnx_ops.torch.verification.tolerances import SIXTEEN_BITS, WIDENED, Tolerance, compare, rounding
from onnx_ops.torch.verification.trials import Trial, disturbed
from onnx_ops.torch.verification.widening import rounds_to_16_bits, to_float64
from onnx_ops.training.arrays import numpy_dtype
from onnx_ops.training.binding import BFLOAT16, input_value, output_array
from onnx_ops.training.conditions import check_conditions
from onnx_ops.training.errors import StepError
from onnx_ops.training.step import Step

Arrays = dict[str, np.ndarray]
DISTURBANCE = 1e-5
"""Relative change of the inputs that changes the sign of more inputs of ReLUs than rounding does."""


class Graph:
    """A captured graph in onnxruntime.

    Args:
        model: the graph.
        session: creates its session from the model and options.

    Raises:
        CaptureError: onnxruntime cannot create the session.
    """

    def __init__(self, model: onnx.ModelProto, session: Callable[..., ort.InferenceSession] = InferenceSession) -> None:
        options = ort.SessionOptions()
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
    """Steps of copies of the optimizers on copies of their parameters.

    Args:
        joint: the step whose parameters the optimizers update.
        update: the update that was captured of them.
        used: the names of the parameters that have a gradient.
    """

    def __init__(self, joint: JointStep, update: Update, used: Sequence[str]) -> None:
        self._model, self._averaging = joint.model, update.averaging
        self._averaged = None if update.averaging is None else copy.deepcopy(update.averaging.averaged)
        self.state = update.state
        self.plan, self._used, self._clip, self._scaling = update.plan, used, update.clip_grad_norm, update.scaling
        optimizers = list(dict.fromkeys(group.optimizer for group in update.plan.groups))
        self._twins = [_twin(optimizer) for optimizer in optimizers]
        names = {parameter: name for name, parameter in joint.parameters.items()}
        self._copies: Tensors = {}
        self._owners: dict[str, torch.optim.Optimizer] = {}
        for optimizer, twin in zip(optimizers, self._twins, strict=True):
            for group, twins in zip(optimizer.param_groups, twin.param_groups, strict=True):
                for parameter, other in zip(group["params"], twins["params"], strict=True):
                    self._copies[names[parameter]] = other
                    self._owners[names[parameter]] = twin

    @property
    def narrow(self) -> set[str]:
        """The parameters whose update rounds to 16 bits, by the names of the graph's outputs."""
        return {NEXT + member.name for member in self.plan.members if self.plan.groups[member.group].rule.narrow}

    def step(self, trial: Trial, got: Mapping[str, np.ndarray], tracker: torch.Tensor | None) -> Arrays:
        """The optimizer's next parameters and state for the graph's gradients, by the names of the graph's outputs.

        They are valid until the next step.
        `tracker` is the state of that name of the loss scaling.
        """
        for name, parameter in self._copies.items():
            parameter.data.copy_(trial.expected.get(NEXT + name, trial.values[name]))
            parameter.grad = to_tensor(got[GRADIENT + name]) if name in self._used else None
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self._copies.values()), self._clip)
        infinite = not all(np.isfinite(got[GRADIENT + member.name]).all() for member in self.plan.members)
        if self._scaling is None or not infinite:
            for twin in self._twins:
                twin.step()
        members = self.plan.members
        updated = {NEXT + member.name: as_array(self._copies[member.name]) for member in members}
        for member in members:
            reached = self._owners[member.name].state.get(self._copies[member.name], {})
            updated |= {
                NEXT + self.plan.state_name(member, key): as_array(torch.as_tensor(reached[key]))
                for key in member.state
                if key in reached
            }
        if self._scaling is not None and tracker is not None:
            scale, count = trial.values[GRAD_SCALE].clone(), tracker.clone()
            settings = self._scaling.growth_factor, self._scaling.backoff_factor, self._scaling.growth_interval
            torch._amp_update_scale_(scale, count, torch.tensor(float(infinite)), *settings)
            updated |= {NEXT + GRAD_SCALE: as_array(scale), NEXT + GROWTH_TRACKER: as_array(count)}
        if self._averaged is not None:
            updated |= self._averages(self._averaged, trial)
        return updated

    def _averages(self, averaged: AveragedModel, trial: Trial) -> Arrays:
        """The averages after an update from the parameters of the last step, by the names of the graph's outputs."""
        reached = {name: trial.expected.get(NEXT + name, tensor) for name, tensor in trial.values.items()}
        reached |= self._copies
        own = [name for name, _ in self._model.named_parameters()], [name for name, _ in self._model.named_buffers()]
        parameters, buffers = ([reached[name] for name in names] for names in own)
        source = SimpleNamespace(parameters=lambda: iter(parameters), buffers=lambda: iter(buffers))
        averaged.update_parameters(source)
        found = {average_name(name): tensor for name, tensor in averages_of(averaged).items()}
        found[AVERAGES_COUNT] = averaged.n_averaged
        return {NEXT + name: to_array(tensor) for name, tensor in found.items()}


def _twin(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A copy of an optimizer and its parameters, whose step runs on a CPU and is not differentiated."""
    twin = copy.deepcopy(optimizer)
    for group in twin.param_groups:
        group |= {key: False for key in ("capturable", "differentiable") if key in group}
    return twin


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
        got = self._graph.run(self._state | trial.values)
        try:
            check_conditions(self._conditions, got)
        except StepError as violated:
            return str(violated)
        update = {} if self._updates is None else self._updates.step(trial, got, self._state.get(GROWTH_TRACKER))
        # Parameters that both the loss and the optimizer change are compared after the update only.
        self._check(got, trial, [name for name in trial.expected if name not in update])
        narrow = set() if self._updates is None else self._updates.narrow
        compare("the optimizer's update", got, {n: array for n, array in update.items() if n not in narrow})
        compare("the optimizer's update", got, {n: update[n] for n in sorted(narrow)}, SIXTEEN_BITS)
        self._state |= {name: as_tensor(got[NEXT + name]) for name in self._state if NEXT + name in got}
        return None

    def _check(self, got: Arrays, trial: Trial, names: Sequence[str]) -> None:
        """Compare the named outputs with PyTorch; in float64 too if they differ.

        Rounding changes the sign of some inputs of ReLUs, and thereby gradients: by percents in deep networks with
        batch norm, in PyTorch too.
        """
        theirs = arrays({name: trial.expected[name] for name in names})
        try:
            compare("outputs", got, theirs, self._tolerance)
        except CaptureError as refused:
            exact = self._in_double(trial.values, names)
            if exact is None:
                raise
            rounded = {name: array.astype(theirs[name].dtype) for name, array in exact.items()}
            if not _agree(got, rounded, self._tolerance) and not self._is_rounding(got, theirs, exact, trial):
                raise refused from None

    def _in_double(self, values: Tensors, names: Iterable[str]) -> Arrays | None:
        """PyTorch's outputs with all floating tensors in float64; None if the model or the loss fails in float64."""
        wide = _wide(values)
        try:
            with preserved(self._joint.model), eager_mode(), self._joint.with_parameters(wide):
                found = self._joint.run(wide, RunInfo())
                return {name: to_array(found[name]) for name in names}
        except Exception:  # the user's code requires another dtype
            return None

    def _is_rounding(self, got: Arrays, theirs: Arrays, exact: Arrays, trial: Trial) -> bool:
        """Whether the graph is correct in float64, and its errors in float32 are within the tolerance for rounding."""
        try:
            graph = Graph(to_float64(self._model), _plain_session)
            computed = graph.run(_wide(self._state | trial.values))
        except CaptureError:  # onnxruntime lacks a float64 kernel
            return False
        near = self._in_double(disturbed(_wide(trial.values), DISTURBANCE), exact) or exact
        return _agree(computed, exact, WIDENED) and _agree(got, exact, rounding(theirs, near, exact))


def _wide(values: Tensors) -> Tensors:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in values.items()}


def _agree(got: Arrays, wanted: Arrays, tolerance: Tolerance | None = None) -> bool:
    try:
        compare("outputs", got, wanted, tolerance)
    except CaptureError:
        return False
    return True
