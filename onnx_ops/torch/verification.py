"""Verification of a captured graph: two chained steps of it beside PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
import torch

from onnx_ops.core.types import TensorType
from onnx_ops.integrations.sessions import InferenceSession
from onnx_ops.torch.arrays import to_array, to_tensor
from onnx_ops.torch.checks import compare
from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.optimizers import Plan
from onnx_ops.torch.preserving import preserved
from onnx_ops.torch.steps import JointStep, Seen
from onnx_ops.torch.tracing import Tensors, eager_mode
from onnx_ops.torch.trials import Trial
from onnx_ops.training.parts import GRADIENT
from onnx_ops.training.step import NEXT, numpy_dtype
from onnx_ops.training.values import input_value, output_array

Arrays = dict[str, np.ndarray]


class Graph:
    """A captured graph in onnxruntime."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self._types = {v.name: TensorType.of_proto(v.type) for v in (*model.graph.input, *model.graph.output)}
        try:
            self._session = InferenceSession(model, options)
        except Exception as error:  # those of onnxruntime have no class of their own
            raise _not_run(error) from error

    def run(self, values: Tensors) -> Arrays:
        """The outputs for these inputs; further values are ignored."""
        try:
            feeds = {
                value.name: input_value(to_array(values[value.name]), self._types[value.name].dtype or 0)
                for value in self._session.get_inputs()
            }
            names = [value.name for value in self._session.get_outputs()]
            results = self._session.run_with_ort_values(names, feeds)
            return {
                name: output_array(result, numpy_dtype(self._types[name]))
                for name, result in zip(names, results, strict=True)
            }
        except Exception as error:
            raise _not_run(error) from error


def _not_run(error: Exception) -> CaptureError:
    return CaptureError(f"onnxruntime does not run the captured graph: {error}")


def arrays(tensors: Tensors) -> Arrays:
    return {name: to_array(tensor) for name, tensor in tensors.items()}


class Updates:
    """The optimizer itself, on copies of its parameters, step after step."""

    def __init__(
        self, joint: JointStep, optimizer: torch.optim.Optimizer, plan: Plan, used: Sequence[str], clip: float | None
    ) -> None:
        self.plan, self._used, self._clip = plan, used, clip
        self._twin = copy.deepcopy(optimizer)
        names = {parameter: name for name, parameter in joint.parameters.items()}
        self._copies = {
            names[parameter]: twin
            for group, twins in zip(optimizer.param_groups, self._twin.param_groups, strict=True)
            for parameter, twin in zip(group["params"], twins["params"], strict=True)
        }

    def step(self, trial: Trial, got: Mapping[str, np.ndarray]) -> Arrays:
        """What the optimizer makes of the graph's gradients, under the names of the graph's outputs."""
        for name, parameter in self._copies.items():
            parameter.data.copy_(trial.expected.get(NEXT + name, trial.values[name]))
            parameter.grad = to_tensor(got[GRADIENT + name]) if name in self._used else None
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self._copies.values()), self._clip)
        self._twin.step()
        members = self.plan.members
        updated = {NEXT + member.name: to_array(self._copies[member.name]) for member in members}
        for member in members:
            reached = self._twin.state[self._copies[member.name]]
            updated |= {
                NEXT + self.plan.state_name(member, key): to_array(torch.as_tensor(reached[key]))
                for key in member.state
                if key in reached
            }
        return updated


def verify(model: onnx.ModelProto, joint: JointStep, trials: Sequence[Trial], updates: Updates | None) -> None:
    """Compare chained steps of a graph with PyTorch's.

    Args:
        model: the graph, the gradients among its outputs.
        joint: the same step in PyTorch.
        trials: a step of PyTorch from the captured state, and one after it.
        updates: the optimizer, if the graph has its update.

    Raises:
        CaptureError: numbers that are not PyTorch's, or a model that onnxruntime does not run.
    """
    graph = Graph(model)
    state = {} if updates is None else updates.plan.state() | updates.plan.rates()
    for trial in trials:
        got = graph.run(state | trial.values)
        update = {} if updates is None else updates.step(trial, got)
        expected = {name: tensor for name, tensor in trial.expected.items() if name not in update}
        _check(got, expected, joint, trial)
        compare("the optimizer's update", got, update)
        state |= {name: to_tensor(got[NEXT + name]) for name in state if NEXT + name in got}


def _check(got: Mapping[str, np.ndarray], expected: Tensors, joint: JointStep, trial: Trial) -> None:
    """Compare with PyTorch, and where the two differ with PyTorch in float64.

    A number on the edge of a ReLU, say, falls to one side here and to the other there, and takes gradients with it.
    """
    try:
        compare("outputs", got, arrays(expected))
    except CaptureError as refused:
        exact = _in_double(joint, trial)
        if exact is None:
            raise
        try:
            compare("outputs", got, {name: exact[name].astype(got[name].dtype) for name in expected})
        except CaptureError:
            raise refused from None


def _in_double(joint: JointStep, trial: Trial) -> Arrays | None:
    """The step in PyTorch with all floating numbers in float64; None if the model or the loss cannot do that."""
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in trial.values.items()}
    try:
        with preserved(joint.model), eager_mode(), joint.holding(wide):
            return arrays(joint.run(wide, Seen()))
    except Exception:  # code of the user's that wants another dtype
        return None
