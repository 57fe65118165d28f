"""torch.optim.Adagrad, Adadelta and RMSprop."""

from __future__ import annotations

import torch

from onnx_ops.torch.optimizers.arithmetic import added, added_quotient, average_of_squares, lerp, number, with_decay
from onnx_ops.torch.optimizers.rule import CLOCK, Group, Rule, State, clock, zeros


def _adagrad_initial(parameter: torch.Tensor, group: Group) -> State:
    return {CLOCK: clock(), "sum": torch.full_like(parameter, group["initial_accumulator_value"])}


def _adagrad(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    step = state[CLOCK] + 1
    gradient = with_decay(gradient, parameter, group)
    total = torch.addcmul(state["sum"], gradient, gradient)
    size = number(rate) / (1 + (number(step) - 1) * group["lr_decay"])
    root = total.sqrt() + group["eps"]
    return added_quotient(parameter, gradient, root, -size), {CLOCK: step, "sum": total}


ADAGRAD = Rule(_adagrad_initial, _adagrad, shared=frozenset({CLOCK}), of_defaults=("initial_accumulator_value",))


def _adadelta_initial(parameter: torch.Tensor, group: Group) -> State:
    return {CLOCK: clock()} | zeros(parameter, "square_avg", "acc_delta")


def _adadelta(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    rho, eps = group["rho"], group["eps"]
    gradient = with_decay(gradient, parameter, group)
    square = average_of_squares(state["square_avg"], gradient, rho)
    change = (state["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * gradient
    changes = average_of_squares(state["acc_delta"], change, rho)
    return added(parameter, change, -number(rate)), {
        CLOCK: state[CLOCK] + 1,
        "square_avg": square,
        "acc_delta": changes,
    }


ADADELTA = Rule(_adadelta_initial, _adadelta, shared=frozenset({CLOCK}))


def _rmsprop_initial(parameter: torch.Tensor, group: Group) -> State:
    momentum = ["momentum_buffer"] if group["momentum"] else []
    mean = ["grad_avg"] if group["centered"] else []
    return {CLOCK: clock()} | zeros(parameter, "square_avg", *momentum, *mean)


def _rmsprop(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    gradient = with_decay(gradient, parameter, group)
    square = average_of_squares(state["square_avg"], gradient, group["alpha"])
    new = {CLOCK: state[CLOCK] + 1, "square_avg": square}
    if group["centered"]:
        mean = new["grad_avg"] = lerp(state["grad_avg"], gradient, 1 - group["alpha"])
        square = torch.addcmul(square, mean, mean, value=-1)
    root = square.sqrt() + group["eps"]
    if not group["momentum"]:
        return added_quotient(parameter, gradient, root, -number(rate)), new
    buffer = state["momentum_buffer"] * group["momentum"]
    buffer = new["momentum_buffer"] = added_quotient(buffer, gradient, root, 1.0)
    return added(parameter, buffer, -number(rate)), new


RMSPROP = Rule(_rmsprop_initial, _rmsprop, shared=frozenset({CLOCK}))
