"""The update rules of torch.optim as functions of tensors.

The formulas are those of the documentation of each class of torch.optim.
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
"""The state that counts steps; all parameters share one if their counts are equal."""


@dataclass(frozen=True)
class Rule:
    """The update rule of a class of torch.optim.

    Attributes:
        initial: (parameter, group) to the state before the first step, by the keys of torch's state.
        update: (parameter, gradient, state, learning rate, group) to (new parameter, new state).
    """

    initial: Callable[[torch.Tensor, Group], State]
    update: Callable[[torch.Tensor, torch.Tensor, State, torch.Tensor, Group], tuple[torch.Tensor, State]]


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(value, dtype=like.dtype)


def _sgd_initial(parameter: torch.Tensor, group: Group) -> State:
    if not group["momentum"]:
        return {}
    # The first gradient is not dampened, so dampening needs the count of steps.
    state = {"momentum_buffer": torch.zeros_like(parameter)}
    return state | ({CLOCK: torch.zeros(())} if group["dampening"] else {})


def _sgd(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    rate = rate.double()
    decay, momentum, dampening = (
        _number(group[key], rate) if group[key] else None for key in ("weight_decay", "momentum", "dampening")
    )
    if momentum is None:
        return domain_ops.FusedSgd(parameter, gradient, rate, None, decay, None, None)[0], {}
    new: State = {}
    if dampening is not None:
        dampening = dampening * (state[CLOCK] > 0)
        new[CLOCK] = state[CLOCK] + 1
    buffer = state["momentum_buffer"]
    stepped, new["momentum_buffer"] = domain_ops.FusedSgd(
        parameter, gradient, rate, buffer, decay, momentum, dampening, nesterov=int(group["nesterov"])
    )
    return stepped, new


def _adam_initial(parameter: torch.Tensor, group: Group) -> State:
    names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
    return {CLOCK: torch.zeros(())} | {name: torch.zeros_like(parameter) for name in names}


def _adam(
    parameter: torch.Tensor, gradient: torch.Tensor, state: State, rate: torch.Tensor, group: Group
) -> tuple[torch.Tensor, State]:
    decay = group["weight_decay"]
    if decay and not group["decoupled_weight_decay"]:  # Adam adds it to the gradient
        gradient, decay = gradient + decay * parameter, 0.0
    step = state[CLOCK] + 1
    # In float32, powers of numbers close to 1 are inaccurate.
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
    """A parameter that an optimizer updates: its name, the index of its group, and its state by torch's keys."""

    name: str
    group: int
    state: State


class Plan:
    """One step of an optimizer for the parameters of a model.

    Args:
        optimizer: an instance of a class in RULES.
        parameters: the parameters of the model, by name.
        used: the names of the parameters that have a gradient.

    Raises:
        CaptureError: the optimizer has no rule, or a parameter that the model does not have.
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
        current = optimizer.state.get(parameter, {})
        for key in state:
            value = current.get(key)
            if value is not None:
                state[key] = torch.as_tensor(value).detach().clone()
            elif key == CLOCK and current.get("momentum_buffer") is not None:
                state[key] = torch.ones(())
        return Member(name, group, state)

    def rates(self) -> State:
        """The learning rates as scalars, by input; float64 if a parameter is float64, else float32."""
        double = any(tensor.dtype is torch.float64 for tensor in self._parameters)
        dtype = torch.float64 if double else torch.float32
        rates = [torch.tensor(float(group["lr"]), dtype=dtype) for group in self._groups]
        return {learning_rate_name(i, len(rates)): rate for i, rate in enumerate(rates)}

    def state_name(self, member: Member, key: str) -> str:
        """The name of the input for a key of a member's state."""
        return optimizer_name(key, None if key == CLOCK and self._one_clock else member.name)

    def state(self) -> State:
        """The optimizer's state, by the names of the inputs."""
        return {self.state_name(m, key): tensor for m in self.members for key, tensor in m.state.items()}

    def updated(self, values: State, gradients: State) -> State:
        """One step of the optimizer.

        Args:
            values: parameters, optimizer state and learning rates, by the names of the inputs.
            gradients: by the names of the parameters.

        Returns:
            The new parameters and optimizer state, by the names of the inputs.
        """
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
    """The rule of an optimizer's class, or of the base class whose methods it inherits.

    Raises:
        CaptureError: there is no rule, or the class overrides methods of the base class.
    """
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


def _method(kind: type[torch.optim.Optimizer], name: str) -> Callable[..., Any] | None:
    """A method of a class without decorators, such as torch.optim's profiler of `step`; None for another attribute."""
    return inspect.unwrap(getattr(kind, name)) if callable(getattr(kind, name)) else None


def named_parameters(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Index of the group, name and tensor of each parameter of an optimizer; CaptureError if `parameters` lacks it."""
    names = {parameter: name for name, parameter in parameters.items()}
    for i, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                raise CaptureError(
                    f"group {i} of the {type(optimizer).__name__} has a parameter of shape"
                    f" {tuple(parameter.shape)} that is none of the model's"
                )
            yield i, names[parameter], parameter


def _settings(group: Group) -> Group:
    """The options of a group as numbers."""
    return {
        key: value.item() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


def clipped(gradients: State, largest: float) -> State:
    """Gradients scaled so that their total norm is at most `largest`, as torch.nn.utils.clip_grad_norm_ does."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients.values()]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].dtype) for norm in norms]))
    factor = torch.clamp(largest / (total + 1e-6), max=1.0)
    return {name: gradient * factor.to(gradient.dtype) for name, gradient in gradients.items()}
