"""The state of a training step in PyTorch's model and optimizer, and theirs in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from onnx_ops.core.step_format import learning_rate_name, optimizer_name
from onnx_ops.torch.arrays import to_array, to_tensor
from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.optimizers import CLOCK, named_parameters, rule_of

State = Mapping[str, np.ndarray]


def load_into_torch(state: State, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Load the state of a training step into a PyTorch model and its optimizer, in place.

    Args:
        state: what `Trainer.state_dict()` returns, or `Capture.state`: arrays by the names of the step's inputs.
        model: gets parameters and buffers. Those that the step has not, such as constants, stay.
        optimizer: gets its state and learning rates; the same class, groups and options as the captured one.

    Raises:
        CaptureError: a parameter that the state lacks; an array of another shape.
    """
    for name, tensor in _named(model).items():
        if name in state:
            _fill(name, tensor, state[name])
        elif isinstance(tensor, torch.nn.Parameter):
            raise CaptureError(f"the state lacks the parameter '{name}' of the model")
    if optimizer is None:
        return
    for i, group in enumerate(optimizer.param_groups):
        group["lr"] = float(state[learning_rate_name(i, len(optimizer.param_groups))])
    for parameter, key, name in _entries(state, model, optimizer):
        if key == CLOCK and not _counts(optimizer):
            continue
        tensor = to_tensor(state[name])
        if key != CLOCK and tensor.shape != parameter.shape:
            raise CaptureError(f"'{name}' has shape {tuple(tensor.shape)}, expected {tuple(parameter.shape)}")
        optimizer.state[parameter][key] = tensor


def state_from_torch(
    state: State, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, np.ndarray]:
    """A copy of the state of a training step with PyTorch's parameters, buffers and optimizer state in it.

    `Trainer.load_state_dict` takes it.

    Args:
        state: the step's, as for `load_into_torch`; what PyTorch does not have, such as the seed, is taken from it.
        model, optimizer: as for `load_into_torch`.

    Raises:
        CaptureError: an optimizer of which no step can be captured, or with parameters that are none of the model's.
    """
    new = dict(state)
    for name, tensor in _named(model).items():
        if name in state:
            new[name] = to_array(tensor)
    if optimizer is None:
        return new
    for i, group in enumerate(optimizer.param_groups):
        rate = learning_rate_name(i, len(optimizer.param_groups))
        new[rate] = np.asarray(float(group["lr"]), state[rate].dtype)
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


def _fill(name: str, tensor: torch.Tensor, array: np.ndarray) -> None:
    if tuple(tensor.shape) != array.shape:
        raise CaptureError(f"'{name}' has shape {array.shape}, expected {tuple(tensor.shape)}")
    with torch.no_grad():
        tensor.copy_(to_tensor(array))


def _counts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether PyTorch counts steps too; SGD with dampening does not."""
    return not isinstance(optimizer, torch.optim.SGD)


def _entries(
    state: State, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[torch.Tensor, str, str]]:
    """Each piece of an optimizer's state that a step has: the parameter, torch's name for it, and the step's."""
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
