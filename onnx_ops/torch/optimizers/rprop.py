"""torch.optim.Rprop."""

from __future__ import annotations

import torch

from onnx_ops.torch.optimizers.arithmetic import added
from onnx_ops.torch.optimizers.rule import CLOCK, Group, Rule, State, clock, zeros


def _initial(parameter: torch.Tensor, group: Group) -> State:
    return {CLOCK: clock(), "step_size": torch.full_like(parameter, group["lr"])} | zeros(parameter, "prev")


def _update(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    """Without the learning rate, which is the initial size of the steps."""
    shrink, grow = group["etas"]
    same = gradient * state["prev"]
    # The last branch is 1 for 0, and NaN for NaN.
    factor = torch.where(same > 0, grow, torch.where(same < 0, shrink, same + 1))
    size = torch.clamp(state["step_size"] * factor, *map(float, group["step_sizes"]))
    gradient = torch.where(same < 0, 0.0, gradient)
    stepped = added(parameter, gradient.sign() * size, -1.0)
    return stepped, {CLOCK: state[CLOCK] + 1, "prev": gradient, "step_size": size}


RPROP = Rule(_initial, _update, shared=frozenset({CLOCK}))
