"""torch.optim.Adam and its variants AdamW, Adamax, NAdam and RAdam."""

from __future__ import annotations

import torch

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.optimizers.arithmetic import (
    added_quotient,
    average_of_squares,
    decayed,
    lerp,
    number,
    scaled,
    with_decay,
)
from onnx_ops.torch.optimizers.rule import CLOCK, Group, Rule, State, clock, zeros


def _adam_initial(parameter: torch.Tensor, group: Group) -> State:
    largest = ["max_exp_avg_sq"] if group["amsgrad"] else []
    return {CLOCK: clock()} | zeros(parameter, "exp_avg", "exp_avg_sq", *largest)


def _adam(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    decay = group["weight_decay"]
    if decay and not group["decoupled_weight_decay"]:
        gradient, decay = with_decay(gradient, parameter, group), 0.0
    step = state[CLOCK] + 1
    count = number(step)  # in float32, powers of numbers close to 1 are inaccurate
    betas = [number(beta) for beta in group["betas"]]
    updated = domain_ops.ApplyAdamW(
        parameter,
        state["exp_avg"],
        state["exp_avg_sq"],
        *(torch.pow(beta, count) for beta in betas),
        number(rate),
        number(decay),
        *betas,
        number(group["eps"]),
        gradient,
        state.get("max_exp_avg_sq"),
    )
    new = {CLOCK: step, "exp_avg": updated[1], "exp_avg_sq": updated[2]}
    return updated[0], new | ({"max_exp_avg_sq": updated[3]} if group["amsgrad"] else {})


ADAM = Rule(_adam_initial, _adam, shared=frozenset({CLOCK}))


def _adamax_initial(parameter: torch.Tensor, group: Group) -> State:
    return {CLOCK: clock()} | zeros(parameter, "exp_avg", "exp_inf")


def _adamax(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    beta1, beta2 = group["betas"]
    step = state[CLOCK] + 1
    gradient = with_decay(gradient, parameter, group)
    average = lerp(state["exp_avg"], gradient, 1 - beta1)
    largest = torch.maximum(state["exp_inf"] * beta2, gradient.abs() + group["eps"])
    size = number(rate) / (1 - number(beta1) ** number(step))
    return added_quotient(parameter, average, largest, -size), {CLOCK: step, "exp_avg": average, "exp_inf": largest}


ADAMAX = Rule(_adamax_initial, _adamax, shared=frozenset({CLOCK}))


def _nadam_initial(parameter: torch.Tensor, group: Group) -> State:
    return {CLOCK: clock(), "mu_product": torch.ones(())} | zeros(parameter, "exp_avg", "exp_avg_sq")


def _nadam(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    beta1, beta2 = group["betas"]
    step = state[CLOCK] + 1
    count = number(step)
    parameter, gradient = decayed(parameter, gradient, rate, group)
    momentum, next_momentum = (
        beta1 * (1 - 0.5 * number(0.96) ** (steps * group["momentum_decay"])) for steps in (count, count + 1)
    )
    product = state["mu_product"] * momentum.to(state["mu_product"].dtype)
    average = lerp(state["exp_avg"], gradient, 1 - beta1)
    square = average_of_squares(state["exp_avg_sq"], gradient, beta2)
    root = scaled(square, 1 / (1 - number(beta2) ** count)).sqrt() + group["eps"]
    rate = number(rate)
    parameter = added_quotient(parameter, gradient, root, -rate * (1 - momentum) / (1 - number(product)))
    parameter = added_quotient(parameter, average, root, -rate * next_momentum / (1 - number(product) * next_momentum))
    return parameter, {CLOCK: step, "mu_product": product, "exp_avg": average, "exp_avg_sq": square}


NADAM = Rule(_nadam_initial, _nadam, shared=frozenset({CLOCK, "mu_product"}))


def _radam_initial(parameter: torch.Tensor, group: Group) -> State:
    return {CLOCK: clock()} | zeros(parameter, "exp_avg", "exp_avg_sq")


def _radam(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    beta1, beta2 = group["betas"]
    step = state[CLOCK] + 1
    count = number(step)
    parameter, gradient = decayed(parameter, gradient, rate, group)
    average = lerp(state["exp_avg"], gradient, 1 - beta1)
    square = average_of_squares(state["exp_avg_sq"], gradient, beta2)
    power = number(beta2) ** count
    limit = 2 / (1 - beta2) - 1
    length = limit - 2 * count * power / (1 - power)
    # With too few steps to estimate the variance, the step is that of momentum; the root is then of a negative number.
    rectified = length > 5
    rectification = torch.sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))
    root = torch.where(rectified, square.sqrt() + group["eps"], 1.0)
    size = number(rate) / (1 - number(beta1) ** count)
    size = size * torch.where(rectified, rectification * torch.sqrt(1 - power), 1.0)
    return added_quotient(parameter, average, root, -size), {CLOCK: step, "exp_avg": average, "exp_avg_sq": square}


RADAM = Rule(_radam_initial, _radam, shared=frozenset({CLOCK}))
