"""One step of optimizers for the parameters of a model, as a function of tensors by the names of a step's inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from onnx_ops.core.step_format import learning_rate_name, optimizer_name
from onnx_ops.torch.base.arrays import copied
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import as_real
from onnx_ops.torch.optimizers.arithmetic import SharedScalars
from onnx_ops.torch.optimizers.rule import CLOCK, Group, Rule, State
from onnx_ops.torch.optimizers.rules import OF_TORCH, rule_of

Optimizers: TypeAlias = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


@dataclass(frozen=True)
class ParameterGroup:
    """A group of parameters of an optimizer.

    Attributes:
        optimizer: the optimizer.
        place: the index of the group in the optimizer.
        rule: the update rule of the optimizer.
        options: those of the group, as numbers.
    """

    optimizer: torch.optim.Optimizer
    place: int
    rule: Rule
    options: Group

    def initial(self, parameter: torch.Tensor) -> State:
        """The state of a parameter before the first step.

        Raises:
            CaptureError: the rule does not return a dict of tensors by name; a complex parameter, for a rule that is
                not elementwise.
        """
        if parameter.is_complex() and not self.rule.elementwise:
            raise CaptureError(
                f"{type(self.optimizer).__name__} has a complex parameter of shape {tuple(parameter.shape)}, expected"
                " real ones: its update of an element depends on others, or is not known not to"
            )
        who = f"the initial state of {type(self.optimizer).__name__}"
        with torch.no_grad():
            state = self.rule.initial(as_real(parameter.detach()), self.options)
        if not isinstance(state, Mapping):
            raise CaptureError(f"{who} is {type(state).__name__}, expected a dict of tensors")
        for key, value in state.items():
            if not isinstance(key, str) or not key or "." in key:
                raise CaptureError(f"{who} has the key {key!r}, expected a name without dots")
            if not isinstance(value, torch.Tensor):
                raise CaptureError(f"{who} has {type(value).__name__} for '{key}', expected a tensor")
            if key in self.rule.shared and value.dim():
                raise CaptureError(
                    f"{who} has '{key}' of shape {tuple(value.shape)}, expected a scalar, as it is shared"
                )
        return {key: copied(value) for key, value in state.items()}


def groups_of(optimizers: Optimizers) -> list[ParameterGroup]:
    """The groups of one or several optimizers, in their order.

    Raises:
        CaptureError: what is no optimizer, or one without a rule; a group without a learning rate.
    """
    found = []
    for optimizer in optimizers if isinstance(optimizers, Iterable) else [optimizers]:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise CaptureError(f"the optimizer is {optimizer!r}, expected one like torch.optim.SGD(model.parameters())")
        rule = rule_of(optimizer)
        for i, group in enumerate(optimizer.param_groups):
            if "lr" not in group:
                raise CaptureError(
                    f"group {i} of the {type(optimizer).__name__} has no learning rate, expected an 'lr'"
                )
            given = group | {key: optimizer.defaults[key] for key in rule.of_defaults}
            options = {key: _number(value) for key, value in given.items() if key != "params"}
            found.append(ParameterGroup(optimizer, i, rule, options))
    return found


def _number(value: object) -> object:
    """A tensor of one element as a number, within tuples and lists too; other values unchanged."""
    if isinstance(value, tuple | list):
        return type(value)(map(_number, value))
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def named_parameters(
    groups: Sequence[ParameterGroup], parameters: Mapping[str, torch.Tensor]
) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Index of the group, name and tensor of each parameter of optimizers.

    Raises:
        CaptureError: a parameter that `parameters` lacks, or that several optimizers update.
    """
    names = {parameter: name for name, parameter in parameters.items()}
    owners: dict[str, ParameterGroup] = {}
    for i, group in enumerate(groups):
        who = f"group {group.place} of the {type(group.optimizer).__name__}"
        for parameter in group.optimizer.param_groups[group.place]["params"]:
            if parameter not in names:
                raise CaptureError(
                    f"{who} has a parameter of shape {tuple(parameter.shape)} that is none of the model's"
                )
            name = names[parameter]
            if owners.setdefault(name, group) is not group:
                raise CaptureError(f"{who} has '{name}', which another optimizer updates too, expected one of them")
            yield i, name, parameter


@dataclass(frozen=True)
class Member:
    """A parameter that is updated: its name, the index of its group, and its state by the optimizer's keys."""

    name: str
    group: int
    state: State


class Plan:
    """One step of optimizers for the parameters of a model.

    Args:
        optimizers: one, or several with different parameters.
        parameters: the parameters of the model, by name.
        used: the names of the parameters that have a gradient.

    Attributes:
        members: the parameters that the optimizers update.

    Raises:
        CaptureError: an optimizer without a rule, with a parameter that the model does not have, or with state that
            does not fit the rule.
    """

    def __init__(self, optimizers: Optimizers, parameters: Mapping[str, torch.Tensor], used: Collection[str]) -> None:
        self._parameters = list(parameters.values())
        self.groups = groups_of(optimizers)
        self.members = [
            Member(name, group, _current_state(self.groups[group], name, parameter))
            for group, name, parameter in named_parameters(self.groups, parameters)
            if name in used
        ]
        self._shared = self._shared_keys()

    def _shared_keys(self) -> set[str]:
        """The scalars with equal values for all parameters; other than the count of steps, of a single group."""
        values: dict[str, set[float]] = {}
        users: dict[str, set[int]] = {}
        unshared: set[str] = set()
        for member in self.members:
            for key, tensor in member.state.items():
                if key not in self.groups[member.group].rule.shared:
                    unshared.add(key)
                    continue
                values.setdefault(key, set()).add(float(tensor))
                users.setdefault(key, set()).add(member.group)
        return {
            key
            for key, found in values.items()
            if key not in unshared and len(found) == 1 and (key == CLOCK or len(users[key]) == 1)
        }

    def rates(self) -> State:
        """The learning rates as scalars, by input; float64 if a parameter is float64, else float32."""
        double = any(tensor.dtype in (torch.float64, torch.complex128) for tensor in self._parameters)
        dtype = torch.float64 if double else torch.float32
        rates = [torch.tensor(float(group.options["lr"]), dtype=dtype) for group in self.groups]
        return {learning_rate_name(i, len(rates)): rate for i, rate in enumerate(rates)}

    def state_name(self, member: Member, key: str) -> str:
        """The name of the input for a key of a member's state."""
        return optimizer_name(key, None if key in self._shared else member.name)

    def state(self) -> State:
        """The optimizers' state, by the names of the inputs."""
        return {self.state_name(m, key): tensor for m in self.members for key, tensor in m.state.items()}

    def updated(self, values: State, gradients: State) -> State:
        """One step of the optimizers.

        Args:
            values: parameters, optimizer state and learning rates, by the names of the inputs.
            gradients: by the names of the parameters.

        Returns:
            The new parameters and optimizer state, by the names of the inputs.

        Raises:
            CaptureError: an update that changes its arguments, or returns other names, shapes or dtypes.
        """
        new: State = {}
        shared = SharedScalars()
        for member in self.members:
            group = self.groups[member.group]
            gradient = gradients[member.name]
            with shared if group.rule in OF_TORCH.values() else contextlib.nullcontext():
                new[member.name], state = _update(
                    group,
                    member.name,
                    values[member.name],
                    -gradient if group.options.get("maximize") else gradient,
                    {key: values[self.state_name(member, key)] for key in member.state},
                    values[learning_rate_name(member.group, len(self.groups))],
                )
            new |= {self.state_name(member, key): tensor for key, tensor in state.items()}
        return new


def _current_state(group: ParameterGroup, name: str, parameter: torch.Tensor) -> State:
    """The state of a parameter in its optimizer, or before the first step; CaptureError if it does not fit the rule."""
    state = group.initial(parameter)
    current = group.optimizer.state.get(parameter, {})
    for key, initial in state.items():
        value = current.get(key)
        if value is not None:
            found = as_real(torch.as_tensor(value).detach())
            if found.shape != initial.shape or (found.dim() and found.dtype is not initial.dtype):
                raise CaptureError(
                    f"the state '{key}' of the {type(group.optimizer).__name__} for '{name}' is {_text(found)},"
                    f" expected {_text(initial)}"
                )
            state[key] = found.to(initial.dtype, copy=True)
        elif key in group.rule.internal and any(other is not None for other in current.values()):
            state[key] = torch.ones_like(initial)
    return state


def _update(
    group: ParameterGroup,
    name: str,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: State,
    rate: torch.Tensor,
) -> tuple[torch.Tensor, State]:
    """The new value and state of a parameter; CaptureError if the rule returns something else."""
    who = f"the update of {type(group.optimizer).__name__} for '{name}'"
    given = {"the parameter": parameter, "the gradient": gradient, "the learning rate": rate}
    given |= {f"the state '{key}'": tensor for key, tensor in state.items()}
    versions = {what: tensor._version for what, tensor in given.items()}
    result = group.rule.update(parameter, gradient, dict(state), rate, group.options)
    for what, tensor in given.items():
        if tensor._version != versions[what]:
            raise CaptureError(f"{who} changes {what} in place, expected that it returns a new tensor")
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise CaptureError(f"{who} returns {_kind(result)}, expected a tuple (new parameter, dict of new state)")
    stepped, new = result
    if new.keys() != state.keys():
        raise CaptureError(
            f"{who} returns the state {sorted(map(str, new))}, expected that of `initial`, {sorted(state)}"
        )
    wanted = {"the parameter": (stepped, parameter)} | {f"the state '{k}'": (new[k], old) for k, old in state.items()}
    for what, (value, like) in wanted.items():
        if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (like.shape, like.dtype):
            raise CaptureError(f"{who} returns {_kind(value)} for {what}, expected {_text(like)}")
    return stepped, dict(new)


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _kind(value: object) -> str:
    return _text(value) if isinstance(value, torch.Tensor) else type(value).__name__


def clipped(gradients: State, largest: float) -> State:
    """Gradients scaled so that their total norm is at most `largest`, as torch.nn.utils.clip_grad_norm_ does."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients.values()]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].dtype) for norm in norms]))
    factor = torch.clamp(largest / (total + 1e-6), max=1.0)
    return {name: gradient * factor.to(gradient.dtype) for name, gradient in gradients.items()}
