"""torch.optim.Muon."""

from __future__ import annotations

import math

import torch

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.optimizers.arithmetic import added, lerp, number, shrunk
from onnx_ops.torch.optimizers.rule import Group, Rule, State, zeros


def _initial(parameter: torch.Tensor, group: Group) -> State:
    return zeros(parameter, "momentum_buffer")


def _update(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    if parameter.dtype is torch.bfloat16 and not group["nesterov"]:
        # Its bfloat16 copy of the buffer, which it normalizes in place, is then the buffer itself.
        raise CaptureError(
            "PyTorch's Muon overwrites the momentum of bfloat16 parameters without nesterov=True:"
            " expected nesterov=True or parameters of another dtype"
        )
    buffer = lerp(state["momentum_buffer"], gradient, 1 - group["momentum"])
    direction = lerp(gradient, buffer, group["momentum"]) if group["nesterov"] else buffer
    step = _orthogonalized(direction, group["ns_coefficients"], group["ns_steps"], group["eps"])
    size = number(rate) * _scale(group["adjust_lr_fn"], *parameter.shape)
    return added(shrunk(parameter, rate, group), step.to(parameter.dtype), -size), {"momentum_buffer": buffer}


def _orthogonalized(
    matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """The nearest semi-orthogonal matrix by Newton-Schulz iterations, approximately, in bfloat16."""
    a, b, c = coefficients
    tall = matrix.size(0) > matrix.size(1)
    found = matrix.bfloat16()
    found = found.T if tall else found
    found = found / torch.linalg.vector_norm(found).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.T
        gram = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        found = torch.addmm(found, gram, found, beta=a)
    return found.T if tall else found


def _scale(adjustment: str | None, rows: int, columns: int) -> float:
    """The factor of the learning rate for a matrix."""
    if adjustment == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


MUON = Rule(_initial, _update, narrow=True, elementwise=False)
