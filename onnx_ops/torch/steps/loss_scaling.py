"""Loss scaling as torch.amp.GradScaler does it, as functions of tensors.

The gradients of a multiple of the loss do not vanish in float16. A step whose gradients are not finite changes neither
parameters nor optimizer state, and lowers the scale.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from onnx_ops.core.step_format import GRAD_SCALE, GROWTH_TRACKER
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.program import Tensors


class LossScaling:
    """The scale of a torch.amp.GradScaler and its updates.

    Args:
        scaler: its state is the initial state.
        parameters: the parameters of the model, by name.

    Raises:
        CaptureError: a float16 parameter, whose gradients a GradScaler does not unscale.
    """

    def __init__(self, scaler: torch.amp.GradScaler, parameters: Tensors) -> None:
        for name, parameter in parameters.items():
            if parameter.dtype is torch.float16:
                raise CaptureError(f"the parameter '{name}' is float16; with a GradScaler, expected float32 parameters")
        settings = scaler.state_dict()
        self.growth_factor: float = settings["growth_factor"]
        self.backoff_factor: float = settings["backoff_factor"]
        self.growth_interval: int = settings["growth_interval"]
        self._state = {
            GRAD_SCALE: torch.tensor(settings["scale"], dtype=torch.float32),
            GROWTH_TRACKER: torch.tensor(settings["_growth_tracker"], dtype=torch.int32),
        }

    def state(self) -> Tensors:
        """Copies of the scale, () float32, and the number of steps since it changed, () int32."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def updated(self, values: Tensors, finite: torch.Tensor) -> Tensors:
        """The state after a step; `finite`, () bool, is whether its gradients were finite."""
        scale, count = values[GRAD_SCALE], values[GROWTH_TRACKER] + 1
        grown, due = scale * self.growth_factor, count == self.growth_interval
        kept = torch.where(due & grown.isfinite(), grown, scale)
        return {
            GRAD_SCALE: torch.where(finite, kept, scale * self.backoff_factor),
            GROWTH_TRACKER: torch.where(finite & ~due, count, torch.zeros_like(count)),
        }


def all_finite(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Whether no gradient has NaN or infinity, () bool."""
    return torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
