"""Copies the state of a training step to a PyTorch model and its optimizer, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from onnx_ops.core.step_format import AVERAGED, AVERAGES_COUNT, average_name, learning_rate_name, optimizer_name
from onnx_ops.torch.base.arrays import to_array, to_tensor
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import as_like, as_real
from onnx_ops.torch.optimizers.plan import Optimizers, ParameterGroup, groups_of, named_parameters
from onnx_ops.torch.steps.averaging import averages_of
from onnx_ops.torch.steps.step import named_tensors

State = Mapping[str, np.ndarray]


def load_into_torch(
    state: State,
    model: torch.nn.Module,
    optimizer: Optimizers | None = None,
    averaged: AveragedModel | None = None,
) -> None:
    """Load the state of a training step into a PyTorch model and its optimizer, in place.

    Args:
        state: `Trainer.state_dict()` or `Capture.state`: arrays by the names of the step's inputs.
        model: its parameters and buffers are overwritten. Buffers that are not in `state`, such as constants, stay.
        optimizer: its state and learning rates are overwritten; class, groups and options as those of the captured one.
            Several in the order in which they were captured.
        averaged: its averages and their number are overwritten, and buffers that it does not average by the model's.

    Raises:
        CaptureError: the state lacks a parameter, learning rate or average, or has an array of another shape. Model,
            optimizer and averages are then unchanged.
    """
    values = [(tensor, _fitting(state, name, tensor)) for name, tensor in named_tensors(model).items() if name in state]
    if averaged is not None:
        values += [(tensor, _fitting(state, name, tensor)) for name, tensor in _averaged(state, averaged).items()]
    for name, _ in model.named_parameters():
        if name not in state:
            raise CaptureError(f"the state lacks the parameter '{name}' of the model")
    groups = [] if optimizer is None else groups_of(optimizer)
    rates = [float(_rate(state, i, len(groups))) for i in range(len(groups))]
    reached = [
        (entry, _fitting(state, entry.name, entry.initial))
        for entry in _entries(state, model, groups)
        if entry.key not in entry.group.rule.internal
    ]
    # Everything is checked before anything changes.
    with torch.no_grad():
        for tensor, value in values:
            tensor.copy_(value)
    for group, rate in zip(groups, rates, strict=True):
        group.optimizer.param_groups[group.place]["lr"] = rate
    for entry, found in reached:
        value = as_like(found, entry.parameter) if found.dim() else found
        own = entry.group.optimizer.state[entry.parameter]
        before = own.get(entry.key)
        own[entry.key] = type(before)(value.item()) if isinstance(before, int | float) else value


def state_from_torch(
    state: State,
    model: torch.nn.Module,
    optimizer: Optimizers | None = None,
    averaged: AveragedModel | None = None,
) -> dict[str, np.ndarray]:
    """A copy of the state of a training step with parameters, buffers and optimizer state of PyTorch.

    Args:
        state: the state of the step, as for `load_into_torch`; entries that PyTorch does not have, such as the seed,
            are copied.
        model, optimizer, averaged: as for `load_into_torch`.

    Returns:
        Arrays by the names of the step's inputs, as `Trainer.load_state_dict` takes them.

    Raises:
        CaptureError: the optimizer cannot be captured, or has a parameter that the model does not have; the state lacks
            a learning rate, or average, or has one number for state that differs between parameters.
    """
    new = dict(state)
    for name, tensor in named_tensors(model).items():
        if name in state:
            new[name] = to_array(tensor)
    if averaged is not None:
        averages = _averaged(state, averaged)
        new |= {name: to_array(tensor) for name, tensor in averages.items() if name.startswith(AVERAGED)}
    groups = [] if optimizer is None else groups_of(optimizer)
    for i, group in enumerate(groups):
        rate = _rate(state, i, len(groups))
        new[learning_rate_name(i, len(groups))] = np.asarray(float(group.options["lr"]), rate.dtype)
    given: dict[str, np.ndarray] = {}
    for entry in _entries(state, model, groups):
        reached = entry.group.optimizer.state.get(entry.parameter, {})
        if entry.key in entry.group.rule.internal:
            value = torch.full_like(entry.initial, 1.0 if reached else 0.0)
        else:
            value = torch.as_tensor(reached.get(entry.key, entry.initial))
        array = to_array(value).astype(state[entry.name].dtype)
        if entry.name in given and not np.array_equal(given[entry.name], array, equal_nan=True):
            raise CaptureError(
                f"'{entry.name}' of the step is the '{entry.key}' of several parameters, which has different values in"
                f" the {type(entry.group.optimizer).__name__}: {given[entry.name]} and {array}"
            )
        given[entry.name] = array
    return new | given


def _averaged(state: State, averaged: AveragedModel) -> dict[str, torch.Tensor]:
    """The tensors of an AveragedModel, by the names in a state; CaptureError if that has no averages of them.

    Buffers that are not averaged have the names of the model's.
    """
    found = {average_name(name): tensor for name, tensor in averages_of(averaged).items()}
    found[AVERAGES_COUNT] = averaged.n_averaged
    for name in found:
        if name not in state:
            raise CaptureError(f"the state lacks '{name}', an average of weights")
    buffers = {} if averaged.use_buffers else dict(averaged.module.named_buffers())
    return found | {name: tensor for name, tensor in buffers.items() if name in state}


def _fitting(state: State, name: str, like: torch.Tensor) -> torch.Tensor:
    """An array of the state as a tensor, complex where `like` is; CaptureError if its shape is not that of `like`."""
    shape = tuple(as_real(like).shape)
    if state[name].shape != shape:
        raise CaptureError(f"'{name}' has shape {state[name].shape}, expected {shape}")
    return as_like(to_tensor(state[name]), like)


def _rate(state: State, group: int, groups: int) -> np.ndarray:
    """The learning rate of a group of parameters; CaptureError if the state has none."""
    name = learning_rate_name(group, groups)
    if name not in state:
        raise CaptureError(f"the state lacks '{name}', expected one learning rate for each group of the optimizer")
    return state[name]


@dataclass(frozen=True)
class _Entry:
    """State of a parameter in an optimizer.

    Attributes:
        group: the group of the parameter.
        parameter: the parameter.
        key: the key in `optimizer.state[parameter]`.
        name: the name of the step's input.
        initial: the value before the first step.
    """

    group: ParameterGroup
    parameter: torch.Tensor
    key: str
    name: str
    initial: torch.Tensor


def _entries(state: State, model: torch.nn.Module, groups: Sequence[ParameterGroup]) -> Iterator[_Entry]:
    """The optimizer state of a step, for the parameters that it updates."""
    for i, parameter_name, parameter in named_parameters(groups, dict(model.named_parameters())):
        initial = groups[i].initial(parameter)
        own = {key: optimizer_name(key, parameter_name) for key in initial}
        updated = any(name in state for name in own.values()) or initial.keys() <= groups[i].rule.shared
        for key, name in own.items():
            if name in state:
                yield _Entry(groups[i], parameter, key, name, initial[key])
            elif key in groups[i].rule.shared and updated and optimizer_name(key) in state:
                yield _Entry(groups[i], parameter, key, optimizer_name(key), initial[key])
