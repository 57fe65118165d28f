"""torch.optim.Adafactor."""

from __future__ import annotations

import math

import torch

from onnx_ops.torch.optimizers.arithmetic import added, lerp, number, shrunk
from onnx_ops.torch.optimizers.rule import CLOCK, Group, Rule, State, clock, zeros


def _initial(parameter: torch.Tensor, group: Group) -> State:
    if parameter.dim() < 2:
        return {CLOCK: clock()} | zeros(parameter, "variance")
    rows, columns = parameter.select(-1, 0).unsqueeze(-1), parameter.select(-2, 0).unsqueeze(-2)
    return {CLOCK: clock()} | zeros(rows, "row_var") | zeros(columns, "col_var")


def _update(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    least, least_scale = group["eps"]
    if least is None:
        least = torch.finfo(parameter.dtype).eps
    step = state[CLOCK] + 1
    count = number(step)
    weight = count ** group["beta2_decay"]
    relative = torch.minimum(number(rate), 1 / torch.sqrt(count))
    size = torch.clamp(_root_mean_square(parameter), min=least_scale) * relative
    parameter = shrunk(parameter, rate, group)
    new = {CLOCK: step}
    if parameter.dim() < 2:
        variance = new["variance"] = lerp(state["variance"], gradient * gradient, weight)
    else:
        rows = new["row_var"] = lerp(state["row_var"], _mean_square(gradient, -1), weight)
        columns = new["col_var"] = lerp(state["col_var"], _mean_square(gradient, -2), weight)
        variance = rows * columns / rows.mean(-2, keepdim=True).clamp(min=least)
    change = variance.clamp(min=least * least).rsqrt() * gradient
    excess = torch.clamp(_root_mean_square(change) / group["d"], min=1.0)
    return added(parameter, change, -size / excess), new


def _mean_square(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, dim=axis, keepdim=True).square() / tensor.size(axis)


def _root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    """The root of the mean of all squares, () float64."""
    return number(torch.linalg.vector_norm(tensor)) / math.sqrt(tensor.numel())


ADAFACTOR = Rule(_initial, _update, shared=frozenset({CLOCK}), elementwise=False)
