"""torch.optim.SGD and torch.optim.ASGD."""

from __future__ import annotations

import torch

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.optimizers.arithmetic import added, lerp, number, scaled, with_decay
from onnx_ops.torch.optimizers.rule import CLOCK, Group, Rule, State, clock, zeros


def _sgd_initial(parameter: torch.Tensor, group: Group) -> State:
    if not group["momentum"]:
        return {}
    # The first gradient is not dampened, so dampening needs the count of steps.
    return zeros(parameter, "momentum_buffer") | ({CLOCK: clock()} if group["dampening"] else {})


def _sgd(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    decay, momentum, dampening = (
        number(group[key]) if group[key] else None for key in ("weight_decay", "momentum", "dampening")
    )
    if momentum is None:
        return domain_ops.FusedSgd(parameter, gradient, number(rate), None, decay, None, None)[0], {}
    new: State = {}
    if dampening is not None:
        dampening = dampening * (state[CLOCK] > 0)
        new[CLOCK] = state[CLOCK] + 1
    buffer = state["momentum_buffer"]
    stepped, new["momentum_buffer"] = domain_ops.FusedSgd(
        parameter, gradient, number(rate), buffer, decay, momentum, dampening, nesterov=int(group["nesterov"])
    )
    return stepped, new


SGD = Rule(_sgd_initial, _sgd, shared=frozenset({CLOCK}), internal=frozenset({CLOCK}))


def _asgd_initial(parameter: torch.Tensor, group: Group) -> State:
    numbers = {CLOCK: clock(), "eta": torch.tensor(float(group["lr"])), "mu": torch.ones(())}
    return numbers | zeros(parameter, "ax")


def _asgd(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    step = state[CLOCK] + 1
    count, eta, lambd = number(step), number(state["eta"]), group["lambd"]
    gradient = with_decay(gradient, parameter, group)
    parameter = added(scaled(parameter, 1 - lambd * eta), gradient, -eta)
    average = torch.where(state["mu"] == 1, parameter, lerp(state["ax"], parameter, state["mu"]))
    eta = number(rate) / (1 + lambd * number(rate) * count) ** group["alpha"]
    mu = 1 / torch.clamp(count - group["t0"], min=1.0)
    return parameter, {
        CLOCK: step,
        "eta": eta.to(state["eta"].dtype),
        "mu": mu.to(state["mu"].dtype),
        "ax": average,
    }


ASGD = Rule(_asgd_initial, _asgd, shared=frozenset({CLOCK, "eta", "mu"}))
