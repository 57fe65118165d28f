"""Copies the state of a training step to a PyTorch model and its optimizer, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from onnx_ops.core.step_format import learning_rate_name, optimizer_name
from onnx_ops.torch.base.arrays import to_array, to_tensor
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.optimizers import CLOCK, named_parameters, rule_of

State = Mapping[str, np.ndarray]


def load_into_torch(state: State, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Load the state of a training step into a PyTorch model and its optimizer, in place.

    Args:
        state: `Trainer.state_dict()` or `Capture.state`: arrays by the names of the step's inputs.
        model: its parameters and buffers are overwritten. Buffers that are not in `state`, such as constants, stay.
        optimizer: its state and learning rates are overwritten; class, groups and options as those of the captured one.

    Raises:
        CaptureError: the state lacks a parameter or learning rate, or has an array of another shape. Model and
            optimizer are then unchanged.
    """
    values = [(tensor, _fitting(state, name, tensor)) for name, tensor in _named(model).items() if name in state]
    for name, _ in model.named_parameters():
        if name not in state:
            raise CaptureError(f"the state lacks the parameter '{name}' of the model")
    groups = [] if optimizer is None else optimizer.param_groups
    rates = [float(_rate(state, i, len(groups))) for i in range(len(groups))]
    reached = []
    if optimizer is not None:
        for parameter, key, name in _entries(state, model, optimizer):
            if key != CLOCK:
                reached.append((parameter, key, _fitting(state, name, parameter)))
            elif _counts(optimizer):
                reached.append((parameter, key, to_tensor(state[name])))
    # Everything is checked before anything changes.
    with torch.no_grad():
        for tensor, value in values:
            tensor.copy_(value)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for parameter, key, value in reached:
        assert optimizer is not None
        optimizer.state[parameter][key] = value


def state_from_torch(
    state: State, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, np.ndarray]:
    """A copy of the state of a training step with parameters, buffers and optimizer state of PyTorch.

    Args:
        state: the state of the step, as for `load_into_torch`; entries that PyTorch does not have, such as the seed,
            are copied.
        model, optimizer: as for `load_into_torch`.

    Returns:
        Arrays by the names of the step's inputs, as `Trainer.load_state_dict` takes them.

    Raises:
        CaptureError: the optimizer cannot be captured, or has a parameter that the model does not have; the state lacks
            a learning rate.
    """
    new = dict(state)
    for name, tensor in _named(model).items():
        if name in state:
            new[name] = to_array(tensor)
    if optimizer is None:
        return new
    for i, group in enumerate(optimizer.param_groups):
        rate = _rate(state, i, len(optimizer.param_groups))
        new[learning_rate_name(i, len(optimizer.param_groups))] = np.asarray(float(group["lr"]), rate.dtype)
    for parameter, key, name in _entries(state, model, optimizer):
        reached = optimizer.state.get(parameter, {})
        if key in reached:
            new[name] = to_array(torch.as_tensor(reached[key]))
        elif key == CLOCK and not _counts(optimizer):
            new[name] = np.asarray(1.0 if reached else 0.0, state[name].dtype)
        else:
            new[name] = np.zeros_like(state[name])
    return new


def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _fitting(state: State, name: str, like: torch.Tensor) -> torch.Tensor:
    """An array of the state as a tensor; CaptureError if its shape is not that of `like`."""
    if state[name].shape != tuple(like.shape):
        raise CaptureError(f"'{name}' has shape {state[name].shape}, expected {tuple(like.shape)}")
    return to_tensor(state[name])


def _rate(state: State, group: int, groups: int) -> np.ndarray:
    """The learning rate of a group of parameters; CaptureError if the state has none."""
    name = learning_rate_name(group, groups)
    if name not in state:
        raise CaptureError(f"the state lacks '{name}', expected one learning rate for each group of the optimizer")
    return state[name]


def _counts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether PyTorch's optimizer counts steps too; SGD does not, whose captured step does with dampening."""
    return not isinstance(optimizer, torch.optim.SGD)


def _entries(
    state: State, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[torch.Tensor, str, str]]:
    """The optimizer state of a step: parameter, key in `optimizer.state[parameter]`, and name of the step's input."""
    rule = rule_of(optimizer)
    for i, parameter_name, parameter in named_parameters(optimizer, dict(model.named_parameters())):
        keys = rule.initial(parameter.detach(), optimizer.param_groups[i])
        own = {key: optimizer_name(key, parameter_name) for key in keys}
        updated = any(name in state for name in own.values())
        for key, name in own.items():
            if name in state:
                yield parameter, key, name
            elif key == CLOCK and updated and optimizer_name(CLOCK) in state:
                yield parameter, key, optimizer_name(CLOCK)
