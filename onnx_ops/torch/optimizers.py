"""The update rules of torch.optim, as functions of tensors: what a step of an optimizer computes, without its loop.

The formulas are those that the pages of torch.optim give for each class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnx_ops.core.step_format import learning_rate_name, optimizer_name
from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.base.errors import CaptureError

State = dict[str, torch.Tensor]
Group = Mapping[str, Any]
CLOCK = "step"
"""The state that counts steps; parameters that have always been updated together share one."""


@dataclass(frozen=True)
class Rule:
    """One class of torch.optim.

    Attributes:
        initial: the state of a parameter before its first step, by torch's names.
        update: parameter, gradient, state, learning rate and group, to the new parameter and state.
    """

    initial: Callable[[torch.Tensor, Group], State]
    update: Callable[[torch.Tensor, torch.Tensor, State, torch.Tensor, Group], tuple[torch.Tensor, State]]


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(value, dtype=like.dtype)


def _sgd_initial(parameter: torch.Tensor, group: Group) -> State:
    if not group["momentum"]:
        return {}
    # A first gradient enters the buffer undamped; without dampening that is what any other does to zeros.
    state = {"momentum_buffer": torch.zeros_like(parameter)}
    return state | ({CLOCK: torch.zeros(())} if group["dampening"] else {})


def _sgd(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    if group["weight_decay"]:
        gradient = gradient + group["weight_decay"] * parameter
    new: State = {}
    if group["momentum"]:
        entering = gradient
        if group["dampening"]:
            entering = torch.where(state[CLOCK] == 0, gradient, gradient * (1 - group["dampening"]))
            new[CLOCK] = state[CLOCK] + 1
        buffer = state["momentum_buffer"] * group["momentum"] + entering
        new["momentum_buffer"] = buffer
        gradient = gradient + buffer * group["momentum"] if group["nesterov"] else buffer
    return parameter - rate.to(parameter.dtype) * gradient, new


def _adam_initial(parameter: torch.Tensor, group: Group) -> State:
    names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
    return {CLOCK: torch.zeros(())} | {name: torch.zeros_like(parameter) for name in names}


def _adam(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    decay = group["weight_decay"]
    if decay and not group["decoupled_weight_decay"]:  # that of Adam is a part of the gradient
        gradient, decay = gradient + decay * parameter, 0.0
    step = state[CLOCK] + 1
    # Powers of numbers next to 1 lose their digits in single precision.
    count = step.double()
    betas = [_number(float(beta), count) for beta in group["betas"]]
    updated = domain_ops.ApplyAdamW(
        parameter,
        state["exp_avg"],
        state["exp_avg_sq"],
        *(torch.pow(beta, count) for beta in betas),
        rate.double(),
        _number(decay, count),
        *betas,
        _number(group["eps"], count),
        gradient,
        state.get("max_exp_avg_sq"),
    )
    new = {CLOCK: step, "exp_avg": updated[1], "exp_avg_sq": updated[2]}
    return updated[0], new | ({"max_exp_avg_sq": updated[3]} if group["amsgrad"] else {})


RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.SGD: Rule(_sgd_initial, _sgd),
    torch.optim.Adam: Rule(_adam_initial, _adam),
    torch.optim.AdamW: Rule(_adam_initial, _adam),
}


@dataclass(frozen=True)
class Member:
    """A parameter that an optimizer updates: its name, its group, and its state under torch's names."""

    name: str
    group: int
    state: State


class Plan:
    """What one step of an optimizer does to the parameters of a model.

    Args:
        optimizer: of one of the classes in RULES.
        parameters: those of the model, by name.
        used: the names of the parameters that have a gradient.

    Raises:
        CaptureError: an optimizer or an option without a rule; parameters that are none of the model's.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor], used: Sequence[str]
    ) -> None:
        self._rule = rule_of(optimizer)
        self._parameters = list(parameters.values())
        self._groups = [_settings(group) for group in optimizer.param_groups]
        self.members = [
            self._member(name, group, parameter, optimizer)
            for group, name, parameter in named_parameters(optimizer, parameters)
            if name in used
        ]
        clocks = {float(member.state[CLOCK]) for member in self.members if CLOCK in member.state}
        self._one_clock = len(clocks) == 1

    def _member(self, name: str, group: int, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> Member:
        state = self._rule.initial(parameter.detach(), self._groups[group])
        reached = optimizer.state.get(parameter, {})
        for key in state:
            value = reached.get(key)
            if value is not None:
                state[key] = torch.as_tensor(value).detach().clone()
            elif key == CLOCK and reached.get("momentum_buffer") is not None:
                state[key] = torch.ones(())
        return Member(name, group, state)

    def rates(self) -> State:
        """The learning rates, by the names of the inputs."""
        double = any(tensor.dtype is torch.float64 for tensor in self._parameters)
        dtype = torch.float64 if double else torch.float32
        rates = [torch.tensor(float(group["lr"]), dtype=dtype) for group in self._groups]
        return {learning_rate_name(i, len(rates)): rate for i, rate in enumerate(rates)}

    def state_name(self, member: Member, key: str) -> str:
        """The name of the input that is a member's state."""
        return optimizer_name(key, None if key == CLOCK and self._one_clock else member.name)

    def state(self) -> State:
        """The optimizer's state, by the names of the inputs."""
        return {self.state_name(m, key): tensor for m in self.members for key, tensor in m.state.items()}

    def updated(self, values: State, gradients: State) -> State:
        """One step: from parameters, state and learning rates, to the new parameters and state, by name."""
        new: State = {}
        for member in self.members:
            group = self._groups[member.group]
            gradient = gradients[member.name]
            new[member.name], state = self._rule.update(
                values[member.name],
                -gradient if group.get("maximize") else gradient,
                {key: values[self.state_name(member, key)] for key in member.state},
                values[learning_rate_name(member.group, len(self._groups))],
                group,
            )
            new |= {self.state_name(member, key): tensor for key, tensor in state.items()}
        return new


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """The rule of an optimizer's class, or of that whose methods it inherits; CaptureError if there is none."""
    kind = type(optimizer)
    base = next((base for base in kind.__mro__ if base in RULES), None)
    if base is None:
        known = ", ".join(sorted(rule.__name__ for rule in RULES))
        raise CaptureError(f"the optimizer is a {kind.__name__}; what can be captured is {known}")
    own = sorted(name for name in dir(base) if not name.startswith("__") and _method(kind, name) != _method(base, name))
    if own:
        raise CaptureError(
            f"the optimizer is a {kind.__name__}, which has its own {', '.join(own)} in place of those of"
            f" {base.__name__}; a capture would not follow them. Pass {base.__name__} itself, or capture `gradients`"
            " alone and update the parameters outside of the graph"
        )
    return RULES[base]


def _method(kind: type[torch.optim.Optimizer], name: str) -> Any:
    """What a class has under a name, without the profiler that torch.optim puts around `step`."""
    return inspect.unwrap(getattr(kind, name)) if callable(getattr(kind, name)) else None


def named_parameters(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> Iterator[tuple[int, str, torch.Tensor]]:
    """The group, name and tensor of all that an optimizer updates; CaptureError for what is none of `parameters`."""
    names = {parameter: name for name, parameter in parameters.items()}
    for i, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                raise CaptureError(
                    f"group {i} of the {type(optimizer).__name__} has a parameter of shape"
                    f" {tuple(parameter.shape)} that is none of the model's"
                )
            yield i, names[parameter], parameter


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.item() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


def clipped(gradients: State, largest: float) -> State:
    """Gradients whose norm, all of them together, is at most `largest`, as torch.nn.utils.clip_grad_norm_ does it."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients.values()]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].dtype) for norm in norms]))
    factor = torch.clamp(largest / (total + 1e-6), max=1.0)
    return {name: gradient * factor.to(gradient.dtype) for name, gradient in gradients.items()}
