"""What follows the gradients in a training step: clipping, loss scaling, optimizers, averages of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from onnx_ops.core.step_format import GRADIENT, NEXT, InputRole
from onnx_ops.torch.operators.marks import marked
from onnx_ops.torch.optimizers.plan import Plan, clipped
from onnx_ops.torch.steps.averaging import Averaging
from onnx_ops.torch.steps.calls import RunInfo
from onnx_ops.torch.steps.loss_scaling import LossScaling, all_finite
from onnx_ops.torch.tracing.program import Tensors
from onnx_ops.training.counters import WRITTEN


@dataclass(frozen=True)
class Update:
    """The update of a training step.

    Attributes:
        plan: that of the optimizers.
        clip_grad_norm: the maximal total norm of the gradients; None for no clipping.
        scaling: the loss scaling; None for none.
        averaging: the averages of weights; None for none.
    """

    plan: Plan
    clip_grad_norm: float | None
    scaling: LossScaling | None
    averaging: Averaging | None

    def state(self) -> Tensors:
        """The initial state of optimizers, loss scaling and averages, and the learning rates, by input."""
        parts = (self.plan.state(), self.plan.rates(), self._further())
        return {name: tensor for part in parts for name, tensor in part.items()}

    def roles(self) -> dict[str, InputRole]:
        """The roles of the inputs of `state`."""
        of_optimizers = dict.fromkeys([*self.plan.state(), *self._further()], InputRole.OPTIMIZER)
        return of_optimizers | dict.fromkeys(self.plan.rates(), InputRole.SETTING)

    def _further(self) -> Tensors:
        scale = {} if self.scaling is None else self.scaling.state()
        return scale | ({} if self.averaging is None else self.averaging.state())

    def outputs(self, given: Tensors, outputs: Tensors, seen: RunInfo) -> Tensors:
        """The outputs of a step with the update, by the names of the graph's outputs.

        Args:
            given: state and batch.
            outputs: of forward and backward pass.
            seen: about the run that computed them.
        """
        found = {name: marked(outputs[GRADIENT + name], GRADIENT + name) for name in seen.used}
        outputs = outputs | {GRADIENT + name: tensor for name, tensor in found.items()}
        found = {member.name: found[member.name] for member in self.plan.members}
        before = given | {name: marked(outputs[NEXT + name], WRITTEN + name) for name in seen.changed}
        finite = None if self.scaling is None else all_finite(found.values())
        if self.clip_grad_norm is not None:
            found = clipped(found, self.clip_grad_norm)
        updated = self.plan.updated(before, found)
        if self.scaling is not None and finite is not None:
            updated = {name: torch.where(finite, new, before[name]) for name, new in updated.items()}
            updated |= self.scaling.updated(given, finite)
        if self.averaging is not None:
            updated |= self.averaging.updated(given, before | updated)
        return outputs | {NEXT + name: tensor for name, tensor in updated.items()}
